"""Reads Claude Code session logs (``<session>.jsonl``): one record a line, linked by uuids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toktier_stream.client.transcripts.model import Growth, Turn
from toktier_stream.client.transcripts.values import content_text, tool_call


def recognizes(record: Any) -> bool:
    """Whether a line's record is of this format."""
    if not isinstance(record, dict) or not isinstance(record.get("type"), str):
        return False
    return "sessionId" in record or (record["type"] == "summary" and "leafUuid" in record)


def read(records: Sequence[Any]) -> tuple[tuple[Turn, ...], list[str]]:
    """The turns, and notes.

    A log holds one record for each content block of an answer while it streams (all with the
    answer's message id), bookkeeping of many kinds, conversations of subagents
    (``isSidechain``), and every branch of a conversation that was rewound.
    """
    spoken = [r for r in records if isinstance(r, dict) and r.get("type") in _SPEAKERS]
    side = [r for r in spoken if r.get("isSidechain")]
    notes = []
    if side and len(side) < len(spoken):  # a subagent's own log is all side conversation
        notes.append(f"{len(side)} records of side conversations")
        dropped = {id(record) for record in side}
        records = [r for r in records if id(r) not in dropped]
    log = _Log()
    for record in records:
        if isinstance(record, dict):
            log.record(record)
    return log.growth.finish(), notes


_SPEAKERS = frozenset({"user", "assistant"})


class _Log:
    """The state of reading one log."""

    def __init__(self) -> None:
        self.growth = Growth()
        self._answers: dict[str, _Answer] = {}
        self._after: dict[str, int] = {}  # uuid of a record -> messages there were after it

    def record(self, record: Mapping[str, Any]) -> None:
        uuid = record.get("uuid")
        if isinstance(uuid, str) and uuid in self._after:
            return  # replayed
        message = record.get("message")
        if record.get("type") == "system" and record.get("subtype") == "compact_boundary":
            self.growth.rewind(0)
        elif isinstance(message, dict) and not record.get("isApiErrorMessage"):
            if record.get("type") == "user":
                self._user(record, message.get("content"))
            elif record.get("type") == "assistant":
                self._assistant(str(message.get("id") or uuid), message.get("content"))
        if isinstance(uuid, str):
            self._after[uuid] = len(self.growth.messages)

    def _user(self, record: Mapping[str, Any], content: Any) -> None:
        blocks = content if isinstance(content, list) else []
        results = [b for b in blocks if isinstance(b, dict) and b.get("type") == "tool_result"]
        rest = [b for b in blocks if b not in results]
        if not results:
            self._branch(record.get("parentUuid"))
        for block in results:
            self.growth.add(
                {
                    "role": "tool",
                    "content": content_text(block.get("content")),
                    "tool_call_id": str(block.get("tool_use_id") or ""),
                }
            )
        if rest or isinstance(content, str):
            self.growth.add({"role": "user", "content": content_text(rest or content)})

    def _branch(self, parent: Any) -> None:
        """A prompt that follows an earlier record than the last one: the rest was rewound.

        Results of parallel tool calls hang on the answer side by side, so the ones that follow
        the parent stay.
        """
        messages = self.growth.messages
        keep = self._after.get(parent, len(messages)) if isinstance(parent, str) else len(messages)
        while keep < len(messages) and messages[keep]["role"] == "tool":
            keep += 1
        if keep < len(messages):
            self.growth.rewind(keep)

    def _assistant(self, identity: str, content: Any) -> None:
        answer = self._answers.get(identity)
        if answer is None:
            answer = self._answers[identity] = _Answer()
            self.growth.add(answer.message)
        blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
        for block in blocks:
            if isinstance(block, dict):
                answer.merge(block)


class _Answer:
    """One answer of the model, merged from the records that carry its id."""

    def __init__(self) -> None:
        self.message: dict[str, Any] = {"role": "assistant", "content": ""}
        self._texts: list[str] = []
        self._thoughts: list[str] = []

    def merge(self, block: Mapping[str, Any]) -> None:
        kind = block.get("type")
        if kind == "text" and _grow(self._texts, block.get("text")):
            self.message["content"] = "\n".join(self._texts)
        elif kind == "thinking" and _grow(self._thoughts, block.get("thinking")):
            self.message["reasoning_content"] = "\n".join(self._thoughts)
        elif kind in ("tool_use", "server_tool_use"):
            call = tool_call(block.get("id"), block.get("name"), block.get("input"))
            calls = self.message.setdefault("tool_calls", [])
            for i, known in enumerate(calls):
                if known["id"] == call["id"]:
                    calls[i] = call
                    return
            calls.append(call)


def _grow(texts: list[str], text: Any) -> bool:
    """Take a text in, unless it is there; one that continues the last replaces it."""
    if not isinstance(text, str) or not text or text in texts:
        return False
    if texts and text.startswith(texts[-1]):
        texts[-1] = text
    else:
        texts.append(text)
    return True
