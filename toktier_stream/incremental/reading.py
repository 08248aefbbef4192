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
from toktier_stream.incremental.chain import chain, mark_whole
from toktier_stream.incremental.jit import kernel
from toktier_stream.incremental.machine import MEMORY, run
from toktier_stream.incremental.pieces import walk_pieces
from toktier_stream.incremental.release import release
from toktier_stream.incremental.rules import Longs, Symbols
from toktier_stream.tokenizer.face import Ids
from toktier_stream.tokenizer.jit import address_of, load_u8
from toktier_stream.tokenizer.literals import grows_from, longest_at
from toktier_stream.tokenizer.runs import SAFE
from toktier_stream.tokenizer.utf8 import character_start, decode

AT, TOKENS, SETTLED, BEGUN, INSIDE, KNOWN, STATE, JOINED, OPENED, SIZE = range(10)
"""Where a tail's numbers are in its block (tail.py). The machine's memory follows, and theta as
int32, ``SIZE`` of them."""
LEFT: Final = 10
HEAD: Final = LEFT + MEMORY
_HELD: Final = 512
"""Bytes behind a start that is only known at the end of the text, at most: they are read again."""


@kernel
def follow(
    text: Symbols,
    piece: int,
    old_end: int,
    old_literals: bool,
    old: Longs,
    old_ids: Ids,
    old_lengths: Ids,
    long: int,
    margin: int,
    plan: Longs,
) -> Any:
    """Read on. All places are bytes of ``text``, where the open piece begins at ``piece`` and the
    new bytes at ``old_end``; of the text left of the piece as much is there as the longest added
    token has, if it has so much. ``old`` is the tail's block, ``old_ids`` and ``old_lengths`` are
    the tokens from the open piece on. An open piece of ``long`` bytes is to be shortened, as the
    text up to ``margin`` and twice the reach of added tokens before the end tells.

    Returns whether it was done (not: unusual); how many of these tokens stay, and their bytes;
    old bytes read again; ids and lengths of the tokens that follow; the new block; whether the
    open piece was shortened.
    """
    ids = np.empty(len(text) - piece + _HELD, np.uint32)
    lengths = np.empty(len(text) - piece + _HELD, np.uint32)
    unusual = (False, 0, 0, 0, ids, lengths, old, False)
    if not _usual(text, old_end, old_literals, plan):
        return unusual
    numbers, m, words = numbers_of(plan), wired(plan), words_of(plan)
    longest_whole, longest = numbers[3], numbers[4]
    size = len(text)
    lit = literals_of(plan)
    opened = grows_from(text, size - lit.reach, lit.first, lit.edges, lit.shift, lit.final) < size
    was_inside = old[INSIDE] != 0

    # Pieces that begin for certain. The machine's memory is noted on the way: where the text tells
    # of no added token, and some way before.
    memory = old[LEFT:HEAD].copy()
    for i in range(2, MEMORY):
        if memory[i] >= 0:
            memory[i] += piece
    far = character_start(text, max(0, size - 2 * lit.reach - margin))
    way = character_start(text, max(0, far - 2 * longest))
    last = character_start(text, size - 1)
    starts = np.empty(size - piece + 4, np.int64)
    at, count, before_last = old_end, 0, 0
    at_way, at_far = memory, memory
    for turn in range(4):
        stop = way if turn == 0 else far if turn == 1 else last if turn == 2 else size
        if stop > at:
            count += run(text, at, stop, False, size + 1, m, memory, starts[count:])
            at = stop
        if turn == 0 and way == at:
            at_way = memory.copy()
        elif turn == 1 and far == at:
            at_far = memory.copy()
        elif turn == 2:
            before_last = count
    inside, base, steady, part = was_inside, piece, np.int64(-1), was_inside
    cuts = np.empty(count + 2, np.int64)
    cuts[0] = piece
    pieces = 1
    for i in range(count):
        place = starts[i]
        if place > base:
            cuts[pieces] = base = place
            pieces += 1
        if place == base:
            inside = False
        if place == piece:
            part = False
        if i < before_last:
            steady = np.int64(base)
    cuts[pieces] = size + 1

    # Theta of the open piece, of the closed ones, and of the one that is open now.
    theta = np.empty(size - piece + 1, np.int32)
    known = old[SIZE]
    theta[:known] = old[HEAD:].view(np.int32)[:known]
    filled, first = old_end, piece
    if pieces > 1 and cuts[1] < old_end:
        filled = first = cuts[1]
    again = old_end - filled
    laid = laid_of(plan)
    widths = np.empty(size - piece + 1, np.uint16)
    following = cuts[2 if first > piece else 1 :]
    walk_pieces(text, piece, first, filled, size, following, theta, widths, laid)
    if longest_whole > 0:
        for i in range(0 if not part else 1, pieces - 1):
            mark_whole(text, cuts[i], cuts[i + 1], theta, piece, words)

    # What the end of the text adds.
    ended = memory.copy()
    count = run(text, size, size, True, size + 1, m, ended, starts)
    start, added, part = base, 0, inside
    for i in range(count):
        if starts[i] == base:
            part = False
        if starts[i] > start:
            start = starts[i]
            starts[added] = start
            added += 1
    provisional = starts[: added + 1]
    provisional[added] = size + 1
    end = provisional[0] if added else size
    if size - end > _HELD:
        return unusual
    # The piece that is open now is one token as a whole as long as nothing follows.
    ending = theta[end - piece]
    if longest_whole > 0 and not part:
        mark_whole(text, base, end, theta, piece, words)
    joined = added == 0 and theta[end - piece] == ending
    # Old and new tokens are chains of one theta, left of where it was read anew.
    limit, q, comparable = min(old_end, cuts[1], end) - piece, old_end - piece, old_lengths
    if old[JOINED] == 0:
        q, comparable = 0, old_lengths[:0]
    cuts -= piece
    room = size - piece
    begin, common, common_bytes = chain(
        theta, widths, filled - piece, end - piece, limit, q, comparable, cuts, pieces, words, room,
        ids, lengths,
    )  # fmt: skip
    theta[end - piece] = ending
    if begin < 0:
        return unusual
    out = room
    if added:
        nodes = np.zeros(size - end + 1, np.int32)
        walk_pieces(text, end, end, end, size, provisional[1:], nodes, widths, laid)
        for i in range(added):
            close = size if i == added - 1 else provisional[i + 1]
            mark_whole(text, provisional[i], close, nodes, end, words)
        again = max(again, old_end - end)
        provisional -= end
        full = size - end
        moved, _, _ = chain(
            nodes, widths, 0, full, full, 0, old_lengths[:0], provisional, added, words,
            room + full, ids, lengths,
        )  # fmt: skip
        if moved < 0:
            return unusual
        for i in range(moved, room + full):
            ids[out], lengths[out] = ids[i], lengths[i]
            out += 1
    ids, lengths = ids[begin:out], lengths[begin:out]
    # Where they are not compared above.
    same = 0
    if common == 0:
        while same < min(len(ids), len(old_ids)):
            if ids[same] != old_ids[same] or lengths[same] != old_lengths[same]:
                break
            common_bytes += int(np.int64(lengths[same]))
            same += 1
        common = same
        ids, lengths = ids[same:], lengths[same:]

    # The machine's state where the open piece begins, from where it was known on.
    reached, state = piece, old[STATE]
    when = old[KNOWN] - old[AT]
    if base > piece:
        scratch = np.full(MEMORY, -1, np.int64)
        if far > old_end and base >= far:
            reached, state = far, at_far[0]
        elif way > old_end and base >= way:
            reached, state = way, at_way[0]
        elif base >= old_end:
            reached, state = old_end, old[LEFT]
        scratch[0] = state
        run(text, reached, base, False, size + 1, m, scratch, starts)
        state = scratch[0]
    if base > piece or (was_inside and not inside):
        when = size - piece
    open_theta = theta[base - piece :]
    cut = 0
    if len(open_theta) > long and far > base and when - (base - piece) <= far - base:
        if far < old_end:
            # A small append: the machine has to come there again.
            at_far = np.full(MEMORY, -1, np.int64)
            at_far[0] = state
            run(text, base, far, False, size + 1, m, at_far, starts)
        open_theta[0] = 0
        cut = release(
            text, base, far, at_far, when - (base - piece), open_theta, longest, longest_whole,
            words.sizes, live_of(plan),
        )  # fmt: skip
    # Tokens left of each place, counted from the end.
    total = common + len(ids)
    place, i = size, total
    closed, settled = 0, -1
    for turn in range(3):
        aim = base + cut if turn == 0 else base if turn == 1 else steady
        if aim < 0:
            break
        if aim == piece:
            place, i = aim, 0
        while place > aim and i > 0:
            i -= 1
            place -= int(np.int64(lengths[i - common] if i >= common else old_lengths[i]))
        if place != aim:
            if turn > 0:
                return unusual
            # No token begins there.
            cut, place, i = 0, size, total
            continue
        if turn == 0:
            closed = i
        elif turn == 1:
            if cut == 0:
                closed = i
            settled = i
        elif len(kinds_of(plan)):
            settled = i
    if len(kinds_of(plan)) and steady < 0:
        # Where text is normalized, the last character may become another one.
        settled = -1 if old_literals else 0
    begin = base + cut
    if cut:
        scratch = np.full(MEMORY, -1, np.int64)
        reached, scratch[0] = base, state
        if way > max(old_end, base) and begin >= way:
            reached, scratch[0] = way, at_way[0]
        elif old_end >= base and begin >= old_end:
            reached, scratch[0] = old_end, old[LEFT]
        run(text, reached, begin, False, size + 1, m, scratch, starts)
        state = scratch[0]

    kept = size - begin + 1
    new = np.empty(HEAD + (kept + 1) // 2, np.int64)
    new[AT] = old[AT] + begin - piece
    new[TOKENS] = old[TOKENS] + closed
    new[SETTLED] = old[SETTLED]
    if not opened and settled >= 0:
        new[SETTLED] = max(new[SETTLED], old[TOKENS] + settled)
    if cut:
        new[SETTLED] = max(new[SETTLED], new[TOKENS])
        when, inside = size - piece, True
    new[BEGUN] = (
        old[AT] + base - piece if base > piece or (was_inside and not inside) else old[BEGUN]
    )
    new[INSIDE], new[KNOWN] = inside, old[AT] + when
    new[STATE], new[JOINED], new[OPENED], new[SIZE] = state, joined, opened, kept
    memory[1] = -1
    for i in range(2, MEMORY):
        memory[i] = memory[i] - begin if memory[i] >= begin else -1
    new[LEFT:HEAD] = memory
    now = new[HEAD:].view(np.int32)
    now[:kept] = theta[begin - piece :]
    now[0] = 0
    return True, common, common_bytes, again, ids, lengths, new, cut > 0


@kernel
def _usual(text: Symbols, old_end: int, old_literals: bool, plan: Longs) -> bool:
    """Whether no added token ends in the new text (nor, with ``old_literals``, begins in it), and
    normalization leaves it alone."""
    size = len(text)
    lit, kinds = literals_of(plan), kinds_of(plan)
    data, first = address_of(text), address_of(lit.first)
    for at in range(size if old_literals else max(0, old_end - lit.reach + 1), size):
        if load_u8(first, np.uint64(load_u8(data, np.uint64(at)))):
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
