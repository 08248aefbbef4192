"""The tokens and text of a session as pages under an index, and the changes to them.

Pages and index nodes are values that versions of a session share; a version is little more than a
root and some counters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import numpy as np

from toktier_stream.errors import Code, ToktierError
from toktier_stream.session import end as ends
from toktier_stream.session import kernels, lookup, sealing, tree
from toktier_stream.session.page import (
    PAGE_BYTES,
    Content,
    Page,
    Reader,
    Utf8,
    Written,
    cost,
    cut,
    write_end,
)
from toktier_stream.session.splice import Splice, View
from toktier_stream.tokenizer.face import Ids
from toktier_stream.wire import digest

_NONE: Final[Ids] = np.zeros(0, dtype=np.uint32)
_UNKNOWN: Final = np.uint32(0xFFFF_FFFF)


class Paged:
    """See the module. Belongs to one session object."""

    __slots__ = ("_kept", "_numbers", "_read", "_reader", "_saved", "_trail", "_tree")

    def __init__(
        self, spine: tuple[tree.Spine, ...], lines: tree.Lines, tail: Utf8, reader: Reader,
        numbers: tree.Numbers, record: Utf8 = b"",
    ) -> None:  # fmt: skip
        """``record``: the header's, where the rest is from one."""
        self._reader = reader
        self._numbers = numbers
        self._read = False  # whether pages were opened that may now be forgotten
        # The pages of a stored session are known by either; with no tree, by the way to the last.
        self._tree: tree.Node | None = None
        self._trail: sealing.Trail | None = None
        # The number of the page that the header has, in the store and in this version once it is
        # saved: there is no record under it.
        self._kept = self._saved = spine[-1].number if tail else -1
        if spine:
            root = tree.from_spine(spine, len(spine) - 2, tail, lines)
            if not isinstance(root, tree.Node):
                raise ToktierError(Code.STORE_CORRUPT, "a session header has a broken path")
            self._root = root
        if record:
            self.sealed(record)

    def fork(self, floor: int) -> Paged:
        """An independent copy of stored pages; O(1). ``floor``: see :class:`tree.Numbers`."""
        other = object.__new__(Paged)
        other._reader = self._reader
        other._numbers = self._numbers.fork(floor)
        other._read = self._read
        other._tree = self._tree
        other._trail = self._trail
        other._kept = other._saved = self._saved
        return other

    @property
    def _root(self) -> tree.Node | None:
        if self._tree is None and self._trail is not None:
            self._tree = self._trail.root()
        return self._tree

    @_root.setter
    def _root(self, root: tree.Node | None) -> None:
        self._tree, self._trail = root, None

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

    @property
    def ends_in_memory(self) -> bool:
        """Whether the last page is decoded."""
        at: Page | tree.Node | None = self._root
        while isinstance(at, tree.Node):
            at = at.last
        return at is not None and at.loaded

    # Reading

    def text(self) -> Utf8:
        """The whole text."""
        reader = self._reader
        return b"".join([p.peek(reader).text for p in lookup.walk(self._root, reader)])

    def ids(self) -> Ids:
        """All ids, uint32[tokens]."""
        reader = self._reader
        parts = [p.peek(reader).ids for p in lookup.walk(self._root, reader)]
        return np.concatenate(parts) if parts else _NONE

    def slice(self, start: int, end: int) -> Utf8:
        """The bytes ``[start, end)`` of the text, as far as it reaches."""
        if start >= end or self._root is None:
            return b""
        self._read = True
        places = lookup.pages(self._root, start, end, self._reader)
        if not places:
            return b""
        base = places[0].byte
        text = b"".join([p.page.content(self._reader).text for p in places])
        return text[start - base : end - base]

    def view(self, low: int, high: int) -> View:
        """The whole pages that cover the bytes ``[low, high)``: their tokens and text."""
        if low >= high or self._root is None:
            token = self.tokens if low >= self.bytes else 0
            return View(low, token, _NONE, _NONE, b"")
        self._read = True
        places = lookup.pages(self._root, low, high, self._reader)
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

    # Changes

    def replace_all(self, contents: Iterable[Content | Written]) -> None:
        """Other pages in the place of all."""
        self._read = True
        numbers = self._numbers.copy()
        for page in lookup.walk(self._root, self._reader):
            numbers.free(page.number)
        if self._root is not None:
            tree.replace(self._root, 0, self.bytes, [], numbers, self._reader)
        pages = [
            Page.of(numbers.take(), *c)
            if isinstance(c, Content)
            else Page.written(numbers.take(), c)
            for c in contents
        ]
        self._root = tree.replace(None, 0, 0, pages, numbers, self._reader)
        self._numbers = numbers

    def apply(self, found: Splice, value: int | None) -> int:
        """Change the pages; returns the new digest if ``value`` is the old one, 0 for None.

        Raises ``STORE_CORRUPT``, with nothing changed, and ``ValueError`` for lengths that do not
        sum to the text's length.
        """
        reader, root = self._reader, self._root
        self._read = True
        low = max(0, found.begin - 1)
        region = lookup.pages(root, low, max(found.stop, low + 1), reader)
        if region and region[0].byte + region[0].page.bytes == found.begin:
            # A whole page is kept; it is opened only if there is room worth filling.
            page = region[0].page
            if cost(page.tokens, page.bytes) > PAGE_BYTES * 7 // 8:
                del region[0]
        low_edge = region[0].byte if region else found.begin
        high_edge = region[-1].byte + region[-1].page.bytes if region else found.begin
        ids, lengths = [found.ids], [found.lengths]
        text: list[Utf8 | memoryview] = [found.text]
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
        new_digest = 0
        if value is not None:
            new_digest = self._new_digest(
                value, found, region, left_ids, right_dropped, low_edge, high_edge
            )

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
        return new_digest

    def follow(self, end: View, byte: int) -> View | None:
        """Bring the pages to an end of the text, of which they have all up to this place: the usual
        case of :meth:`apply`. Returns the part of the end to go on with; None: this is not the
        usual case, nothing has changed.
        """
        root, reader = self._root, self._reader
        if root is None:
            return None
        last = tree.last_page(tree.way(root, reader), reader)
        written = self._rewritten(root, last, end, byte)
        if written is None:
            return None
        numbers = self._numbers.copy()
        if len(written[0]) == 1 or last.stored or not self._unused(last.number):
            numbers.free(last.number)
        pages = [Page.written(numbers.take(), one) for one in written[0]]
        self._become(tree.replace_last(root, pages, numbers, reader), end)
        self._numbers = numbers
        return ends.shortened(end, *written[1:])

    def store_end(
        self, end: View, byte: int, put: Callable[[int, Utf8 | None], None]
    ) -> View | None:
        """:meth:`follow` and :meth:`unsaved` at once, where nothing else is to be stored. Until
        that is stored the session is not to be read."""
        root, reader, numbers = self._root, self._reader, self._numbers
        if root is None or not numbers.clean:
            return None
        path = tree.way(root, reader)
        last = tree.last_page(path, reader)
        if not self._unused(last.number):
            return None
        written = self._rewritten(root, last, end, byte)
        if written is None:
            return None
        first = numbers.first
        grown = tree.grow(path, written[0], first, reader, put)
        if grown is None:
            return None
        changed, following = grown
        self._become(changed, end)
        closed = len(written[0]) - 1
        if closed:
            self._saved = first + closed
            self._numbers = tree.Numbers(following)
        return ends.shortened(end, written[1], written[2])

    def seal(
        self, end: View, byte: int, front: Callable[[int, Utf8, Utf8], Utf8],
        scratch: sealing.Scratch, put: Callable[[int, Utf8 | None], None],
    ) -> tuple[Utf8, View] | None:  # fmt: skip
        """:meth:`store_end` in the usual case; returns the header's record, too. ``front`` makes
        that of the header: from the next number, the way to the last page and the lines."""
        trail, numbers = self._trail, self._numbers
        if trail is None or not numbers.clean:
            return None
        sealed = sealing.seal(
            trail, front(numbers.next, trail.steps, trail.more), end, byte, numbers.first, scratch,
            put,
        )  # fmt: skip
        if sealed is None:
            return None
        after, rest = sealed
        self._tree, self._trail = None, after
        if after.number != trail.number:
            self._saved = after.number
            self._numbers = tree.Numbers(after.number + 1)
        return after.record, rest

    def sealed(self, record: Utf8) -> None:
        """The session is stored with this header."""
        if self._tree is not None and self._saved >= 0 and sealing.fits(record):
            path = tree.way(self._tree, self._reader)
            last = tree.last_page(path, self._reader)
            self._trail = sealing.Trail.of(record, path, last)

    def _unused(self, number: int) -> bool:
        """Whether the store has no record under the number of a page that it does not have."""
        return number == self._kept or number >= self._numbers.stored_below

    @staticmethod
    def _rewritten(
        root: tree.Node, last: Page, end: View, byte: int
    ) -> tuple[list[Written], int, int] | None:
        """What takes the place of the last page, where an end changed only that."""
        start, first = root.bytes - last.bytes, root.tokens - last.tokens
        if not end.byte <= start <= byte or first < end.token:
            return None
        if start >= end.byte + len(end.text):
            return None
        return write_end(
            end.ids, end.lengths, end.text, first - end.token, start - end.byte, ends.least(end)
        )

    def _become(self, changed: tree.Node | None, end: View) -> None:
        tokens, size = end.token + len(end.ids), end.byte + len(end.text)
        if changed is None or changed.tokens != tokens or changed.bytes != size:
            raise ToktierError(Code.STORE_CORRUPT, "the pages do not add up after an edit")
        self._root = changed

    def _absorb(
        self, high_edge: int, ids: list[Ids], lengths: list[Ids], text: list[Utf8 | memoryview],
        numbers: tree.Numbers,
    ) -> int:  # fmt: skip
        """Join the right neighbour to a small rest in the middle, so that pages do not thin out."""
        size = cost(sum(map(len, ids)), sum(map(len, text)))
        if high_edge >= self.bytes or size > PAGE_BYTES // 2:
            return high_edge
        (neighbour,) = lookup.pages(self._root, high_edge, high_edge + 1, self._reader)
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
        self, old: int, found: Splice, region: list[lookup.Place], left_ids: Ids,
        right_dropped: Ids, low_edge: int, high_edge: int,
    ) -> int:  # fmt: skip
        """The digest after a splice, from the pages it touches and the sums in the index."""
        reader, root = self._reader, self._root
        if found.tail == 0 and len(region) <= 2:
            dropped = [p.page.content(reader).ids for p in region]
            n = len(left_ids)
            gone = dropped[0][n:] if len(dropped) == 1 else np.concatenate([_NONE, *dropped])[n:]
            return kernels.replace_suffix(old, gone, found.ids)
        left = kernels.extend(lookup.prefix(root, low_edge, reader), left_ids)
        value = kernels.extend(left, found.ids)
        if found.tail:
            # What stood left of the tail: the pages before its first, and that page's dropped part.
            if high_edge > found.stop:
                before = lookup.prefix(root, region[-1].byte, reader)
                before = kernels.extend(before, right_dropped)
            else:
                before = lookup.prefix(root, high_edge, reader)
            tail = digest.without_prefix(old, before, found.tail)
            value = digest.join(value, tail, found.tail)
        return value

    # Storing

    @property
    def next_number(self) -> int:
        """The first record number that was never used."""
        return self._numbers.next

    def spine(self) -> tuple[tuple[tree.Spine, ...], tree.Lines, Utf8]:
        """What the header has of the index: the path to the last page, lines for those before it,
        and that page's record where the header is to keep it; after :meth:`unsaved`."""
        return tree.spine(self._root, self._reader)

    def stored_numbers(self) -> list[int]:
        """The numbers of all records of a stored session, ascending. Raises ``STORE_CORRUPT``."""
        return sorted(lookup.stored_numbers(self._root, self._reader))

    def unsaved(self, put: Callable[[int, Utf8 | None], None]) -> list[Page | tree.Node]:
        """See :meth:`toktier_stream.session.record.Session.unsaved`."""
        numbers = self._numbers

        def put_known(number: int, data: Utf8 | None) -> None:
            if data is not None or number < numbers.stored_below:
                put(number, data)

        self._root, written = tree.unsaved(self._root, self._reader, put_known)
        gone = set(numbers.tombstones())
        self._saved = -1
        if self._root is not None:
            last = tree.last_page(tree.way(self._root, self._reader), self._reader)
            if not last.stored:
                self._saved = last.number
                if last.number < numbers.stored_below:
                    gone.add(last.number)
        for number in sorted(gone - {self._kept}):
            put(number, None)
        return written

    def verify(self, value: int) -> int:
        """Read every record and hold counts and digest to them; returns the number of records.

        Raises ``STORE_CORRUPT``.
        """
        reader = self._reader
        found, pages = digest.EMPTY, 0
        for page in lookup.walk(self._root, reader):
            content = page.peek(reader)
            if page.chars != kernels.characters(content.text):
                raise ToktierError(Code.STORE_CORRUPT, f"page {page.number} has another size")
            found = kernels.extend(found, content.ids)
            pages += page.stored
        if found != value:
            raise ToktierError(Code.STORE_CORRUPT, "the ids do not give the session's digest")
        return pages + lookup.stored_nodes(self._root, reader)

    def settle(self, *, opened: bool) -> int:
        """After storing: forget all pages. Returns bytes of memory still held. ``opened``: another
        version may have opened pages that this one shares."""
        if self._trail is not None:
            self._tree = None
            return self._trail.held
        if opened or self._read:
            tree.trim(self._tree)
            self._read = False
        return tree.footprint(self._tree)
