"""The face of every encoder: bytes in, ids and byte lengths out, and positions where text may
be cut. Session, pipeline and GPU know encoders by this face only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Tokens:
    """Token ids and the bytes of source text each covers, both uint32[n].

    ``lengths.sum() == len(text)``. A token may cover 0 bytes (under normalization several tokens
    can come from one character: all but the one that completes the character have length 0).
    """

    ids: Ids
    lengths: Ids

    def __len__(self) -> int:
        return len(self.ids)


class Encoder(Protocol):
    """An exact encoder of one frozen tokenizer. Safe for use by several threads.

    Input is valid UTF-8; the wire refuses anything else and encoders do not check again.
    """

    @property
    def fingerprint(self) -> str:
        """Names everything that can change ids: the file's hash, reference and engine version."""
        ...

    @property
    def engine(self) -> str:
        """Name and version of the code that computes the ids, for evidence and traces."""
        ...

    @property
    def longest_token(self) -> int:
        """Characters of the longest token the vocabulary can emit, added tokens included."""
        ...

    @property
    def literal_reach(self) -> int:
        """Bytes of the longest added-token literal; 0 if there is none."""
        ...

    @property
    def splices(self) -> bool:
        """Whether cuts exist at all; False: every change is encoded in full."""
        ...

    def encode(self, text: bytes) -> Tokens:
        """Ids and byte lengths of ``text``, equal to the reference's on the same text."""
        ...

    def last_cut(self, text: bytes, low: int, high: int) -> int:
        """The rightmost safe cut b with ``low <= b <= high`` and ``0 < b < len(text)``; -1: none.

        A cut is safe (one-sided, design section 2) iff the tokens of any text that ends in
        ``text`` are: tokens that end at b, then exactly the tokens of ``text[b:]``. So b is a
        character boundary between two characters whose classes form a synchronizing boundary, no
        added-token literal in ``text`` covers it, and normalization does not reach across it.
        Callers keep ``b >= literal_reach`` unless ``text`` starts where the session starts, so
        that a literal that begins left of ``text`` cannot cover b unseen.
        """
        ...

    def first_cut(self, text: bytes, low: int, high: int) -> int:
        """The leftmost safe cut in the same sense; -1: none."""
        ...
