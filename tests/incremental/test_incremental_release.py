"""Where the first part of an open piece is let go, held to the sets of its chains' boundaries."""

from __future__ import annotations

from random import Random

import numpy as np
from incremental_dictionaries import CAMPAIGN, Dictionary, campaign

from toktier_stream.incremental.machine import MEMORY
from toktier_stream.incremental.release import release
from toktier_stream.incremental.rules import Ints
from toktier_stream.incremental.search import Search
from toktier_stream.incremental.state import State

_AFTER = 8


def _boundaries(theta: Ints, length: Ints, prefix: int) -> set[int]:
    found = {prefix}
    while prefix:
        prefix -= int(length[theta[prefix]])
        found.add(prefix)
    return found


def _expected(d: Dictionary, text: bytes, theta: Ints, held: int, known: int) -> int:
    longest, length = d.tables.longest, d.tables.forest.length
    if held - longest < known or held <= 0:
        return 0
    chains = [_boundaries(theta, length, p) for p in range(held - longest, held + 1)]
    room = len(theta) - longest - _AFTER
    fit = [b for b in set.intersection(*chains) if b < room and text[b] & 0xC0 != 0x80]
    return max(fit, default=0)


def _released(d: Dictionary, text: bytes, theta: Ints, held: int, known: int) -> int:
    data = np.frombuffer(text, dtype=np.uint8)
    there, live = np.full(MEMORY, -1, dtype=np.int64), np.zeros(1, dtype=np.int64)
    there[0] = 0
    sizes = d.tables.forest.length.astype(np.uint16)
    return int(release(data, 0, held, there, known, theta, d.tables.longest, 0, sizes, live))


def _check(d: Dictionary, rng: Random, text: bytes) -> int:
    state = State(d.tables, Search.WALK)
    state.extend(np.frombuffer(text, dtype=np.uint8))
    theta = state.theta.copy()
    held = rng.randint(1, len(text))
    known = rng.randint(0, held)
    found = _released(d, text, theta, held, known)
    assert found == _expected(d, text, theta, held, known)
    return found


def test_all_chains_have_the_boundary() -> None:
    """The last one that they all have and that text enough follows; proper dictionaries or not."""
    some = 0
    for proper in (True, False):
        for d, rng in campaign(proper, CAMPAIGN // 2):
            for _ in range(4):
                text = bytes(rng.choices(d.letters, k=rng.randint(1, 120)))
                some += _check(d, rng, text) > 0
    assert some > CAMPAIGN // 8
