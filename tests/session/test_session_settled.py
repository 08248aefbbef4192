"""Settled tokens by a cut: the compiled count against a readable one."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from session_harness import LITERALS, PIECES, RUNS, fresh

from toktier_stream.incremental import settling
from toktier_stream.incremental.settling import WINDOW, Settling
from toktier_stream.session import giant
from toktier_stream.session.splice import View
from toktier_stream.tokenizer.encoder import FastEncoder
from toktier_stream.tokenizer.face import Encoder

EXAMPLES = int(os.environ.get("TOKTIER_TEST_SESSION_EXAMPLES", "60"))

runs = st.tuples(st.sampled_from(RUNS), st.integers(1, 60)).map(lambda x: x[0] * x[1])
mixed = st.lists(st.sampled_from((*PIECES, *LITERALS)), max_size=30).map("".join)
texts = st.lists(runs | mixed, max_size=8).map("".join)


def readable(view: View, encoder: FastEncoder) -> int:
    """What :meth:`Settling.tokens` counts, step by step."""
    reach = encoder.literal_reach
    text = giant.from_character(view.text[-WINDOW - 2 * reach :])
    left = len(view.text) - len(text)
    low = reach if view.byte + left else 1
    plan = Settling(encoder.compiled)._packed.plan
    cut, limit = settling._last(np.frombuffer(text, dtype=np.uint8), low, plan)
    ends = np.cumsum(view.lengths, dtype=np.int64).tolist()
    starts = [0, *ends]
    stop = left + max(cut, 0)
    for i in reversed(range(len(ends))):
        added = encoder.is_added(int(view.ids[i]))
        if ends[i] > stop and limit > 0 and starts[i] < left + limit and added:
            return i + 1
    if cut < 0:
        return -1
    return starts.index(stop) if stop in starts else -1


@pytest.mark.parametrize("name", ["plain", "nfc", "nfkc"])
@given(text=texts, skipped=st.integers(0, 40))
@settings(max_examples=EXAMPLES)
def test_the_compiled_count_is_the_readable_one(
    encoders: dict[str, Encoder], name: str, text: str, skipped: int
) -> None:
    """On all tokens of a text, and on those behind some of the first."""
    encoder = encoders[name]
    assert isinstance(encoder, FastEncoder)
    session = fresh(encoder, text.encode())
    view = session.view(0, session.bytes)
    if skipped and len(view.ids):
        skipped %= len(view.ids)
        size = int(view.lengths[:skipped].sum())
        view = View(size, skipped, view.ids[skipped:], view.lengths[skipped:], view.text[size:])
    counted = Settling(encoder.compiled).tokens(
        view.text, view.ids, view.lengths, whole=view.byte == 0
    )
    assert counted == readable(view, encoder)
