"""Codex rollouts: model calls from items, compaction, rollback, tools of every kind."""

from __future__ import annotations

from typing import Any

import pytest

from toktier_stream.client.transcripts import codex
from toktier_stream.client.transcripts.model import Format, Transcript, turns

META = {"type": "session_meta", "payload": {"base_instructions": {"text": "be brief"}}}


def item(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": "response_item", "payload": {"type": kind, **fields}}


def said(role: str, text: str) -> dict[str, Any]:
    return item("message", role=role, content=[{"type": "input_text", "text": text}])


def calls(*records: dict[str, Any]) -> list[list[Any]]:
    made, notes = codex.read([META, *records])
    assert notes == []
    return list(turns(Transcript("t", Format.CODEX, made)))


def shape(messages: list[Any]) -> list[tuple[str, str]]:
    return [(m["role"], m["content"]) for m in messages]


def test_items_of_one_call_are_one_answer() -> None:
    """Reasoning, text and parallel calls up to the first output; events are no messages."""
    got = calls(
        said("user", "hi"),
        item("reasoning", summary=[{"type": "summary_text", "text": "hm"}], content=None),
        {"type": "event_msg", "payload": {"type": "agent_message", "message": "look"}},
        said("assistant", "look"),
        item("function_call", name="sh", arguments='{"c":1}', call_id="1"),
        item("function_call", name="sh", arguments='{"c":2}', call_id="2"),
        item("function_call_output", call_id="1", output="one"),
        item("function_call_output", call_id="2", output=[{"type": "t", "text": "two"}]),
        said("assistant", "done"),
    )
    assert [len(call) for call in got] == [2, 5, 6]
    answer = got[1][2]
    assert answer["reasoning_content"] == "hm"
    assert [c["function"]["arguments"] for c in answer["tool_calls"]] == ['{"c":1}', '{"c":2}']
    assert shape(got[-1])[3:] == [("tool", "one"), ("tool", "two"), ("assistant", "done")]
    assert [m["tool_call_id"] for m in got[-1][3:5]] == ["1", "2"]


@pytest.mark.parametrize(
    ("record", "name", "arguments"),
    [
        (item("custom_tool_call", call_id="1", name="patch", input="*"), "patch", '{"input": "*"}'),
        (
            item("local_shell_call", call_id="1", action={"command": ["ls"]}),
            "local_shell",
            '{"command": ["ls"]}',
        ),
        (item("web_search_call", id="1", action={"query": "é"}), "web_search", '{"query": "é"}'),
    ],
)
def test_other_tools_are_calls_too(record: dict[str, Any], name: str, arguments: str) -> None:
    """Each kind of tool ends in the common form."""
    function = calls(said("user", "hi"), record)[-1][-1]["tool_calls"][0]["function"]
    assert function == {"name": name, "arguments": arguments}


def test_an_output_may_be_an_object() -> None:
    """Its content where it has one, else the object as JSON."""
    got = calls(
        said("user", "hi"),
        item("function_call_output", call_id="1", output={"content": "text", "success": True}),
        item("function_call_output", call_id="2", output={"ok": True}),
    )
    assert shape(got[-1])[-2:] == [("tool", "text"), ("tool", '{"ok": true}')]


def test_a_compaction_replaces_the_history() -> None:
    """By the logged list; the instructions stay in front."""
    compacted = {
        "type": "compacted",
        "payload": {
            "message": "summary",
            "replacement_history": [said("user", "kept")["payload"]],
        },
    }
    made, _ = codex.read(
        [META, said("user", "hi"), said("assistant", "a"), compacted, said("user", "next")]
    )
    assert [turn.keep for turn in made] == [0, 1]
    assert shape(list(made[-1].messages)) == [("user", "kept"), ("user", "next")]


def test_an_older_compaction_leaves_a_summary() -> None:
    """Without a list the summary is what remains."""
    got = calls(
        said("user", "hi"),
        said("assistant", "a"),
        {"type": "compacted", "payload": {"message": "summary"}},
        said("assistant", "b"),
    )
    assert shape(got[-1]) == [("system", "be brief"), ("user", "summary"), ("assistant", "b")]


def test_a_rollback_takes_turns_back() -> None:
    """The last message of the person and all that followed it are gone."""
    got = calls(
        said("user", "one"),
        said("assistant", "1"),
        said("user", "two"),
        said("assistant", "2"),
        {"type": "event_msg", "payload": {"type": "thread_rolled_back", "num_turns": 1}},
        said("user", "three"),
        said("assistant", "3"),
    )
    assert [c for _, c in shape(got[-1])] == ["be brief", "one", "1", "three", "3"]


def test_a_resumed_session_has_its_instructions_once() -> None:
    """The meta record is written again on resume."""
    got = calls(said("user", "hi"), META, said("user", "ho"))
    assert [role for role, _ in shape(got[-1])] == ["system", "user", "user"]


def test_unknown_items_are_noted() -> None:
    """By type and count: a newer log loses nothing in silence."""
    _, notes = codex.read([META, said("user", "x"), item("hologram"), item("hologram"), {"a": 1}])
    assert notes == ["2 items of unknown type hologram", "1 items of unknown type record"]
