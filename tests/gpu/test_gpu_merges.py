"""Merging on the device: random dictionaries, held to the reference's own BPE."""

from __future__ import annotations

import random

import numpy as np
import pytest
from gpu_harness import Subject, device, made
from hypothesis import given, settings
from hypothesis import strategies as st

from toktier_gpu.plan import Limits
from toktier_gpu.shim_device import MODES, ShimDevice

LIMITS = Limits(bytes=1 << 13, texts=32, buckets=())


def differing(subject: Subject, of: ShimDevice, texts: list[bytes]) -> list[bytes]:
    """The texts that the device encodes other than the reference. Nothing is left to the CPU."""
    encoder = subject.encoder(of, LIMITS)
    batch = encoder.encode(texts)
    assert not any(encoder.fallbacks.values())
    wrong = []
    for i, text in enumerate(texts):
        expected = subject.reference.encode(text)
        same = np.array_equal(batch[i].ids, expected.ids)
        if not (same and np.array_equal(batch[i].lengths, expected.lengths)):
            wrong.append(text)
    return wrong


def dictionary(chooser: random.Random, letters: bytes, size: int) -> list[tuple[bytes, bytes]]:
    """Merges of random tokens in random order: a token can rank before its own parts."""
    tokens = [bytes((b,)) for b in letters]
    merges: dict[tuple[bytes, bytes], None] = {}
    while len(merges) < size:
        left, right = chooser.choice(tokens), chooser.choice(tokens)
        if len(left + right) <= 12:
            merges[left, right] = None
            tokens.append(left + right)
    shuffled = list(merges)
    if chooser.random() < 0.7:
        chooser.shuffle(shuffled)
    return shuffled


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1 << 40), st.sampled_from(sorted(MODES)))
def test_random_dictionaries(seed: int, mode: str) -> None:
    """Short, medium and long items of random letters come out as the reference has them."""
    chooser = random.Random(seed)
    letters = chooser.choice([b"ab", b"abc", b"a", b"abcdefg"])
    subject = made(dictionary(chooser, letters, chooser.randint(1, 20)))
    of = device(mode=mode, seed=seed % 1000 + 1)
    sizes = [
        1,
        2,
        15,
        16,
        17,
        31,
        32,
        33,
        64,
        127,
        128,
        129,
        160,
        161,
        700,
        chooser.randint(1, 2000),
    ]
    texts = [bytes(chooser.choices(letters, k=size)) for size in sizes]
    runs = [bytes((chooser.choice(letters),)) * chooser.randint(1, 300) for _ in range(6)]
    try:
        assert differing(subject, of, [*texts, *runs, b"".join(runs)[:1500]]) == []
    finally:
        of.close()


@pytest.mark.parametrize("size", [30, 100, 400])
def test_a_token_that_ranks_before_its_part(size: int) -> None:
    """(ab, a) ranks before (a, b): after one merge of ab, aba is next, not the other ab."""
    subject = made([(b"ab", b"a"), (b"a", b"b"), (b"aba", b"aba")])
    of = device()
    try:
        assert differing(subject, of, [b"ab" * (size // 2), (b"ab" * size)[1 : size - 1]]) == []
    finally:
        of.close()


@pytest.mark.parametrize("size", [31, 32, 33, 127, 128, 129, 1000, 1001, 4095])
def test_runs_pair_from_the_left(size: int) -> None:
    """Occurrences of (a, a) overlap: the leftmost ones win, across words of 32 places too."""
    subject = made([(b"a", b"a"), (b"aa", b"aa"), (b"b", b"aa")])
    of = device()
    texts = [b"a" * size, b"b" + b"a" * (size - 1), b"a" * (size // 2) + b"b" + b"a" * (size // 3)]
    try:
        assert all(differing(subject, of, [text]) == [] for text in texts)
    finally:
        of.close()


def test_whole_pieces_may_be_what_their_merges_are_not() -> None:
    """With ignore_merges a piece that is a token is that token; a part of a piece is not."""
    merges = [(b"b", b"c"), (b"a", b"b"), (b"ab", b"c"), (b"x" * 8, b"x" * 8)]
    merges += [(b"x", b"x"), (b"xx", b"xx"), (b"xxxx", b"xxxx")]
    subject = made(merges, ignore_merges=True)
    of = device()
    texts = [b"abc", b"abcabc", "abc日本abc語".encode(), b"x" * 16, b"x" * 17, "x日".encode() * 40]
    try:
        assert differing(subject, of, texts) == []
    finally:
        of.close()


RAW = ("<a>", "<a><b>", "aa", "aaa", "日")
NORMALIZED = ("b<", "<a>b", "語日", "ab")


@settings(max_examples=20, deadline=None)
@given(
    st.lists(
        st.lists(st.sampled_from(["<", "a", ">", "b", "<a>", "<b>", "日", "語", " "]), max_size=40),
        min_size=1,
        max_size=20,
    )
)
def test_added_tokens(snippets: list[list[str]]) -> None:
    """Leftmost-longest, first those in raw text, then those between them; never across texts."""
    subject = made([(b"b", b" "), (b">", b" "), (b" ", b"<")], raw=RAW, normalized=NORMALIZED)
    of = device(mode="shuffled")
    try:
        assert differing(subject, of, ["".join(s).encode() for s in snippets]) == []
    finally:
        of.close()
