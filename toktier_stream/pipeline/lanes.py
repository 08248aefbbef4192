"""Order within a session, freedom between sessions: what waits for a full text, and behind it.

A step is something to do for one session: apply an event, or answer a refused one. Steps of one
session happen in the order of their records. A step whose text is being encoded elsewhere waits,
and the session's later steps behind it; other sessions' steps do not. The records of a waiting step
stay unanswered offsets, so a restart reads them again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from toktier_stream.pipeline.batcher import Miss, outcome
from toktier_stream.pipeline.offsets import AnsweredOffsets
from toktier_stream.session.prepared import Prepared
from toktier_stream.wire.messages import AppendEvent

W = TypeVar("W")


@dataclass(slots=True, eq=False)
class Step(Generic[W]):
    """One step. ``offsets`` (ascending, one at least) are of the records that it answers, ``size``
    is the bytes they hold."""

    session_id: str
    offsets: tuple[int, ...]
    size: int
    run: Callable[[W, Miss | None, Prepared | None], None]
    """Do it, within a batch; the miss and its outcome where the text was encoded ahead."""
    event: AppendEvent | None = None
    """The event to be applied, if it is that: its full text may be encoded ahead."""
    miss: Miss | None = None


class Lanes(Generic[W]):
    """The waiting steps of one partition. Used by one thread at a time."""

    def __init__(
        self,
        answered: AnsweredOffsets,
        defer: Callable[[W, Step[W]], Miss | None],
    ) -> None:
        """``defer`` hands a step's text to the batcher, if it has one that should go there and
        the batcher takes it; it returns the miss, or None if the step is to be run now."""
        self._answered = answered
        self._defer = defer
        self._lines: dict[str, deque[Step[W]]] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return sum(len(line) for line in self._lines.values())

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._lines

    def take(self, work: W, step: Step[W]) -> None:
        """Run the step, now or when its turn has come."""
        line = self._lines.get(step.session_id)
        if line is None:
            step.miss = self._defer(work, step)
            if step.miss is None:
                self._run(work, step, None)
                return
            line = self._lines[step.session_id] = deque()
        line.append(step)
        self.bytes += step.size

    def ready(self, work: W, session_id: str, miss: Miss) -> None:
        """A text came back: run its step, and those behind it as far as they need not wait."""
        line = self._lines.get(session_id)
        if line is None or line[0].miss is not miss:
            return  # it was not waited for: see finish_oldest
        self._advance(work, session_id, line, outcome(miss))

    def oldest(self) -> int | None:
        """The lowest offset that waits: where a replay must begin."""
        return min(map(_oldest, self._lines.values()), default=None)

    def finish_oldest(self, work: W) -> None:
        """Run the first step of the line that holds the lowest offset, here and now, whatever
        becomes of its miss."""
        session_id, line = min(self._lines.items(), key=lambda item: _oldest(item[1]))
        self._advance(work, session_id, line, None)

    def _advance(
        self, work: W, session_id: str, line: deque[Step[W]], prepared: Prepared | None
    ) -> None:
        step = line.popleft()
        self.bytes -= step.size
        self._run(work, step, prepared)
        while line:
            line[0].miss = self._defer(work, line[0])
            if line[0].miss is not None:
                return
            step = line.popleft()
            self.bytes -= step.size
            self._run(work, step, None)
        del self._lines[session_id]

    def _run(self, work: W, step: Step[W], prepared: Prepared | None) -> None:
        step.run(work, step.miss, prepared)
        for offset in step.offsets:
            self._answered.add(offset)


def _oldest(line: deque[Step[W]]) -> int:
    return min(step.offsets[0] for step in line)
