"""Looking things up in the page index (tree.py): pages by their place in the text, sums left of a
place, and which records there are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from toktier_stream.session.node import LINE, Node, fold
from toktier_stream.session.page import Page, Reader


class Place(NamedTuple):
    """A page and what stands left of it."""

    page: Page
    byte: int
    token: int


def pages(root: Node | None, low: int, high: int, reader: Reader) -> list[Place]:
    """The pages that overlap the bytes ``[low, high)``, left to right."""
    found: list[Place] = []
    if root is not None:
        _collect(root, low, high, root.bytes, root.tokens, reader, found)
        found.reverse()
    return found


def _collect(
    node: Node, low: int, high: int, end: int, end_token: int, reader: Reader, found: list[Place]
) -> None:
    # From the right: appends look at the end of the text.
    for kid in reversed(node.kids(reader)):
        start = end - kid.bytes
        if start < high:
            if end <= low:
                return
            if isinstance(kid, Node):
                _collect(kid, low, high, end, end_token, reader, found)
            else:
                found.append(Place(kid, start, end_token - kid.tokens))
        end = start
        end_token -= kid.tokens


def walk(root: Node | None, reader: Reader) -> Iterator[Page]:
    """All pages, left to right; what is read on the way is not kept."""
    if root is not None:
        for kid in root.peek(reader):
            if isinstance(kid, Node):
                yield from walk(kid, reader)
            else:
                yield kid


def stored_numbers(root: Node | None, reader: Reader) -> list[int]:
    """The numbers of all records of a stored session, from its index alone."""
    found: list[int] = []
    at: Page | Node | None = root
    while isinstance(at, Node):
        found += _listed(at, reader)
        at = at.last or at.kids(reader)[-1]
    if at is not None and at.stored:
        found.append(at.number)
    return found


def _listed(node: Node, reader: Reader) -> list[int]:
    found = [node.number] if node.crc else []
    lines = node.lines(reader)
    numbers: list[int] = np.frombuffer(lines, dtype="<u4")[:: LINE // 4].tolist()
    if node.level == 0:
        return found + numbers
    kids = node.peek(reader)
    for kid in kids[: len(numbers)]:
        if isinstance(kid, Node):
            found += _listed(kid, reader)
    return found


def stored_nodes(root: Node | None, reader: Reader) -> int:
    """How many nodes have a record."""
    if root is None:
        return 0
    below = [k for k in root.peek(reader) if isinstance(k, Node)]
    return (root.crc != 0) + sum(stored_nodes(kid, reader) for kid in below)


def prefix(root: Node | None, byte: int, reader: Reader) -> int:
    """The digest of all pages that end at or before ``byte``, which is a page's start."""
    left: list[Page | Node] = []
    at: Page | Node | None = root
    while isinstance(at, Node):
        following: Page | Node | None = None
        for kid in at.kids(reader):
            if byte < kid.bytes:
                following = kid
                break
            left.append(kid)
            byte -= kid.bytes
        at = following
    return fold(left, reader)
