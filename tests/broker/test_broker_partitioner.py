"""The partitioner is Kafka's."""

from __future__ import annotations

import pytest
from aiokafka.partitioner import murmur2 as aiokafka_murmur2
from hypothesis import given
from hypothesis import strategies as st

from toktier_stream.broker.partitioner import murmur2, partition_of

# The vectors of Kafka's own UtilsTest.testMurmur2, as signed 32-bit numbers.
KAFKA_VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize("key", KAFKA_VECTORS)
def test_kafkas_own_vectors(key: bytes) -> None:
    """The hash is the one Kafka's Java tests demand."""
    assert murmur2(key) == KAFKA_VECTORS[key] % 2**32


@given(st.binary(max_size=80))
def test_the_hash_equals_aiokafkas(key: bytes) -> None:
    """Any bytes of any length hash as in an independent implementation."""
    assert murmur2(key) == aiokafka_murmur2(key)


@given(st.binary(max_size=20), st.integers(1, 1000))
def test_the_sign_bit_is_dropped_and_not_negated(key: bytes, partitions: int) -> None:
    """Kafka's toPositive masks the sign bit; the partition always exists."""
    assert partition_of(key, partitions) == (murmur2(key) % 2**31) % partitions
