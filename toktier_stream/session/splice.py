"""Certified splices: the tokens of an edited text from the old tokens and a re-encoded window.

The old text is ``A = P·M·Q``, an edit makes it ``N = P·T·Q`` (an append: M and Q are empty). The
steps are the paper's (sections 3.1 to 3.3), on both sides of the edit:

1. the window W is the last w characters of P, then T, then the first w characters of Q (w = 512);
2. find safe cuts in the old part on each side (below), encode W;
3. the longest run of tokens around the cut that old and fresh tokens share, by position and id;
4. accept a side if its run holds at least two tokens and more characters than the longest token
   of the vocabulary; else double that side's window, five times at most;
5. keep the old tokens up to the end of the left run, take fresh ones to the start of the right
   run, keep the old ones from there. A side that cannot be accepted reaches to the text's edge:
   then that side needs no certificate, because nothing is left out there.

Why this is exact
-----------------
A position is a *safe cut* of a text (tokenizer/face.py) if the text's tokens are some that end
there, then exactly the tokens of what follows it, whatever the text's left part is. Safety is a
local property: the classes of the two characters at the cut, no occurrence of a literal over it,
no normalization across it. A literal or a normalization reaches at most ``literal_reach`` bytes or
to the next safe cut, so a probe that extends that far decides safety in the whole text.

*Lemma (left side).* Let b < b' be safe cuts of two texts that agree up to b'. Then their tokens
left of b agree. Proof: matching goes from left to right; what it does left of b depends on the
text there and on what stands at b: a literal's edge or a character's class after normalization.
Literals that begin at b and normalization of what follows b end at or before b', since b' is safe;
so both are functions of the common text up to b'. The end of a text counts as a safe cut.

*Left certificate.* b < b' in P, safe in N and in A. By the lemma the tokens of N left of b are
those of A. By safety of b, what follows in N are the tokens of N[b:], and W has the same ones from
b on (as far as the right side allows). For an append only N is probed: an occurrence of a literal
in A is one in N too, the characters at the cut are the same, and A ends at or after b'. (The second
cut is what "at least one character of A to the right of the boundary" becomes when that character
may itself begin a literal or combine with what is appended.)

*Right certificate.* c < c' in Q, safe in N and in A. By safety of c, the tokens of N from c on are
those of Q from c on, and so are A's: they agree, with no word about the left. What is left of c in
N is what W has there: apply the lemma to W[b:] and N[b:] with c and c'.

*The run.* Old and fresh tokens agree on it, so splicing at its end equals splicing at the cut
(corollary A.6). It adds nothing to the proof for sound encoders and sound records; it costs a
comparison and stops a damaged record or a broken encoder before it spreads.

*Probing.* A literal that begins left of the window could cover a cut unseen: cuts keep
``literal_reach`` bytes from the window's left edge, unless that is the text's start, and probes
extend as far beyond the old part on the right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import numpy as np

from toktier_stream.session import kernels
from toktier_stream.session.page import Utf8
from toktier_stream.tokenizer.encoder import FastEncoder
from toktier_stream.tokenizer.face import Encoder, Ids, Tokens
from toktier_stream.wire.messages import Evidence, Route

FIRST_WINDOW: Final = 512
"""Characters of old text on each side of an edit that are encoded again at first."""

MAX_WIDENINGS: Final = 5
_MARGIN: Final = 16
_CANDIDATES: Final = 64
_NO_TOKENS: Final = Tokens(np.zeros(0, dtype=np.uint32), np.zeros(0, dtype=np.uint32))


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
    that of all tokens then, ``grown`` how many characters the text has more, where it is known.
    """

    keep: int
    ids: Ids
    lengths: Ids
    tail: int
    begin: int
    stop: int
    text: bytes
    route: Route
    evidence: Evidence
    digest: int | None = None
    grown: int | None = None


@dataclass(slots=True)
class _Side:
    """One side of the edit: how far its window reaches, and what was found there."""

    window: int
    widenings: int = 0
    exhausted: bool = False
    edge: int = 0  # where the window ends, in bytes of the old text
    at_edge: bool = False  # of the text: no certificate needed
    cut: int = -1  # the certified cut, in bytes of the old text
    run_tokens: int = 0
    run_chars: int = 0

    def widen(self) -> None:
        if self.widenings == MAX_WIDENINGS:
            self.exhausted = self.at_edge = True
        else:
            self.widenings += 1
            self.window *= 2


def splice(
    old: Stored,
    encoder: Encoder,
    start: int,
    end: int,
    text: bytes,
    instead: Callable[[], Splice | None] | None = None,
) -> Splice:
    """The tokens after the bytes ``[start, end)`` of the old text were replaced by ``text``.

    ``instead``: another way to them, asked once, when the first windows do not do.
    """
    longest = encoder.longest_token
    first = max(FIRST_WINDOW, 2 * longest)
    if start == old.bytes and encoder.splices:
        found = _append(old, encoder, text, first, longest)
        if found is not None:
            return found
    left, right = _Side(first), _Side(first)
    if not encoder.splices or old.tokens == 0:
        left.at_edge = right.at_edge = True
    attempt = _Attempt(old, encoder, start, end, text)
    while True:
        done = attempt.run(left, right)
        if done is None and instead is not None:
            done, instead = instead(), None
        if done is not None:
            return done


def _append(
    old: Stored, encoder: Encoder, text: bytes, window_chars: int, longest: int
) -> Splice | None:
    """The first window's splice of an append: what :class:`_Attempt` does, with less ado, where
    text is left over on the left. None: no certificate, or a small text."""
    size = old.bytes
    view = old.view(max(0, size - window_chars), size)
    inner = view.text[-window_chars:]
    if not inner.isascii():
        wide = view.text[-4 * window_chars :]
        inner = wide[int(kernels.left_offset(np.frombuffer(wide, np.uint8), window_chars)) :]
        if len(inner) == len(wide) < 4 * window_chars:
            return None
    edge = size - len(inner)
    if edge <= 0:
        return None
    reach = encoder.literal_reach
    seen = inner + _whole(text[: reach + _MARGIN])
    if isinstance(encoder, FastEncoder):
        cut = encoder.second_cut(seen, reach, len(inner))
    else:
        witness = encoder.last_cut(seen, reach, len(inner))
        cut = encoder.last_cut(seen, reach, witness - 1) if witness > 0 else -1
    if cut < 0:
        return None
    window = inner + text
    fresh = encoder.encode(window)
    at = edge + cut - view.byte
    anchor, first, left, right, right_bytes, value, covered, run, chars = kernels.match_end(
        view.ids, view.lengths, at, fresh.ids, fresh.lengths, cut, cut, len(inner) - cut,
        old.digest, np.frombuffer(window, np.uint8),
    )  # fmt: skip
    if anchor < 0 or left + right < 2 or run <= longest or covered != len(window):
        return None
    first += right
    return Splice(
        keep=view.token + anchor + right,
        ids=fresh.ids[first:],
        lengths=fresh.lengths[first:],
        tail=0,
        begin=edge + cut + right_bytes,
        stop=size,
        text=window[cut + right_bytes :],
        route=Route.SPLICE,
        evidence=Evidence(
            window_chars=window_chars,
            boundary_byte=edge + cut,
            run_tokens=left + right,
            run_chars=run,
            chars_encoded=chars,
            engine=encoder.engine,
        ),
        digest=value,
        grown=chars - window_chars,
    )


class _Attempt:
    """The search for one edit's splice: a window, its cuts, its tokens, the comparison."""

    def __init__(self, old: Stored, encoder: Encoder, start: int, end: int, text: bytes) -> None:
        self.old = old
        self.encoder = encoder
        self.start = start
        self.end = end
        self.text = text
        self.chars_encoded = 0
        self.reach = encoder.literal_reach + _MARGIN

    def run(self, left: _Side, right: _Side) -> Splice | None:
        """One try; None if a side had to be widened."""
        old, start, end = self.old, self.start, self.end
        before = self._left_view(left)
        after = self._right_view(right)
        if not left.at_edge:
            left.cut = self._left_cut(left, before)
            if left.cut < 0:
                left.widen()
                return None
        if not right.at_edge:
            right.cut = self._right_cut(right, after)
            if right.cut < 0:
                right.widen()
                return None
        window = b"".join(
            (
                before.text[left.edge - before.byte : start - before.byte],
                self.text,
                after.text[end - after.byte : right.edge - after.byte],
            )
        )
        fresh = self.encoder.encode(window) if window else _NO_TOKENS
        self.chars_encoded += kernels.characters(window)

        # The left run: old tokens before the edit that the fresh ones repeat.
        if left.at_edge:
            begin = first = keep = 0
            count, size = kernels.run_right(
                before.ids, before.lengths, 0, fresh.ids, fresh.lengths, 0, start
            )
        else:
            found = self._run(left, before, fresh, left.cut - left.edge, left.edge, start)
            if found is None:
                left.widen()
                return None
            keep, first, count, size = found
            keep += before.token
            begin = left.cut
        keep += count
        first += count
        begin += size

        # The right run, not beyond the left one.
        tail, last, stop = 0, len(fresh.ids), old.bytes
        if end < stop:
            anchor = len(after.ids)
            if not right.at_edge:
                stop = right.cut
                shifted = stop - end + start + len(self.text) - left.edge
                found = self._run(right, after, fresh, shifted, end, right.edge)
                if found is None or found[1] < first:
                    right.widen()
                    return None
                anchor, last = found[:2]
            count, size = kernels.run_left(
                after.ids, after.lengths, anchor, fresh.ids, fresh.lengths, last,
                stop - end, max(0, keep - after.token), first,
            )  # fmt: skip
            tail = old.tokens - (after.token + anchor - count)
            last -= count
            stop -= size
        whole = left.at_edge and right.at_edge
        return Splice(
            keep=keep,
            ids=fresh.ids[first:last],
            lengths=fresh.lengths[first:last],
            tail=tail,
            begin=begin,
            stop=stop,
            text=window[begin - left.edge : len(window) - (right.edge - stop)],
            route=Route.CPU if whole else Route.SPLICE,
            evidence=self._evidence(left, right, whole),
        )

    def _evidence(self, left: _Side, right: _Side, whole: bool) -> Evidence:
        shift = self.start + len(self.text) - self.end
        return Evidence(
            window_chars=0 if whole else max(left.window, right.window),
            widenings=max(left.widenings, right.widenings),
            fallback=left.exhausted or right.exhausted,
            boundary_byte=-1 if left.at_edge else left.cut,
            run_tokens=0 if left.at_edge else left.run_tokens,
            run_chars=0 if left.at_edge else left.run_chars,
            right_boundary_byte=-1 if right.at_edge else right.cut + shift,
            right_run_tokens=0 if right.at_edge else right.run_tokens,
            chars_encoded=self.chars_encoded,
            engine=self.encoder.engine,
        )

    @property
    def _in_middle(self) -> bool:
        return self.end < self.old.bytes

    def _left_view(self, side: _Side) -> View:
        start = self.start
        if side.at_edge:
            side.edge = 0
            return self.old.view(0, start)
        low = max(0, start - side.window)
        view = self.old.view(low, start)
        piece = view.text[low - view.byte : start - view.byte]
        if not piece.isascii():
            low = max(0, start - 4 * side.window)
            if low < view.byte:
                view = self.old.view(low, start)
            piece = view.text[low - view.byte : start - view.byte]
            low += int(kernels.left_offset(np.frombuffer(piece, dtype=np.uint8), side.window))
        side.edge = low
        side.at_edge = low == 0
        return view

    def _right_view(self, side: _Side) -> View:
        end, size = self.end, self.old.bytes
        if side.at_edge or end == size:
            side.edge = size
            side.at_edge = True
            return self.old.view(end, size)
        high = min(size, end + side.window)
        view = self.old.view(end, high)
        piece = view.text[end - view.byte : high - view.byte]
        if not piece.isascii():
            high = min(size, end + 4 * side.window)
            if high > view.byte + len(view.text):
                view = self.old.view(end, high)
            piece = view.text[end - view.byte : high - view.byte]
            offset = kernels.right_offset(np.frombuffer(piece, dtype=np.uint8), side.window)
            high = end + int(offset)
        side.edge = high
        side.at_edge = high == size
        return view

    def _left_cut(self, side: _Side, view: View) -> int:
        """The cut b of the left certificate (old bytes), or -1."""
        inner = view.text[side.edge - view.byte : self.start - view.byte]
        new = inner + self._following_new()
        safe_in_old: Callable[[int], bool] | None = None
        if self.start < self.old.bytes:
            old = inner + _whole(self.old.slice(self.start, self.start + self.reach))
            safe_in_old = lambda cut: self.encoder.last_cut(old, cut, cut) == cut  # noqa: E731
        low = self.encoder.literal_reach if side.edge else 1
        witness = -1
        high = len(inner)
        for _ in range(_CANDIDATES):
            cut = self.encoder.last_cut(new, low, high)
            if cut < 0:
                return -1
            if safe_in_old is None or safe_in_old(cut):
                if witness >= 0:
                    return side.edge + cut
                witness = cut
            high = cut - 1
        return -1

    def _following_new(self) -> bytes:
        """What follows the left part in the new text, as far as a literal can reach."""
        text = self.text[: self.reach]
        if len(text) < self.reach and self._in_middle:
            text += self.old.slice(self.end, self.end + self.reach - len(text))
        return _whole(text)

    def _right_cut(self, side: _Side, view: View) -> int:
        """The cut c of the right certificate (old bytes), or -1."""
        inner = view.text[self.end - view.byte : side.edge - view.byte]
        inner += _whole(self.old.slice(side.edge, side.edge + self.reach))
        left_old = _tail(self.old.slice(max(0, self.end - self.reach), self.end))
        text = self.text[-self.reach :]
        if len(text) < self.reach:
            text = self.old.slice(max(0, self.start - self.reach + len(text)), self.start) + text
        left_new = _tail(text)
        old, new = left_old + inner, left_new + inner
        shift = len(left_old) - len(left_new)
        high = len(left_new) + side.edge - self.end
        low = len(left_new)
        found = -1
        for _ in range(_CANDIDATES):
            cut = self.encoder.first_cut(new, low, high)
            if cut < 0:
                return -1
            if self.encoder.first_cut(old, cut + shift, cut + shift) == cut + shift:
                if found >= 0:
                    return found - len(left_new) + self.end
                found = cut
            low = cut + 1
        return -1

    def _run(
        self, side: _Side, view: View, fresh: Tokens, position: int, low: int, high: int
    ) -> tuple[int, int, int, int] | None:
        """The run of equal tokens around a side's cut, within the old bytes ``[low, high)``.

        ``position``: of the cut, in the fresh tokens. Returns the cut's index in the view and in
        the fresh tokens, and the tokens and bytes of the run from there on; None: not long enough.
        """
        at = side.cut - view.byte
        anchor, first, left, left_bytes, right, right_bytes = kernels.match(
            view.ids, view.lengths, at, fresh.ids, fresh.lengths, position,
            side.cut - low, high - side.cut,
        )  # fmt: skip
        side.run_tokens = left + right
        side.run_chars = kernels.characters(view.text[at - left_bytes : at + right_bytes])
        if anchor < 0 or side.run_tokens < 2 or side.run_chars <= self.encoder.longest_token:
            return None
        return anchor, first, right, right_bytes


def _whole(text: bytes) -> bytes:
    """``text`` without a character that is cut off at its end."""
    last = len(text) - 1
    while last >= 0 and text[last] & 0xC0 == 0x80:
        last -= 1
    if last < 0:
        return b""
    lead = text[last]
    width = 1 if lead < 0x80 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
    return text if last + width <= len(text) else text[:last]


def _tail(text: bytes) -> bytes:
    """``text`` without a character that is cut off at its start."""
    first = 0
    while first < len(text) and text[first] & 0xC0 == 0x80:
        first += 1
    return text[first:]
