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

from toktier_stream.incremental.settling import WINDOW, settling_of
from toktier_stream.session import giant, kernels
from toktier_stream.session.splice import Stored, View
from toktier_stream.tokenizer.encoder import FastEncoder

_MARGIN: Final = 16


def by_cut(
    old: Stored, encoder: FastEncoder, marks: giant.Marks, counted: int | None = None
) -> int:
    """Tokens left of the last place that is known to stay; 0 where there is none near the end.
    ``counted``: those left of a cut or added token, where somebody has looked (-1: none)."""
    known = max([m.tokens for m in marks]) if marks else 0
    if counted is not None:
        return max(known, counted)
    size = old.bytes
    if size == 0:
        return known
    view = old.view(max(0, size - WINDOW - 2 * encoder.literal_reach), size)
    settling = settling_of(encoder)
    if settling is None:
        count = _by_last_cut(view, encoder)
    else:
        count = settling.tokens(view.text, view.ids, view.lengths, whole=view.byte == 0)
    return max(known, view.token + count) if count >= 0 else known


def _by_last_cut(view: View, encoder: FastEncoder) -> int:
    """The view's tokens left of its last cut, -1 for none: for normalized added tokens."""
    reach = encoder.literal_reach
    text = giant.from_character(view.text[-WINDOW - 2 * reach :])
    left = len(view.text) - len(text)
    low = reach if view.byte + left else 1
    cut = encoder.last_cut(text, low, len(text) - reach - _MARGIN - 1)
    return int(kernels.boundary_index(view.lengths, left + cut)) if cut >= 0 else -1
