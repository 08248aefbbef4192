"""Claude Code logs: streamed blocks, parallel tools, branches, compaction, side conversations."""

from __future__ import annotations

from typing import Any

from toktier_stream.client.transcripts import claude_code
from toktier_stream.client.transcripts.model import Format, Transcript, turns


class Log:
    """Writes records as the tool does, each linked to the one before it."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self.last: str | None = None

    def add(self, kind: str, message: Any = None, **fields: Any) -> str:
        uuid = f"u{len(self.records)}"
        record = {"type": kind, "uuid": uuid, "parentUuid": self.last, "sessionId": "s"}
        if message is not None:
            record["message"] = message
        self.records.append(record | fields)
        self.last = uuid
        return uuid

    def user(self, content: Any, **fields: Any) -> str:
        return self.add("user", {"role": "user", "content": content}, **fields)

    def result(self, identity: str, content: Any, **fields: Any) -> str:
        block = {"type": "tool_result", "tool_use_id": identity, "content": content}
        return self.user([block], **fields)

    def answer(self, identity: str, *blocks: dict[str, Any], **fields: Any) -> str:
        message = {"role": "assistant", "id": identity, "content": list(blocks)}
        return self.add("assistant", message, **fields)

    def calls(self) -> list[list[Any]]:
        made, notes = claude_code.read(self.records)
        assert notes == []
        return list(turns(Transcript("t", Format.CLAUDE_CODE, made)))


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def use(identity: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": identity, "name": "Bash", "input": arguments}


def shape(messages: list[Any]) -> list[tuple[str, str]]:
    return [(m["role"], m["content"]) for m in messages]


def test_blocks_of_one_answer_are_merged() -> None:
    """Thinking, text and a call in three records are one message, and one model call."""
    log = Log()
    log.user("hi")
    log.answer("m1", {"type": "thinking", "thinking": "hm", "signature": "x"})
    log.answer("m1", text("look"))
    log.answer("m1", use("t1", command="ls é"))
    log.result("t1", "a\nb")
    log.answer("m2", text("done"))
    got = log.calls()
    assert [len(call) for call in got] == [1, 3, 4]
    assert got[1][1] == {
        "role": "assistant",
        "content": "look",
        "reasoning_content": "hm",
        "tool_calls": [
            {
                "id": "t1",
                "type": "function",
                "function": {"name": "Bash", "arguments": '{"command": "ls é"}'},
            }
        ],
    }
    assert got[1][2] == {"role": "tool", "content": "a\nb", "tool_call_id": "t1"}


def test_repeated_records_of_a_stream_change_nothing() -> None:
    """A block logged again, grown, or replayed under its own uuid counts once."""
    log = Log()
    log.user("hi")
    log.answer("m1", text("lo"))
    log.answer("m1", text("look"))
    log.answer("m1", text("look"), use("t1"))
    log.answer("m1", use("t1", command="ls"))
    log.records += log.records[-2:]
    got = log.calls()
    assert shape(got[-1]) == [("user", "hi"), ("assistant", "look")]
    assert [c["function"]["arguments"] for c in got[-1][1]["tool_calls"]] == ['{"command": "ls"}']


def test_results_of_parallel_calls_all_stay() -> None:
    """They hang side by side on the answer, which is no branch of the conversation."""
    log = Log()
    log.user("hi")
    first = log.answer("m1", use("t1"))
    second = log.answer("m1", use("t2"))
    log.result("t1", "one", parentUuid=first)
    third = log.result("t2", "two", parentUuid=second)
    log.user("and?", parentUuid=third)
    assert [c for _, c in shape(log.calls()[-1])] == ["hi", "", "one", "two", "and?"]
    log.records[-1]["parentUuid"] = log.records[-3]["uuid"]
    assert [c for _, c in shape(log.calls()[-1])] == ["hi", "", "one", "two", "and?"]


def test_results_between_the_blocks_of_an_answer_do_not_split_it() -> None:
    """A tool that ran while the answer was still streaming."""
    log = Log()
    log.user("hi")
    log.answer("m1", use("t1"))
    log.result("t1", "one")
    log.answer("m1", use("t2"))
    log.result("t2", "two")
    log.answer("m2", text("done"))
    got = log.calls()
    assert [len(call) for call in got] == [1, 4, 5]
    assert [c["id"] for c in got[1][1]["tool_calls"]] == ["t1", "t2"]


def test_a_prompt_on_an_earlier_record_rewinds() -> None:
    """Going back to an earlier prompt forgets the branch that was left."""
    log = Log()
    log.user("one")
    answered = log.answer("m1", text("1"))
    log.user("two")
    log.answer("m2", text("2"))
    log.user("other", parentUuid=answered)
    log.answer("m3", text("3"))
    made, _ = claude_code.read(log.records)
    assert [turn.keep for turn in made] == [0, 1, 2, 3]
    assert [c for _, c in shape(log.calls()[-1])] == ["one", "1", "other", "3"]


def test_a_compaction_starts_over_with_the_summary() -> None:
    """What stood before the boundary is gone from the next call."""
    log = Log()
    log.user("one")
    log.answer("m1", text("1"))
    log.add("system", subtype="compact_boundary", parentUuid=None)
    log.user("summary", isCompactSummary=True)
    log.answer("m2", text("2"))
    assert shape(log.calls()[-1]) == [("user", "summary"), ("assistant", "2")]


def test_side_conversations_are_left_out_and_counted() -> None:
    """A subagent's records within the main log; but a log of nothing else is read."""
    log = Log()
    log.user("one")
    log.user("sub", isSidechain=True)
    log.answer("s1", text("sub answer"), isSidechain=True)
    log.answer("m1", text("1"))
    made, notes = claude_code.read(log.records)
    assert notes == ["2 records of side conversations"]
    assert shape(list(made[0].messages)) == [("user", "one")]
    made, notes = claude_code.read([r for r in log.records if r.get("isSidechain")])
    assert notes == []
    assert shape(list(made[0].messages)) == [("user", "sub")]


def test_bookkeeping_and_failed_calls_are_no_messages() -> None:
    """Titles, modes, hooks and the tool's own error texts never were in a prompt."""
    log = Log()
    log.add("ai-title", aiTitle="x")
    log.user("one")
    log.add("system", subtype="turn_duration", durationMs=1)
    log.answer("e1", text("API Error"), isApiErrorMessage=True)
    log.answer("m1", text("1"))
    assert shape(log.calls()[-1]) == [("user", "one"), ("assistant", "1")]


def test_text_beside_a_result_follows_it() -> None:
    """A reminder that came in one record with a result is a message after it."""
    log = Log()
    log.user([text("a"), {"type": "image", "source": {}}])
    log.answer("m1", use("t1"))
    block = {"type": "tool_result", "tool_use_id": "t1", "content": [text("out")]}
    log.user([block, text("note")])
    assert shape(log.calls()[-1])[2:] == [("tool", "out"), ("user", "note")]
    assert log.calls()[0][0]["content"] == "a\n[image]"
