"""The digest against big-integer arithmetic, and what it must find."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import numpy.typing as npt
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from toktier_stream.wire import digest

PROTO = Path(__file__).parents[2] / "schemas" / "toktier.proto"

ids = st.lists(
    st.one_of(st.integers(0, 300_000), st.sampled_from([0, 1, (1 << 32) - 2, (1 << 32) - 1])),
    max_size=60,
)


def array(values: list[int]) -> npt.NDArray[np.uint32]:
    """The values as the digest takes them."""
    return np.array(values, dtype=np.uint32)


def slow(values: list[int]) -> int:
    """The definition, read aloud: multiply by B, add the next id plus one."""
    total = 0
    for value in values:
        total = (total * digest.BASE + value + 1) % digest.PRIME
    return total


@given(ids)
def test_of_is_the_definition(values: list[int]) -> None:
    """A whole stream."""
    assert digest.of(array(values)) == slow(values)


@given(ids, ids)
def test_extend_and_join_concatenate(left: list[int], right: list[int]) -> None:
    """Appending ids, and joining two digests, are the digest of the concatenation."""
    whole = slow(left + right)
    assert digest.extend(slow(left), array(right)) == whole
    assert digest.join(slow(left), slow(right), len(right)) == whole


@given(ids, ids)
def test_cutting_is_the_inverse(left: list[int], right: list[int]) -> None:
    """Taking off a prefix or a suffix leaves the digest of the rest."""
    whole = slow(left + right)
    assert digest.without_prefix(whole, slow(left), len(right)) == slow(right)
    assert digest.without_suffix(whole, array(right)) == slow(left)


@given(ids, ids, ids, ids)
def test_a_splice_in_constant_time(
    keep: list[int], old: list[int], new: list[int], tail: list[int]
) -> None:
    """Replacing the middle of a stream by parts' digests alone."""
    tail_digest = digest.without_prefix(slow(keep + old + tail), slow(keep + old), len(tail))
    spliced = digest.join(digest.extend(slow(keep), array(new)), tail_digest, len(tail))
    assert spliced == slow(keep + new + tail)


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1), st.integers(2040, 6200))
def test_long_streams_cross_the_blocks(seed: int, length: int) -> None:
    """Streams longer than one vectorised block, with extreme ids among them."""
    values = np.random.default_rng(seed).integers(0, 1 << 32, length, dtype=np.uint32)
    values[::97] = (1 << 32) - 1
    assert digest.of(values) == slow(values.tolist())
    assert digest.without_suffix(slow(values.tolist()), values[100:]) == slow(values[:100].tolist())


@given(ids, st.data())
def test_damage_is_found(values: list[int], data: st.DataObject) -> None:
    """A swapped, lost, doubled or changed id changes the digest."""
    assume(len(values) >= 2)
    whole = digest.of(array(values))
    i = data.draw(st.integers(0, len(values) - 1))
    j = data.draw(st.integers(0, len(values) - 1))
    lost = values[:i] + values[i + 1 :]
    doubled = values[: i + 1] + values[i:]
    changed = values.copy()
    changed[i] = (changed[i] + data.draw(st.integers(1, 1 << 31))) % (1 << 32)
    swapped = values.copy()
    swapped[i], swapped[j] = swapped[j], swapped[i]
    for damaged in (lost, doubled, changed, swapped):
        assert (digest.of(array(damaged)) == whole) == (damaged == values)


def test_zeros_count() -> None:
    """Id 0 is a token too: runs of it differ by their length."""
    assert len({digest.of(array([0] * n)) for n in range(100)}) == 100
    assert digest.of(array([])) == digest.EMPTY


def test_the_schema_tells_the_same_constants() -> None:
    """Who reads only the proto can compute the digest."""
    comment = re.sub(r"\s*//\s*", " ", PROTO.read_text())
    assert f"B = {digest.BASE}" in comment
    assert "modulo 2^61 - 1" in comment
    assert digest.PRIME == 2**61 - 1
