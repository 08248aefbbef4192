"""The kernels under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer: clean."""

from __future__ import annotations

import pytest
from gpu_harness import SMALL, device, subject

from toktier_gpu.campaign import run
from toktier_gpu.plan import Limits
from toktier_gpu.shim_device import MODES
from toktier_stream.tokenizer.shipped import shipped_path

TINY = Limits(bytes=4096, texts=16, buckets=())


@pytest.mark.parametrize("mode", sorted(MODES))
def test_addresses_and_arithmetic(mode: str) -> None:
    """No byte outside of a buffer or of shared memory, no misaligned load, no wide shift."""
    tested = subject(shipped_path())
    of = device("address", mode=mode)
    encoder = tested.encoder(of, SMALL)
    batches = tested.samples(2).batches(SMALL.bytes, SMALL.texts)
    assert run(encoder, tested.cpu, batches, 40_000).differences == []
    assert encoder.works
    of.close()


def test_races() -> None:
    """Threads meet at barriers and atomics only."""
    tested = subject(shipped_path())
    of = device("thread", mode="preempted", blocks=2)
    encoder = tested.encoder(of, TINY)
    batches = tested.samples(3).batches(TINY.bytes, TINY.texts)
    assert run(encoder, tested.cpu, batches, 4_000).differences == []
    assert (
        run(encoder, tested.cpu, iter([[b"e" * 100, b"xyzzy" * 60, b" " * 3000]]), 1).differences
        == []
    )
    assert encoder.works
    of.close()
