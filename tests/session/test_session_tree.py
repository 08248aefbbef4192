"""The page index against a plain list of pages."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toktier_stream.errors import Code, ToktierError
from toktier_stream.session import lookup, tree
from toktier_stream.session.page import Page
from toktier_stream.session.tree import Node, Numbers
from toktier_stream.wire import digest


class Shelf:
    """Records by number, as a store would hold them."""

    def __init__(self) -> None:
        self.records: dict[int, bytes] = {}
        self.writes = 0

    def read(self, number: int, crc: int) -> bytes:
        """See :class:`toktier_stream.session.page.Reader`."""
        data = self.records.get(number)
        if data is None or zlib.crc32(data) != crc:
            raise ToktierError(Code.STORE_CORRUPT, f"record {number}")
        return data

    def save(self, root: Node | None, numbers: Numbers) -> Node | None:
        """Store what changed, and give back the same tree read anew from a header's path."""

        def put(number: int, data: bytes | None) -> None:
            self.writes += 1
            if data is None:
                self.records.pop(number, None)
            else:
                self.records[number] = data

        root, written = tree.unsaved(root, self, put)
        for number in numbers.tombstones():
            self.records.pop(number, None)
        for part in written:
            part.stored = True
        spine, lines, tail = tree.spine(root, self)
        if tail:
            self.records.pop(spine[-1].number, None)  # an older record under its number
        if not spine:
            return None
        reread = tree.from_spine(spine, len(spine) - 2, tail, lines)
        assert isinstance(reread, Node)
        return reread


def make_page(number: int, seed: int) -> Page:
    """A page of a few tokens with recognisable ids."""
    n = seed % 3 + 1
    ids = np.arange(seed * 10, seed * 10 + n, dtype=np.uint32)
    return Page.of(number, ids, np.full(n, 2, dtype=np.uint32), b"ab" * n)


steps = st.lists(
    st.tuples(st.floats(0, 1), st.floats(0, 1), st.integers(0, 9), st.booleans()),
    min_size=1,
    max_size=25,
)


@given(steps, st.sampled_from([0, 1, 2, 7]))
@settings(deadline=None)
@pytest.mark.usefixtures("small_fan")
def test_a_tree_is_the_list_of_its_pages(
    moves: list[tuple[float, float, int, bool]], kept: int
) -> None:
    """After any replacements: order, sums, places, prefix digests, and what a reader of the stored
    records sees, however much of them the header has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree, "KEPT", kept)
        _live(moves)


def _live(moves: list[tuple[float, float, int, bool]]) -> None:
    shelf, numbers = Shelf(), Numbers(0)
    root: Node | None = None
    model: list[Page] = []
    seed = 0
    for where, how_much, count, save in moves:
        first = round(where * len(model))
        last = first + round(how_much * (len(model) - first) * 0.6)
        low = sum(p.bytes for p in model[:first])
        high = sum(p.bytes for p in model[:last])
        for page in model[first:last]:
            numbers.free(page.number)
        new = []
        for _ in range(count):
            seed += 1
            new.append(make_page(numbers.take(), seed))
        root = tree.replace(root, low, high, new, numbers, shelf)
        model[first:last] = new
        if save:
            root = shelf.save(root, numbers)
            numbers = numbers.fork()
        _compare(root, model, shelf)
    root = shelf.save(root, numbers)
    _compare(root, model, shelf)
    # Nothing is left over: pages and the nodes that have a record, no more. The last page is the
    # header's, or was stored before it became the last.
    kept = sum(p.stored for p in lookup.walk(root, shelf))
    assert len(model) - kept <= 1
    assert len(shelf.records) == kept + lookup.stored_nodes(root, shelf)
    assert sorted(shelf.records) == sorted(lookup.stored_numbers(root, shelf))


def _compare(root: Node | None, model: list[Page], shelf: Shelf) -> None:
    found = list(lookup.walk(root, shelf))
    assert [p.number for p in found] == [p.number for p in model]
    if root is None:
        return
    assert (root.tokens, root.bytes, root.chars) == (
        sum(p.tokens for p in model),
        sum(p.bytes for p in model),
        sum(p.chars for p in model),
    )
    places = lookup.pages(root, 0, root.bytes, shelf)
    byte = token = 0
    value = digest.EMPTY
    for place, page in zip(places, model, strict=True):
        assert (place.byte, place.token, place.page.number) == (byte, token, page.number)
        assert lookup.prefix(root, byte, shelf) == value
        middle = lookup.pages(root, byte, byte + 1, shelf)
        assert [p.page.number for p in middle] == [page.number]
        byte += page.bytes
        token += page.tokens
        value = digest.extend(value, page.content(shelf).ids)
    assert lookup.prefix(root, byte, shelf) == value
    assert root.digest(shelf) == value


@pytest.fixture(scope="module")
def small_fan() -> object:
    """Nodes of 4 children, one of them in the header at most."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree, "FAN", 4)
        patch.setattr(tree, "KEPT", 1)
        yield


def test_an_append_writes_no_index_until_a_page_closes(small_fan: object) -> None:
    """Replacing the last page changes no record, closing it one node, whatever the size."""
    shelf, numbers = Shelf(), Numbers(0)
    pages = [make_page(numbers.take(), i) for i in range(200)]
    root = shelf.save(tree.replace(None, 0, 0, pages, numbers, shelf), numbers)
    writes: list[int] = []
    for seed in range(300, 400):
        assert root is not None
        last = next(iter(lookup.pages(root, root.bytes - 1, root.bytes, shelf))).page
        new = [make_page(last.number, seed)]
        if seed % 2:
            new.append(make_page(numbers.take(), seed + 1000))
        before = shelf.writes
        root = shelf.save(tree.replace_last(root, new, numbers, shelf), numbers)
        writes.append(shelf.writes - before)
    assert set(writes[0::2]) == {0}
    # A closed page: that, and its node; now and then the node is full and the next level moves.
    assert max(writes[1::2]) <= 7
    assert sum(writes[1::2]) / len(writes[1::2]) < 3


def test_an_abandoned_change_leaves_the_old_tree_alone(small_fan: object) -> None:
    """Truncating, saving and forgetting a copy does not touch the pages and nodes it shares."""
    shelf, numbers = Shelf(), Numbers(0)
    pages = [make_page(numbers.take(), i) for i in range(60)]
    root = shelf.save(tree.replace(None, 0, 0, pages, numbers, shelf), numbers)
    assert root is not None
    want = [p.number for p in lookup.walk(root, shelf)]
    attempt = tree.replace(root, pages[0].bytes * 3, root.bytes, [], numbers.copy(), shelf)
    lost: list[int] = []
    tree.unsaved(attempt, shelf, lambda number, data: lost.append(number))
    assert lost
    tree.trim(root)
    assert [p.number for p in lookup.walk(root, shelf)] == want
    assert root.digest(shelf) == digest.of(np.concatenate([p.content(shelf).ids for p in pages]))


@pytest.mark.parametrize("change", [lambda d: d[:-1], lambda d: b"\x04" + d[1:], lambda d: b""])
def test_a_node_of_another_shape_is_refused(
    small_fan: object, change: Callable[[bytes], bytes]
) -> None:
    """A record that carries the right checksum but cannot be a node's."""
    shelf, numbers = Shelf(), Numbers(0)
    pages = [make_page(numbers.take(), i) for i in range(3)]
    root = tree.replace(None, 0, 0, pages, numbers, shelf)
    reread = shelf.save(root, numbers)
    assert reread is not None
    shelf.records[reread.number] = change(shelf.records[reread.number])
    reread.crc = zlib.crc32(shelf.records[reread.number]) or 1
    with pytest.raises(ToktierError) as caught:
        reread.kids(shelf)
    assert caught.value.code is Code.STORE_CORRUPT
