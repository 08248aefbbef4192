"""What a worker's batches are compressed with, told by the batches themselves."""

from __future__ import annotations

import random
import sys

import cramjam
import pytest
from aiokafka.producer.message_accumulator import BatchBuilder, DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords

from toktier_stream.broker.kafka.compression import LEVEL, compress_lightly

HEADER = 61  # bytes of a record batch before its records
ZSTD = 4


def _batch(values: list[bytes]) -> bytes:
    builder = BatchBuilder(1 << 20, ZSTD)
    for value in values:
        builder.append(timestamp=1, key=b"k", value=value, headers=[])
    return bytes(builder._build())


def test_batches_are_compressed_at_the_first_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """And read back as they were: the level is the writer's affair alone."""
    module = sys.modules[DefaultRecordBatchBuilder.__module__]
    monkeypatch.setattr(module, "zstd_encode", module.zstd_encode)  # undone afterwards
    rng = random.Random(1)
    words = [b"%x" % rng.randrange(1 << 20) for _ in range(300)]
    values = [b" ".join(rng.choices(words, k=400)) for _ in range(20)]
    before = _batch(values)
    compress_lightly()
    after = _batch(values)
    plain = bytes(cramjam.zstd.decompress(after[HEADER:]))
    assert after[HEADER:] == bytes(cramjam.zstd.compress(plain, level=LEVEL)) != before[HEADER:]
    batch = MemoryRecords(after).next_batch()
    assert batch is not None
    assert [record.value for record in batch] == values
