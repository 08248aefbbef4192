"""The rolling digest over a token-id stream, which can be cut back, extended and spliced in O(Δ).

``D(x_0 … x_{n-1}) = Σ (x_i + 1) · B^(n-1-i) mod p`` with p = 2^61 - 1 and a fixed base B, kept
together with n. Appending multiplies by B per token; the digest of a concatenation is
``D(u)·B^|v| + D(v)``, so a page's own digest can be joined to any prefix. It finds lost, doubled,
swapped and changed ids; it is no defence against somebody who wants a collision.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

PRIME: Final = (1 << 61) - 1
BASE: Final = 0x1B8F_2C6D_4E97_A35B % PRIME
EMPTY: Final = 0

_BLOCK: Final = 2048
_MASK32 = np.uint64(0xFFFF_FFFF)
_P = np.uint64(PRIME)


def _powers(count: int) -> npt.NDArray[np.uint64]:
    out, value = [], 1
    for _ in range(count):
        out.append(value)
        value = value * BASE % PRIME
    return np.array(out[::-1], dtype=np.uint64)


_POWERS = _powers(_BLOCK)
_POWERS_HIGH = _POWERS >> np.uint64(32)
_POWERS_LOW = _POWERS & _MASK32


def _block(ids: npt.NDArray[np.uint32]) -> int:
    n = len(ids)
    x = ids.astype(np.uint64) + np.uint64(1)
    # x·(hi·2^32 + lo) mod p without 128-bit products: x ≤ 2^32 and hi < 2^29, so x·hi < 2^61,
    # and a multiplication by 2^32 modulo 2^61 - 1 is a rotation of 61 bits.
    high = (x * _POWERS_HIGH[_BLOCK - n :]) % _P
    rotated = ((high << np.uint64(32)) & _P) | (high >> np.uint64(29))
    # x = 2^32 (id 2^32 - 1) would overflow x·lo by one bit only if lo = 2^32 - 1; ids are below.
    low = (x * _POWERS_LOW[_BLOCK - n :]) % _P
    total = int((rotated & _MASK32).sum()) + (int((rotated >> np.uint64(32)).sum()) << 32)
    return (total + int((low & _MASK32).sum()) + (int((low >> np.uint64(32)).sum()) << 32)) % PRIME


def extend(digest: int, ids: npt.NDArray[np.uint32]) -> int:
    """The digest of a stream with digest ``digest`` after appending ``ids``: O(len(ids))."""
    for start in range(0, len(ids), _BLOCK):
        block = ids[start : start + _BLOCK]
        digest = (digest * pow(BASE, len(block), PRIME) + _block(block)) % PRIME
    return digest


def of(ids: npt.NDArray[np.uint32]) -> int:
    """The digest of a whole stream."""
    return extend(EMPTY, ids)


def join(left: int, right: int, right_tokens: int) -> int:
    """The digest of a concatenation, from the digests of its parts: O(log right_tokens)."""
    return (left * pow(BASE, right_tokens, PRIME) + right) % PRIME


def without_prefix(whole: int, prefix: int, rest_tokens: int) -> int:
    """The digest of what follows a prefix: the inverse of :func:`join`."""
    return (whole - prefix * pow(BASE, rest_tokens, PRIME)) % PRIME


def without_suffix(whole: int, ids: npt.NDArray[np.uint32]) -> int:
    """The digest of what stands before a known suffix ``ids``: O(len(ids))."""
    inverse = pow(BASE, -len(ids), PRIME)
    return (whole - of(ids)) * inverse % PRIME
