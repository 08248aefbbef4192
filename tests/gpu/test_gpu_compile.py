"""The same sources compiled by NVRTC, without a GPU: they must build for real cards, and fit."""

from __future__ import annotations

import re

import pytest

from toktier_gpu import nvrtc, sources
from toktier_gpu.device import DeviceError
from toktier_gpu.plan import THREADS


@pytest.fixture(scope="module")
def compiler() -> nvrtc.Nvrtc:
    """The compiler of the installed wheel."""
    return nvrtc.Nvrtc()


@pytest.mark.parametrize("architecture", nvrtc.ARCHITECTURES)
def test_machine_code(compiler: nvrtc.Nvrtc, architecture: int) -> None:
    """Every kernel becomes machine code without a warning, in few registers and without a frame."""
    assert architecture in compiler.architectures()
    used = nvrtc.usage(compiler.compile(sources.joined(), architecture))
    assert {u.kernel for u in used} == {k.name for k in sources.kernels(sources.joined())}
    for usage in used:
        assert usage.local_bytes == 0
        # All of a block's threads, twice, on one multiprocessor's 64 K registers.
        assert 0 < usage.registers <= 65_536 // (4 * THREADS)


def test_a_mistake_is_an_error(compiler: nvrtc.Nvrtc) -> None:
    """The compiler's words come with it."""
    with pytest.raises(DeviceError, match="nonsense"):
        compiler.compile(sources.joined() + "\nKERNEL f(u32 a) { nonsense(a); }", 80)


def test_plain_sources() -> None:
    """No includes and no PTX, so that nothing but the text decides what is compiled; ASCII."""
    text = sources.joined()
    assert text.isascii()
    assert not re.search(r"^\s*#\s*include|\basm\b", text, re.MULTILINE)
    assert len(sources.kernels(text)) == text.count("\nKERNEL ")
