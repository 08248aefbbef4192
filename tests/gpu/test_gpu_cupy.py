"""The CuPy host over a fake CuPy that runs the kernels on the shim: what it copies, launches,
captures and replays is what the real one is told."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
import pytest
from fake_cupy import Cuda, installed
from gpu_harness import SMALL, Subject, device, subject

from toktier_gpu.cupy_device import CupyDevice
from toktier_gpu.device import DeviceError
from toktier_gpu.host import Fallback, GpuEncoder
from toktier_stream.bench import gpu
from toktier_stream.tokenizer.shipped import shipped_path

TEXTS = ["It's  12345 naïve\r\n日本語".encode(), b"", b"x" * 5000, b"<|im_start|>user\n"]


@pytest.fixture
def card() -> Iterator[Cuda]:
    """One fake card, importable as CuPy."""
    fake = Cuda(device())
    with installed(fake):
        yield fake
    fake.shim.close()


@pytest.fixture(scope="module")
def small() -> Subject:
    """The tokenizer that comes with the package."""
    return subject(shipped_path())


def same(small: Subject, encoder: GpuEncoder) -> bool:
    """Whether all texts come out as the reference has them."""
    batch = encoder.encode(TEXTS)
    expected = [small.reference.encode(text) for text in TEXTS]
    return all(
        np.array_equal(batch[i].ids, e.ids) and np.array_equal(batch[i].lengths, e.lengths)
        for i, e in enumerate(expected)
    )


def test_plans_are_launched_captured_and_replayed(card: Cuda, small: Subject) -> None:
    """One capture per plan, and results stay the same whichever way a plan ran."""
    encoder = small.encoder(CupyDevice(graphs=True), SMALL)
    assert [same(small, encoder) for _ in range(4)] == [True] * 4
    assert (card.captures, card.replays) == (1, 3)
    encoder.warm()
    assert card.captures == len(encoder.plans)
    assert same(small, encoder)
    assert not any(encoder.fallbacks.values())


def test_without_graphs(card: Cuda, small: Subject) -> None:
    """Every kernel is launched by itself."""
    encoder = small.encoder(CupyDevice(graphs=False), SMALL)
    assert [same(small, encoder) for _ in range(3)] == [True] * 3
    assert card.captures == 0


def test_where_capturing_fails_plans_are_launched(card: Cuda, small: Subject) -> None:
    """One failed capture costs its graph, not the device."""
    card.captures_fail = True
    encoder = small.encoder(CupyDevice(), SMALL)
    assert [same(small, encoder) for _ in range(4)] == [True] * 4
    assert card.replays == 0
    assert not any(encoder.fallbacks.values())
    assert encoder.works


def test_without_a_kernel_compiler(card: Cuda) -> None:
    """CuPy without NVRTC says so by an error of Python's own."""
    card.no_compiler = True
    with pytest.raises(DeviceError, match="libnvrtc"):
        CupyDevice()


def test_results_outlive_later_batches(card: Cuda, small: Subject) -> None:
    """Pinned memory goes back to its pool with the arrays in it, not before."""
    encoder = small.encoder(CupyDevice(), SMALL)
    expected = [small.reference.encode(text) for text in TEXTS]
    kept = [encoder.encode(TEXTS) for _ in range(4)]
    encoder.encode([b"something else " * 300])
    for batch in kept:
        for i, tokens in enumerate(expected):
            assert np.array_equal(batch[i].ids, tokens.ids)
            assert np.array_equal(batch[i].lengths, tokens.lengths)


def test_closing_waits_for_the_stream(card: Cuda, small: Subject) -> None:
    """Nothing is freed under work that was started; and closing never raises."""
    device = CupyDevice()
    encoder = small.encoder(device, SMALL)
    device.run(encoder.plans[0])
    device.close()
    assert not card.queue
    card.failing = True
    device.close()


def test_an_error_of_the_runtime_goes_to_the_cpu(card: Cuda, small: Subject) -> None:
    """A context that a launch has poisoned is given up; the caller does not notice."""
    encoder = small.encoder(CupyDevice(), SMALL)
    card.failing = True
    assert same(small, encoder)
    assert encoder.fallbacks[Fallback.DEVICE] == len(TEXTS)
    assert not encoder.works


def test_no_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without CuPy there is no device, and the error says what to install."""
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(DeviceError, match="toktier-stream"):
        CupyDevice()


def test_the_check_of_a_card() -> None:
    """The whole script's work, small: exactness, timings of one and many texts, a profile."""
    cards: list[Cuda] = []

    def open_card(graphs: bool) -> CupyDevice:
        cards.append(Cuda(device()))
        with installed(cards[-1]):
            return CupyDevice(graphs=graphs)

    settings = gpu.Settings(
        random_characters=4000,
        real_characters=4000,
        sizes=(1000,),
        batches=((4, 500),),
        repeats=3,
        limits=SMALL,
        peers=False,
    )
    lines: list[str] = []
    result = gpu.check([shipped_path().parent], open_card, settings=settings, tell=lines.append)
    for card in cards:
        card.shim.close()
    assert gpu.differences(result) == 0
    (timings,) = result["timings"].values()
    assert [t["texts"] for t in timings] == [1, 4]
    assert all(t["encode_graph"] > 0 and t["cpu_engine"] > 0 for t in timings)
    (profiles,) = result["profile"].values()
    assert [len(p) for p in profiles.values()] == [len(profiles["1 x 1000"])] * 2
    assert len(lines) == 5
