"""One append at the end of a text, compiled: steps 1 to 6 of tail.py."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from toktier_stream.incremental.carried import (
    kinds_of,
    laid_of,
    literals_of,
    live_of,
    numbers_of,
    wired,
    words_of,
)
from toktier_stream.incremental.chain import emit, rejoin
from toktier_stream.incremental.jit import kernel
from toktier_stream.incremental.machine import run
from toktier_stream.incremental.release import release
from toktier_stream.incremental.rules import Ints, Longs, Symbols
from toktier_stream.incremental.walk import walk_on
from toktier_stream.tokenizer.face import Ids
from toktier_stream.tokenizer.literals import grows_from, longest_at
from toktier_stream.tokenizer.runs import SAFE
from toktier_stream.tokenizer.utf8 import character_start, decode

_HELD: Final = 512
"""Bytes behind a start that is only known at the end of the text, at most: they are read again."""


@kernel
def follow(
    text: Symbols,
    piece: int,
    old_end: int,
    old_literals: bool,
    inside: bool,
    old_joined: bool,
    known: int,
    state: int,
    back: int,
    long: int,
    far: int,
    old_memory: Longs,
    old_theta: Ints,
    old_ids: Ids,
    old_lengths: Ids,
    memory: Longs,
    plan: Longs,
) -> Any:
    """Read on. All places are bytes of ``text``, where the open piece begins at ``piece`` and the
    new bytes at ``old_end``; ``known`` counts from ``piece``, the machine was in ``state`` ``back``
    bytes before it. An open piece of ``long`` bytes is to be shortened, as the text up to ``far``
    bytes before the end tells.

    Returns the tokens of pieces that are closed now (-1: unusual), those of pieces closed before
    the last character was read (-1: none started), tokens and bytes in common with the old
    ones, the start of the open piece, bytes read again, whether an added token may have begun,
    whether the open piece is a part still, whether its tokens are theta's; bytes and tokens that
    were let go of it and the machine's state behind them; and theta from there on, ids and lengths
    from the old open piece on.
    """
    numbers, was_inside = numbers_of(plan), inside
    longest_whole, longest = numbers[3], numbers[4]
    m, words, laid = wired(plan), words_of(plan), laid_of(plan)
    of_node, sizes = words.ids, words.sizes
    size = len(text)
    ids = np.empty(size - piece, np.uint32)
    lengths = np.empty(size - piece, np.uint32)
    theta = np.empty(size - piece + 1, np.int32)
    unusual = (
        -1, -1, 0, 0, 0, 0, False, inside, False, 0, 0, 0, theta, ids, lengths,
    )  # fmt: skip
    if not _usual(text, old_end, old_literals, plan):
        return unusual
    lit = literals_of(plan)
    opened = grows_from(text, size - lit.reach, lit.first, lit.edges, lit.shift, lit.final) < size

    for i in range(len(memory)):
        place = old_memory[i]
        memory[i] = place + piece if i > 1 and place >= 0 else place
    old_places = memory.copy()
    last = character_start(text, size - 1)
    starts = np.empty(size - piece + 4, np.int64)
    before_last = run(text, old_end, last, False, size + 1, m, memory, starts)
    count = before_last + run(text, last, size, False, size + 1, m, memory, starts[before_last:])

    # Pieces that are closed for certain.
    theta[: len(old_theta)] = old_theta
    base, filled, out, again = piece, old_end, 0, 0
    steady = -1
    for i in range(count):
        place = starts[i]
        if place > filled:
            walk_on(text, filled, place, theta, filled - base, laid)
            filled = place
        if place > base:
            node = np.int64(theta[place - base])
            if node > 0 and np.int64(sizes[node]) == place - base:
                # One token: then it is no other one as a whole piece.
                ids[out], lengths[out] = of_node[node], sizes[node]
                out += 1
            else:
                out = emit(text, theta, base, place, words, inside, ids, lengths, out)
            if out < 0:
                return unusual
            again += max(0, old_end - place)
            base = filled = place
            theta[0] = 0
        if place >= base:
            inside = False
        if i < before_last:
            steady = out
    walk_on(text, filled, size, theta, filled - base, laid)
    closed = out
    theta = theta[: size - base + 1]

    # What the end of the text adds.
    ended = memory.copy()
    count = run(text, size, size, True, size + 1, m, ended, starts)
    start, nodes, part = base, theta, inside
    for i in range(count):
        place = starts[i]
        if place == start:
            part = False
        if place <= start:
            continue
        if size - place > _HELD:
            return unusual
        out = emit(text, nodes, start, place, words, part, ids, lengths, out)
        part = False
        if out < 0:
            return unusual
        start = place
        nodes = np.empty(size - start + 1, np.int32)
        nodes[0] = 0
        walk_on(text, start, size, nodes, 0, laid)
        again += max(0, old_end - start)
    common = common_bytes = 0
    if old_joined and start == piece and old_end - piece > (0 if part else longest_whole):
        # Old and new tokens are chains of one theta: the same left of a boundary of both.
        common, common_bytes, out = rejoin(
            theta, size - piece, words, old_end - piece, old_ids, old_lengths, ids, lengths
        )
    else:
        out = emit(text, nodes, start, size, words, part, ids, lengths, out)
    if out < 0:
        return unusual
    while common < min(out, len(old_ids)):
        if ids[common] != old_ids[common] or lengths[common] != old_lengths[common]:
            break
        common_bytes += lengths[common]
        common += 1

    cut = gone = 0
    if len(theta) > long:
        # The machine's state is known where the last append ended, and where it was known before.
        if base > piece or (was_inside and not inside):
            known = size - piece
        seen, there = piece - back, state
        if base >= old_end:
            seen, there = old_end, old_memory[0]
        cut, state = release(
            text, base, seen, there, old_end, old_places, known - (base - piece), theta, far,
            longest, longest_whole, words.sizes, live_of(plan), m,
        )  # fmt: skip
        covered = 0
        while covered < cut:
            covered += lengths[closed + gone]
            gone += 1
        if covered != cut:
            cut = gone = 0
    if cut > 0 or base > piece:
        theta = theta[cut:].copy()
    begin = base + cut
    for i in range(1, len(memory)):
        memory[i] = memory[i] - begin if memory[i] >= begin else -1
    return (
        closed, steady, common, common_bytes, base, again, opened, inside, start == base,
        cut, gone, state, theta, ids[:out], lengths[:out],
    )  # fmt: skip


@kernel
def _usual(text: Symbols, old_end: int, old_literals: bool, plan: Longs) -> bool:
    """Whether no added token ends in the new text (nor, with ``old_literals``, begins in it), and
    normalization leaves it alone."""
    size = len(text)
    lit, kinds = literals_of(plan), kinds_of(plan)
    first = lit.first
    for at in range(size if old_literals else max(0, old_end - lit.reach + 1), size):
        if first[text[at]]:
            stop, token = longest_at(text, at, size, lit.edges, lit.shift, lit.final)
            if token >= 0 and stop > old_end:
                return False
    at = old_end
    while at < size and len(kinds):
        point, width = decode(text, at)
        if kinds[point] != SAFE:
            return False
        at += width
    return True
