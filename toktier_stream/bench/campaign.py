"""The differential campaign: everything the engine promises, held against the reference.

Rounds of five kinds take turns: random strings (ids and lengths), code points in templates, long
runs, cuts (the right side's tokens are the whole's), and sessions (random appends and edits, ids
and digest after each). Texts favour what the tables tell apart. Round n of a seed is the same
everywhere, so a report can be continued and a divergence repeated.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from toktier_stream.session.store import Store
from toktier_stream.tokenizer.encoder import FastEncoder
from toktier_stream.tokenizer.face import Tokens
from toktier_stream.tokenizer.reference import REFERENCE_VERSION
from toktier_stream.tokenizer.registry import Entry
from toktier_stream.tokenizer.split_campaign import RandomText
from toktier_stream.wire import digest

_TEMPLATES: Final = ("{}", "a{}", " {}a", "{}{}", "1{}1", "'{}s", "{} \n", "e{}\u0301")
_CODE_POINTS: Final = 0x110000
_CODE_POINTS_A_ROUND: Final = 512
MOST_DIVERGENCES: Final = 20


@dataclass
class Report:
    """What a campaign did so far, and every difference it found. Written as JSON."""

    tokenizer: str
    engine: str
    reference: str
    seed: int
    rounds: int = 0
    chars: int = 0
    strings: int = 0
    cuts: int = 0
    splices: int = 0
    code_points: int = 0
    real_chars: int = 0
    seconds: float = 0.0
    files: dict[str, int] = field(default_factory=dict)
    divergences: list[dict[str, Any]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON holds it."""
        return asdict(self)


class Campaign:
    """One tokenizer under test. The report shows generated texts, never texts of files."""

    def __init__(self, entry: Entry, seed: int = 0, report: Report | None = None) -> None:
        """``report``: go on from an earlier one of the same tokenizer, engine and seed."""
        self._entry = entry
        self._encoder = entry.encoder
        self._reference = entry.reference
        fresh = Report(entry.name, entry.encoder.engine, REFERENCE_VERSION, seed)
        self.report = fresh
        if report is not None and _identity(report) == _identity(fresh):
            self.report = report
        self._literals = [t.content for t in entry.artifact.added_tokens] or ["<|none|>"]

    @property
    def exhausted(self) -> bool:
        """Whether so much differs that going on tells nothing new."""
        return len(self.report.divergences) >= MOST_DIVERGENCES

    def round(self) -> None:
        """One round: some hundred strings, or its like of another kind."""
        number = self.report.rounds
        choose = random.Random(f"{self.report.seed}:{number}")
        kinds: tuple[Callable[[random.Random, int], None], ...] = (
            self._strings, self._points, self._strings, self._cuts, self._strings, self._runs,
            self._session,
        )  # fmt: skip
        began = time.perf_counter()
        kinds[number % len(kinds)](choose, number)
        self.report.rounds += 1
        self.report.seconds += time.perf_counter() - began

    def file(self, path: Path, piece_chars: int = 40_000) -> Iterator[int]:
        """A file's text in pieces of random size; yields the characters done so far."""
        text = path.read_bytes().decode(errors="replace")
        done = self.report.files.get(str(path), 0)
        choose = random.Random(f"{self.report.seed}:{path.name}:{len(text)}")
        while done < len(text) and not self.exhausted:
            piece = text[done : done + choose.randint(1, 2 * piece_chars)]
            self._compare(piece, "file", {"file": path.name, "at": done, "chars": len(piece)})
            done += len(piece)
            self.report.files[str(path)] = done
            self.report.real_chars += len(piece)
            yield done

    def _texts(self, number: int) -> Callable[[int], str]:
        if isinstance(self._encoder, FastEncoder):
            return RandomText(self._encoder.compiled.matcher, number).text
        choose = random.Random(number)
        return lambda most: "".join(
            chr(choose.choice((32, 10, 97, 49, 0x4E2D, 0x301, choose.randrange(0x20, 0xD800))))
            for _ in range(choose.randint(1, most))
        )

    def _strings(self, choose: random.Random, number: int) -> None:
        make = self._texts(number)
        for _ in range(300):
            text = make(choose.choice((8, 24, 80)))
            if choose.random() < 0.2:
                at = choose.randrange(len(text) + 1)
                text = text[:at] + choose.choice(self._literals) + text[at:]
            self._compare(text, "string", {"text": text})

    def _points(self, choose: random.Random, number: int) -> None:
        first = (number // 7 * _CODE_POINTS_A_ROUND) % _CODE_POINTS
        for point in range(first, first + _CODE_POINTS_A_ROUND):
            if not 0xD800 <= point < 0xE000:
                text = choose.choice(_TEMPLATES).replace("{}", chr(point))
                self._compare(text, "code point", {"text": text})
                self.report.code_points += 1

    def _runs(self, choose: random.Random, number: int) -> None:
        make = self._texts(number)
        for _ in range(4):
            unit = make(3)
            text = make(4) + unit * choose.randint(1, 6000 // len(unit)) + make(4)
            self._compare(text, "run", {"unit": unit, "text": text[:200]})

    def _cuts(self, choose: random.Random, number: int) -> None:
        make = self._texts(number)
        for _ in range(100):
            text = make(120)
            if choose.random() < 0.3:
                at = choose.randrange(len(text) + 1)
                text = text[:at] + choose.choice(self._literals) + text[at:]
            data = text.encode()
            low = choose.randrange(len(data))
            find = choose.choice((self._encoder.last_cut, self._encoder.first_cut))
            cut = find(data, low, len(data) - 1)
            if cut < 0:
                continue
            self.report.cuts += 1
            if data[cut] & 0xC0 == 0x80:
                self._differs("cut", {"text": text, "cut": cut})
                continue
            whole, right = self._reference.encode(data), self._reference.encode(data[cut:])
            left = len(whole) - len(right)
            ends = np.cumsum(whole.lengths)
            same = left >= 0 and np.array_equal(whole.ids[left:], right.ids)
            if not (same and (left == 0 or int(ends[left - 1]) == cut)):
                self._differs("cut", {"text": text, "cut": cut})

    def _session(self, choose: random.Random, number: int) -> None:
        make = self._texts(number)
        with (
            tempfile.TemporaryDirectory(prefix="toktier-verify-") as folder,
            Store.open(Path(folder), map_bytes=256 << 20) as store,
        ):
            batch = store.begin()
            session = batch.create(b"campaign")
            text = "".join(make(60) + " plain words " for _ in range(choose.randint(1, 40)))
            session.reset(self._encoder, text.encode())
            for _ in range(40):
                a, b = len(text), len(text)
                if choose.random() < 0.4:
                    a = choose.randint(0, len(text))
                    b = min(len(text), a + choose.choice((0, 1, 5, 200)))
                new = make(choose.choice((4, 40)))
                if choose.random() < 0.3:
                    new += choose.choice(self._literals)
                start, end = len(text[:a].encode()), len(text[:b].encode())
                before = text
                text = text[:a] + new + text[b:]
                session.edit(self._encoder, start, end, new.encode())
                self.report.splices += 1
                self.report.chars += len(text)
                expected = self._reference.ids(text)
                if not np.array_equal(session.ids(), expected) or session.digest != digest.of(
                    expected
                ):
                    self._differs("splice", {"text": before, "edit": [start, end, new]})
                    return

    def _compare(self, text: str, kind: str, detail: dict[str, Any]) -> None:
        data = text.encode()
        self.report.strings += kind != "file"
        self.report.chars += len(text)
        if not _same(self._encoder.encode(data), self._reference.encode(data)):
            self._differs(kind, detail)

    def _differs(self, kind: str, detail: dict[str, Any]) -> None:
        if not self.exhausted:
            found = {"kind": kind, "round": self.report.rounds, **detail}
            self.report.divergences.append(found)


def _same(a: Tokens, b: Tokens) -> bool:
    return bool(np.array_equal(a.ids, b.ids) and np.array_equal(a.lengths, b.lengths))


def _identity(report: Report) -> tuple[str, str, str, int]:
    return report.tokenizer, report.engine, report.reference, report.seed
