"""The adversarial family of Verma & Ying (appendices B and C), over plain bytes.

For ``t = 2^k`` the target S has t bytes. Its first t - 1 are a stretch of a de Bruijn word of order
2 over the bytes 1..254, so that all adjacent pairs differ; the last is 0. With r_j = 2^j - 1 and
block j = [r_{j-1}, r_j), the tokens are P(p, r_j) = S[p:r_j] for p in block j, and U(p) = S[p:].
The last byte of 255 S forces the search from U(0) down through k nested heavy parts to U(1):
count-balanced search reads k(k+1)/2 + 1 records there, the component-weighted tree k.
"""

from __future__ import annotations

from dataclasses import dataclass

CONTEXT = 255
LARGEST = 15
"""254 * 254 pairs reach to t = 2^15."""


@dataclass(frozen=True, slots=True)
class Family:
    """One instance: ``merges`` in rank order over bytes, and the ``stream`` 255 S."""

    k: int
    merges: tuple[tuple[bytes, bytes], ...]
    stream: bytes

    @property
    def balanced_probes(self) -> int:
        """Records read by count-balanced search on the last byte."""
        return self.k * (self.k + 1) // 2 + 1

    @property
    def weighted_probes(self) -> int:
        """Records read by the component-weighted tree on the last byte."""
        return self.k


def word(length: int) -> bytes:
    """``length`` bytes from 1..254 whose adjacent pairs are all different.

    An Eulerian circuit of the complete graph: around each byte a, the pairs a-b-a for all b > a,
    so the pair (a, b) and its turn (b, a) are used once each, and (a, a) where it starts.
    """
    letters = range(1, CONTEXT)
    out = bytearray()
    for a in letters:
        out.append(a)
        for b in range(a + 1, CONTEXT):
            out += bytes((a, b))
        if len(out) >= length:
            break
    if length > len(out):
        raise ValueError(f"no more than {len(out)} bytes have different adjacent pairs")
    return bytes(out[:length])


def family(k: int) -> Family:
    """The instance with ``t = 2^k``, 1 <= k <= LARGEST. Raises ValueError outside."""
    if not 1 <= k <= LARGEST:
        raise ValueError(f"k must be 1 to {LARGEST}")
    t = 1 << k
    s = word(t - 1) + b"\0"
    merges: list[tuple[bytes, bytes]] = []
    for j in range(1, k + 1):
        begin, end = (1 << (j - 1)) - 1, (1 << j) - 1
        merges += [(s[p : p + 1], s[p + 1 : end]) for p in range(end - 2, begin - 1, -1)]
    merges.append((bytes([CONTEXT]), s[:1]))
    for p in range(t - 2, -1, -1):
        successor = (1 << (p + 1).bit_length()) - 1
        merges.append((s[p:successor], s[successor:]))
    return Family(k, tuple(merges), bytes([CONTEXT]) + s)
