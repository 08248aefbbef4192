"""Plain message lists: what is kept, what is noted."""

from __future__ import annotations

from toktier_stream.client.transcripts import messages
from toktier_stream.client.transcripts.model import Format, Transcript, turns


def test_the_fields_of_a_message_are_kept() -> None:
    """Reasoning, calls in both spellings, and the ids that join calls and results."""
    entries = [
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "1", "function": {"name": "f", "arguments": {"a": 1}}},
                {"name": "g", "arguments": "{}"},
            ],
        },
        {"role": "tool", "content": "out", "tool_call_id": "1"},
        "no message",
    ]
    made, notes = messages.read(entries)
    assert notes == ["entry 3 is no message"]
    first, last = turns(Transcript("t", Format.MESSAGES, made))
    assert first == [{"role": "user", "content": "hi"}]
    assert last[1]["content"] == ""
    assert last[1]["reasoning_content"] == "hm"
    assert [c["function"] for c in last[1]["tool_calls"]] == [
        {"name": "f", "arguments": '{"a": 1}'},
        {"name": "g", "arguments": "{}"},
    ]
    assert last[2]["tool_call_id"] == "1"
