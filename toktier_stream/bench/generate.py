"""Generated agent sessions: no two alike, the same for the same seed, sized as measured ones.

Sizes follow the paper's measurements (sections 2.3, 5.5 and appendix C): appends have a median of
1.4 K characters, a P90 of 10 K, a P99 of 38 K, and 0.8 % and 0.5 % reach 50 K and 100 K; a
person's instruction fans out into a few to dozens of model calls.
"""

from __future__ import annotations

import bisect
import itertools
import json
import math
from collections.abc import Iterator
from random import Random
from typing import Any, Final

from toktier_stream.bench.prose import Prose
from toktier_stream.bench.workspace import Workspace
from toktier_stream.client.transcripts import Format, Message, Transcript, Turn, render

# Quantiles of the append in characters, interpolated log-linearly in between.
_QUANTILES: Final = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.992, 0.995, 1.0)
_CHARS: Final = (90, 280, 600, 1400, 4000, 10_500, 18_000, 38_000, 50_000, 100_000, 180_000)

_LEAST: Final = 400  # below it an append has no room for a tool's output worth the name
_CALLS_PER_PROMPT: Final = 9
_CALL_CHARS: Final = 200  # what a call's markers, name and arguments take


def append_chars(rng: Random) -> int:
    """Draws the size of one append, in characters."""
    u = rng.random()
    i = bisect.bisect_right(_QUANTILES, u) - 1
    low, high = _QUANTILES[i], _QUANTILES[i + 1]
    share = (u - low) / (high - low)
    return round(math.exp((1 - share) * math.log(_CHARS[i]) + share * math.log(_CHARS[i + 1])))


def generate_session(seed: int, turns: int, *, compact_above: int | None = None) -> Transcript:
    """A session of ``turns`` model calls; the first has the system prompt and the task.

    ``compact_above``: when the rendered conversation passes this many characters, the next call
    starts over from a summary, as agents do at the end of their context.
    """
    writer = _Writer(seed)
    made: list[Turn] = []
    held = size = 0  # messages and characters of the conversation as the next call gets it
    for messages in itertools.islice(writer.appends(), turns):
        keep = held
        if compact_above is not None and size > compact_above:
            keep, size = 1, 0
            messages = (writer.summary(),)
        made.append(Turn(keep, messages))
        held = keep + len(messages)
        size += len(render(messages))
    return Transcript(f"generated-{seed}", Format.GENERATED, tuple(made))


def generate_appends(seed: int) -> Iterator[str]:
    """The same session without an end, as the texts that each call adds (ChatML); the first is
    the system prompt with the task."""
    for messages in _Writer(seed).appends():
        yield render(messages)


def generate_context(seed: int, chars: int) -> str:
    """A whole context of exactly ``chars`` characters: the session's texts up to there."""
    parts: list[str] = []
    size = 0
    for text in generate_appends(seed):
        if size >= chars:
            break
        parts.append(text)
        size += len(text)
    return "".join(parts)[:chars]


class _Writer:
    """Writes one session's messages, call after call."""

    def __init__(self, seed: int) -> None:
        self._rng = Random(f"toktier-stream session {seed}")
        self._p = Prose(self._rng)
        self._workspace = Workspace(self._p)
        self._calls = 0

    def appends(self) -> Iterator[tuple[Message, ...]]:
        """What each call adds, without end."""
        yield self._opening()
        while True:
            chars = append_chars(self._rng)
            yield self._step(chars) if chars >= _LEAST else self._short(chars)

    def summary(self) -> Message:
        """What stands for a compacted conversation."""
        return _user(f"Summary of the conversation so far:\n\n{self._p.sentences(6000)}")

    def _opening(self) -> tuple[Message, ...]:
        p = self._p
        tools = "\n".join(json.dumps(t, ensure_ascii=False) for t in self._workspace.schemas())
        rules = "\n".join(f"- {p.sentence()}" for _ in range(30 + p.number(60)))
        system = (
            f"You are a coding agent. {p.sentences(800)}\n\n# Rules\n{rules}\n\n# Tools\n{tools}"
        )
        return {"role": "system", "content": system}, _user(self._task(200 + p.number(2500)))

    def _task(self, chars: int) -> str:
        text = self._p.sentences(chars)
        return f"{text}\n{self._p.foreign()}" if self._p.chance(0.15) else text

    def _step(self, chars: int) -> tuple[Message, ...]:
        """An answer with a tool's output, or at the end of a task the last answer and a prompt."""
        if chars < 8000 and self._p.chance(1 / _CALLS_PER_PROMPT):
            answer = {"role": "assistant", "content": self._p.sentences(chars // 2)}
            return answer, _user(self._task(max(20, chars - len(render([answer])) - 40)))
        answer = self._answer(chars)
        budget = max(0, chars - len(render([answer])) - _CALL_CHARS)
        edits = chars < 6000 and self._p.chance(0.2)
        used = self._workspace.edit(budget) if edits else self._workspace.use(budget)
        self._calls += 1
        identity = f"call_{self._calls}_{self._p.hexadecimal(12)}"
        function = {"name": used.name, "arguments": used.arguments}
        call = {"id": identity, "type": "function", "function": function}
        return (
            answer | {"tool_calls": [call]},
            {"role": "tool", "content": used.output, "tool_call_id": identity},
        )

    def _answer(self, chars: int) -> dict[str, Any]:
        p = self._p
        answer: dict[str, Any] = {"role": "assistant", "content": ""}
        if p.chance(0.5):
            answer["reasoning_content"] = p.sentences(min(chars // 6, 1200))
        if p.chance(0.8):
            answer["content"] = p.sentences(min(chars // 10, 400))
        return answer

    def _short(self, chars: int) -> tuple[Message, ...]:
        """Few words from each side: what the smallest appends are."""
        question = _user(self._p.pick(("yes", "go on", "ok 👍", "continue", "да", "好")))
        room = max(2, chars - len(render(({"role": "assistant", "content": ""}, question))))
        return {"role": "assistant", "content": self._p.sentences(room)[:room]}, question


def _user(text: str) -> Message:
    return {"role": "user", "content": text}
