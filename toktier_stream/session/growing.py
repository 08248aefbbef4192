"""Splices for families without cuts (Gemma, Llama 2): every-prefix BPE instead of a boundary.

There BPE runs over the whole text, and nothing stands in for a synchronizing boundary. But the
incremental room can name *settled* boundaries: the tokens left of one are final in every text that
goes on the same way, and those right of it are the tokens of the text after it alone, given the
mark (incremental/change.py). A session keeps a few such marks, at distances from its end that grow
geometrically. An edit takes the nearest mark that it leaves valid, and the text from there on: an
append costs what it appends. What follows an edit in the middle is encoded to the end.

As in splice.py a run of equal tokens behind the mark is asked for, two at least and more characters
than the longest token, else an older mark is taken; the start of the text needs none.
"""

from __future__ import annotations

from typing import Final, Protocol, TypeVar

from toktier_stream.incremental.change import START, Settled
from toktier_stream.incremental.families import OnePieceEncoder, OnePieceSession
from toktier_stream.session import kernels
from toktier_stream.session.splice import Splice, Stored
from toktier_stream.tokenizer.face import Tokens
from toktier_stream.wire.messages import Evidence, Route

Marks = tuple[Settled, ...]


class _Placed(Protocol):
    @property
    def size(self) -> int: ...


M = TypeVar("M", bound=_Placed)

_NEAR: Final = 64
"""Bytes added to a mark's distance from the end: marks nearer than that are one to us."""


def grow(
    old: Stored, encoder: OnePieceEncoder, marks: Marks, start: int, end: int, text: bytes
) -> tuple[Splice, Marks]:
    """The splice of one edit, and the marks of the edited text (oldest first)."""
    # After an append everything decided stays so; else a literal may have looked this far ahead.
    ahead = 0 if start == old.bytes else encoder.literal_reach
    valid = [m for m in marks if m.since + ahead <= start]
    far = [m for m in valid if start - m.size >= 2 * encoder.longest_token]
    for tries, mark in enumerate([*reversed(far), START]):
        found = _from_mark(old, encoder, mark, start, end, text, tries)
        if found is not None:
            splice, settled = found
            older = (m for m in valid if m.size < settled.size)
            return splice, thin((*older, settled), old.bytes - (end - start) + len(text))
    raise ValueError("the start of a text is always a mark")


def _from_mark(
    old: Stored,
    encoder: OnePieceEncoder,
    mark: Settled,
    start: int,
    end: int,
    text: bytes,
    tries: int,
) -> tuple[Splice, Settled] | None:
    before = old.view(mark.size, start)
    anchor = mark.tokens - before.token
    at = mark.size - before.byte
    if not 0 <= anchor <= len(before.ids) or int(before.lengths[:anchor].sum()) != at:
        return None
    window = before.text[at : start - before.byte] + text + old.slice(end, old.bytes)
    session = OnePieceSession.resume(encoder, mark, window)
    fresh = session.tokens()
    count, size = kernels.run_right(
        before.ids, before.lengths, anchor, fresh.ids, fresh.lengths, 0, start - mark.size
    )
    chars = kernels.characters(before.text[at : at + size])
    if mark is not START and (count < 2 or chars <= encoder.longest_token):
        return None
    tail, last, stop = 0, len(fresh.ids), old.bytes
    keep = mark.tokens + count
    if end < stop:
        after = old.view(end, stop)
        tail, kept = kernels.run_left(
            after.ids, after.lengths, len(after.ids), fresh.ids, fresh.lengths, last,
            stop - end, max(0, keep - after.token), count,
        )  # fmt: skip
        last -= tail
        stop -= kept
    begin = mark.size + size
    splice = Splice(
        keep=keep,
        ids=fresh.ids[count:last],
        lengths=fresh.lengths[count:last],
        tail=tail,
        begin=begin,
        stop=stop,
        text=window[size : len(window) - (old.bytes - stop)],
        route=Route.CPU if mark is START else Route.SPLICE,
        evidence=Evidence(
            window_chars=0 if mark is START else kernels.characters(window) - len(text.decode()),
            widenings=tries,
            fallback=mark is START and tries > 0,
            boundary_byte=mark.size if mark is not START else -1,
            run_tokens=count if mark is not START else 0,
            run_chars=chars if mark is not START else 0,
            chars_encoded=kernels.characters(window),
            engine=encoder.engine,
        ),
    )
    return splice, session.settled()


def begin(encoder: OnePieceEncoder, text: bytes) -> tuple[Tokens, Marks]:
    """A whole text: its tokens and first mark."""
    session = encoder.session(text)
    return session.tokens(), thin((session.settled(),), len(text))


def thin(marks: tuple[M, ...], size: int) -> tuple[M, ...]:
    """Drop marks between neighbours that are close to each other, seen from the text's end.

    The newest stays; a text of n bytes keeps O(log n) marks.
    """
    kept = list(marks)
    i = len(kept) - 2
    while i > 0:
        newer, older = size - kept[i + 1].size + _NEAR, size - kept[i - 1].size + _NEAR
        if older < 4 * newer:
            del kept[i]
        i -= 1
    return tuple(m for m in kept if m.size)
