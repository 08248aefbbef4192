"""The consumer's buffer equals a list that is spliced, and refuses what does not fit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toktier_stream.client.buffers import TokenBuffer
from toktier_stream.errors import Code, ToktierError
from toktier_stream.wire import digest
from toktier_stream.wire.messages import Status, TokenUpdate

ids = st.lists(st.integers(0, 2**32 - 2), max_size=40)


def update(revision: int, keep: int, new: list[int], tail: int, result: list[int]) -> TokenUpdate:
    return TokenUpdate(
        session_id="s",
        revision=revision,
        status=Status.OK,
        keep=keep,
        token_ids=np.array(new, dtype="<u4").tobytes(),
        tail=tail,
        total_tokens=len(result),
        digest=digest.of(np.array(result, dtype=np.uint32)),
    )


@given(splices=st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99), ids), max_size=12))
def test_splices_give_the_list_they_describe(splices):
    """Any sequence of splices leaves the buffer equal to the list they describe."""
    buffer, model = TokenBuffer(), []
    for revision, (a, b, new) in enumerate(splices, 1):
        keep = a % (len(model) + 1)
        tail = b % (len(model) - keep + 1)
        model = model[:keep] + new + (model[-tail:] if tail else [])
        buffer.apply(update(revision, keep, new, tail, model))
        assert buffer.ids.tolist() == model
        assert buffer.revision == revision


@pytest.mark.parametrize("fault", ["lost", "changed", "swapped", "beyond"])
def test_an_update_that_does_not_fit_changes_nothing(fault):
    """A lost, changed or swapped id, or a keep beyond the stream, is found by the digest."""
    buffer = TokenBuffer()
    buffer.apply(update(1, 0, [1, 2, 3], 0, [1, 2, 3]))
    good = [1, 2, 7, 8]
    bad = {
        "lost": update(2, 2, [7], 0, good),
        "changed": update(2, 2, [7, 9], 0, good),
        "swapped": update(2, 2, [8, 7], 0, good),
        "beyond": update(2, 4, [], 0, good),
    }[fault]
    with pytest.raises(ToktierError) as caught:
        buffer.apply(bad)
    assert caught.value.code is Code.DIGEST_MISMATCH
    assert buffer.ids.tolist() == [1, 2, 3]


def test_the_view_cannot_be_written():
    """What an engine is handed cannot be changed by it."""
    buffer = TokenBuffer()
    buffer.apply(update(1, 0, [1], 0, [1]))
    with pytest.raises(ValueError):
        buffer.ids[0] = 5
