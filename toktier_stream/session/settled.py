"""Which of a session's tokens no append changes, for families with cuts.

Let b be a safe cut of the text A (tokenizer/face.py) such that in every continuation N

- no added token covers or begins at b that does not in A: b is left of every place where one may
  begin that ends behind A;
- the characters at b are those of A: where text is normalized, a whole character stands behind the
  right one of them, and all three are their own normal form and compose with nothing on their left.

Then b is a safe cut of N, too, and the tokens left of it are a function of the text left of b and
of the character at b (ARCHITECTURE.md, one-sided theorem), where added tokens left of b are decided
in A. So they are those of A. The end of an added token that begins left of every undecided place
does as well: it is one in every continuation, and the text left of it ends where it begins.

Where added tokens are looked for in normalized text, "left of every undecided place" is taken to be
their reach, and all text that far around b has to be its own normal form: what splice.py asks for.
"""

from __future__ import annotations

from typing import Final
from weakref import WeakKeyDictionary

from toktier_stream.incremental.settling import Settling
from toktier_stream.session import giant, kernels
from toktier_stream.session.splice import Stored
from toktier_stream.tokenizer.encoder import FastEncoder

_WINDOW: Final = 512
"""Bytes at the end of the text that are looked at, besides the reach of added tokens."""
_MARGIN: Final = 16

_settlings: WeakKeyDictionary[FastEncoder, Settling | None] = WeakKeyDictionary()


def by_cut(old: Stored, encoder: FastEncoder, marks: giant.Marks) -> int:
    """Tokens left of the last place that is known to stay; 0 where there is none near the end."""
    known = max([m.tokens for m in marks]) if marks else 0
    size, reach = old.bytes, encoder.literal_reach
    if size == 0:
        return known
    view = old.view(max(0, size - _WINDOW - 2 * reach), size)
    text = giant.from_character(view.text[-_WINDOW - 2 * reach :])
    low = size - len(text)
    settling = _settling(encoder)
    if settling is None:
        limit = 0
        cut = encoder.last_cut(text, reach if low else 1, len(text) - reach - _MARGIN - 1)
    else:
        cut, limit = settling.last(text, reach if low else 1)
    if cut >= 0:
        at = int(kernels.boundary_index(view.lengths, low + cut - view.byte))
        known = max(known, view.token + at if at >= 0 else 0)
    # An added token behind the cut, which is near the end.
    place, i = len(text), len(view.ids)
    while limit > 0 and i > 0 and place > max(cut, 0):
        i -= 1
        place -= int(view.lengths[i])
        if place < limit and encoder.is_added(int(view.ids[i])):
            return max(known, view.token + i + 1)
    return known


def _settling(encoder: FastEncoder) -> Settling | None:
    """None where added tokens are looked for in normalized text."""
    try:
        return _settlings[encoder]
    except KeyError:
        compiled = encoder.compiled
        wide = compiled.normalizer is not None and compiled.added.normalized.reach > 0
        return _settlings.setdefault(encoder, None if wide else Settling(compiled))
