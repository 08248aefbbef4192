"""The walk over a text that is divided into pieces, held to the walk over each of them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from incremental_dictionaries import CAMPAIGN, Dictionary, campaign, compiled, dictionaries

from toktier_stream.incremental.layout import Steps
from toktier_stream.incremental.pieces import walk_pieces
from toktier_stream.incremental.rules import Ints
from toktier_stream.incremental.search import Search
from toktier_stream.incremental.state import State
from toktier_stream.incremental.walk import Laid

letters = st.text("abcdz", max_size=40)


def _laid(steps: Steps) -> Laid:
    arrays = (
        steps.kids, steps.grown, steps.marks, steps.sign, steps.pairs, steps.buckets, steps.root,
        steps.symbol,
    )  # fmt: skip
    numbers = (len(steps.root), 0, len(steps.entries) - 2, steps.entries.ctypes.data)
    return Laid(*(np.uint64(x) for x in (*(a.ctypes.data for a in arrays), *numbers)))


def _each(d: Dictionary, pieces: list[bytes]) -> list[Ints]:
    """Theta of each piece, without its start."""
    found = []
    for piece in pieces:
        state = State(d.tables, Search.WALK)
        state.extend(np.frombuffer(piece, dtype=np.uint8))
        found.append(np.maximum(state.theta[1:], 0))
    return found


def _check(d: Dictionary, pieces: list[bytes], old: int) -> None:
    """``old`` bytes of the first piece are known already."""
    text = np.frombuffer(b"".join(pieces), dtype=np.uint8)
    expected = np.concatenate(_each(d, pieces))
    theta = np.full(len(text) + 1, 7, dtype=np.int32)
    theta[: old + 1] = [0, *expected[:old]]
    widths = np.full(len(text) + 1, 7, dtype=np.uint16)
    cuts = np.cumsum([len(p) for p in pieces])
    cuts[-1] += 1
    walk_pieces(text, 0, 0, old, len(text), cuts, theta, widths, _laid(d.tables.steps))
    assert np.array_equal(theta[1:], expected)
    known = expected[old:] > 0
    assert np.array_equal(widths[old + 1 :][known], d.tables.forest.length[expected[old:][known]])


@compiled
@given(
    dictionaries(min_letters=4), st.lists(letters.filter(len), min_size=1, max_size=9), st.data()
)
def test_pieces_are_walked_as_one_by_one(
    d: Dictionary, texts: list[str], data: st.DataObject
) -> None:
    """From any place of the first one on, its end included; some bytes are of no token."""
    pieces = [t.encode() for t in texts]
    _check(d, pieces, data.draw(st.integers(0, len(pieces[0]) - (len(pieces) == 1))))


def test_pieces_of_random_dictionaries() -> None:
    for proper in (True, False):
        for d, rng in campaign(proper, CAMPAIGN // 2):
            sizes = [rng.randint(1, 30) for _ in range(rng.randint(1, 12))]
            pieces = [bytes(rng.choices(d.letters, k=n)) for n in sizes]
            _check(d, pieces, rng.randrange(len(pieces[0])))
