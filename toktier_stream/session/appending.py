"""The splice of an append by its first window, in one compiled pass: what splice.py says, for the
usual text. Everything else is left to that module, which gives the same answers.
"""

from __future__ import annotations

from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np
from numba import carray  # type: ignore[attr-defined]

from toktier_stream.incremental.jit import Packed, pointer
from toktier_stream.incremental.settling import count_settled, settling_of
from toktier_stream.session.attempt import MARGIN
from toktier_stream.session.kernels import (
    count_characters,
    kernel,
    match,
    replace_suffix_kernel,
)
from toktier_stream.session.spliced import Splice, View
from toktier_stream.tokenizer.cuts import find_second_cut
from toktier_stream.tokenizer.encoder import FastEncoder
from toktier_stream.tokenizer.kernels import encode_segments
from toktier_stream.tokenizer.literals import split
from toktier_stream.tokenizer.runs import find_runs
from toktier_stream.tokenizer.utf8 import character_start
from toktier_stream.wire.messages import Evidence, Route

MOST: Final = 1 << 16
"""Bytes of an append, at most: larger texts may be encoded by several threads."""

_LITERALS: Final = 3
"""Where the three tables of added tokens begin in a plan: all, in the text as it comes, in the
normalized text."""


class Appender:
    """Splices appends to sessions of one tokenizer. Immutable, safe for threads."""

    def __init__(self, encoder: FastEncoder) -> None:
        compiled = encoder.compiled
        matcher, added = compiled.matcher, compiled.added
        kinds = np.zeros(0, dtype=np.uint8)
        if compiled.normalizer is not None:
            kinds = compiled.normalizer.kinds
        settling = settling_of(encoder)
        tables = (added.any, added.raw, added.normalized)
        numbers = [(t.reach, t.only, int(t.shift)) for t in tables]
        wide = compiled.normalizer is not None and added.normalized.reach > 0
        self._packed = Packed(
            (matcher.class_of, np.uint8), (matcher.one_sided, np.bool_), (kinds, np.uint8),
            *((t.first, np.bool_) for t in tables), *((t.edges, np.uint64) for t in tables),
            *((t.final, np.int64) for t in tables),
            (np.array(numbers), np.int64),
            (np.array((wide, encoder.longest_token, settling is not None)), np.int64),
        )  # fmt: skip
        # Any plan does where none is used.
        self._settling = self._packed.plan if settling is None else settling.plan
        self._pool = encoder.pool
        self._tables = encoder.tables
        self._engine = encoder.engine

    def splice(
        self, size: int, digest: int, view: View, text: bytes, window_chars: int
    ) -> Splice | None:
        """The splice of ``text`` to a session of ``size`` bytes and that digest, which ``view`` is
        the end of. None: no certificate, or a case for splice.py."""
        whole, room = view.text + text, len(view.text)
        workspace = self._pool.take()
        scratch = workspace.room(len(whole))
        done, window, cut, tokens, run, keep, right, value, chars, stay, end = _splice(
            np.frombuffer(whole, dtype=np.uint8), room, view.byte == 0, view.ids, view.lengths,
            digest, window_chars, self._packed.plan, self._settling, self._tables,
            workspace.places, scratch.places, scratch.text,
        )  # fmt: skip
        self._pool.give(workspace)
        if not done:
            return None
        boundary = view.byte + window + cut
        begin = boundary + right
        ids, lengths = end[0], end[1]
        return Splice(
            keep=view.token + keep,
            ids=ids[keep:],
            lengths=lengths[keep:],
            tail=0,
            begin=begin,
            stop=size,
            text=memoryview(whole)[begin - view.byte :],
            route=Route.SPLICE,
            evidence=Evidence(
                window_chars=window_chars,
                boundary_byte=boundary,
                run_tokens=tokens,
                run_chars=run,
                chars_encoded=chars,
                engine=self._engine,
            ),
            digest=value,
            grown=chars - window_chars,
            end=View(view.byte, view.token, ids, lengths, whole),
            settled=None if stay < -1 else view.token + stay if stay >= 0 else -1,
        )


_appenders: WeakKeyDictionary[FastEncoder, Appender] = WeakKeyDictionary()


def appender_of(encoder: FastEncoder) -> Appender:
    """Made when first asked for."""
    try:
        return _appenders[encoder]
    except KeyError:
        return _appenders.setdefault(encoder, Appender(encoder))


@kernel
def _splice(
    whole: Any, room: Any, at_start: Any, old_ids: Any, old_lengths: Any, digest: Any,
    window_chars: Any, plan: Any, settling: Any, tables: Any, work: Any, scratch: Any, padded: Any,
) -> Any:  # fmt: skip
    """``whole``: the text of the old tokens, ``room`` bytes (the session's text, if ``at_start``),
    then what is appended. ``plan``, ``settling``, ``tables``, ``work``, ``scratch``: addresses of
    what the encoder has; ``padded``: room for a copy of the window.

    Returns whether it could be done; the window's byte in ``whole``, the cut's in the window; the
    run's tokens and characters; how many old tokens stay; bytes of the run right of the cut; the
    new digest; characters of the window; how many of the tokens are settled (-1: none are known,
    -2: not looked at); and ids and lengths of all tokens, uint32[2, n].
    """
    left_over = (False, 0, 0, 0, 0, 0, 0, np.uint64(0), 0, 0, np.empty((2, 0), np.uint32))
    class_of = carray(pointer(plan[0, 0]), (plan[0, 1],), np.uint8)
    boundary = carray(pointer(plan[1, 0]), (plan[1, 1], plan[1, 2]), np.bool_)
    kinds = carray(pointer(plan[2, 0]), (plan[2, 1],), np.uint8)
    first, edges, final = _literals(plan, 0)
    numbers = carray(pointer(plan[12, 0]), (plan[12, 1], plan[12, 2]), np.int64)
    wide, longest, settles = carray(pointer(plan[13, 0]), (3,), np.int64)
    reach, shift = numbers[0, 0], np.uint64(numbers[0, 2])

    # The window, and the left certificate's cut (splice.py).
    start = _window(whole, room, window_chars)
    if start < 0:
        return left_over
    # Nothing is left out, or the view may lack a part of the window.
    if start == 0 and (at_start or window_chars < room < 4 * window_chars):
        return left_over
    size = whole.shape[0]
    seen = min(size, room + reach + MARGIN)
    if seen < size:
        seen = character_start(whole, seen)
    cut = find_second_cut(
        whole[start:seen], reach, room - start, class_of, boundary, kinds, reach, wide != 0, first,
        edges, shift, final,
    )  # fmt: skip
    if cut < 0:
        return left_over

    # Its tokens.
    n = size - start
    padded[:n] = whole[start:]
    segments = _segments(padded, n, kinds, numbers, plan)
    if len(segments) == 0:
        return left_over
    count = encode_segments(padded, segments, tables, work, scratch)
    ids = carray(pointer(np.int64(scratch[0])), (count,), np.uint32)
    lengths = carray(pointer(np.int64(scratch[1])), (count,), np.uint32)

    # The run around the cut, and the tokens then.
    old, new, left, left_bytes, right, right_bytes = match(
        old_ids, old_lengths, start + cut, ids, lengths, cut, cut, room - start - cut
    )
    run = 0
    covered: Any = 0
    for i in range(count):
        covered += np.int64(lengths[i])
    for i in range(start + cut - left_bytes, start + cut + right_bytes):
        if whole[i] & 0xC0 != 0x80:
            run += 1
    if old < 0 or left + right < 2 or run <= longest or covered != n:
        return left_over
    keep, place = old + right, new + right
    end = np.empty((2, keep + count - place), np.uint32)
    end[0, :keep] = old_ids[:keep]
    end[1, :keep] = old_lengths[:keep]
    end[0, keep:] = ids[place:]
    end[1, keep:] = lengths[place:]
    value = replace_suffix_kernel(np.uint64(digest), old_ids[keep:], ids[place:])
    chars = count_characters(whole[start:])
    stay: Any = -2
    if settles:
        stay = count_settled(whole, end[0], end[1], at_start, settling)
    return True, start, cut, left + right, run, keep, right_bytes, value, chars, stay, end


@kernel
def _window(text: Any, end: Any, characters: Any) -> Any:
    """The byte at which the last so many characters before ``end`` begin; -1 if there are fewer."""
    start: Any = end
    while start > 0 and characters > 0:
        start -= 1
        if text[start] & 0xC0 != 0x80:
            characters -= 1
    return start if characters == 0 else -1


@kernel
def _segments(padded: Any, size: Any, kinds: Any, numbers: Any, plan: Any) -> Any:
    """The text divided by added tokens, as :func:`encode_segments` takes it; nothing where
    normalization may change it."""
    segments = np.empty((1, 3), np.int64)
    segments[0, 0], segments[0, 1], segments[0, 2] = 0, size, -1
    none = segments[:0]
    for k in range(1, 3):
        if k == 2 and kinds.size:
            asked = np.empty((1, 2), np.int64)
            if find_runs(padded, segments, kinds, asked) != 0:
                return none
        reach, only, shift = numbers[k]
        if reach:
            first, edges, final = _literals(plan, k)
            more = np.empty((2 * segments.shape[0] + 64 + size // 64, 3), np.int64)
            count = split(padded, segments, first, only, edges, np.uint64(shift), final, more)
            if count < 0:
                return none
            segments = more[:count]
    return segments


@kernel
def _literals(plan: Any, which: Any) -> Any:
    """The arrays of one table of added tokens."""
    at = _LITERALS + which
    first = carray(pointer(plan[at, 0]), (plan[at, 1],), np.bool_)
    edges = carray(pointer(plan[at + 3, 0]), (plan[at + 3, 1],), np.uint64)
    final = carray(pointer(plan[at + 6, 0]), (plan[at + 6, 1],), np.int64)
    return first, edges, final
