"""Streams: appends of a few characters, as a model generates them, read on where the last one
ended.

An ordinary append encodes a window of 512 old characters again. The second small append in a row
opens a *stream* instead: the state of the text's end (incremental/tail.py), kept in memory beside
the session. From then on a small append costs its own characters. The state is a value: versions of
a session share it, and it says of which version it is by that version's size and digest.

It is opened behind a safe cut, far enough from the end that its tokens repeat a run of the
session's: two at least and more characters than the longest token (as in splice.py); that run is
the evidence of each answer, ``boundary_byte`` is where the open piece begins. Whatever is unusual
(an added token that ends in the new text, a character that normalization may have a say in, a long
open piece) ends the stream, and the append goes the ordinary way.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from toktier_stream.incremental.tail import LONGEST, Follower, Tail
from toktier_stream.session import giant, kernels
from toktier_stream.session.splice import Splice, Stored
from toktier_stream.tokenizer.encoder import FastEncoder
from toktier_stream.wire.messages import Evidence, Route

SMALL: Final = 256
"""Bytes of an append, at most; for more the window is no more work."""
_FIRST: Final = 1
"""Small appends that go the ordinary way before a stream is opened."""
_BEFORE: Final = 512
"""Bytes left of the run in which a safe cut is looked for."""
_AGAIN: Final = 8
"""The same after a stream ended or could not be opened."""


class Stream(NamedTuple):
    """The state behind one version of a session: ``tail`` if it is open, else how many small
    appends are still to ``wait``; and the run of tokens that it repeated when it was opened."""

    encoder: FastEncoder
    digest: int
    wait: int
    follower: Follower | None = None
    tail: Tail | None = None
    run_tokens: int = 0
    run_chars: int = 0

    @property
    def nbytes(self) -> int:
        """Memory held, about."""
        return 100 + (self.tail.nbytes if self.tail is not None else 0)


def append(
    old: Stored, encoder: FastEncoder, stream: Stream | None, text: bytes
) -> tuple[Splice | None, Stream | None]:
    """The splice of one append, if it goes by a stream; and the stream after it, whose ``digest``
    is still to be set."""
    if not 0 < len(text) <= SMALL:
        return None, None
    if stream is None or stream.encoder is not encoder or stream.digest != old.digest:
        return None, Stream(encoder, 0, _FIRST - 1)
    if stream.tail is None:
        if stream.wait > 0:
            return None, Stream(encoder, 0, stream.wait - 1)
        stream = _open(old, encoder)
    tail, follower = stream.tail, stream.follower
    if tail is None or follower is None:
        return None, Stream(encoder, 0, _AGAIN)
    if (tail.size, tail.total) != (old.bytes, old.tokens):
        return None, Stream(encoder, 0, _AGAIN)
    grown = follower.append(tail, text)
    if grown is None:
        return None, Stream(encoder, 0, _AGAIN)
    again = grown.again
    if again:
        again = kernels.characters(tail.context[-again:])
    splice = Splice(
        keep=grown.keep,
        ids=grown.ids,
        lengths=grown.lengths,
        tail=0,
        begin=grown.begin,
        stop=old.bytes,
        text=grown.text,
        route=Route.STREAM,
        evidence=Evidence(
            window_chars=again,
            boundary_byte=tail.at,
            run_tokens=stream.run_tokens,
            run_chars=stream.run_chars,
            chars_encoded=again + kernels.characters(text),
            engine=encoder.engine,
        ),
    )
    after = Stream(encoder, 0, 0, follower, grown.tail, stream.run_tokens, stream.run_chars)
    return splice, after


def long(stream: Stream | None) -> bool:
    """Whether the open piece is about as long as a stream holds."""
    return (
        stream is not None and stream.tail is not None and len(stream.tail.theta) + SMALL > LONGEST
    )


def settled(stream: Stream | None, old: Stored) -> int:
    """Tokens that no append changes, as far as the stream knows."""
    if stream is None or stream.tail is None or stream.follower is None:
        return 0
    return stream.follower.settled(stream.tail) if stream.digest == old.digest else 0


def _open(old: Stored, encoder: FastEncoder) -> Stream:
    closed = Stream(encoder, 0, _AGAIN)
    kit = giant.kit_of(encoder)
    if kit is None or kit.follower is None:
        return closed
    size, far = old.bytes, 2 * encoder.longest_token
    view = old.view(max(0, size - far - encoder.literal_reach - _BEFORE), size)
    text = giant.from_character(view.text)
    low = view.byte + len(view.text) - len(text)
    cut = encoder.last_cut(text, encoder.literal_reach if low else 1, len(text) - far)
    if cut < 0:
        if low:
            return closed
        cut = 0
    start, end, token = 0, 0, -1
    if cut < len(text):
        start, end, token = kit.segments(text[cut:])[-1].tolist()
    place = cut + (end if token >= 0 else start)
    before = int(kernels.boundary_index(view.lengths, low + place - view.byte))
    if before < 0 or not kit.plain(text[place:]):
        return closed
    token = view.token + before
    begun = kit.follower.begin(low + place, token, text[:place], text[place:])
    if begun is None:
        return closed
    same = np.array_equal(begun.ids, view.ids[before:])
    if not same or not np.array_equal(begun.lengths, view.lengths[before:]):
        return closed
    count, chars = len(begun.ids), kernels.characters(text[place:])
    if low + place and (count < 2 or chars <= encoder.longest_token):
        return closed
    return Stream(encoder, old.digest, 0, kit.follower, begun.tail, count, chars)
