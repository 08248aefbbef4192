"""Splices: whatever is appended or edited, the stream is the whole text's; the evidence holds.

``TOKTIER_TEST_EXAMPLES`` tries so many random texts per test (default 60).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from session_harness import (
    PIECES,
    MadeUp,
    Nothing,
    applied,
    check_session,
    fresh,
    long_texts,
    texts,
)

from toktier_stream.errors import Code, ToktierError
from toktier_stream.session import educational
from toktier_stream.session.attempt import MAX_WIDENINGS
from toktier_stream.session.engines import open_tokenizer
from toktier_stream.session.header import Header
from toktier_stream.session.record import Session
from toktier_stream.tokenizer.face import Encoder, Ids, Tokens
from toktier_stream.wire.messages import Route

_SETTINGS = settings(
    deadline=None,
    max_examples=int(os.environ.get("TOKTIER_TEST_EXAMPLES", "60")),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def offsets(text: str, draw: st.DataObject) -> tuple[int, int]:
    """Two ordered character boundaries, in bytes."""
    size = len(text)
    first = draw.draw(st.one_of(st.integers(0, size), st.integers(max(0, size - 30), size)))
    last = draw.draw(
        st.one_of(
            st.just(first), st.integers(first, min(first + 12, size)), st.integers(first, size)
        )
    )
    return len(text[:first].encode()), len(text[:last].encode())


@pytest.mark.parametrize("name", ["nfc", "plain", "nfkc", "one piece"])
@given(start=long_texts, appends=st.lists(texts, min_size=1, max_size=6))
@_SETTINGS
def test_appends(
    small: None, encoders: dict[str, Encoder], oracles: dict[str, Encoder], name: str, start: str,
    appends: list[str],
) -> None:  # fmt: skip
    """Every append gives the tokens of the whole text, and its change says so."""
    encoder = encoders[name]
    session = fresh(encoder, start.encode())
    text = start.encode()
    for piece in appends:
        before = session.ids()
        change = session.edit(encoder, session.bytes, session.bytes, piece.encode())
        text += piece.encode()
        check_session(session, oracles[name], text)
        assert applied(before, change) == session.ids().tolist()
        assert change.tail == 0


@pytest.mark.parametrize("name", ["nfc", "plain", "nfkc", "one piece"])
@given(start=long_texts, edits=st.lists(texts, min_size=1, max_size=8), data=st.data())
@_SETTINGS
def test_edits(
    small: None, encoders: dict[str, Encoder], oracles: dict[str, Encoder], name: str, start: str,
    edits: list[str], data: st.DataObject,
) -> None:  # fmt: skip
    """Every edit gives the tokens of the whole text; the slow twin keeps at least as much."""
    encoder = encoders[name]
    session = fresh(encoder, start.encode())
    text = start.encode()
    for piece in edits:
        low, high = offsets(text.decode(), data)
        before = session.ids()
        change = session.edit(encoder, low, high, piece.encode())
        slow = educational.splice(oracles[name], text, low, high, piece.encode())
        text = educational.replaced(text, low, high, piece.encode())
        check_session(session, oracles[name], text)
        assert applied(before, change) == session.ids().tolist()
        assert educational.apply(before.tolist(), slow) == session.ids().tolist()
        assert change.keep <= slow.keep
        assert len(change.ids) >= len(slow.ids)


@pytest.mark.parametrize("name", ["nfc", "plain", "nfkc"])
@given(start=long_texts, piece=texts, data=st.data())
@_SETTINGS
def test_the_evidence_is_true(
    small: None, encoders: dict[str, Encoder], name: str, start: str, piece: str,
    data: st.DataObject,
) -> None:  # fmt: skip
    """A certified boundary is a boundary of the whole text: encoding both sides of it on their own
    gives the same right side, and the run around it is there."""
    encoder = encoders[name]
    session = fresh(encoder, start.encode())
    low, high = offsets(start, data)
    change = session.edit(encoder, low, high, piece.encode())
    text = session.text()
    whole = encoder.encode(text)
    found = change.evidence
    assert found.engine == encoder.engine
    assert (change.route is Route.CPU) == (
        found.boundary_byte < 0 and found.right_boundary_byte < 0
    )
    for boundary, run in (
        (found.boundary_byte, found.run_tokens),
        (found.right_boundary_byte, found.right_run_tokens),
    ):
        if boundary >= 0:
            right = encoder.encode(text[boundary:]).ids.tolist()
            assert whole.ids[len(whole.ids) - len(right) :].tolist() == right
            assert boundary in np.cumsum(whole.lengths).tolist()
            assert run >= 2
    if found.boundary_byte >= 0:
        assert found.run_chars > encoder.longest_token


def test_both_sides_are_certified_in_a_long_text(small: None, encoder: Encoder) -> None:
    """An edit in the middle of ordinary text keeps both ends and encodes little."""
    text = b"the quick brown fox jumps over the lazy dog " * 200
    session = fresh(encoder, text)
    before = session.ids()
    change = session.edit(encoder, 4004, 4009, b"slow")
    assert change.route is Route.SPLICE
    assert change.evidence.boundary_byte > 3900
    assert change.evidence.right_boundary_byte < 4100
    assert change.evidence.chars_encoded < 200
    assert len(change.ids) < 20
    assert change.keep + change.tail > len(before) - 20
    check_session(session, encoder, text[:4004] + b"slow" + text[4009:])


@pytest.mark.parametrize(
    ("text", "start", "end", "new"),
    [
        (b"", 0, 0, b""),
        (b"", 0, 0, b"a first text"),
        (b"a text that goes", 0, 16, b""),
        (b"a text that goes", 0, 15, b""),
        (b"a text that goes", 1, 16, b""),
        (b"first byte", 0, 1, b"F"),
        (b"last byte", 8, 9, b"E"),
        (b"in front", 0, 0, b"put "),
        (b"same", 1, 3, b"am"),
        (b"an <|end|> edited inside", 5, 6, b"E"),
        (b"made whole <|end>", 16, 16, b"|"),
        (b"two halves <|en", 15, 15, b"d|> of a literal"),
        (b"stop ", 5, 5, b"here"),
        (b"a b ab cd ef", 4, 4, b""),
        (b"1", 1, 1, b"-"),
        (b"  1", 3, 3, b"-"),
    ],
)
@pytest.mark.parametrize("repeat", [1, 40])
def test_edges(
    small: None, encoder: Encoder, text: bytes, start: int, end: int, new: bytes, repeat: int
) -> None:
    """Empty texts, first and last bytes, literals made and broken; alone and after a long text."""
    lead = b"some words before " * (repeat - 1)
    trail = b" some words after" * (repeat - 1)
    whole = lead + text + trail
    session = fresh(encoder, whole)
    before = session.ids()
    change = session.edit(encoder, len(lead) + start, len(lead) + end, new)
    want = educational.replaced(whole, len(lead) + start, len(lead) + end, new)
    check_session(session, encoder, want)
    assert applied(before, change) == session.ids().tolist()


def test_a_literal_that_begins_left_of_the_window(small: None, encoder: Encoder) -> None:
    """A window can start inside a literal; what it seems to be there is not believed."""
    for shift in range(24):
        text = b"word " * 12 + b"ab cd ef" * 3 + b"x" * shift
        session = fresh(encoder, text)
        session.edit(encoder, len(text), len(text), b" ab cd ef")
        check_session(session, encoder, text + b" ab cd ef")


def test_a_text_without_cuts_is_widened_and_then_encoded_whole(
    small: None, encoder: Encoder
) -> None:
    """A word without end, and no mark in it (giant.py): five widenings, then everything, and the
    evidence says so."""
    text = b"first words " * 3 + b"abcdefgh" * 3000
    session = fresh(encoder, text)
    session._open = ()
    change = session.edit(encoder, len(text), len(text), b"a")
    assert change.evidence.fallback
    assert change.evidence.widenings == MAX_WIDENINGS
    assert change.route is Route.CPU
    assert change.keep > session.tokens - 5
    check_session(session, encoder, text + b"a")


def test_a_cut_further_away_is_found_by_widening(small: None, encoder: Encoder) -> None:
    """The window doubles until it holds a cut and a run that is long enough."""
    text = b"some words come first " * 20 + b"abcdefgh" * 12
    session = fresh(encoder, text)
    change = session.edit(encoder, len(text), len(text), b"a")
    assert change.route is Route.SPLICE
    assert 0 < change.evidence.widenings <= MAX_WIDENINGS
    assert not change.evidence.fallback
    check_session(session, encoder, text + b"a")


@dataclass
class Misled:
    """An encoder whose windows come out wrong, as a broken kernel's would."""

    inner: Encoder
    whole: int

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def encode(self, text: bytes) -> Tokens:
        """Right for the whole text, wrong for less."""
        tokens = self.inner.encode(text)
        return tokens if len(text) >= self.whole else replace(tokens, ids=tokens.ids + 1)


def test_no_run_no_splice(small: None, encoder: Encoder) -> None:
    """Where old and fresh tokens disagree, a safe cut is not enough: everything is encoded."""
    text = b"some words come first " * 40
    session = fresh(encoder, text)
    change = session.edit(Misled(encoder, len(text)), len(text), len(text), b" more")
    assert change.evidence.fallback
    check_session(session, encoder, text + b" more")


def test_a_wrong_record_is_healed(small: None, encoder: Encoder) -> None:
    """Tokens that were stored wrong near an edit match nothing: the text is encoded again."""
    text = b"some words come first " * 40
    session = Session(Header(b"session"), Nothing())
    right = encoder.encode(text)
    session.reset(encoder, text, tokens=replace(right, ids=right.ids + 1))
    session.edit(encoder, len(text), len(text), b" more")
    check_session(session, encoder, text + b" more")


def test_no_cuts_at_all(small: None, encoder: Encoder) -> None:
    """An encoder without cuts is asked for the whole text, and the change is still small."""

    class Uncut(Misled):
        splices = False

    text = b"some words come first " * 40
    session = fresh(encoder, text)
    change = session.edit(Uncut(encoder, 0), len(text), len(text), b" more")
    assert change.route is Route.CPU
    assert not change.evidence.fallback
    assert change.evidence.chars_encoded == len(text) + 5
    assert len(change.ids) <= len(b" more")
    check_session(session, encoder, text + b" more")


made_up_texts = st.lists(
    st.sampled_from(["word", " and", " b", "#", "\0", "\0" * 90, "1", ".", "é", " "]), max_size=40
).map("".join)


@given(start=made_up_texts, edits=st.lists(made_up_texts, min_size=1, max_size=5), data=st.data())
@_SETTINGS
def test_tokens_without_bytes_and_with_very_many(
    small: None, start: str, edits: list[str], data: st.DataObject
) -> None:
    """Characters that vanish or become several tokens: lengths of 0, and lengths beyond a page."""
    encoder = MadeUp()
    session = fresh(encoder, start.encode())
    text = start.encode()
    for piece in edits:
        low, high = offsets(text.decode(), data)
        before = session.ids()
        change = session.edit(encoder, low, high, piece.encode())
        text = educational.replaced(text, low, high, piece.encode())
        check_session(session, encoder, text)
        assert applied(before, change) == session.ids().tolist()


def test_offsets_are_checked(encoder: Encoder) -> None:
    """Outside the text, in the wrong order, inside a character; nothing changes."""
    session = fresh(encoder, "aé".encode())
    for start, end, code in (
        (2, 3, Code.OFFSET_IN_CHARACTER),
        (1, 2, Code.OFFSET_IN_CHARACTER),
        (2, 1, Code.OFFSET_RANGE),
        (-1, 1, Code.OFFSET_RANGE),
        (0, 4, Code.OFFSET_RANGE),
    ):
        with pytest.raises(ToktierError) as caught:
            session.edit(encoder, start, end, b"x")
        assert caught.value.code is code
    check_session(session, encoder, "aé".encode())
    assert [session.char_boundary(i) for i in range(-1, 5)] == [
        False, True, True, False, True, False,
    ]  # fmt: skip


def test_another_fingerprint_is_refused(encoders: dict[str, Encoder]) -> None:
    """A session made under one tokenizer is never continued under another."""
    session = fresh(encoders["nfc"], b"text")
    with pytest.raises(ToktierError) as caught:
        session.edit(encoders["plain"], 4, 4, b" more")
    assert caught.value.code is Code.TOKENIZER_CHANGED


def test_slices(small: None, encoder: Encoder) -> None:
    """Any slice is the text's, across pages and beyond its end."""
    text = "some wörds come first ".encode() * 20
    session = fresh(encoder, text)
    for start in range(0, len(text) + 3, 7):
        for size in (0, 1, 5, 90, 1000):
            assert session.slice(start, start + size) == text[start : start + size]


def test_tokens_from_elsewhere_seed_a_session(small: None, encoder: Encoder) -> None:
    """A reset with ready tokens encodes nothing and gives the same session."""
    text = b"some words come first " * 40
    tokens = encoder.encode(text)

    class Silent(Misled):
        def encode(self, text: bytes) -> Tokens:
            raise AssertionError("asked to encode")

    session = Session(Header(b"session"), Nothing())
    change = session.reset(Silent(encoder, 0), text, tokens=tokens, tokenizer="name")
    assert (change.keep, change.tail, session.tokenizer) == (0, 0, "name")
    check_session(session, encoder, text)


@pytest.mark.families
@pytest.mark.parametrize("family", ["qwen3", "claude"])
def test_real_families(family_file: Callable[[str], Path], family: str) -> None:
    """Adversarial appends and edits on real tokenizers, held to the reference's ids."""
    entry = open_tokenizer(family_file(family))
    encoder = entry.encoder
    random = np.random.default_rng(7)

    def piece(n: int) -> str:
        return "".join(random.choice(PIECES) for _ in range(n)) + " words between" * (n % 3)

    text = "".join(piece(9) for _ in range(60))
    session = fresh(encoder, text.encode())
    for step in range(25):
        first = int(random.integers(0, len(text) + 1)) if step % 2 else len(text)
        last = min(len(text), first + int(random.integers(0, 9)))
        new = piece(step % 7)
        before: Ids = session.ids()
        start, end = len(text[:first].encode()), len(text[:last].encode())
        change = session.edit(encoder, start, end, new.encode())
        text = text[:first] + new + text[last:]
        want = entry.reference.ids(text).tolist()
        assert session.ids().tolist() == want
        assert applied(before, change) == want


@pytest.mark.parametrize("size", [3, 5, 8, 12, 20])
def test_a_page_that_became_small_joins_its_neighbour(small: None, size: int) -> None:
    """Deleting most of a page near the end, the one before the last included, and again."""
    encoder = MadeUp()
    words = b"".join(b" %c%d" % (97 + i % 26, i) for i in range(40))
    for start in range(len(words) - 60, len(words) - size):
        session = fresh(encoder, words)
        text = words
        for at in (start, start - 7, start - 9):
            before = session.ids()
            end = min(at + size, len(text))
            text = text[:at] + text[end:]
            change = session.edit(encoder, at, end, b"")
            check_session(session, encoder, text)
            assert applied(before, change) == session.ids().tolist()
