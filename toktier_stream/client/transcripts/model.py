"""What a transcript is here: messages, and how each model call's list grew from the one before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

Message = Mapping[str, Any]
"""``role`` and ``content`` (a string), and where there is any: ``reasoning_content`` (a string),
``tool_calls`` (``[{"id", "type": "function", "function": {"name", "arguments"}}]``, the arguments
a JSON text as the model wrote it), ``tool_call_id`` (on the results, role ``tool``)."""


class Format(StrEnum):
    """The formats that are read, and ``generated`` for what the benchmarks make."""

    SWE_AGENT = "swe-agent"
    CLAUDE_CODE = "claude-code"
    CODEX = "codex"
    MESSAGES = "messages"
    GENERATED = "generated"


@dataclass(frozen=True, slots=True)
class Turn:
    """One model call's message list as a change: the previous list's first ``keep`` messages,
    then ``messages``. ``keep`` is less than all of them where the tool rewound or compacted."""

    keep: int
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Transcript:
    """A whole transcript. ``notes`` says in words what was left out while reading, without text
    of the transcript: an unfinished last line, side conversations, damaged characters."""

    name: str
    format: Format
    turns: tuple[Turn, ...]
    notes: tuple[str, ...] = ()


def turns(transcript: Transcript) -> Iterator[list[Message]]:
    """The message list of each model call in order, as an agent platform would send it; the last
    one is the whole conversation, with the final answer. Each list is the caller's own."""
    current: list[Message] = []
    for turn in transcript.turns:
        del current[turn.keep :]
        current.extend(turn.messages)
        yield list(current)


class Growth:
    """Collects a log's messages into turns. Not shared, not kept: a reader's working state.

    A turn ends where the next model call begins, which is where a message of role ``assistant``
    is added: what stands before it is what that call was sent.
    """

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._turns: list[tuple[int, list[dict[str, Any]]]] = []
        self._sent = 0  # messages of the previous turn
        self._kept = 0  # how many of them this one still has

    def add(self, message: dict[str, Any]) -> None:
        """The next message; an assistant's ends the turn before it."""
        if message["role"] == "assistant":
            self._cut()
        self.messages.append(message)

    def rewind(self, keep: int) -> None:
        """Forget all but the first ``keep`` messages: a rewind, or a compaction before its
        summary is added."""
        del self.messages[keep:]
        self._kept = min(self._kept, keep)

    def replace(self, messages: Sequence[dict[str, Any]]) -> None:
        """Make this the whole list and end the turn: for logs that hold every call's list."""
        shared = 0
        for old, new in zip(self.messages, messages, strict=False):
            if old != new:
                break
            shared += 1
        self.rewind(shared)
        self.messages.extend(messages[shared:])
        self._cut()

    def finish(self) -> tuple[Turn, ...]:
        """The turns. Messages may be extended in place until this is called."""
        self._cut()
        return tuple(Turn(keep, tuple(messages)) for keep, messages in self._turns)

    def _cut(self) -> None:
        if self.messages and not self._kept == self._sent == len(self.messages):
            self._turns.append((self._kept, self.messages[self._kept :]))
            self._kept = self._sent = len(self.messages)
