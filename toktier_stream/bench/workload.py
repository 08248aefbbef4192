"""A fleet's requests: who asks when, with how much text, calibrated to the paper's measurements.

Sizes (sections 2.3, 5.5 and appendices B to D of the paper): appends have a median of 1.4 K
characters, a P90 of 10 K and a P99 of 38 K (:func:`toktier_stream.bench.generate.append_chars`);
2.3 % of the requests carry a full context of 10^4 to 10^6 tokens, 117 K in the mean. A person's
instruction fans out into 4 calls at the median, 30 at P90 and 95 at P99; pauses between
instructions have a median of 5 minutes.

The schedule is made before anything is sent (an open loop): a request has its time whether or not
the one before it is answered.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Final, Literal

from toktier_stream.bench.generate import append_chars
from toktier_stream.errors import Code, ToktierError

FULL_SHARE: Final = 0.023
MEDIAN_TOKENS: Final = 86_000
MEAN_TOKENS: Final = 117_000
LEAST_TOKENS: Final = 10_000
MOST_TOKENS: Final = 1_000_000

# The spread of a log-normal distribution with that median and mean.
_SIGMA: Final = math.sqrt(2 * math.log(MEAN_TOKENS / MEDIAN_TOKENS))

_PAUSE_S: Final = 300.0  # median; the paper has 3.6 to 6.4 minutes
_PAUSE_SIGMA: Final = 1.6  # 42 to 55 % beyond five minutes, a few beyond an hour
_STEP_S: Final = 8.0  # median between two calls of one instruction
_STEP_SIGMA: Final = 1.0
_CALLS: Final = ((0.0, 1), (0.5, 4), (0.9, 30), (0.99, 95), (1.0, 150))

Shape = Literal["poisson", "turns", "recorded"]


@dataclass(frozen=True, slots=True)
class Request:
    """One request: when (seconds from the start), whose, and the text as a slice of the pool."""

    at: float
    session: int
    full: bool
    start: int
    chars: int


@dataclass(frozen=True, slots=True)
class Shares:
    """What the load is made of. ``append``: characters of each append; 0: as the paper's."""

    full: float = FULL_SHARE
    sessions: int = 200
    chars_per_token: float = 4.0
    most_tokens: int = MOST_TOKENS
    append: int = 0


class Workload:
    """Draws requests over a population of live sessions. The same seed draws the same ones.

    ``pool`` is the number of characters of text there is; contexts and appends are slices of it,
    a session's appends in order behind its context. A full context begins a new session in the
    place of a live one.
    """

    def __init__(self, pool: int, shares: Shares, seed: int = 1) -> None:
        self._rng = Random(f"workload {seed}")
        self._pool = pool
        self._shares = shares
        self._next = 0
        self._live: list[int] = []
        self._at: dict[int, int] = {}  # where a session's next text begins

    def opening(self) -> list[Request]:
        """The full contexts of the sessions that are there before the measurement."""
        opened = []
        for _ in range(self._shares.sessions):
            session = self._new()
            self._live.append(session)
            opened.append(self._full(0.0, session))
        return opened

    def requests(self, times: Iterator[tuple[float, int]]) -> Iterator[Request]:
        """Requests at the given times, each for the live session of the given place."""
        for at, place in times:
            if self._rng.random() < self._shares.full:
                self._live[place] = self._new()
                yield self._full(at, self._live[place])
            else:
                yield self._append(at, self._live[place])

    def times(
        self, shape: Shape, rate: float, seconds: float, gaps: Sequence[Sequence[float]] = ()
    ) -> list[tuple[float, int]]:
        """Arrivals at ``rate`` per second in the mean: (seconds, place of the session).

        ``poisson``: independent arrivals. ``turns``: sessions with instructions, calls and pauses
        as measured, all times scaled alike so that the sessions there are give the rate.
        ``recorded``: the same with the gaps of recorded sessions.
        """
        if shape == "poisson":
            return list(self._poisson(rate, seconds))
        if shape == "recorded" and not gaps:
            raise ToktierError(Code.CONFIG_INVALID, "recorded arrivals need timed transcripts")
        places = range(self._shares.sessions)
        endless = [self._recorded(gaps) if gaps else self._turns() for _ in places]
        scale = _mean(self._recorded(gaps) if gaps else self._turns())
        scale = self._shares.sessions / (rate * scale)
        found = []
        for place, steps in enumerate(endless):
            # Begin somewhere in the middle, so that sessions are not in step.
            at = -self._rng.random() * 10 * seconds
            for gap in steps:
                at += gap * scale
                if at >= seconds:
                    break
                if at >= 0:
                    found.append((at, place))
        # Few sessions make few of the long gaps: the rate is met by stretching what was drawn.
        stretch = len(found) / (rate * seconds) if found else 1.0
        found = sorted((at * stretch, place) for at, place in found)
        return [(at, place) for at, place in found if at < seconds]

    def _poisson(self, rate: float, seconds: float) -> Iterator[tuple[float, int]]:
        at = self._rng.expovariate(rate)
        while at < seconds:
            yield at, self._rng.randrange(self._shares.sessions)
            at += self._rng.expovariate(rate)

    def _turns(self) -> Iterator[float]:
        """Gaps before the calls of one session."""
        rng = self._rng
        while True:
            yield rng.lognormvariate(math.log(_PAUSE_S), _PAUSE_SIGMA)
            for _ in range(_calls(rng) - 1):
                yield rng.lognormvariate(math.log(_STEP_S), _STEP_SIGMA)

    def _recorded(self, gaps: Sequence[Sequence[float]]) -> Iterator[float]:
        sequence = self._rng.choice(gaps)
        start = self._rng.randrange(len(sequence))
        return itertools.islice(itertools.cycle(sequence), start, None)

    def _new(self) -> int:
        self._next += 1
        return self._next - 1

    def _full(self, at: float, session: int) -> Request:
        rng, shares = self._rng, self._shares
        while True:
            tokens = rng.lognormvariate(math.log(MEDIAN_TOKENS), _SIGMA)
            if LEAST_TOKENS <= tokens <= MOST_TOKENS:
                break
        tokens = min(tokens, shares.most_tokens)
        return self._slice(at, session, True, round(tokens * shares.chars_per_token))

    def _append(self, at: float, session: int) -> Request:
        chars = self._shares.append or append_chars(self._rng)
        return self._slice(at, session, False, chars)

    def _slice(self, at: float, session: int, full: bool, chars: int) -> Request:
        chars = min(chars, self._pool)
        start = self._rng.randrange(self._pool) if full else self._at[session]
        if start + chars > self._pool:
            start = self._rng.randrange(self._pool - chars + 1)
        self._at[session] = start + chars
        return Request(at, session, full, start, chars)


def recorded_gaps(files: Sequence[Path]) -> list[list[float]]:
    """Seconds between the timed lines of each file that has any (JSON lines with ``timestamp``,
    as Claude Code and Codex write them)."""
    found = []
    for file in files:
        if file.suffix != ".jsonl":
            continue
        times = sorted(filter(None, map(_timestamp, file.read_text().splitlines())))
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        if len(gaps) > 2 and sum(gaps) > 0:
            found.append(gaps)
    return found


def _timestamp(line: str) -> float:
    """Seconds since the epoch; 0 for a line that tells no time."""
    try:
        told = json.loads(line).get("timestamp", "")
        return datetime.fromisoformat(told).timestamp() if told else 0.0
    except (ValueError, AttributeError, TypeError):
        return 0.0


def _calls(rng: Random) -> int:
    """Calls that one instruction fans out into."""
    u = rng.random()
    for (low, few), (high, many) in itertools.pairwise(_CALLS):
        if u <= high:
            share = (u - low) / (high - low)
            return round(math.exp((1 - share) * math.log(few) + share * math.log(many)))
    return _CALLS[-1][1]


def _mean(steps: Iterator[float], count: int = 20_000) -> float:
    return sum(itertools.islice(steps, count)) / count
