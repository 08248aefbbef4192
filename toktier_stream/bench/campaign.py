"""The differential campaign: everything the engine promises, held against the reference.

Rounds of six kinds take turns: random strings (ids and lengths), code points in templates, long
runs, cuts (texts divided at two-sided cuts have the tokens of their parts; right of a one-sided cut
the tokens are the right part's, whatever stands to the left), pieces (the same of the
pre-tokenizer alone), and sessions (random appends and edits, ids and digest after each). Texts
favour what the tables tell apart. Round n of a seed is the same everywhere, so a report can be
continued and a divergence repeated.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

from toktier_stream.session.store import Store
from toktier_stream.tokenizer import wordpiece
from toktier_stream.tokenizer.encoder import FastEncoder
from toktier_stream.tokenizer.face import Tokens
from toktier_stream.tokenizer.reference import REFERENCE_VERSION
from toktier_stream.tokenizer.registry import Entry
from toktier_stream.tokenizer.split_campaign import Campaign as SplitCampaign
from toktier_stream.tokenizer.split_campaign import RandomText, members_of
from toktier_stream.tokenizer.wordpiece import WordPieceEncoder
from toktier_stream.wire import digest

_TEMPLATES: Final = ("{}", "a{}", " {}a", "{}{}", "1{}1", "'{}s", "{} \n", "e{}\u0301")
_CODE_POINTS: Final = 0x110000
_CODE_POINTS_A_ROUND: Final = 1024
_STRINGS_A_ROUND: Final = 400
_TEXTS_CUT_A_ROUND: Final = 100
_TEXTS_IN_PIECES_A_ROUND: Final = 100
_KINDS: Final = 10
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
    """Cuts of texts of which each part was encoded apart."""
    piece_texts: int = 0
    piece_cuts: int = 0
    """The same of the pre-tokenizer alone."""
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
        self._encode = entry.encoder.encode
        self._members: list[str] = []
        if isinstance(self._encoder, FastEncoder):
            self._members = members_of(self._encoder.compiled.matcher)
        elif isinstance(self._encoder, WordPieceEncoder):
            self._members = wordpiece.members(self._encoder.class_of, each=24)
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
            self._strings, self._points, self._cuts, self._strings, self._runs, self._pieces,
            self._strings, self._points, self._cuts, self._session,
        )  # fmt: skip
        began = time.perf_counter()
        kinds[number % _KINDS](choose, number)
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
        if self._members:
            return RandomText(self._members, number).text
        choose = random.Random(number)
        return lambda most: "".join(
            chr(choose.choice((32, 10, 97, 49, 0x4E2D, 0x301, choose.randrange(0x20, 0xD800))))
            for _ in range(choose.randint(1, most))
        )

    def _strings(self, choose: random.Random, number: int) -> None:
        make = self._texts(number)
        for _ in range(_STRINGS_A_ROUND):
            text = make(choose.choice((8, 24, 80)))
            if choose.random() < 0.2:
                text = self._with_literal(choose, text)
            self._compare(text, "string", {"text": text})

    def _with_literal(self, choose: random.Random, text: str) -> str:
        at = choose.randrange(len(text) + 1)
        return text[:at] + choose.choice(self._literals) + text[at:]

    def _points(self, choose: random.Random, number: int) -> None:
        # The round's place among those of its kind: two in ten.
        turn = number // (_KINDS // 2)
        first = (turn * _CODE_POINTS_A_ROUND) % _CODE_POINTS
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
        for _ in range(_TEXTS_CUT_A_ROUND):
            text = make(120)
            if choose.random() < 0.3:
                text = self._with_literal(choose, text)
            self._one_sided(choose, make(12) if choose.random() < 0.5 else "", text)
            if isinstance(self._encoder, FastEncoder | WordPieceEncoder):
                self._two_sided(choose, self._encoder, text)

    def _one_sided(self, choose: random.Random, left: str, text: str) -> None:
        """Right of a cut of ``text`` the tokens are those of the right part alone."""
        data = text.encode()
        find = choose.choice((self._encoder.last_cut, self._encoder.first_cut))
        cut = find(data, choose.randrange(len(data)), len(data) - 1)
        if cut < 0:
            return
        if cut < self._encoder.literal_reach:
            left = ""
        self.report.cuts += 1
        detail = {"text": text, "cut": cut, "left": left}
        if data[cut] & 0xC0 == 0x80:
            self._differs("cut", detail)
            return
        whole = self._reference.encode(left.encode() + data)
        right = self._reference.encode(data[cut:])
        if not _ends_with(whole, right):
            self._differs("cut", detail)

    def _two_sided(
        self, choose: random.Random, encoder: FastEncoder | WordPieceEncoder, text: str
    ) -> None:
        """The tokens of a text are those of its parts between cuts, wherever it is divided."""
        data = text.encode()
        cuts = encoder.divide(data, choose.randint(2, 2 + len(text)))
        if len(cuts) == 2:
            return
        self.report.cuts += len(cuts) - 2
        whole = self._reference.encode(data)
        # Mostly the engine's own parts: their joining is what is promised. One text in eight is
        # judged by the reference alone, so that two faults cannot hide each other.
        encode = self._reference.encode if choose.random() < 0.125 else self._encode
        parts = [encode(data[a:b]) for a, b in pairwise(cuts)]
        joined = Tokens(
            np.concatenate([p.ids for p in parts]), np.concatenate([p.lengths for p in parts])
        )
        if not _same(whole, joined):
            self._differs("cut", {"text": text, "cuts": cuts})

    def _pieces(self, choose: random.Random, number: int) -> None:
        if not isinstance(self._encoder, FastEncoder):
            return
        split = SplitCampaign(
            self._entry.artifact.spec.get("pre_tokenizer"),
            self._encoder.compiled.matcher,
            number,
            self._members,
        )
        done = split.run(cuts=4 * _TEXTS_IN_PIECES_A_ROUND, most=choose.choice((8, 24, 80)))
        self.report.piece_texts += done.texts
        self.report.piece_cuts += done.two_sided + done.one_sided
        for found in done.divergences:
            self._differs("pieces", asdict(found))

    def _session(self, choose: random.Random, number: int) -> None:
        make = self._texts(number)
        with (
            tempfile.TemporaryDirectory(prefix="toktier-verify-") as folder,
            Store.open(Path(folder), map_bytes=256 << 20) as store,
        ):
            batch = store.begin()
            session = batch.create(b"campaign")
            text = "".join(make(60) + " plain words " for _ in range(choose.randint(1, 20)))
            session.reset(self._encoder, text.encode())
            for _ in range(20):
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


def _ends_with(whole: Tokens, right: Tokens) -> bool:
    """Whether the last tokens of ``whole`` are ``right``'s."""
    left = len(whole) - len(right)
    return left >= 0 and _same(Tokens(whole.ids[left:], whole.lengths[left:]), right)


def _identity(report: Report) -> tuple[str, str, str, int]:
    return report.tokenizer, report.engine, report.reference, report.seed
