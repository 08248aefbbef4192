"""The end of a session's text, in memory as plain arrays: what appends read and change.

An append replaces the last tokens by others and adds more. Here that costs what it changes: pages
are cut once for all appends of a batch, when the batch is stored.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from toktier_stream.session.page import Utf8
from toktier_stream.session.splice import Splice, View
from toktier_stream.tokenizer.face import Ids
from toktier_stream.wire.messages import Evidence, Route

LEAST: Final = 1024
"""Bytes that an end holds at least, where the text has them: more than a first window of ASCII."""
MOST: Final = 8192
"""Bytes beyond which an end is paged before more is appended to it."""

_NO_EVIDENCE: Final = Evidence()
_NONE: Final[Ids] = np.zeros(0, dtype=np.uint32)
EMPTY: Final = View(0, 0, _NONE, _NONE, b"")


class Mark(NamedTuple):
    """A place between two tokens: bytes and tokens left of it."""

    byte: int
    token: int


def replaced(end: View, found: Splice) -> View:
    """The end after a splice that keeps nothing behind it, and begins no further left."""
    n = found.keep - end.token
    return View(
        end.byte,
        end.token,
        np.concatenate((end.ids[:n], found.ids)),
        np.concatenate((end.lengths[:n], found.lengths)),
        end.text[: found.begin - end.byte] + found.text,
    )


def since(end: View, mark: Mark, stop: int) -> Splice:
    """The splice that brings pages, which are right up to ``mark`` and reach to byte ``stop``, to
    this end."""
    n = mark.token - end.token
    return Splice(
        keep=mark.token,
        ids=end.ids[n:],
        lengths=end.lengths[n:],
        tail=0,
        begin=mark.byte,
        stop=stop,
        text=end.text[mark.byte - end.byte :],
        route=Route.SPLICE,
        evidence=_NO_EVIDENCE,
    )


def moved(end: View, bytes_by: int, tokens_by: int) -> View:
    """The same end, behind a change further left."""
    return end._replace(byte=end.byte + bytes_by, token=end.token + tokens_by)


def least(end: View) -> int:
    """Bytes of it that are worth keeping: a first window of any script."""
    return LEAST if end.text[-LEAST:].isascii() else 4 * LEAST


def shortened(end: View, token: int, byte: int) -> View:
    """What is right of its first ``token`` tokens of ``byte`` bytes; it holds no memory of the
    rest, where that is much."""
    if byte < LEAST:
        return end
    return View(
        end.byte + byte, end.token + token, end.ids[token:].copy(), end.lengths[token:].copy(),
        end.text[byte:],
    )  # fmt: skip


def footprint(end: View | None) -> int:
    """About how many bytes of memory an end takes."""
    return 0 if end is None else 450 + 8 * len(end.ids) + len(end.text)


def text_of(end: View, start: int, stop: int) -> Utf8:
    """Bytes of the session's text that lie in its end."""
    return end.text[start - end.byte : max(0, stop - end.byte)]
