"""Where the first part of a long open piece can be let go: step 6 of tail.py."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from toktier_stream.incremental.jit import kernel
from toktier_stream.incremental.machine import MEMORY
from toktier_stream.incremental.rules import Ints, Longs, Symbols

_AFTER: Final = 8
"""Values of theta that are kept beyond the longest token's."""


@kernel
def release(
    text: Symbols,
    piece: int,
    stop: int,
    there: Longs,
    known: int,
    theta: Ints,
    longest: int,
    longest_whole: int,
    sizes: Any,
    live: Longs,
) -> int:
    """Bytes of the open piece that can be let go (0: none).

    The piece begins at byte ``piece`` of the text and has ``theta``. The machine had the memory
    ``there`` at ``stop``: text behind it is not looked at. ``known`` counts from the piece's
    beginning. ``sizes``: bytes of each node's token; ``longest`` of any. ``live``: the machine's.
    """
    held = stop
    for i in range(2, MEMORY):
        read = i < 4 or live[there[0]] >> (i - 4) & 1
        if read and there[i] > piece:
            held = min(held, there[i])
    held -= piece
    if held - longest < known or held <= longest_whole:
        return 0
    # The last boundary that all these chains have: from the right on, a chain that has one at a
    # place moves on to its next one, and chains that have the same are one from there on.
    met = np.zeros(held + 1, np.uint8)
    met[held - longest :] = 1
    chains, cut = longest + 1, np.int64(held)
    while chains > 1:
        if met[cut]:
            left = cut - np.int64(sizes[np.int64(theta[cut])])
            chains -= int(np.int64(met[left]))
            met[left] = 1
        cut -= 1
    while not met[cut]:
        cut -= 1
    # At a character, and with as much behind it as the next steps may read.
    while cut > 0 and (len(theta) - cut <= longest + _AFTER or text[piece + cut] & 0xC0 == 0x80):
        cut -= np.int64(sizes[np.int64(theta[cut])])
    return max(0, int(cut))
