"""An append to a stream (stream.py) in one compiled pass: what follows the text's end, the session's
end then, and its digest."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from toktier_stream.incremental import reading, tail
from toktier_stream.incremental.reading import follow
from toktier_stream.incremental.tail import Follower, Tail
from toktier_stream.session.kernels import count_characters, kernel, replace_suffix_kernel
from toktier_stream.session.spliced import View
from toktier_stream.tokenizer.face import Ids

_AT, _TOKENS, _BEGUN = reading.AT, reading.TOKENS, reading.BEGUN


class Grown(NamedTuple):
    """A text after an append: its ``tail``, and what the append changed. The first ``keep`` tokens
    stay, which end at byte ``begin``; ``ids`` and ``lengths`` follow. ``end``: the view as it is
    then. ``digest``: of all tokens. Characters: ``again`` old ones were read once more, ``chars``
    new ones. ``shortened``: a long piece's first part was let go."""

    tail: Tail
    keep: int
    begin: int
    ids: Ids
    lengths: Ids
    end: View
    digest: int
    again: int
    chars: int
    shortened: bool


def read_on(
    follower: Follower, old: Tail, view: View, text: bytes, digest: int, *, begins: bool = False
) -> Grown | None:
    """``text`` behind a text of that digest, which ``view`` is the end of: from the open piece on
    at least, and as much as the longest added token has. ``begins``: added tokens left of the new
    text were decided with it. None: unusual, or not worth it."""
    size = old.size - old.at
    if size + len(text) > tail.MOST or size > tail.OPEN:
        return None
    whole = view.text + text
    (
        done, keep, begin, again, chars, value, at, tokens, begun, shortened, block, end,
    ) = _read_on(
        np.frombuffer(whole, np.uint8), view.byte, view.token, view.ids, view.lengths,
        len(view.text), begins, digest, old.block, tail.LONG, follower.margin, follower.plan,
    )  # fmt: skip
    if not done:
        return None
    ids, lengths = end[0], end[1]
    return Grown(
        Tail(view.byte + len(whole), view.token + len(ids), at, tokens, begun, block),
        view.token + keep, view.byte + begin, ids[keep:], lengths[keep:],
        View(view.byte, view.token, ids, lengths, whole), value, again, chars, shortened,
    )  # fmt: skip


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
    left_over = (False, 0, 0, 0, 0, np.uint64(0), 0, 0, 0, False, block, nothing)
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
        shortened, new, end,
    )  # fmt: skip
