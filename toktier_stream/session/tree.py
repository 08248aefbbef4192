"""The page index: a persistent B+ tree over a session's pages, in text order.

A position is found in O(log n). Nodes (node.py) are values: a change builds new nodes along one
path and shares the rest, so an abandoned change leaves nothing behind.

**Appends stay flat.** On the path to the last page a node's record leaves out the last child; the
header names those children instead (:class:`Spine`), and holds the last page itself, and what the
index says of the last few pages before it. So an append that fits into the last page writes the
header, one that closes a page that page too, and every eighth such one a node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_
from typing import Final
from zlib import crc32

from toktier_stream.errors import Code, ToktierError
from toktier_stream.session.node import (
    LINE,
    Lines,
    Node,
    Numbers,
    Spine,
    closed,
    fold,
    from_spine,
    line,
)
from toktier_stream.session.page import Page, Reader, Written

__all__ = ["Lines", "Node", "Numbers", "Spine", "fold", "from_spine"]

FAN: Final = 32
"""Children of a full node: 32 lines of 28 bytes."""
KEPT: Final = 7
"""Lines of the node above the last page that the header has at most. With one more they go into the
node's record: that lies among others', and to change it costs a page of LMDB's, whatever it is."""


def spine(root: Node | None, reader: Reader) -> tuple[tuple[Spine, ...], Lines, bytes]:
    """The path from the root to the last page, for the header; the lines for pages before that
    which are in no record; and its own record, empty if it is in the store by itself. Checksums
    must be set."""
    if root is None:
        return (), b"", b""
    path: list[Spine] = []
    lines = b""
    at: Page | Node = root
    while isinstance(at, Node):
        path.append(Spine(at.number, at.crc, at.tokens, at.bytes, at.chars))
        lines = at.more
        at = at.last or at.kids(reader)[-1]
    tail = b"" if at.stored else at.record()
    path.append(Spine(at.number, at.crc if at.stored else 0, at.tokens, at.bytes, at.chars))
    return tuple(path), lines, tail


def replace(
    root: Node | None, low: int, high: int, new: list[Page], numbers: Numbers, reader: Reader
) -> Node | None:
    """The tree with the pages in ``[low, high)`` replaced by ``new``.

    ``low`` and ``high`` are where pages start or end. The numbers of the pages taken out are the
    caller's to free; those of nodes are freed here.
    """
    if root is None:
        tops = _group(0, list(new), None, numbers, reader, at_end=True)
    else:
        tops = _replace(root, low, high, new, numbers, reader, at_end=True)
    while len(tops) > 1:
        tops = _group(tops[0].level + 1, list(tops), None, numbers, reader, at_end=True)
    if not tops:
        return None
    top = tops[0]
    while top.level > 0 and len(top.kids(reader)) == 1:
        numbers.free(top.number)
        only = top.kids(reader)[0]
        if not isinstance(only, Node):
            raise ToktierError(Code.STORE_CORRUPT, "an index node lists a page above level 0")
        top = only
    return top


def last_page(path: Sequence[Node], reader: Reader) -> Page:
    """The last page, from :func:`way`."""
    last = path[-1].last or path[-1].kids(reader)[-1]
    if isinstance(last, Node):
        raise ToktierError(Code.STORE_CORRUPT, "an index node lists a node at level 0")
    return last


def _last(node: Node, reader: Reader) -> Page | Node:
    return node.last or node.kids(reader)[-1]


def way(root: Node, reader: Reader) -> list[Node]:
    """The nodes from the root to the one that lists the last page."""
    path = [root]
    at = root
    while at.level > 0:
        last = at.last or at.kids(reader)[-1]
        if not isinstance(last, Node):
            raise ToktierError(Code.STORE_CORRUPT, "an index node lists a page above level 0")
        at = last
        path.append(at)
    return path


def replace_last(root: Node, new: list[Page], numbers: Numbers, reader: Reader) -> Node | None:
    """The tree with its last page replaced by ``new``: what most appends need."""
    path = way(root, reader)
    leaf = path.pop()
    if len(new) != 1:
        kids = leaf.kids(reader)
        if not 0 < len(new) <= FAN - len(kids) + 1:
            return replace(root, root.bytes - kids[-1].bytes, root.bytes, new, numbers, reader)
    node = leaf.with_last(new, reader)
    for above in reversed(path):
        node = above.with_last((node,), reader)
    return node


def grow(
    path: Sequence[Node], new: Sequence[Written], next_number: int, reader: Reader,
    put: Callable[[int, bytes], None],
) -> tuple[Node, int] | None:  # fmt: skip
    """The tree of a stored session with its last page, which only the header has, replaced by
    ``new``; and their records to ``put``, the last one's apart: at once what :func:`replace_last`
    and :func:`unsaved` do. ``path`` is from :func:`way`. If a page is closed, all take numbers from
    ``next_number`` on; the next one is returned, too.

    None, and nothing was done, where it is not as simple as that.
    """
    leaf = path[-1]
    last = leaf.last
    if not isinstance(last, Page) or last.stored:
        return None
    for node in path:
        if not (node.open and node.stored):
            return None
    number = last.number
    tokens, size, chars = -last.tokens, -last.bytes, -last.chars
    count = len(new) - 1
    full, lines, beside = 0, b"", b""
    if count:
        lines = leaf.lines(reader)
        full = (len(lines) // LINE + count) // FAN
        if full and len(path) > 1:
            beside = path[-2].lines(reader)
        if full and len(beside) // LINE + full >= FAN:
            return None
        number = next_number
        for page in new[:count]:
            record = page[4]
            put(number, record)
            lines += line(number, crc32(record), *page[:4])
            tokens += page[0]
            size += page[1]
            chars += page[2]
            number += 1
        next_number = number + 1
    end = Page.written(number, new[count])
    tokens += end.tokens
    size += end.bytes
    chars += end.chars
    above = path[-2::-1]
    if not full:
        node = leaf.followed(end, tokens, size, chars)
        if count and (data := node.listing(lines, count, KEPT)) is not None:
            put(leaf.number, data)
    else:
        node, filled, next_number = _fill(leaf, lines, end, next_number, put)
        if above:
            node = above[0].followed(node, tokens, size, chars)
            data = node.listing(beside + filled, full, 0)
        else:
            node, data = Node.begun(1, next_number, filled, node, 0)
            next_number += 1
        if data is not None:
            put(node.number, data)
        above = above[1:]
    for each in above:
        node = each.followed(node, tokens, size, chars)
    return node, next_number


def _fill(
    leaf: Node, lines: Lines, end: Page, next_number: int, put: Callable[[int, bytes], None]
) -> tuple[Node, Lines, int]:
    """Leaves in the place of one that lists more pages than it may before the last one, ``end``:
    the last leaf, which is open; lines for the others, which are full; and the next number."""
    filled, number = b"", leaf.number
    while len(lines) >= FAN * LINE:
        one, data = closed(0, number, lines[: FAN * LINE])
        put(number, data)
        filled += one
        lines = lines[FAN * LINE :]
        number = next_number
        next_number += 1
    node, rest = Node.begun(0, number, lines, end, KEPT)
    if rest is not None:
        put(number, rest)
    return node, filled, next_number


def _replace(
    node: Node,
    low: int,
    high: int,
    new: list[Page],
    numbers: Numbers,
    reader: Reader,
    *,
    at_end: bool,
) -> list[Node]:
    kids = node.kids(reader)
    first, start = _first(kids, low)
    last, end = first, start
    if node.level == 0:
        while last < len(kids) and end < high:
            end += kids[last].bytes
            last += 1
        changed = [*kids[:first], *new, *kids[last:]]
        return _group(0, changed, node, numbers, reader, at_end=at_end)
    # The child in which the range begins takes the new pages; the others only lose some.
    if first == len(kids):
        first -= 1
        start -= kids[first].bytes
    last, end = first, start
    rebuilt: list[Page | Node] = []
    while last < len(kids) and (last == first or end < high):
        kid = kids[last]
        if not isinstance(kid, Node):
            raise ToktierError(Code.STORE_CORRUPT, "an index node lists a page above level 0")
        if last > first and end + kid.bytes <= high:
            _drop(kid, numbers, reader)
        else:
            rebuilt.extend(
                _replace(
                    kid, max(0, low - end), min(kid.bytes, high - end),
                    new if last == first else [], numbers, reader,
                    at_end=at_end and last == len(kids) - 1,
                )
            )  # fmt: skip
        end += kid.bytes
        last += 1
    merged = _merge([*kids[:first], *rebuilt, *kids[last:]], first, numbers, reader, at_end=at_end)
    return _group(node.level, merged, node, numbers, reader, at_end=at_end)


def _first(kids: Sequence[Page | Node], byte: int) -> tuple[int, int]:
    """The first child that ends after ``byte``, and where it starts."""
    start = 0
    for i, kid in enumerate(kids):
        if start + kid.bytes > byte:
            return i, start
        start += kid.bytes
    return len(kids), start


def _drop(node: Node, numbers: Numbers, reader: Reader) -> None:
    """Free the numbers of a subtree's nodes."""
    if node.level > 0:
        for kid in node.kids(reader):
            if isinstance(kid, Node):
                _drop(kid, numbers, reader)
    numbers.free(node.number)


def _merge(
    kids: list[Page | Node], around: int, numbers: Numbers, reader: Reader, *, at_end: bool
) -> list[Page | Node]:
    """Join small neighbours near the place of a change, so that nodes do not thin out. The last
    node of all is small because it grows."""
    i = max(0, around - 1)
    while i + 1 < len(kids) - at_end and i <= around + 1:
        left, right = kids[i], kids[i + 1]
        joined: list[Page | Node] = []
        # Reading a closed neighbour only to see that it is full would cost every edit.
        if _known_small(left) or _known_small(right):
            joined = [*_kids(left, reader), *_kids(right, reader)]
        if 0 < len(joined) <= FAN:
            numbers.free(right.number)
            kids[i : i + 2] = [Node(left.level, left.number, joined)]
        else:
            i += 1
    return kids


def _known_small(node: Page | Node) -> bool:
    return isinstance(node, Node) and 0 < len(node.loaded) <= FAN // 4


def _kids(node: Page | Node, reader: Reader) -> list[Page | Node]:
    return node.kids(reader) if isinstance(node, Node) else []


def _group(
    level: int,
    kids: list[Page | Node],
    old: Node | None,
    numbers: Numbers,
    reader: Reader,
    *,
    at_end: bool,
) -> list[Node]:
    """Nodes over ``kids``: the old node if they fit, more if not, none if there are none."""
    if not kids:
        if old is not None:
            numbers.free(old.number)
        return []
    n = len(kids)
    if n <= FAN:
        if old is not None:
            before = old.kids(reader)
            if len(before) == n and all(map(is_, before[:-1], kids[:-1])):
                return [old.with_last(kids[-1:], reader)]
        return [Node(level, numbers.take() if old is None else old.number, kids)]
    if at_end:
        sizes = [FAN] * (n // FAN) + ([n % FAN] if n % FAN else [])
    else:
        parts = -(-n // FAN)
        sizes = [n // parts + (1 if i < n % parts else 0) for i in range(parts)]
    nodes: list[Node] = []
    at = 0
    for i, size in enumerate(sizes):
        number = old.number if old is not None and i == 0 else numbers.take()
        nodes.append(Node(level, number, kids[at : at + size]))
        at += size
    return nodes


def unsaved(
    root: Node | None, reader: Reader, put: Callable[[int, bytes | None], None]
) -> tuple[Node | None, list[Page | Node]]:
    """Hand every record that is not in the store to ``put`` (children first), with its number;
    None where an older record under the number is to go.

    Returns the same tree with checksums set, and the pages and nodes that were written: once they
    are in the store, mark them ``stored``. Pages and nodes that are in the store are not touched.
    """
    written: list[Page | Node] = []
    if root is None:
        return None, written
    saved = _save(root, True, reader, put, written)
    return (saved if isinstance(saved, Node) else None), written


def _save(
    at: Page | Node,
    last: bool,
    reader: Reader,
    put: Callable[[int, bytes | None], None],
    written: list[Page | Node],
) -> Page | Node:
    if isinstance(at, Page):
        if last and not at.stored:
            at.record()  # the header's to keep
        elif not at.stored:
            put(at.number, at.record())
            written.append(at)
        return at
    rewrite = not at.stored or at.open != last
    if not rewrite and not last:
        return at
    if not rewrite:
        child = _last(at, reader)
        saved = _save(child, True, reader, put, written)
        if saved is not child:
            at.replaced_last(saved)
        return at
    kids = at.kids(reader)
    if at.stored:
        at = Node(at.level, at.number, list(kids))
        kids = at.kids(reader)
    end = len(kids) - 1
    # What a stored record lists is stored.
    changed = [i for i, k in enumerate(kids) if not k.stored or k.open]
    if last and (not changed or changed[-1] != end):
        changed.append(end)
    for i in changed:
        kid = kids[i]
        saved = _save(kid, last and i == end, reader, put, written)
        if saved is not kid:
            kids[i] = saved
    changes, data = at.rows(reader, is_open=last, keep=0 if at.level else KEPT)
    if changes:
        put(at.number, data)
    written.append(at)
    return at


def trim(root: Node | None) -> None:
    """Forget what is stored, apart from the way to the last page."""
    at: Page | Node | None = root
    while isinstance(at, Node):
        following = at.last
        at.unload()
        at = following
    if at is not None:
        at.unload()


def footprint(root: Node | None) -> int:
    """About how many bytes of memory the way to the last page takes."""
    total = 0
    at: Page | Node | None = root
    while isinstance(at, Node):
        total += at.held
        at = at.last
    return total + (at.held if at is not None else 0)
