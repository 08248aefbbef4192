"""A session in memory: its header, its pages through the index, and the changes to them.

A session object belongs to one batch (store.py) and one thread. Pages and index nodes are values
that versions of a session share; a session is little more than a root and some counters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from toktier_stream.errors import Code, ToktierError
from toktier_stream.incremental.families import OnePieceEncoder
from toktier_stream.session import giant, growing, kernels, tree
from toktier_stream.session.header import Header
from toktier_stream.session.page import PAGE_BYTES, Page, Reader, Utf8, cost, cut
from toktier_stream.session.prepared import Prepared, prepare
from toktier_stream.session.splice import Splice, View, splice
from toktier_stream.tokenizer.encoder import FastEncoder
from toktier_stream.tokenizer.face import Encoder, Ids, Tokens
from toktier_stream.wire import digest
from toktier_stream.wire.messages import Evidence, Route

__all__ = ["Change", "Header", "Session"]

_NONE: Ids = np.zeros(0, dtype=np.uint32)
_UNKNOWN = np.uint32(0xFFFF_FFFF)


@dataclass(frozen=True, slots=True)
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
    """

    __slots__ = (
        "_marks", "_numbers", "_open", "_reader", "_root", "changed", "closed", "digest",
        "fingerprint", "quarantined", "recent", "revision", "session_id", "tokenizer",
        "touched_ms",
    )  # fmt: skip

    def __init__(self, header: Header, reader: Reader, numbers: tree.Numbers | None = None) -> None:
        self.session_id = header.session_id
        self.fingerprint = header.fingerprint
        self.tokenizer = header.tokenizer
        self.revision = header.revision
        self.digest = header.digest
        self.touched_ms = header.touched_ms
        self.quarantined = header.quarantined
        self.closed = header.closed
        self.recent = header.recent
        self.changed = False
        self._marks = header.marks
        self._open = header.open
        self._reader = reader
        self._numbers = numbers or tree.Numbers(header.next_number)
        self._root: tree.Node | None = None
        if header.spine:
            root = tree.from_spine(header.spine, len(header.spine) - 2)
            if not isinstance(root, tree.Node):
                raise ToktierError(Code.STORE_CORRUPT, "a session header has a broken path")
            self._root = root

    def fork(self) -> Session:
        """An independent copy of a stored session; O(1), pages and nodes are shared."""
        other = object.__new__(Session)
        other.session_id = self.session_id
        other.fingerprint = self.fingerprint
        other.tokenizer = self.tokenizer
        other.revision = self.revision
        other.digest = self.digest
        other.touched_ms = self.touched_ms
        other.quarantined = self.quarantined
        other.closed = self.closed
        other.recent = self.recent
        other.changed = False
        other._marks = self._marks
        other._open = self._open
        other._reader = self._reader
        other._numbers = self._numbers.fork()
        other._root = self._root
        return other

    @property
    def tokens(self) -> int:
        """Tokens of the whole text."""
        return self._root.tokens if self._root else 0

    @property
    def bytes(self) -> int:
        """Bytes of the whole text."""
        return self._root.bytes if self._root else 0

    @property
    def chars(self) -> int:
        """Characters of the whole text."""
        return self._root.chars if self._root else 0

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
        self._numbers = self._freed()
        pages = [Page.of(self._numbers.take(), *c) for c in prepared.contents]
        self._root = tree.replace(None, 0, 0, pages, self._numbers, self._reader)
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
        opened: giant.Marks | None = ()
        if isinstance(encoder, OnePieceEncoder):
            found, marks = growing.grow(self, encoder, self._marks, start, end, text)
        else:
            marks = ()
            if isinstance(encoder, FastEncoder):
                found, opened = giant.edit(self, encoder, self._open, start, end, text)
            else:
                found = splice(self, encoder, start, end, text)
        self._apply(found)
        if opened is None and isinstance(encoder, FastEncoder):
            opened = giant.look(self, encoder) or giant.near(self._open, start, self.bytes)
        self._marks, self._open = marks, opened or ()
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
        reader = self._reader
        return b"".join([p.peek(reader).text for p in tree.walk(self._root, reader)])

    def ids(self) -> Ids:
        """All ids, uint32[tokens]."""
        reader = self._reader
        parts = [p.peek(reader).ids for p in tree.walk(self._root, reader)]
        return np.concatenate(parts) if parts else _NONE

    def slice(self, start: int, end: int) -> Utf8:
        """The bytes ``[start, end)`` of the text, as far as it reaches."""
        if start >= end or self._root is None:
            return b""
        places = tree.pages(self._root, start, end, self._reader)
        if not places:
            return b""
        base = places[0].byte
        text = b"".join([p.page.content(self._reader).text for p in places])
        return text[start - base : end - base]

    def char_boundary(self, offset: int) -> bool:
        """Whether a byte offset lies between two characters (or at an edge of the text)."""
        if not 0 < offset < self.bytes:
            return offset in (0, self.bytes)
        byte: int = self.slice(offset, offset + 1)[0]
        return byte & 0xC0 != 0x80

    def view(self, low: int, high: int) -> View:
        """The whole pages that cover the bytes ``[low, high)``: their tokens and text."""
        if low >= high or self._root is None:
            token = self.tokens if low >= self.bytes else 0
            return View(low, token, _NONE, _NONE, b"")
        places = tree.pages(self._root, low, high, self._reader)
        contents = [p.page.content(self._reader) for p in places]
        if len(contents) == 1:
            one = contents[0]
            return View(places[0].byte, places[0].token, one.ids, one.lengths, one.text)
        lengths = [c.lengths for c in contents]
        for i, content in enumerate(contents[:-1]):
            if not len(content.ids) and len(lengths[i + 1]):
                # The first part of this token's text stands in pages of its own (page.py): its
                # length must never equal a fresh one, nor may a position right of it be found.
                lengths[i + 1] = lengths[i + 1].copy()
                lengths[i + 1][0] = _UNKNOWN
        return View(
            places[0].byte,
            places[0].token,
            np.concatenate([c.ids for c in contents]),
            np.concatenate(lengths),
            b"".join([c.text for c in contents]),
        )

    # Storing

    def header(self) -> Header:
        """The header as it would be stored now; call :meth:`unsaved` first."""
        return Header(
            self.session_id,
            self.fingerprint,
            self.tokenizer,
            self.revision,
            self.tokens,
            self.bytes,
            self.chars,
            self.digest,
            self.touched_ms,
            self.quarantined,
            self.closed,
            self.recent,
            self._numbers.next,
            tree.spine(self._root, self._reader),
            self._marks,
            self._open,
        )

    def unsaved(self, put: Callable[[int, Utf8 | None], None]) -> list[Page | tree.Node]:
        """Hand every changed record to ``put``: number and bytes, None for one to delete.

        Returns the objects to mark ``stored`` once that is so.
        """
        numbers = self._numbers

        def put_known(number: int, data: Utf8 | None) -> None:
            if data is not None or number < numbers.stored_below:
                put(number, data)

        self._root, written = tree.unsaved(self._root, self._reader, put_known)
        for number in numbers.tombstones():
            put(number, None)
        return written

    def verify(self) -> int:
        """Read every record and hold counts and digest to them; returns the number of records.

        Raises ``STORE_CORRUPT``.
        """
        reader = self._reader
        value, pages = digest.EMPTY, 0
        for page in tree.walk(self._root, reader):
            content = page.peek(reader)
            if page.chars != kernels.characters(content.text):
                raise ToktierError(Code.STORE_CORRUPT, f"page {page.number} has another size")
            value = kernels.extend(value, content.ids)
            pages += 1
        if value != self.digest:
            raise ToktierError(Code.STORE_CORRUPT, "the ids do not give the session's digest")
        return pages + tree.stored_nodes(self._root, reader)

    def settle(self, keep_pages: int) -> int:
        """After storing: forget all pages but the last ones. Returns bytes of memory still held."""
        tree.trim(self._root, keep_pages)
        return 1200 + len(self.session_id) + tree.footprint(self._root)

    # Inner workings

    def _freed(self) -> tree.Numbers:
        numbers = self._numbers.copy()
        for page in tree.walk(self._root, self._reader):
            numbers.free(page.number)
        if self._root is not None:
            tree.replace(self._root, 0, self.bytes, [], numbers, self._reader)
        return numbers

    def _apply(self, found: Splice) -> None:
        reader, root = self._reader, self._root
        low = max(0, found.begin - 1)
        region = tree.pages(root, low, max(found.stop, low + 1), reader)
        if region and region[0].byte + region[0].page.bytes == found.begin:
            # A whole page is kept; it is opened only if there is room worth filling.
            page = region[0].page
            if cost(page.tokens, page.bytes) > PAGE_BYTES * 7 // 8:
                del region[0]
        low_edge = region[0].byte if region else found.begin
        high_edge = region[-1].byte + region[-1].page.bytes if region else found.begin
        ids, lengths, text = [found.ids], [found.lengths], [found.text]
        left_ids = right_dropped = _NONE
        if region and region[0].byte < found.begin:
            first, n = region[0].page.content(reader), found.keep - region[0].token
            left_ids = first.ids[:n]
            ids.insert(0, left_ids)
            lengths.insert(0, first.lengths[:n])
            text.insert(0, first.text[: found.begin - region[0].byte])
        if high_edge > found.stop:
            last, n = region[-1].page.content(reader), self.tokens - found.tail - region[-1].token
            right_dropped = last.ids[:n]
            ids.append(last.ids[n:])
            lengths.append(last.lengths[n:])
            text.append(last.text[found.stop - region[-1].byte :])
        new_digest = self._new_digest(found, region, left_ids, right_dropped, low_edge, high_edge)

        numbers = self._numbers.copy()
        for place in region:
            numbers.free(place.page.number)
        appends = len(region) == 1 and high_edge == self.bytes
        high_edge = self._absorb(high_edge, ids, lengths, text, numbers)
        contents = list(
            cut(
                np.concatenate(ids), np.concatenate(lengths), b"".join(text),
                even=high_edge < self.bytes,
            )
        ) if any(text) else []  # fmt: skip
        pages = [Page.of(numbers.take(), *c) for c in contents]
        if root is not None and appends:
            changed = tree.replace_last(root, pages, numbers, reader)
        else:
            changed = tree.replace(root, low_edge, high_edge, pages, numbers, reader)
        tokens = found.keep + len(found.ids) + found.tail
        size = self.bytes - (found.stop - found.begin) + len(found.text)
        if (changed.tokens, changed.bytes) != (tokens, size) if changed else tokens or size:
            raise ToktierError(Code.STORE_CORRUPT, "the pages do not add up after an edit")
        self._root = changed
        self._numbers = numbers
        self.digest = new_digest

    def _absorb(
        self, high_edge: int, ids: list[Ids], lengths: list[Ids], text: list[Utf8],
        numbers: tree.Numbers,
    ) -> int:  # fmt: skip
        """Join the right neighbour to a small rest in the middle, so that pages do not thin out."""
        size = cost(sum(map(len, ids)), sum(map(len, text)))
        if high_edge >= self.bytes or size > PAGE_BYTES // 2:
            return high_edge
        (neighbour,) = tree.pages(self._root, high_edge, high_edge + 1, self._reader)
        page = neighbour.page
        if page.tokens == 0 or size + cost(page.tokens, page.bytes) > PAGE_BYTES:
            return high_edge
        content = page.content(self._reader)
        ids.append(content.ids)
        lengths.append(content.lengths)
        text.append(content.text)
        numbers.free(page.number)
        return high_edge + page.bytes

    def _new_digest(
        self, found: Splice, region: list[tree.Place], left_ids: Ids, right_dropped: Ids,
        low_edge: int, high_edge: int,
    ) -> int:  # fmt: skip
        """The digest after a splice, from the pages it touches and the sums in the index."""
        reader, root = self._reader, self._root
        if found.tail == 0 and len(region) <= 2:
            dropped = [p.page.content(reader).ids for p in region]
            n = len(left_ids)
            gone = dropped[0][n:] if len(dropped) == 1 else np.concatenate([_NONE, *dropped])[n:]
            return kernels.replace_suffix(self.digest, gone, found.ids)
        left = kernels.extend(tree.prefix(root, low_edge, reader), left_ids)
        value = kernels.extend(left, found.ids)
        if found.tail:
            # What stood left of the tail: the pages before its first, and that page's dropped part.
            if high_edge > found.stop:
                before = tree.prefix(root, region[-1].byte, reader)
                before = kernels.extend(before, right_dropped)
            else:
                before = tree.prefix(root, high_edge, reader)
            tail = digest.without_prefix(self.digest, before, found.tail)
            value = digest.join(value, tail, found.tail)
        return value
