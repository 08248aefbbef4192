"""SWE-agent trajectories: histories, tool calls, and the exact queries of newer files."""

from __future__ import annotations

from typing import Any

from toktier_stream.client.transcripts import swe_agent
from toktier_stream.client.transcripts.model import Format, Transcript, turns

HISTORY: list[dict[str, Any]] = [
    {"role": "system", "content": "s", "agent": "main", "message_type": "system_prompt"},
    {"role": "user", "content": "task", "agent": "main", "is_demo": True},
    {
        "role": "assistant",
        "content": "look",
        "thought": "look",
        "action": "ls",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
        ],
    },
    {"role": "tool", "content": [{"type": "text", "text": "a b"}], "tool_call_ids": ["c1"]},
]


def calls(document: dict[str, Any]) -> list[list[Any]]:
    made, notes = swe_agent.read(document)
    assert notes == []
    return list(turns(Transcript("t", Format.SWE_AGENT, made)))


def test_the_history_becomes_calls() -> None:
    """One call with system and task, then all; fields that the model never saw are gone."""
    first, last = calls({"history": HISTORY})
    assert first == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "task"},
    ]
    assert last[2]["tool_calls"][0]["function"] == {"name": "ls", "arguments": "{}"}
    assert last[2].keys() == {"role", "content", "tool_calls"}
    assert last[3] == {"role": "tool", "content": "a b", "tool_call_id": "c1"}


def test_queries_are_followed_where_they_are_logged() -> None:
    """A processor that shortens an old observation rewrites history: an edit, not an append."""
    shortened = [*HISTORY[:3], {**HISTORY[3], "content": "(omitted)"}]
    again = [{"role": "assistant", "content": "done"}]
    document = {
        "history": HISTORY + again,
        "trajectory": [{"query": HISTORY[:2]}, {"query": HISTORY}, {"query": shortened}],
    }
    made, _ = swe_agent.read(document)
    assert [turn.keep for turn in made] == [0, 2, 3, 3]
    assert [call[-1]["content"] for call in calls(document)] == ["task", "a b", "(omitted)", "done"]


def test_thinking_blocks_are_reasoning() -> None:
    """What a reasoning model thought is kept apart from what it said."""
    entry = {
        "role": "assistant",
        "content": "x",
        "thinking_blocks": [{"type": "thinking", "thinking": "hm"}],
    }
    assert calls({"history": [*HISTORY[:2], entry]})[-1][-1] == {
        "role": "assistant",
        "content": "x",
        "reasoning_content": "hm",
    }


def test_entries_that_are_no_messages_are_noted() -> None:
    """They are left out by number."""
    _, notes = swe_agent.read({"history": [*HISTORY[:2], "what", {"content": "no role"}]})
    assert notes == ["entry 2 of the history is no message", "entry 3 of the history is no message"]
