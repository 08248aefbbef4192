"""What an update did to a token sequence, and what no later append can undo."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from toktier_stream.tokenizer.face import Ids, Tokens


@dataclass(frozen=True, slots=True)
class Change:
    """Keep the first ``keep`` tokens, drop ``dropped``, put ``ids`` (``lengths`` in bytes, both
    uint32), and keep the last ``tail`` (0 after an append). The first new token always differs
    from the one it replaces."""

    keep: int
    dropped: int
    ids: Ids
    lengths: Ids
    tail: int = 0

    @property
    def total(self) -> int:
        """Tokens after the update."""
        return self.keep + len(self.ids) + self.tail


@dataclass(frozen=True, slots=True)
class Settled:
    """A boundary at byte ``size``, after ``tokens`` tokens, that no later append moves.

    It is there in every text that begins with the same first ``since`` bytes as the one it was
    found in. The tokens before it are the same in all of these, and those after it are the tokens
    of the text after it alone; so this mark and the text from ``size`` on are a complete state
    (see the ``resume`` methods). ``inside``: the boundary lies inside a segment of a one-piece
    family, so nothing is prepended there.
    """

    size: int
    tokens: int
    inside: bool
    since: int


START = Settled(0, 0, False, 0)


def smallest(keep: int, old: Tokens, new: Tokens, tail: int | None = None) -> Change:
    """The smallest change that replaces the tokens ``old`` after ``keep`` others by ``new``.

    ``tail`` unchanged tokens follow; None for an append, whose change keeps no last tokens.
    """
    first = _common(old, new)
    last = 0
    if tail is not None:
        last = _common(_reversed(old, first), _reversed(new, first))
    end = len(new) - last
    return Change(
        keep=keep + first,
        dropped=len(old) - first - last,
        ids=new.ids[first:end],
        lengths=new.lengths[first:end],
        tail=(tail or 0) + last,
    )


def _reversed(tokens: Tokens, first: int) -> Tokens:
    """From the end back to token ``first``."""
    return Tokens(tokens.ids[first:][::-1], tokens.lengths[first:][::-1])


def _common(a: Tokens, b: Tokens) -> int:
    """How many first tokens are equal in id and length."""
    n = min(len(a), len(b))
    different = np.flatnonzero((a.ids[:n] != b.ids[:n]) | (a.lengths[:n] != b.lengths[:n]))
    return int(different[0]) if len(different) else n
