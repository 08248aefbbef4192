"""A session in memory: its header, its pages through the index, and the changes to them.

A session object belongs to one batch (store.py) and one thread. Pages and index nodes are values
that versions of a session share; a session is little more than a root and some counters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from toktier_stream.errors import Code, ToktierError
from toktier_stream.incremental.families import OnePieceEncoder
from toktier_stream.session import end as ends
from toktier_stream.session import giant, growing, kernels, sealing, settled, stream, tree
from toktier_stream.session import header as headers
from toktier_stream.session.header import Header
from toktier_stream.session.page import Page, Reader, Utf8
from toktier_stream.session.paged import Paged
from toktier_stream.session.prepared import Prepared, prepare
from toktier_stream.session.splice import Splice, View, splice
from toktier_stream.tokenizer.encoder import FastEncoder
from toktier_stream.tokenizer.face import Encoder, Ids, Tokens
from toktier_stream.values import value
from toktier_stream.wire.messages import Evidence, Route

__all__ = ["Change", "Header", "Session"]

_NONE: Ids = np.zeros(0, dtype=np.uint32)
_OWN: Final = 3000
"""Bytes of memory of a session besides its end and pages, as measured by ``bench store``."""


@value
class Change:
    """The answer's splice: keep the first ``keep`` old tokens, then ``ids``, then the last ``tail``
    old tokens; how it was computed and why it is exact."""

    keep: int
    ids: Ids
    tail: int
    route: Route
    evidence: Evidence


class Session:
    """One session's token state. Attributes are the header's (see :class:`Header`).

    Every method that reads may raise ``ToktierError(STORE_CORRUPT)``: the session is then to be
    dropped, and its batch's other sessions go on.

    The text's last part is held as plain arrays too (end.py). Appends change only that; ``_paged``
    is brought up to date from the place ``_stale`` on when somebody reads further left, or the
    session is stored.
    """

    __slots__ = (
        "_counted", "_end", "_marks", "_open", "_paged", "_stale", "_stream", "bytes", "changed",
        "chars", "closed", "digest", "fingerprint", "quarantined", "recent", "revision",
        "session_id", "settled", "tokenizer", "tokens", "touched_ms",
    )  # fmt: skip

    def __init__(
        self, header: Header, reader: Reader, numbers: tree.Numbers | None = None,
        record: Utf8 = b"",
    ) -> None:  # fmt: skip
        """``record``: the stored header, if it is one."""
        self.session_id = header.session_id
        self.fingerprint = header.fingerprint
        self.tokenizer = header.tokenizer
        self.revision = header.revision
        self.digest = header.digest
        self.touched_ms = header.touched_ms
        self.quarantined = header.quarantined
        self.closed = header.closed
        self.recent = header.recent
        self.settled = header.settled
        self.changed = False
        self._marks = header.marks
        self._open = header.open
        numbers = numbers or tree.Numbers(header.next_number)
        self._paged = Paged(header.spine, header.lines, header.tail, reader, numbers, record)
        self._end: View | None = None
        self._stale: ends.Mark | None = None
        self._stream: stream.Stream | None = None
        self._counted: int | None = None
        self.tokens = self._paged.tokens
        self.bytes = self._paged.bytes
        self.chars = self._paged.chars

    def fork(self, floor: int = 0) -> Session:
        """An independent copy of a stored session; O(1), pages and nodes are shared. ``floor``:
        where numbers of records begin that it never used."""
        other = object.__new__(Session)
        other.session_id = self.session_id
        other.fingerprint = self.fingerprint
        other.tokenizer = self.tokenizer
        other.revision = self.revision
        other.tokens = self.tokens
        other.bytes = self.bytes
        other.chars = self.chars
        other.digest = self.digest
        other.touched_ms = self.touched_ms
        other.quarantined = self.quarantined
        other.closed = self.closed
        other.recent = self.recent
        other.settled = self.settled
        other.changed = False
        other._marks = self._marks
        other._open = self._open
        other._paged = self._paged.fork(floor)
        other._end = self._end
        other._stale = self._stale
        other._stream = self._stream
        other._counted = self._counted
        return other

    # Changes

    def reset(
        self,
        encoder: Encoder,
        text: Utf8,
        *,
        tokens: Tokens | None = None,
        prepared: Prepared | None = None,
        tokenizer: str = "",
    ) -> Change:
        """Replace the whole text. ``tokens``: its tokens if somebody has computed them already
        (then ``encoder`` only names the fingerprint); ``prepared``: its tokens and pages, used if
        they are of this very text and encoder. Lifts a quarantine and reopens.

        Raises ``ValueError`` if ``tokens`` do not cover the text.
        """
        if prepared is None or not prepared.belongs(encoder, text):
            prepared = prepare(encoder, text, tokens=tokens)
        self._paged.replace_all(prepared.pages)
        self._end = self._stale = self._stream = self._counted = None
        self.settled = 0
        self._count()
        self.digest = prepared.digest
        self._marks = prepared.marks
        self._open = giant.look(self, encoder) if isinstance(encoder, FastEncoder) else ()
        self.fingerprint = encoder.fingerprint
        if tokenizer:
            self.tokenizer = tokenizer
        self.quarantined = self.closed = False
        self.changed = True
        return Change(0, prepared.tokens.ids, 0, prepared.route, prepared.evidence)

    def edit(self, encoder: Encoder, start: int, end: int, text: Utf8) -> Change:
        """Replace the bytes ``[start, end)`` by ``text``; an append has both at :attr:`bytes`.

        Raises ``OFFSET_RANGE`` or ``OFFSET_IN_CHARACTER``, and ``TOKENIZER_CHANGED`` for an encoder
        of another fingerprint than the session's. After an error the session is as it was.
        """
        size = self.bytes
        if not 0 <= start <= end <= size:
            raise ToktierError(Code.OFFSET_RANGE, f"[{start}, {end}) of {size} bytes")
        if start < size and not (self.char_boundary(start) and self.char_boundary(end)):
            raise ToktierError(Code.OFFSET_IN_CHARACTER, f"[{start}, {end})")
        if encoder.fingerprint != self.fingerprint:
            raise ToktierError(Code.TOKENIZER_CHANGED, "the session was made by another engine")
        if end == size:
            self._hold()
        opened: giant.Marks | None = ()
        read_on: stream.Stream | None = None
        if isinstance(encoder, OnePieceEncoder):
            found, marks = growing.grow(self, encoder, self._marks, start, end, text)
        else:
            marks = ()
            if isinstance(encoder, FastEncoder):
                streamed, read_on = self._read_on(encoder, start, text)
                if streamed is not None:
                    found, opened = streamed, self._open
                    if read_on is not None and read_on.mark is not None:
                        opened = growing.thin((*opened, read_on.mark), size + len(text))
                    if opened:
                        opened = giant.near(opened, size + len(text), size + len(text))
                else:
                    found, opened = giant.edit(self, encoder, self._open, start, end, text)
            else:
                found = splice(self, encoder, start, end, text)
        self._apply(found)
        self._counted = found.settled
        if opened is None and isinstance(encoder, FastEncoder):
            opened = giant.look(self, encoder) or giant.near(self._open, start, self.bytes)
        self._marks, self._open = marks, opened or ()
        self.settled = self.settled if start == size else 0
        if read_on is not None and read_on.tail is None:
            read_on = read_on._replace(digest=self.digest)
        self._stream = read_on
        self.changed = True
        return Change(found.keep, found.ids, found.tail, found.route, found.evidence)

    def mark(
        self,
        *,
        revision: int | None = None,
        recent: tuple[tuple[int, int, int], ...] | None = None,
        touched_ms: int | None = None,
        quarantined: bool | None = None,
        closed: bool | None = None,
        tokenizer: str | None = None,
    ) -> None:
        """Change the header only."""
        if revision is not None:
            self.revision = revision
        if recent is not None:
            self.recent = recent
        if touched_ms is not None:
            self.touched_ms = touched_ms
        if quarantined is not None:
            self.quarantined = quarantined
        if closed is not None:
            self.closed = closed
        if tokenizer is not None:
            self.tokenizer = tokenizer
        self.changed = True

    # Reading

    def text(self) -> Utf8:
        """The whole text."""
        return self._pages().text()

    def ids(self) -> Ids:
        """All ids, uint32[tokens]."""
        return self._pages().ids()

    def slice(self, start: int, end: int) -> Utf8:
        """The bytes ``[start, end)`` of the text, as far as it reaches."""
        held = self._end
        if held is not None and start >= held.byte:
            return ends.text_of(held, start, end)
        return self._pages().slice(start, end)

    def char_boundary(self, offset: int) -> bool:
        """Whether a byte offset lies between two characters (or at an edge of the text)."""
        if not 0 < offset < self.bytes:
            return offset in (0, self.bytes)
        byte: int = self.slice(offset, offset + 1)[0]
        return byte & 0xC0 != 0x80

    def view(self, low: int, high: int) -> View:
        """Whole pages, or what is held of the end, that cover the bytes ``[low, high)``."""
        if low >= high:
            return View(low, self.tokens if low >= self.bytes else 0, _NONE, _NONE, b"")
        held = self._end
        if held is not None and held.byte <= low:
            return held
        return self._pages().view(low, high)

    def find_settled(self, encoder: Encoder) -> int:
        """Bring ``settled``, the tokens from the start that no append changes, up to date; returns
        it. An append never makes it smaller."""
        known = 0
        if isinstance(encoder, OnePieceEncoder):
            known = self._marks[-1].tokens if self._marks else 0
        elif isinstance(encoder, FastEncoder):
            known = stream.settled(self._stream, self)
            known = known or settled.by_cut(self, encoder, self._open, self._counted)
        self.settled = max(self.settled, known)
        return self.settled

    # Storing

    def header(self) -> Header:
        """The header as it would be stored now; call :meth:`unsaved` first."""
        spine, lines, tail = self._paged.spine()
        return Header(
            self.session_id, self.fingerprint, self.tokenizer, self.revision, self.tokens,
            self.bytes, self.chars, self.digest, self.touched_ms, self.quarantined, self.closed,
            self.recent, self._paged.next_number, spine, self._marks, self._open, self.settled,
            lines, tail,
        )  # fmt: skip

    def seal(
        self, scratch: sealing.Scratch, put: Callable[[int, Utf8 | None], None]
    ) -> tuple[Utf8, list[Page | tree.Node]]:
        """The header's record, once every other changed record was handed to ``put``, as
        :meth:`unsaved` does; and the objects to mark ``stored`` once that is so."""
        stale, held = self._stale, self._end
        if stale is not None and held is not None:
            found = self._paged.seal(held, stale.byte, self._front, scratch, put)
            if found is not None:
                record, self._end = found
                self._stale = None
                return record, []
        written = self.unsaved(put)
        record = headers.encode(self.header())
        self._paged.sealed(record)
        return record, written

    def _front(self, next_number: int, steps: Utf8, lines: tree.Lines) -> Utf8:
        return headers.front(
            self.session_id, self.fingerprint, self.tokenizer, self.revision, self.tokens,
            self.bytes, self.chars, self.digest, self.touched_ms, self.quarantined, self.closed,
            self.recent, next_number, steps, self._marks, self._open, self.settled, lines, 0,
        )  # fmt: skip

    def unsaved(self, put: Callable[[int, Utf8 | None], None]) -> list[Page | tree.Node]:
        """Hand every changed record to ``put``: number and bytes, None for one to delete.

        Returns the objects to mark ``stored`` once that is so.
        """
        stale, held = self._stale, self._end
        if stale is not None and held is not None:
            rest = self._paged.store_end(held, stale.byte, put)
            if rest is not None:
                self._end, self._stale = rest, None
                return []
        written = self._pages().unsaved(put)
        if self._end is None and self._paged.ends_in_memory:
            self._hold()  # now, when its pages are at hand
        return written

    def stored_numbers(self) -> list[int]:
        """The numbers of all records of a stored session besides its header, ascending; pages are
        not read. Raises ``STORE_CORRUPT``."""
        return self._paged.stored_numbers()

    def verify(self) -> int:
        """Read every record and hold counts and digest to them; returns the number of records.

        Raises ``STORE_CORRUPT``.
        """
        return self._pages().verify(self.digest)

    def settle(self, *, opened: bool = False) -> int:
        """After storing: forget all but the end. Returns bytes of memory still held. ``opened``:
        another version of the session may have read pages that this one shares."""
        size = _OWN + len(self.session_id) + self._paged.settle(opened=opened)
        if self._stream is not None:
            size += self._stream.nbytes
        return size + ends.footprint(self._end)

    # Inner workings

    def _read_on(
        self, encoder: FastEncoder, start: int, text: Utf8
    ) -> tuple[Splice | None, stream.Stream | None]:
        """The splice of a small append in a row of such, by a stream; and the stream after it."""
        if start < self.bytes:
            return None, None
        return stream.append(self, encoder, self._stream, self._open, text)

    def _pages(self) -> Paged:
        """The pages, brought up to date."""
        stale, held = self._stale, self._end
        if stale is not None and held is not None:
            rest = self._paged.follow(held, stale.byte)
            if rest is None:
                self._paged.apply(ends.since(held, stale, self._paged.bytes), None)
            self._end, self._stale = rest, None
        return self._paged

    def _hold(self) -> None:
        """Have the end in memory, not too much of it."""
        if self._end is not None and len(self._end.text) > ends.MOST:
            self._pages()
        if self._end is None:
            size = self.bytes
            self._end = self._paged.view(max(0, size - ends.LEAST), size)

    def _apply(self, found: Splice) -> None:
        held = self._end
        at_end = found.tail == 0 and found.stop == self.bytes
        if held is not None and at_end and found.begin >= held.byte:
            grown, value = found.grown, found.digest
            if grown is None:
                dropped = held.text[found.begin - held.byte :]
                grown = kernels.characters(bytes(found.text)) - kernels.characters(dropped)
            if value is None:
                gone = held.ids[found.keep - held.token :]
                value = kernels.replace_suffix(self.digest, gone, found.ids)
            place = ends.Mark(found.begin, found.keep)
            self._stale = place if self._stale is None else min(self._stale, place)
            self._end = found.end or ends.replaced(held, found)
            self.digest = value
            self.tokens = found.keep + len(found.ids)
            self.bytes = found.begin + len(found.text)
            self.chars += grown
            return
        tokens, size = self.tokens, self.bytes
        self.digest = self._pages().apply(found, self.digest)
        self._count()
        held = self._end
        if held is not None:
            behind = found.stop <= held.byte and tokens - found.tail <= held.token
            self._end = (
                ends.moved(held, self.bytes - size, self.tokens - tokens) if behind else None
            )

    def _count(self) -> None:
        self.tokens = self._paged.tokens
        self.bytes = self._paged.bytes
        self.chars = self._paged.chars
