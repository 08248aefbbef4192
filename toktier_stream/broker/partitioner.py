"""Kafka's default partitioner: murmur2 of the key, so that producers in other languages agree."""

from __future__ import annotations

from typing import Final

_SEED: Final = 0x9747B28C
_MIX: Final = 0x5BD1E995
_MASK: Final = 0xFFFF_FFFF


def murmur2(data: bytes) -> int:
    """32-bit murmur2 as in Kafka's Java client, as an unsigned number."""
    h = _SEED ^ len(data)
    whole = len(data) & ~3
    for i in range(0, whole, 4):
        k = int.from_bytes(data[i : i + 4], "little") * _MIX & _MASK
        h = (h * _MIX & _MASK) ^ ((k ^ k >> 24) * _MIX & _MASK)
    if whole < len(data):
        h = (h ^ int.from_bytes(data[whole:], "little")) * _MIX & _MASK
    h = (h ^ h >> 13) * _MIX & _MASK
    return h ^ h >> 15


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of ``key`` among ``partitions`` of them, as Kafka's default chooses it."""
    return (murmur2(key) & 0x7FFF_FFFF) % partitions
