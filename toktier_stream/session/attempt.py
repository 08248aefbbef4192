"""The search for a splice of any edit: two windows, their cuts, the comparison (splice.py has the
steps and why they are exact)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from toktier_stream.session import kernels
from toktier_stream.session.spliced import Splice, Stored, View
from toktier_stream.tokenizer.face import Encoder, Tokens
from toktier_stream.wire.messages import Evidence, Route

MAX_WIDENINGS: Final = 5
MARGIN: Final = 16
"""Bytes that a probe reaches beyond the longest literal."""
_CANDIDATES: Final = 64
_NO_TOKENS: Final = Tokens(np.zeros(0, dtype=np.uint32), np.zeros(0, dtype=np.uint32))


@dataclass(slots=True)
class Side:
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


class Attempt:
    """The search for one edit's splice: a window, its cuts, its tokens, the comparison."""

    def __init__(self, old: Stored, encoder: Encoder, start: int, end: int, text: bytes) -> None:
        self.old = old
        self.encoder = encoder
        self.start = start
        self.end = end
        self.text = text
        self.chars_encoded = 0
        self.reach = encoder.literal_reach + MARGIN

    def run(self, left: Side, right: Side) -> Splice | None:
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

    def _evidence(self, left: Side, right: Side, whole: bool) -> Evidence:
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

    def _left_view(self, side: Side) -> View:
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

    def _right_view(self, side: Side) -> View:
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

    def _left_cut(self, side: Side, view: View) -> int:
        """The cut b of the left certificate (old bytes), or -1."""
        inner = view.text[side.edge - view.byte : self.start - view.byte]
        new = inner + self._following_new()
        safe_in_old: Callable[[int], bool] | None = None
        if self.start < self.old.bytes:
            old = inner + trimmed(self.old.slice(self.start, self.start + self.reach))
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
        return trimmed(text)

    def _right_cut(self, side: Side, view: View) -> int:
        """The cut c of the right certificate (old bytes), or -1."""
        inner = view.text[self.end - view.byte : side.edge - view.byte]
        inner += trimmed(self.old.slice(side.edge, side.edge + self.reach))
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
        self, side: Side, view: View, fresh: Tokens, position: int, low: int, high: int
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


def trimmed(text: bytes) -> bytes:
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
