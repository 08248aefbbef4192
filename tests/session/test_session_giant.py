"""Sessions that end in a long run without cuts: exact, and appends that cost what they append."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from session_harness import LITERALS, PIECES, RUNS, applied, check_session, family, fresh
from tokenizers import normalizers

from toktier_stream.session import giant, stream
from toktier_stream.session.engines import open_tokenizer
from toktier_stream.session.header import Header, decode, encode
from toktier_stream.session.record import Session
from toktier_stream.session.splice import View
from toktier_stream.session.store import Store
from toktier_stream.tokenizer.encoder import FastEncoder
from toktier_stream.tokenizer.face import Encoder
from toktier_stream.tokenizer.reference import Reference, ReferenceEncoder
from toktier_stream.wire.messages import Route

EXAMPLES = int(os.environ.get("TOKTIER_TEST_EXAMPLES", "60"))
_SETTINGS = settings(
    max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

ENDS = (*PIECES, *LITERALS, "<|end|>" + "a" * 30, " " + "b" * 30, "\n", " ", "'", "5", "\u0338")

runs = st.tuples(st.sampled_from(RUNS), st.integers(1, 60)).map(lambda x: x[0] * x[1])
mixed = st.lists(st.sampled_from(["a", "b", "ab", "e", "X", "q"]), max_size=60).map("".join)
ends = st.lists(st.sampled_from(ENDS), max_size=3).map("".join)
parts = st.tuples(runs | mixed, ends).map("".join) | runs | ends | mixed
todo = st.lists(
    st.tuples(st.sampled_from((*["append"] * 6, "tail", "tail", "middle")), st.integers(0, 1000),
              st.integers(0, 1000), parts),
    min_size=1, max_size=9,
)  # fmt: skip


@pytest.fixture(scope="module")
def families(
    encoders: dict[str, Encoder],
    oracles: dict[str, ReferenceEncoder],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, tuple[Encoder, ReferenceEncoder]]:
    """The made families that have cuts; "wide" looks for some added tokens in normalized text,
    and takes some whole words although their merges do not make them."""
    found = {name: (encoders[name], oracles[name]) for name in ("plain", "nfc", "nfkc")}
    path = tmp_path_factory.mktemp("wide") / "wide.json"
    words = ("aaaaaaa", "77", "ababX", "Ġbbb", "===")
    return {**found, "wide": family(path, normalizers.NFC(), normalized=True, words=words)}


@pytest.fixture
def low(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of a few bytes count as giant, marks stand close to the end, no stream takes over."""
    monkeypatch.setattr(stream, "SMALL", 0)
    monkeypatch.setattr(stream, "LARGE", 0)
    monkeypatch.setattr(giant, "GIANT", 12)
    monkeypatch.setattr(giant, "_SPAN", 1)


def change(
    session: Session, encoder: Encoder, text: str, step: tuple[str, int, int, str]
) -> tuple[str, bool]:
    """Do one step; the new text, and whether it went by a mark."""
    kind, x, y, new = step
    a, b = sorted(len(text) * v // 1000 for v in (x, y))
    if kind == "append":
        a = b = len(text)
    elif kind == "tail":
        a, b = max(0, len(text) - x % 40), len(text)
    marks = {m.size for m in session.header().open}
    old = session.ids()
    done = session.edit(encoder, len(text[:a].encode()), len(text[:b].encode()), new.encode())
    assert applied(old, done) == session.ids().tolist()
    return text[:a] + new + text[b:], done.evidence.boundary_byte in marks


def check_marks(session: Session, oracle: Encoder, text: str) -> None:
    """What a mark promises, of what is there already: its tokens are those of the text."""
    lengths = oracle.encode(text.encode()).lengths
    for mark in session.header().open:
        assert int(lengths[: mark.tokens].sum()) == mark.size
        assert mark.size <= mark.since <= session.bytes
    sizes = [m.size for m in session.header().open]
    assert all(a < b for a, b in pairwise(sizes))


@pytest.mark.parametrize("name", ["plain", "nfc", "nfkc", "wide"])
@given(start=parts, steps=todo)
@_SETTINGS
def test_every_change_equals_the_reference(
    low: None,
    families: dict[str, tuple[Encoder, ReferenceEncoder]],
    name: str,
    start: str,
    steps: list[tuple[str, int, int, str]],
) -> None:
    """Appends, new endings and edits, with marks from a dozen bytes without a cut on."""
    encoder, oracle = families[name]
    text = start * 3
    session = fresh(encoder, text.encode())
    for step in steps:
        text, _ = change(session, encoder, text, step)
        check_session(session, oracle, text.encode())
        check_marks(session, oracle, text)


CUTS = ["\n", "<|e", " x", "'s", "1-", "e\u0301"]
"""Runs that hold cuts or literals, or (in two characters) a letter with its accent."""
WITHOUT = {"plain": CUTS, "nfc": [*CUTS, "7", "٣", "\u0301"], "wide": [*CUTS, "\u0301"]}


@pytest.mark.parametrize("name", ["plain", "nfc", "wide"])
def test_marks_are_taken(
    low: None, families: dict[str, tuple[Encoder, ReferenceEncoder]], name: str
) -> None:
    """On runs of every class, continued and then ended in every way."""
    encoder, oracle = families[name]
    chooser = random.Random(name)
    for run in RUNS:
        taken = 0
        for end in chooser.sample(ENDS, 16):
            text = "x" + run * (150 // len(run))
            session = fresh(encoder, text.encode())
            for new in (run * chooser.randint(1, 9), run * 5 + end, run * 20, end, run):
                text, by_mark = change(session, encoder, text, ("append", 0, 0, new))
                taken += by_mark
                assert session.ids().tolist() == oracle.encode(text.encode()).ids.tolist()
        assert (taken > 20) == (run not in WITHOUT[name])


def test_header_keeps_marks() -> None:
    """Every field, any number."""
    marks = tuple(
        giant.Mark(7 * i, i, 9 * i, i % 2 == 1, i * 999, 0xFFFFFFFF - i) for i in range(9)
    )
    header = Header(b"one", open=marks, settled=1 << 40)
    assert decode(encode(header), b"one") == header


def test_marks_of_other_tables_are_not_taken(low: None, encoder: Encoder) -> None:
    """A state is a number of one machine: another machine's mark is as good as none."""
    session = fresh(encoder, b"ab" * 100)
    assert session.header().open
    session._open = tuple(m._replace(check=m.check ^ 1) for m in session._open)
    done = session.edit(encoder, 200, 200, b"ab")
    assert done.route is Route.CPU
    assert session.ids().tolist() == encoder.encode(b"ab" * 101).ids.tolist()


def test_a_damaged_record_stops_a_mark(low: None, encoder: Encoder) -> None:
    """A mark whose tokens the session does not have is not taken."""
    session = fresh(encoder, b"ab" * 100)
    session._open = tuple(m._replace(tokens=m.tokens - 1) for m in session._open)
    assert session.edit(encoder, 200, 200, b"ab").route is Route.CPU


def test_a_session_goes_on_after_a_restart(tmp_path: Path, encoder: Encoder) -> None:
    """From the stored mark, without encoding it all."""
    text = b""
    for part in range(6):
        with Store.open(tmp_path / "s", map_bytes=16 << 20) as store:
            batch = store.begin()
            session = batch.session(b"one")
            if session is None:
                text = b"ab" * 20_000
                session = batch.create(b"one")
                session.reset(encoder, text)
            else:
                new = b"abaab" * 100
                done = session.edit(encoder, len(text), len(text), new)
                text += new
                assert done.route is Route.SPLICE
                assert done.evidence.boundary_byte > 0
                assert done.evidence.chars_encoded < 3000
            assert session.ids().tolist() == encoder.encode(text).ids.tolist()
            marks = session.header().open
            assert marks
            store.commit(batch, changelog_offset=part)
            again = store._stored(b"one")
            assert again is not None
            assert again.header().open == marks


@pytest.mark.parametrize("large", [0, 1 << 16], ids=["by marks", "by a stream"])
def test_an_append_to_a_giant_piece_costs_what_it_appends(
    encoder: Encoder, monkeypatch: pytest.MonkeyPatch, large: int
) -> None:
    """1,000 characters to a million: bytes read of the session, characters encoded, marks kept."""
    monkeypatch.setattr(stream, "LARGE", large)
    read: list[int] = []
    inner_view, inner_slice = Session.view, Session.slice

    def view(self: Session, low: int, high: int) -> View:
        found = inner_view(self, low, high)
        read.append(len(found.text))
        return found

    def piece(self: Session, start: int, end: int) -> bytes:
        found = inner_slice(self, start, end)
        read.append(len(found))
        return found

    chooser = random.Random(5)
    for run in ("abeX", "7", "a", "語"):
        letters = list(run)
        text = "".join(chooser.choices(letters, k=1_000_000 // len(run.encode())))
        session = fresh(encoder, text.encode())
        with monkeypatch.context() as patch:
            patch.setattr(Session, "view", view)
            patch.setattr(Session, "slice", piece)
            for turn in range(25):
                read.clear()
                new = "".join(chooser.choices(letters, k=1_000))
                done = session.edit(encoder, session.bytes, session.bytes, new.encode())
                text += new
                streamed = large > 0 and turn > 0
                assert done.route is (Route.STREAM if streamed else Route.SPLICE)
                assert done.evidence.chars_encoded < 3_000
                assert len(done.ids) < 3_000
                assert sum(read) < 60_000
        marks = session.header().open
        assert 1 <= len(marks) < 12
        assert session.bytes - marks[-1].size < 16_000
        assert np.array_equal(session.ids(), encoder.encode(text.encode()).ids)


FAMILIES = ("gpt35turbo", "qwen3", "gptoss", "llama3_1", "deepseek_v3")
REAL_RUNS = ("a", "A", "q", "7", " ", "\n", "\t", "=", "_", "語", "ä", "😀", "가", "\u0e01",
             "\u0301", "é", "<", "|", "ABCDab", "aGVsbG8", "AGVLBGP", "日本語文字", "\r\n", "٣",
             "hello")  # fmt: skip
REAL_ENDS = (" ", "\n", "\n\n", " \n", "5", "'s", "'", "'ll x", "<|im_end|>", "<|eot_id|>", "<|im_",
             "<｜end▁of▁sentence｜>", "<|endoftext|>", "\u0301", "\u0338", "x", "X", ".", "\r",
             "\t", "語", "\u200d", " the end", "\u1100", "\u11a8", "Y" + "z" * 50,
             "<|endoftext|>" + "a" * 300)  # fmt: skip


@pytest.mark.families
@pytest.mark.parametrize("family", FAMILIES)
def test_real_families(
    family_file: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    """Runs of every class and base64, continued and ended in every way, held to the reference."""
    monkeypatch.setattr(stream, "SMALL", 0)
    monkeypatch.setattr(stream, "LARGE", 0)
    monkeypatch.setattr(giant, "GIANT", 300)
    monkeypatch.setattr(giant, "_SPAN", 3)
    entry = open_tokenizer(family_file(family))
    encoder = entry.encoder
    assert isinstance(encoder, FastEncoder)
    reference = Reference(entry.artifact)
    chooser = random.Random(family)
    taken = 0
    for run in REAL_RUNS:
        letters = list(run) if run not in ("\r\n", "hello") else [run]
        for end in chooser.sample(REAL_ENDS, 4):
            text = chooser.choice(("x", "", "the end. ", "\n", "<|im_end|>", "'"))
            text += "".join(chooser.choices(letters, k=1800))
            session = fresh(encoder, text.encode())
            for new, kind in (
                ("".join(chooser.choices(letters, k=chooser.randint(1, 300))), "append"),
                ("".join(chooser.choices(letters, k=40)), "tail"),
                ("".join(chooser.choices(letters, k=40)) + end, "append"),
                (end, "append"),
                ("".join(chooser.choices(letters, k=700)), "append"),
                (end + "".join(chooser.choices(letters, k=3)), "tail"),
            ):
                step = (kind, chooser.randint(0, 1000), 0, new)
                text, by_mark = change(session, encoder, text, step)
                taken += by_mark
                assert session.ids().tolist() == reference.ids(text).tolist()
    assert taken > 100
