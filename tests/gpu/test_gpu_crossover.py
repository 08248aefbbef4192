"""The threshold between CPU and device."""

from __future__ import annotations

import itertools

import pytest
from gpu_harness import SMALL, device, subject

from toktier_gpu.crossover import crossover
from toktier_stream.tokenizer.face import Encoder, Tokens
from toktier_stream.tokenizer.shipped import shipped_path


class Clock:
    """Time that passes only where something is encoded."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Slow:
    """An encoder whose calls take time that a function of the size gives."""

    def __init__(self, inner: Encoder, clock: Clock, cost: float) -> None:
        self._inner = inner
        self._clock = clock
        self._cost = cost

    def encode(self, text: bytes) -> Tokens:
        self._clock.now += self._cost * len(text)
        return self._inner.encode(text)


@pytest.mark.parametrize(
    ("cpu_cost", "expected"), [(0.0, None), (1.0, 4096), (10.0, 1024), (0.1, None)]
)
def test_the_smallest_size_that_wins(
    cpu_cost: float, expected: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 3,000 units for each batch on the device, the CPU wins below 3,000 units of its own."""
    tested = subject(shipped_path())
    of = device()
    encoder = tested.encoder(of, SMALL)
    clock = Clock()
    plain = encoder.encode

    def encode(texts: list[bytes]) -> object:
        clock.now += 3000
        return plain(texts)

    monkeypatch.setattr(encoder, "encode", encode)
    text = b"".join(b"line %d\n" % i for i in itertools.islice(itertools.count(), 2000))
    cpu = Slow(tested.cpu, clock, cpu_cost)
    found = crossover(encoder, cpu, text, sizes=(1024, 4096, 8192, 1 << 30), clock=clock)  # type: ignore[arg-type]
    assert found == expected
    of.close()
