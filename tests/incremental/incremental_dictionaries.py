"""Random BPE dictionaries and texts, and the oracle's view of them."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from toktier_stream.incremental import tables
from toktier_stream.incremental.canonical import normalize
from toktier_stream.incremental.educational import Offline
from toktier_stream.incremental.rules import Rules, from_merges
from toktier_stream.incremental.state import State

Merges = list[tuple[bytes, bytes]]

CAMPAIGN = int(os.environ.get("TOKTIER_TEST_DICTIONARIES", "120"))
"""Dictionaries of each kind in the random campaigns; thousands for the long form."""


compiled = settings(deadline=None, max_examples=max(100, CAMPAIGN))
"""For property tests of kernels: the first example may compile them."""


@dataclass(frozen=True)
class Dictionary:
    """One random dictionary with its tables."""

    letters: bytes
    merges: Merges
    rules: Rules
    tables: tables.Tables
    proper: bool


def make(letters: bytes, merges: Merges) -> Dictionary:
    """A dictionary of given merges."""
    rules = from_merges(letters, merges)
    canonical = normalize(rules)
    proper = bool((canonical.top == canonical.rank)[canonical.keep].all())
    return Dictionary(letters, merges, rules, tables.build(rules), proper)


def random_merges(rng: random.Random) -> tuple[bytes, Merges]:
    """3 to 6 letters, up to 60 rules. Shuffled ranks make many improper dictionaries, repeated
    pairs and several ways to make one token included."""
    letters = bytes(range(97, 97 + rng.randint(3, 6)))
    tokens = [bytes([c]) for c in letters]
    merges: Merges = []
    longest = rng.choice((6, 12, 24))
    for _ in range(rng.choice((6, 12, 25, 60))):
        left, right = rng.choice(tokens), rng.choice(tokens)
        if len(left + right) > longest:
            continue
        merges.append((left, right))
        if left + right not in tokens:
            tokens.append(left + right)
    style = rng.randrange(4)
    if style == 1:
        rng.shuffle(merges)
    elif style == 2:  # a few rules out of order
        for _ in range(3):
            if merges:
                merges.insert(rng.randrange(len(merges)), merges.pop(rng.randrange(len(merges))))
    if merges and rng.random() < 0.2:
        merges.append(rng.choice(merges))
    return letters, merges


def campaign(proper: bool, count: int = CAMPAIGN) -> Iterator[tuple[Dictionary, random.Random]]:
    """That many random dictionaries of one kind, always the same ones."""
    rng = random.Random(f"every prefix, proper={proper}")
    found = 0
    while found < count:
        dictionary = make(*random_merges(rng))
        if dictionary.proper == proper:
            found += 1
            yield dictionary, rng


def random_text(rng: random.Random, d: Dictionary) -> bytes:
    """Letters, runs, or tokens put together: up to about 60 bytes."""
    style = rng.randrange(3)
    if style == 0:
        return bytes(rng.choices(d.letters, k=rng.randint(1, 40)))
    if style == 1:
        runs = [bytes([rng.choice(d.letters)]) * rng.randint(1, 12) for _ in range(4)]
        return b"".join(runs)
    rows = rng.choices(range(len(d.rules.ids)), k=rng.randint(1, 8))
    return bytes(s for row in rows for s in d.rules.token(row))[:60]


@st.composite
def dictionaries(draw: st.DrawFn, min_letters: int = 3) -> Dictionary:
    """Small dictionaries that shrink well."""
    letters = bytes(range(97, 97 + draw(st.integers(min_letters, 4))))
    tokens = [bytes([c]) for c in letters]
    merges: Merges = []
    for _ in range(draw(st.integers(0, 14))):
        left, right = draw(st.sampled_from(tokens)), draw(st.sampled_from(tokens))
        merges.append((left, right))
        if left + right not in tokens and len(left + right) <= 12:
            tokens.append(left + right)
    return make(letters, draw(st.permutations(merges)))


def chain(state: State, end: int) -> list[int]:
    """Token rows of one prefix, from the state."""
    nodes = state.theta[state.boundaries(end)[1:]]
    return [int(r) for r in state.tables.forest.row[np.maximum(nodes, 0)]]


def expected_prefixes(d: Dictionary, text: bytes) -> list[list[int]]:
    """Token rows of every prefix, by the heap."""
    offline = Offline(d.rules)
    return [offline.by_heap(text[:j]) for j in range(len(text) + 1)]
