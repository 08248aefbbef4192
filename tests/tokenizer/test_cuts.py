"""Cuts that encoders hand out are safe whatever stands to their left, and are found where they
are wanted."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import numpy as np
import pytest
from engine_samples import (
    BYTE_LEVEL,
    EXAMPLES,
    GPT2_SPLIT,
    TRAPS,
    FamilyFile,
    artifact_of,
    assert_same,
    bpe_spec,
    family,
    quick_encoder,
    texts,
    transcript_texts,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from toktier_stream.errors import Code, ToktierError
from toktier_stream.tokenizer import encoder as encoder_module
from toktier_stream.tokenizer.encoder import FastEncoder
from toktier_stream.tokenizer.reference import Reference
from toktier_stream.tokenizer.threads import share


def assert_safe(encoder: FastEncoder, reference: Reference, left: str, text: bytes, b: int) -> None:
    """In ``left ∥ text`` a token starts at the cut, and from there on the tokens are those of
    ``text[b:]`` alone."""
    assert 0 < b < len(text)
    right = reference.encode(text[b:])
    whole = reference.encode(left.encode() + text)
    count = len(right)
    assert whole.ids[len(whole) - count :].tolist() == right.ids.tolist(), ascii((left, text, b))
    assert whole.lengths[len(whole) - count :].tolist() == right.lengths.tolist()
    assert encoder.encode(text[b:]).ids.tolist() == right.ids.tolist()


def check_cuts(
    encoder: FastEncoder, reference: Reference, left: str, string: str, low: int, high: int
) -> None:
    text = string.encode()
    reach = encoder.literal_reach
    for cut in (encoder.last_cut(text, low, high), encoder.first_cut(text, low, high)):
        if cut < 0:
            continue
        assert low <= cut <= high
        assert_safe(encoder, reference, "", text, cut)
        if cut >= reach:
            assert_safe(encoder, reference, left, text, cut)
    # Both directions see the same cuts; each place alone decides.
    cuts = [b for b in range(len(text) + 1) if encoder.last_cut(text, b, b) == b]
    inside = [b for b in cuts if low <= b <= high]
    assert encoder.last_cut(text, low, high) == max(inside, default=-1)
    assert encoder.second_cut(text, low, high) == ([-1, -1, *inside][-2])
    assert encoder.first_cut(text, low, high) == min(inside, default=-1)


@pytest.mark.families
@pytest.mark.parametrize("name", BYTE_LEVEL)
def test_random_cuts(name: str, family_file: FamilyFile) -> None:
    """Every family, random texts and random lefts: the reference agrees on both sides."""
    encoder, reference = family(family_file(name))

    @settings(max_examples=EXAMPLES, deadline=None, database=None)
    @given(texts(encoder, reference), texts(encoder, reference), st.data())
    def check(left: str, text: str, data: Any) -> None:
        size = len(text.encode())
        low = data.draw(st.integers(0, size))
        check_cuts(encoder, reference, left, text, low, data.draw(st.integers(low, size)))

    check()


def literal_spec(normalizer: Any = None) -> dict[str, Any]:
    words = ["<a b>", "b> c", "<", "12 34 56", "e\u0301 e"]
    added = [{"content": c, "normalized": i % 2 == 1} for i, c in enumerate(words)]
    return bpe_spec([(b"a", b"b")], pre_tokenizer=GPT2_SPLIT, added=added, normalizer=normalizer)


@settings(max_examples=EXAMPLES * 2, deadline=None)
@given(
    st.booleans(),
    st.lists(st.sampled_from([*"<ab> c1234 56", "e", "\u0301", "é", "<a b>", "34 5"]), max_size=24),
    st.lists(st.sampled_from([*"<ab> c1234 56", "e", "\u0301", "é", "<a b>"]), max_size=12),
)
def test_literals_that_hold_boundaries(nfc: bool, parts: list[str], before: list[str]) -> None:
    """No cut stands inside an occurrence of a literal, chosen or not, nor where one of the
    normalized text would lie."""
    spec = literal_spec({"type": "NFC"} if nfc else None)
    encoder, reference = quick_encoder(spec), Reference(artifact_of(spec))
    text = "".join(parts)
    check_cuts(encoder, reference, "".join(before), text, 0, len(text.encode()))


def test_no_cut_inside_a_literal() -> None:
    """The space in "<a b>" is a boundary of classes and no cut; behind the literal there is one."""
    encoder = quick_encoder(literal_spec())
    text = b"xx <a b> yy"
    assert encoder.last_cut(text, 0, len(text)) == text.index(b" yy")
    assert encoder.last_cut(text, 4, 7) == -1
    assert encoder.first_cut(text, 0, len(text)) == 2


def test_normalization_forbids_cuts() -> None:
    """No cut before a character that composes with what stands left of it, nor where the class of
    the right character depends on a mark behind it."""
    spec = bpe_spec([], pre_tokenizer=GPT2_SPLIT, normalizer={"type": "NFC"})
    encoder = quick_encoder(spec)
    plain = quick_encoder(bpe_spec([], pre_tokenizer=GPT2_SPLIT))
    for text, at in (("a \u0338", 1), ("a=\u0338", 1), ("a\u0338 b", 3), ("1 \u0301", 1)):
        data = text.encode()
        assert plain.last_cut(data, at, at) == at
        assert encoder.last_cut(data, at, at) == -1
    assert encoder.last_cut(b"a =b", 1, 1) == 1


def test_edges_of_the_range() -> None:
    """Neither end of the text is a cut, and ranges may reach beyond it."""
    encoder = quick_encoder(bpe_spec([], pre_tokenizer=GPT2_SPLIT))
    assert encoder.last_cut(b"", 0, 10) == -1
    assert encoder.last_cut(b"a", -5, 10) == -1
    assert encoder.last_cut(b"a b", -5, 100) == 1
    assert encoder.first_cut(b"a b c", 2, 100) == 3
    assert encoder.first_cut(b"a b c", 4, 2) == -1


@pytest.mark.families
@pytest.mark.parametrize("name", BYTE_LEVEL)
def test_cuts_are_near(name: str, family_file: FamilyFile, transcripts: Any) -> None:
    """In real transcripts a cut is found in nearly every 64 bytes."""
    encoder, _ = family(family_file(name))
    for text in transcript_texts(transcripts)[:3]:
        data = text[:60_000].encode()
        places = range(0, len(data) - 64, 64)
        found = sum(encoder.last_cut(data, p, p + 64) >= 0 for p in places)
        assert found > 0.95 * len(places)


@pytest.mark.families
@pytest.mark.parametrize("name", BYTE_LEVEL)
def test_parts_in_parallel(
    name: str, family_file: FamilyFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text divided at two-sided cuts has the tokens of its parts, whatever the cuts."""
    encoder, reference = family(family_file(name))
    monkeypatch.setattr(encoder_module, "MIN_CHUNK", 1)
    monkeypatch.setattr(encoder_module, "CHUNK", 16)

    @settings(max_examples=EXAMPLES // 3, deadline=None, database=None)
    @given(texts(encoder, reference), st.integers(1, 9))
    def check(text: str, threads: int) -> None:
        parts = encoder.encode_parallel(text.encode(), threads)
        whole = encoder.encode(text.encode())
        assert np.array_equal(parts.ids, whole.ids)
        assert np.array_equal(parts.lengths, whole.lengths)

    check()
    for text in TRAPS:
        assert_same(encoder, reference, text)


def test_parts_where_there_is_no_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """One giant piece is encoded in one part."""
    monkeypatch.setattr(encoder_module, "MIN_CHUNK", 1)
    encoder = quick_encoder(bpe_spec([(b"a", b"a")], pre_tokenizer=GPT2_SPLIT))
    assert len(encoder.encode_parallel(b"a" * 1000, 4)) == 500
    assert len(encoder.encode_parallel(b"", 4)) == 0


def test_a_part_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in any part reaches the caller; what the parts wrote into is dropped, and the next
    text is encoded as ever."""
    encoder = quick_encoder(bpe_spec([(b"a", b"a")], pre_tokenizer=GPT2_SPLIT))
    monkeypatch.setattr(encoder_module, "MIN_CHUNK", 1)
    monkeypatch.setattr(encoder_module, "CHUNK", 64)
    text = b"aaa 12 " * 200
    expected = encoder.encode(text).ids.tolist()
    for failing in range(3):
        for threads in (2, 5):
            with monkeypatch.context() as patch:
                patch.setattr(encoder_module, "MAX_BYTES", 60 + failing)
                with pytest.raises(ToktierError) as caught:
                    encoder.encode_parallel(text, threads)
                assert caught.value.code is Code.SESSION_TOO_LARGE
            assert encoder.encode_parallel(text, threads).ids.tolist() == expected


def test_work_is_shared_and_errors_come_back() -> None:
    """Every item is taken once; an error on another thread is raised here; nothing is left."""
    taken: list[int] = []
    everyone = threading.Barrier(3)

    def work(items: deque[int]) -> None:
        everyone.wait()
        while items:
            try:
                taken.append(items.popleft())
            except IndexError:
                return

    share(work, deque(range(1000)), 3)
    assert sorted(taken) == list(range(1000))

    caller = threading.get_ident()
    failed = threading.Event()

    def fails_elsewhere(items: deque[int]) -> None:
        if threading.get_ident() != caller:
            failed.set()
            raise ValueError("elsewhere")
        assert failed.wait(30)

    items = deque((1, 2))
    with pytest.raises(ValueError, match="elsewhere"):
        share(fails_elsewhere, items, 2)
    assert not items
