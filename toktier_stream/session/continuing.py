"""An append to a stream (stream.py) in one compiled pass: what follows, the session's end then, and
its digest."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from toktier_stream.incremental import reading, tail
from toktier_stream.incremental.reading import follow
from toktier_stream.incremental.tail import Follower, Tail
from toktier_stream.session.kernels import count_characters, kernel, replace_suffix_kernel
from toktier_stream.session.spliced import Splice, View
from toktier_stream.wire.messages import Evidence, Route

_AT, _TOKENS, _BEGUN, _SETTLED = reading.AT, reading.TOKENS, reading.BEGUN, reading.SETTLED


class Grown(NamedTuple):
    """A text after an append: what the append changed, its ``tail``, and whether a long piece's
    first part was let go."""

    splice: Splice
    tail: Tail
    shortened: bool


def read_on(
    follower: Follower,
    old: Tail,
    view: View,
    text: bytes,
    digest: int,
    run_tokens: int,
    run_chars: int,
    engine: str,
    begins: bool = False,
) -> Grown | None:
    """``text`` behind a text of that digest, which ``view`` is the end of: from the open piece on
    at least, and as much as the longest added token has. The run is the answer's evidence.
    ``begins``: added tokens left of the new text were decided with it. None: unusual, or not worth
    it."""
    size, at, low, first, before = old.size, old.at, view.byte, view.token, view.text
    if size - at + len(text) > tail.MOST or size - at > tail.OPEN:
        return None
    whole = before + text
    (
        done, keep, begin, again, chars, value, start, tokens, begun, settled,
        shortened, block, end,
    ) = _read_on(
        np.frombuffer(whole, np.uint8), low, first, view.ids, view.lengths, len(before), begins,
        digest, old.block, tail.LONG, follower.margin, follower.plan,
    )  # fmt: skip
    if not done:
        return None
    ids, lengths = end[0], end[1]
    # By position: with names it takes twice as long.
    evidence = Evidence(again, 0, False, at, run_tokens, run_chars, -1, 0, again + chars, engine)
    splice = Splice(
        first + keep, ids[keep:], lengths[keep:], 0, low + begin, size, memoryview(whole)[begin:],
        Route.STREAM, evidence, value, chars, View(low, first, ids, lengths, whole),
    )  # fmt: skip
    grown = Tail(size + len(text), first + len(ids), start, tokens, begun, settled, block)
    return Grown(splice, grown, shortened)


@kernel
def _read_on(
    whole: Any, byte: Any, token: Any, old_ids: Any, old_lengths: Any, room: Any, begins: Any,
    digest: Any, block: Any, long: Any, margin: Any, plan: Any,
) -> Any:  # fmt: skip
    """``whole``: the view's text, ``room`` bytes, and the new one.

    Returns whether it was done; how many of the view's tokens stay, and their bytes; characters
    read again and new ones; the new digest; the new tail's numbers; whether its open piece was
    shortened; its block; and ids and lengths of all tokens, uint32[2, n].
    """
    nothing = np.empty((2, 0), np.uint32)
    left_over = (False, 0, 0, 0, 0, np.uint64(0), 0, 0, 0, 0, False, block, nothing)
    first, piece = block[_TOKENS] - token, block[_AT] - byte
    if first < 0 or piece < 0 or first > len(old_ids) or piece > room:
        return left_over
    done, common, common_bytes, again, ids, lengths, new, shortened = follow(
        whole, piece, room, begins, block, old_ids[first:], old_lengths[first:], long, margin, plan
    )
    if not done:
        return left_over
    keep = first + common
    end = np.empty((2, keep + len(ids)), np.uint32)
    end[0, :keep] = old_ids[:keep]
    end[1, :keep] = old_lengths[:keep]
    end[0, keep:] = ids
    end[1, keep:] = lengths
    value = replace_suffix_kernel(np.uint64(digest), old_ids[keep:], ids)
    chars = count_characters(whole[room:])
    again = count_characters(whole[room - again : room])
    return (
        True, keep, piece + common_bytes, again, chars, value, new[_AT], new[_TOKENS], new[_BEGUN],
        new[_SETTLED], shortened, new, end,
    )  # fmt: skip
