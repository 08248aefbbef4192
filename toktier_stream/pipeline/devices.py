"""A worker's GPU: an encoder on it for each tokenizer that it can serve and is faster for.

Nothing here is needed to run on CPUs alone: ``toktier_gpu`` and CuPy are looked for only when the
settings ask for a GPU, and with ``gpu = auto`` whatever is wrong with them costs one line of log.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from toktier_stream import telemetry
from toktier_stream.config import Settings
from toktier_stream.errors import Code, ToktierError
from toktier_stream.tokenizer.encoder import FastEncoder
from toktier_stream.tokenizer.face import Tokens
from toktier_stream.tokenizer.registry import Registry
from toktier_stream.tokenizer.tables import Refusal

if TYPE_CHECKING:
    from toktier_gpu.device import Device
    from toktier_gpu.host import GpuEncoder

_LOG = telemetry.logger(__name__)

OpenCard = Callable[[], "Device"]
"""Opens a device anew: each tokenizer has its own stream and buffers. Raises DeviceError."""

COPIED_TOKENS: Final = 1 << 13
"""Up to here a text's arrays become its only page, which must not keep a whole launch's memory."""


class DeviceTokenizer:
    """One tokenizer on a device, as the batcher drives it (its ``DeviceEncoder``)."""

    def __init__(self, encoder: GpuEncoder, min_bytes: int) -> None:
        self._encoder = encoder
        self.min_bytes = min_bytes
        self.max_bytes = encoder.limits.bytes
        self.max_texts = encoder.limits.texts

    @property
    def works(self) -> bool:
        """False once the device is given up."""
        return self._encoder.works

    def encode(self, texts: Sequence[bytes]) -> Sequence[Tokens | str]:
        """Tokens, or why the device leaves a text to the CPU. Raises nothing."""
        worked = self._encoder.works
        results = [
            _kept(result) if isinstance(result, Tokens) else result.value
            for result in self._encoder.attempt(texts)
        ]
        if worked and not self._encoder.works:
            _LOG.error("gpu_lost", code=Code.GPU_UNAVAILABLE.value, texts=len(texts))
        return results

    def close(self) -> None:
        """Give the device back."""
        self._encoder.close()


def _kept(tokens: Tokens) -> Tokens:
    if len(tokens) > COPIED_TOKENS:
        return tokens
    return Tokens(tokens.ids.copy(), tokens.lengths.copy())


def open_devices(
    registry: Registry, settings: Settings, open_card: OpenCard | None = None
) -> dict[str, DeviceTokenizer]:
    """Encoders by the fingerprint of their CPU engine, to which each is held on some hundred texts
    before it serves. ``open_card``: what to open instead of the CUDA device that the settings name.

    Takes some seconds per tokenizer: kernels are compiled and, with ``gpu_min_bytes`` 0, the
    threshold is measured. Raises ``GPU_UNAVAILABLE`` where a GPU is required and cannot be used.
    """
    if settings.gpu == "off":
        return {}
    try:
        from toktier_gpu.device import DeviceError
    except ImportError as error:
        _unavailable(settings, str(error))
        return {}
    open_card = open_card or _cuda(settings.gpu_device)
    opened: dict[str, DeviceTokenizer] = {}
    with ExitStack() as stack:
        for entry in registry.entries():
            cpu = entry.encoder
            if not isinstance(cpu, FastEncoder):
                _refused(entry.name, ("its engine has no tables for a GPU",))
                continue
            try:
                card = open_card()
            except DeviceError as error:
                _unavailable(settings, str(error))
                break
            closing = stack.enter_context(ExitStack())
            closing.callback(card.close)
            device = None
            try:
                device = _serve(entry.name, cpu, card, settings)
            except DeviceError as error:
                # Too little memory for one more tokenizer, or ids unlike the CPU engine's.
                _unavailable(settings, f"{entry.name}: {error}")
            if device is None:
                closing.close()
            else:
                opened[cpu.fingerprint] = device
        if settings.gpu == "required" and not opened:
            _unavailable(settings, "it serves no tokenizer of this worker better than the CPU")
        stack.pop_all()
    return opened


def _cuda(number: int) -> OpenCard:
    from toktier_gpu.cupy_device import CupyDevice

    return lambda: CupyDevice(number)


def _unavailable(settings: Settings, cause: str) -> None:
    if settings.gpu == "required":
        raise ToktierError(Code.GPU_UNAVAILABLE, cause)
    _LOG.info("gpu_unused", code=Code.GPU_UNAVAILABLE.value, cause=cause)


def _refused(tokenizer: str, reasons: Sequence[str]) -> None:
    _LOG.info("gpu_tokenizer_refused", tokenizer=tokenizer, reasons=tuple(reasons))


def _serve(name: str, cpu: FastEncoder, card: Device, settings: Settings) -> DeviceTokenizer | None:
    """One tokenizer, ready for its first text; None where the device does not serve it, or never
    wins. Raises DeviceError."""
    from toktier_gpu.campaign import first_texts
    from toktier_gpu.host import GpuEncoder
    from toktier_gpu.plan import Limits
    from toktier_gpu.tables import DeviceTables

    tables = DeviceTables.build(cpu.compiled)
    if isinstance(tables, Refusal):
        _refused(name, tables.reasons)
        return None
    started = time.monotonic()
    encoder = GpuEncoder(tables, cpu, card, Limits(bytes=settings.gpu_batch_bytes))
    encoder.compare(first_texts())
    encoder.warm()
    min_bytes = settings.gpu_min_bytes or _measured(encoder, cpu)
    _LOG.info(
        "gpu_slower" if min_bytes is None else "gpu_ready",
        tokenizer=name,
        device=card.name,
        min_bytes=min_bytes,
        measured=settings.gpu_min_bytes == 0,
        max_bytes=encoder.limits.bytes,
        seconds=round(time.monotonic() - started, 3),
    )
    return None if min_bytes is None else DeviceTokenizer(encoder, min_bytes)


def _measured(encoder: GpuEncoder, cpu: FastEncoder) -> int | None:
    from toktier_gpu import crossover

    return crossover.crossover(encoder, cpu, crossover.sources_text(max(crossover.SIZES)))
