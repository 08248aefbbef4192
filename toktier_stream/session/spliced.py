"""What splices are made of: a view of old tokens, and the answer."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from toktier_stream.session.page import Utf8
from toktier_stream.tokenizer.face import Ids
from toktier_stream.wire.messages import Evidence, Route


class View(NamedTuple):
    """Consecutive old tokens and the text under them; ``byte`` and ``token`` stand left of it."""

    byte: int
    token: int
    ids: Ids
    lengths: Ids
    text: bytes


class Stored(Protocol):
    """The old state, as far as a splice reads it."""

    @property
    def bytes(self) -> int: ...

    @property
    def tokens(self) -> int: ...

    @property
    def digest(self) -> int: ...

    def view(self, low: int, high: int) -> View:
        """Whole pages that cover the bytes ``[low, high)``."""
        ...

    def slice(self, start: int, end: int) -> Utf8: ...


class Splice(NamedTuple):
    """The old tokens up to ``keep``, then ``ids``, then the last ``tail`` old tokens.

    The new tokens cover ``text``, which replaces the old bytes ``[begin, stop)``. ``digest`` is
    that of all tokens then, ``grown`` how many characters the text has more, ``end`` the view that
    the splice was made from as it is then, ``settled`` what settled.py counts (-1: none), where
    they are known.
    """

    keep: int
    ids: Ids
    lengths: Ids
    tail: int
    begin: int
    stop: int
    text: Utf8 | memoryview
    route: Route
    evidence: Evidence
    digest: int | None = None
    grown: int | None = None
    end: View | None = None
    settled: int | None = None
