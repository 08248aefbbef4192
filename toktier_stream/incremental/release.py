"""Where the first part of a long open piece can be let go: step 6 of tail.py."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from toktier_stream.incremental.jit import kernel
from toktier_stream.incremental.machine import MEMORY, run
from toktier_stream.incremental.rules import Ints, Longs, Symbols
from toktier_stream.tokenizer.utf8 import character_start

_AFTER: Final = 8
"""Values of theta that are kept beyond the longest token's."""


@kernel
def release(
    text: Symbols,
    piece: int,
    start: int,
    state: int,
    later: int,
    later_memory: Longs,
    known: int,
    theta: Ints,
    far: int,
    longest: int,
    longest_whole: int,
    sizes: Any,
    live: Longs,
    m: Any,
) -> tuple[int, int]:
    """Bytes of the open piece that can be let go (0: none), and the machine's state behind them.

    The piece begins at byte ``piece`` of the text and has ``theta``. The machine was in ``state``
    at ``start``, and had ``later_memory`` (with places of this text) at ``later``, which is often
    near enough. ``known`` counts from the piece's beginning. ``sizes``: bytes of each node's token;
    ``longest`` of any. Text up to ``far`` bytes before the end is looked at. ``m`` and ``live``:
    the machine's.
    """
    stop = len(text) - far
    while stop > piece and text[stop] & 0xC0 == 0x80:
        stop -= 1
    if stop <= piece or known > stop - piece:
        return 0, 0
    # The machine up to ``stop``, with a stop on the way: b is most likely behind it.
    starts = np.empty(stop - start + 4, np.int64)
    memory = np.full(MEMORY, -1, np.int64)
    memory[0] = state
    begin = start
    if start < later <= stop:
        memory[:], begin = later_memory, later
    first = memory[0]
    way = max(begin, character_start(text, max(0, stop - 4 * longest)))
    run(text, begin, way, False, len(text) + 1, m, memory, starts)
    there = memory[0]
    run(text, way, stop, False, len(text) + 1, m, memory, starts)
    held = stop
    for i in range(2, MEMORY):
        read = i < 4 or live[memory[0]] >> (i - 4) & 1
        if read and memory[i] > piece:
            held = min(held, memory[i])
    held -= piece
    if held - longest < known or held <= longest_whole:
        return 0, 0

    cut = np.int64(held)
    for prefix in range(held - 1, held - longest - 1, -1):
        p = np.int64(prefix)
        while p != cut:
            if p > cut:
                p -= np.int64(sizes[np.int64(theta[p])])
            else:
                cut -= np.int64(sizes[np.int64(theta[cut])])
    # At a character, and with as much behind it as the next steps may read.
    while cut > 0 and (len(theta) - cut <= longest + _AFTER or text[piece + cut] & 0xC0 == 0x80):
        cut -= np.int64(sizes[np.int64(theta[cut])])
    if cut <= 0:
        return 0, 0
    memory[:] = -1
    if piece + cut >= way:
        begin, first = way, there
    elif piece + cut < begin:
        begin, first = start, state
    memory[0] = first
    run(text, begin, piece + int(cut), False, len(text) + 1, m, memory, starts)
    return int(cut), int(memory[0])
