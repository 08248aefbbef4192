"""Devices opened for a worker: by what the settings say, and what is there."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pipeline_harness import local_backend, make_settings
from shim_card import Cards
from structlog.testing import capture_logs

from toktier_gpu import crossover
from toktier_gpu.device import DeviceError
from toktier_stream.config import KIB, Settings
from toktier_stream.errors import Code, ToktierError
from toktier_stream.pipeline.devices import COPIED_TOKENS, open_devices
from toktier_stream.session.engines import open_registry
from toktier_stream.tokenizer.face import Tokens
from toktier_stream.tokenizer.registry import Registry
from toktier_stream.tokenizer.shipped import shipped_path

pytestmark = pytest.mark.compiler
REGISTRY = open_registry({"small": shipped_path()})
ENTRY = REGISTRY.resolve("small")

Make = Callable[..., Settings]


@pytest.fixture
def settings(tmp_path: Path) -> Make:
    """Makes settings for a small device with a threshold of one byte."""

    def make(**values: object) -> Settings:
        defaults = {"gpu": "required", "gpu_min_bytes": 1, "gpu_batch_bytes": 64 * KIB}
        return make_settings(local_backend(), tmp_path, **{**defaults, **values})

    return make


def no_card() -> Cards:
    """A machine without one."""
    raise DeviceError("no CUDA-capable device is detected")


def test_tokens_or_a_reason(settings: Make) -> None:
    """By the fingerprint of the CPU engine; its tokens, or why a text is the CPU's."""
    cards = Cards()
    (device,) = open_devices(REGISTRY, settings(), cards).values()
    texts = [b"some text", b"", b"x" * (40 * KIB), b"word " * 9_000]
    short, empty, run, long = device.encode(texts)
    assert run == "segment"
    for result, text in ((short, texts[0]), (empty, texts[1]), (long, texts[3])):
        assert isinstance(result, Tokens)
        assert np.array_equal(result.ids, ENTRY.reference.ids(text.decode()))
    # Small results own their memory; large ones are views of the launch's.
    assert isinstance(short, Tokens)
    assert isinstance(long, Tokens)
    assert short.ids.base is None
    assert len(long) > COPIED_TOKENS
    assert long.ids.base is not None
    assert (device.min_bytes, device.max_bytes) == (1, 64 * KIB)
    device.close()
    assert not device.works
    assert cards.one.closed


def test_a_device_lost_in_a_launch_is_told_once(settings: Make) -> None:
    """One line with the stable code; every text comes back with the reason."""
    cards = Cards()
    (device,) = open_devices(REGISTRY, settings(), cards).values()
    cards.one.dies = True
    with capture_logs() as logs:
        assert device.encode([b"some", b"text"]) == ["device", "device"]
        assert device.encode([b"more"]) == ["device"]
    assert [(e["event"], e["code"]) for e in logs] == [("gpu_lost", "GPU_UNAVAILABLE")]
    device.close()


def test_off_opens_nothing(settings: Make) -> None:
    """Not even to look."""
    assert open_devices(REGISTRY, settings(gpu="off"), no_card) == {}


@pytest.mark.parametrize("missing", ["card", "cupy", "toktier_gpu.device"])
def test_without_a_card(settings: Make, missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With auto one line of log, once for all tokenizers; required is an error."""
    if missing != "card":
        monkeypatch.setitem(sys.modules, missing, None)
    open_card = no_card if missing == "card" else None
    two = open_registry({"a": shipped_path(), "b": shipped_path()})
    with capture_logs() as logs:
        assert open_devices(two, settings(gpu="auto"), open_card) == {}
    assert [e["event"] for e in logs] == ["gpu_unused"]
    assert logs[0]["code"] == "GPU_UNAVAILABLE"
    with pytest.raises(ToktierError) as caught:
        open_devices(REGISTRY, settings(), open_card)
    assert caught.value.code is Code.GPU_UNAVAILABLE


def test_a_device_that_disagrees_is_not_used(
    settings: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compared with the CPU engine before anything is served; and given back."""
    cards = Cards()
    monkeypatch.setattr("toktier_gpu.host.SELF_TEST", b"x" * (40 * KIB))
    with capture_logs() as logs:
        assert open_devices(REGISTRY, settings(gpu="auto"), cards) == {}
    assert "disagrees" in logs[0]["cause"]
    assert cards.one.closed
    with pytest.raises(ToktierError, match="disagrees"):
        open_devices(REGISTRY, settings(), cards)
    assert all(card.closed for card in cards.opened)


def test_a_measured_threshold(settings: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels on one CPU core lose at every size, so they are not used; where they win, from
    the size that was measured on."""
    cards = Cards()
    with capture_logs() as logs:
        assert open_devices(REGISTRY, settings(gpu="auto", gpu_min_bytes=0), cards) == {}
    assert [e["event"] for e in logs] == ["gpu_slower"]
    assert cards.one.closed
    with pytest.raises(ToktierError, match="better than the CPU"):
        open_devices(REGISTRY, settings(gpu_min_bytes=0), cards)
    monkeypatch.setattr(crossover, "crossover", lambda encoder, cpu, text: 8192)
    with capture_logs() as logs:
        (device,) = open_devices(REGISTRY, settings(gpu_min_bytes=0), cards).values()
    assert device.min_bytes == 8192
    (told,) = logs
    assert (told["event"], told["device"], told["measured"]) == ("gpu_ready", "shim", True)
    assert (told["min_bytes"], told["max_bytes"]) == (8192, 64 * KIB)
    device.close()


@pytest.mark.families
def test_only_what_the_device_can_serve(settings: Make, family_file: Callable[[str], Path]) -> None:
    """A tokenizer of another engine is told with the reason; the others are opened."""
    registry = open_registry({"small": shipped_path(), "bert": family_file("bert")})
    cards = Cards()
    with capture_logs() as logs:
        opened = open_devices(registry, settings(), cards)
    assert opened.keys() == {ENTRY.encoder.fingerprint}
    assert sorted(e["event"] for e in logs) == ["gpu_ready", "gpu_tokenizer_refused"]
    alone: Registry = open_registry({"bert": family_file("bert")})
    with pytest.raises(ToktierError, match="no tokenizer"):
        open_devices(alone, settings(), cards)
    cards.one.close()
