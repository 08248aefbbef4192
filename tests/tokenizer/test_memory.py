"""Tables in memory of their own are the tables, wherever it comes from."""

from __future__ import annotations

import gc

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from toktier_stream.tokenizer import memory

SHAPES = st.lists(st.integers(0, 40), min_size=1, max_size=2).map(tuple)
TYPES = st.sampled_from([np.bool_, np.uint8, np.uint16, np.int32, np.uint64])


@given(st.lists(st.tuples(SHAPES, TYPES), max_size=8), st.integers(0, 2**32 - 1))
def test_arrays_together_are_the_arrays(kinds: list, seed: int) -> None:
    """Values, types and shapes, in an order and with sizes of any kind; none begins in a cache line
    of another, and nobody writes into them."""
    random = np.random.default_rng(seed)
    arrays = {i: random.integers(0, 2, shape).astype(t) for i, (shape, t) in enumerate(kinds)}
    copies = memory.together(arrays)
    gc.collect()
    assert list(copies) == list(arrays)
    for i, array in arrays.items():
        assert copies[i].dtype == array.dtype
        assert copies[i].shape == array.shape
        assert np.array_equal(copies[i], array)
        assert copies[i].ctypes.data % 64 == 0 or not array.size
        assert not copies[i].flags.writeable
        assert copies[i].flags.c_contiguous


def test_large_memory_is_zero_and_can_be_written() -> None:
    """From the start of a large page, to its last byte."""
    for size in (1, 4096, memory.PAGE, memory.PAGE + 1):
        room = memory.large(size)
        assert len(room) == size
        assert room.ctypes.data % memory.PAGE == 0
        assert not room.any()
        room[:] = 255
        assert room.all()
