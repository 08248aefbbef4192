"""Streams: appends of a few characters, as a model generates them, read on where the last one
ended.

An ordinary append encodes a window of 512 old characters again. The second small append in a row
opens a *stream* instead: the state of the text's end (incremental/tail.py), kept in memory beside
the session. From then on a small append costs its own characters. The state is a value: versions of
a session share it, and it says of which version it is by that version's size and digest.

It is opened behind a safe cut, far enough from the end that its tokens repeat a run of the
session's: two at least and more characters than the longest token (as in splice.py); that run is
the evidence of each answer, ``boundary_byte`` is where the open piece begins. Whatever is unusual
(an added token that ends in the new text, a character that normalization may have a say in) ends
the stream, and the append goes the ordinary way.

Giant pieces (giant.py) are streamed, too, and there by larger appends as well, as is text of many
short tokens, which cost the encoder more than a stream: where no safe cut is
near, a stream begins at the session's mark, and it gives a new mark whenever it lets the first part
of a long piece go.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from toktier_stream.incremental.tail import Follower, Place, Tail
from toktier_stream.session import giant, kernels
from toktier_stream.session.continuing import Grown, read_on
from toktier_stream.session.spliced import Splice, Stored, View
from toktier_stream.tokenizer.encoder import FastEncoder

SMALL: Final = 256
"""Bytes of an append, at most; for more the window is no more work. (Not so in a long piece.)"""
LARGE: Final = 1 << 16
"""The same where the open piece is long, or tokens are short."""
_RENEW: Final = 2048
"""Bytes from the newest mark of a giant piece to the end from which on another is wanted."""
_FIRST: Final = 1
"""Small appends that go the ordinary way before a stream is opened."""
_BEFORE: Final = 512
"""Bytes left of the run in which a safe cut is looked for."""
_DENSE: Final = 0.5
"""Tokens a byte, at the end, above which larger appends are read on as well: base64, keys."""
_AGAIN: Final = 8
"""The same after a stream ended or could not be opened."""


class Stream(NamedTuple):
    """The state behind one version of a session: ``tail`` if it is open, else how many small
    appends are still to ``wait``; the run of tokens that it repeated when it was opened; the
    mark that the last append gave, and what may be the next one."""

    encoder: FastEncoder
    digest: int
    wait: int
    follower: Follower | None = None
    tail: Tail | None = None
    run_tokens: int = 0
    run_chars: int = 0
    mark: giant.Mark | None = None
    following: Place | None = None

    @property
    def nbytes(self) -> int:
        """Memory held, about."""
        return 100 + (self.tail.nbytes if self.tail is not None else 0)


def append(
    old: Stored, encoder: FastEncoder, stream: Stream | None, marks: giant.Marks, text: bytes
) -> tuple[Splice | None, Stream | None]:
    """The splice of one append, if it goes by a stream; and the stream after it, whose ``digest``
    is still to be set where it does not."""
    if not 0 < len(text) <= SMALL:
        worth = marks or long(stream) or _dense(old)
        if not 0 < len(text) <= LARGE or not worth:
            return None, None
    if stream is None or stream.encoder is not encoder or stream.digest != old.digest:
        return None, Stream(encoder, 0, _FIRST - 1)
    if stream.tail is None:
        if stream.wait > 0:
            return None, Stream(encoder, 0, stream.wait - 1)
        stream = _open(old, encoder, marks)
    tail, follower = stream.tail, stream.follower
    if tail is None or follower is None:
        return None, Stream(encoder, 0, _AGAIN)
    if (tail.size, tail.total) != (old.bytes, old.tokens):
        return None, Stream(encoder, 0, _AGAIN)
    low = min(tail.at, max(0, tail.size - follower.reach))
    runs, chars = stream.run_tokens, stream.run_chars
    view = old.view(low, tail.size)
    grown = read_on(follower, tail, view, text, old.digest, runs, chars, encoder.engine)
    if grown is None:
        return None, Stream(encoder, 0, _AGAIN)
    splice = grown.splice
    mark, following = None, stream.following
    if grown.shortened or marks:
        mark, following = _marked(follower, grown, following, marks)
    value = splice.digest or 0
    after = Stream(encoder, value, 0, follower, grown.tail, runs, chars, mark, following)
    return splice, after


def _marked(
    follower: Follower, grown: Grown, following: Place | None, marks: giant.Marks
) -> tuple[giant.Mark | None, Place | None]:
    """The session's new mark, and what may be the one after it."""
    tail, place = grown.tail, None
    behind = tail.at - marks[-1].size if marks else tail.at - tail.begun + _RENEW - giant.GIANT
    if grown.shortened and behind > _RENEW:
        place = follower.place(tail, now=True)
    elif marks and following is not None:
        if tail.size >= following.since:
            place, following = following, None
    elif marks and behind > _RENEW:
        following = follower.place(tail, now=False)
    if place is None:
        return None, following
    mark = giant.Mark(*place[:3], place.inside, place.state, follower.machine.check)
    return mark, following


def long(stream: Stream | None) -> bool:
    """Whether the open piece is long."""
    return stream is not None and stream.tail is not None and stream.tail.open > 2 * SMALL


def _dense(old: Stored) -> bool:
    """Whether the end's tokens are so short that the encoder has much to merge for each."""
    size = old.bytes
    end = old.view(max(0, size - _BEFORE), size)
    return len(end.ids) > _DENSE * len(end.text)


def settled(stream: Stream | None, old: Stored) -> int:
    """Tokens that no append changes, as far as the stream knows."""
    if stream is None or stream.tail is None or stream.follower is None:
        return 0
    return stream.follower.settled(stream.tail) if stream.digest == old.digest else 0


def _open(old: Stored, encoder: FastEncoder, marks: giant.Marks) -> Stream:
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
            return _open_at_mark(old, encoder, kit, marks)
        cut = 0
    start, end, token = 0, 0, -1
    if cut < len(text):
        start, end, token = kit.segments(text[cut:])[-1].tolist()
    place = cut + (end if token >= 0 else start)
    before = int(kernels.boundary_index(view.lengths, low + place - view.byte))
    if before < 0 or not kit.plain(text[place:]):
        return closed
    return _begun(old, encoder, kit.follower, low + place, text[:place], text[place:], view, before)


def _open_at_mark(old: Stored, encoder: FastEncoder, kit: giant.Kit, marks: giant.Marks) -> Stream:
    size, closed = old.bytes, Stream(encoder, 0, _AGAIN)
    fit = [m for m in marks if m.since <= size and m.check == kit.machine.check]
    if not fit or kit.follower is None:
        return closed
    mark = fit[-1]
    view = old.view(mark.size, size)
    text = view.text[mark.size - view.byte :]
    before = mark.tokens - view.token
    known = 0 <= before <= len(view.ids)
    if not known or int(view.lengths[:before].sum()) != mark.size - view.byte:
        return closed
    if len(text) > LARGE or not kit.plain(text):
        return closed
    left = old.slice(max(0, mark.size - encoder.literal_reach), mark.size)
    place = Place(mark.size, mark.tokens, mark.since, mark.state, mark.inside)
    return _begun(old, encoder, kit.follower, mark.size, left, text, view, before, place)


def _begun(
    old: Stored,
    encoder: FastEncoder,
    follower: Follower,
    at: int,
    left: bytes,
    text: bytes,
    view: View,
    before: int,
    place: Place | None = None,
) -> Stream:
    """The stream that begins at byte ``at`` of the session's text, between ``left`` and ``text``,
    if its tokens are those of the session from its token ``before`` of the view."""
    closed = Stream(encoder, 0, _AGAIN)
    tail = follower.empty(at, view.token + before, old.bytes, place)
    if not text:
        return Stream(encoder, old.digest, 0, follower, tail) if at == 0 else closed
    context = View(at - len(left), tail.tokens, _NONE, _NONE, left)
    begun = read_on(follower, tail, context, text, 0, 0, 0, encoder.engine, begins=True)
    if begun is None or begun.tail.total != old.tokens:
        return closed
    found, chars = begun.splice, begun.splice.grown or 0
    same = np.array_equal(found.ids, view.ids[before:])
    if not same or not np.array_equal(found.lengths, view.lengths[before:]):
        return closed
    count = len(found.ids)
    if at and (count < 2 or chars <= encoder.longest_token):
        return closed
    return Stream(encoder, old.digest, 0, follower, begun.tail, count, chars)


_NONE: Final = np.zeros(0, dtype=np.uint32)
