"""Each kernel against its plain Python twin."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from toktier_stream.session import kernels, packing
from toktier_stream.wire import digest

ids = st.lists(st.integers(0, 2**32 - 2), max_size=40).map(lambda x: np.array(x, dtype=np.uint32))
lengths = st.lists(st.sampled_from([0, 0, 1, 2, 3, 4, 7, 254, 255, 300, 70_000]), max_size=30).map(
    lambda x: np.array(x, dtype=np.uint32)
)


@given(ids, ids, ids)
def test_digests_are_those_of_the_wire(head: np.ndarray, old: np.ndarray, new: np.ndarray) -> None:
    """Extending, replacing a suffix and folding give the digest that consumers compute."""
    assert kernels.extend(digest.of(head), old) == digest.of(np.concatenate([head, old]))
    whole = digest.of(np.concatenate([head, old]))
    assert kernels.replace_suffix(whole, old, new) == digest.of(np.concatenate([head, new]))
    parts = [head, old, new]
    counts = np.array([len(p) for p in parts], dtype=np.int64)
    values = np.array([digest.of(p) for p in parts], dtype=np.uint64)
    assert kernels.fold(counts, values) == digest.of(np.concatenate(parts))


@given(st.lists(st.sampled_from([0, 1, 2**31, 2**32 - 2]), max_size=200), st.integers(0, 3))
def test_digests_at_the_edges(values: list[int], start: int) -> None:
    """The largest ids and digests, in runs of every length."""
    head = [0, 1, digest.PRIME - 1, digest.PRIME - 2][start]
    new = np.array(values, dtype=np.uint32)
    assert kernels.extend(head, new) == digest.extend(head, new)


@given(
    st.sampled_from([0, 1, 127, 128, 129, 255, 256, 300, 1000]),
    st.sampled_from([0, 1, 2**31, 2**32 - 2, None]),
    st.integers(0, digest.PRIME - 1),
    st.integers(0, 2**32 - 1),
)
def test_digests_of_whole_blocks(size: int, value: int | None, start: int, seed: int) -> None:
    """As many ids as are added at once, one more and less, all as large as can be or at random."""
    new = np.random.default_rng(seed).integers(0, 2**32 - 1, size).astype(np.uint32)
    if value is not None:
        new[:] = value
    assert kernels.extend(start, new) == digest.extend(start, new)
    assert kernels.replace_suffix(start, new[:0], new) == digest.extend(start, new)


@given(lengths, st.integers(0, 700))
def test_a_boundary_counts_the_tokens_that_end_there(values: np.ndarray, position: int) -> None:
    """Tokens of length 0 belong to the character on their right."""
    ends = np.cumsum(values).tolist()
    want = 0 if position == 0 else ends.index(position) + 1 if position in ends else -1
    assert kernels.boundary_index(values, position) == want


def _twin_match(old: list, new: list, old_at: int, new_at: int, room: tuple[int, int]) -> tuple:
    left = left_bytes = right = right_bytes = 0
    runs_left, runs_right = [(0, 0)], [(0, 0)]
    while min(old_at, new_at) > left:
        token = old[old_at - left - 1]
        if token != new[new_at - left - 1] or left_bytes + token[1] > room[0]:
            break
        left, left_bytes = left + 1, left_bytes + token[1]
        neighbours = [old[: old_at - left][-1:], new[: new_at - left][-1:]]
        if all(n[0][1] > 0 for n in neighbours if n):
            runs_left.append((left, left_bytes))
    while old_at + right < len(old) and new_at + right < len(new):
        token = old[old_at + right]
        if token != new[new_at + right] or right_bytes + token[1] > room[1]:
            break
        right, right_bytes = right + 1, right_bytes + token[1]
        if token[1] > 0:
            runs_right.append((right, right_bytes))
    if min(old_at, new_at) < 0:
        return -1, -1, 0, 0, 0, 0
    return old_at, new_at, *runs_left[-1], *runs_right[-1]


token_lists = st.lists(
    st.tuples(st.integers(0, 1), st.sampled_from([0, 1, 1, 2])), max_size=12
)  # few ids, so that runs are long


@given(token_lists, token_lists, st.data())
def test_a_run_is_the_longest_around_its_cut(old: list, new: list, data: st.DataObject) -> None:
    """In both directions, within the given room, equal in id and length, whole characters."""
    arrays = [np.array([t[i] for t in x], dtype=np.uint32) for x in (old, new) for i in (0, 1)]
    old_ids, old_lengths, new_ids, new_lengths = arrays
    positions = [
        data.draw(st.sampled_from([0, *np.cumsum(values).tolist()]))
        for values in (old_lengths, new_lengths)
    ]
    room = (data.draw(st.integers(0, 12)), data.draw(st.integers(0, 12)))
    got = kernels.match(
        old_ids, old_lengths, positions[0], new_ids, new_lengths, positions[1], *room
    )
    at = [
        kernels.boundary_index(values, position)
        for values, position in zip((old_lengths, new_lengths), positions, strict=True)
    ]
    assert got == _twin_match(old, new, at[0], at[1], room)


@given(token_lists, token_lists, st.data())
def test_the_end_after_a_run(old: list, new: list, data: st.DataObject) -> None:
    """The tokens that stay and those that take over stand side by side, with their digest; what is
    counted is counted on the text."""
    arrays = [np.array([t[i] for t in x], dtype=np.uint32) for x in (old, new) for i in (0, 1)]
    old_ids, old_lengths, new_ids, new_lengths = arrays
    text = data.draw(st.text("aé中", max_size=12)).encode().ljust(int(new_lengths.sum()), b"x")
    at, position = (
        data.draw(st.sampled_from([0, *np.cumsum(values).tolist(), 1]))
        for values in (old_lengths, new_lengths)
    )
    head = data.draw(ids)
    room = len(old) + data.draw(st.integers(0, 3))
    behind = [np.concatenate((np.full(room, 77, dtype=np.uint32), x)) for x in arrays[2:]]
    cuts = kernels.boundary_index(old_lengths, at), kernels.boundary_index(new_lengths, position)
    expected: tuple[int, ...] = (-1, -1, 0, 0, 0, 0)
    if min(cuts) >= 0:
        expected = _twin_match(old, new, *cuts, (position, len(text) - position))
    tokens, run, keep, first, size, value, covered, chars = kernels.match_end(
        old_ids, old_lengths, at, *behind, room, position, position, len(text) - position,
        digest.of(np.concatenate([head, old_ids])), np.frombuffer(text, dtype=np.uint8),
    )  # fmt: skip
    assert chars == sum(byte & 0xC0 != 0x80 for byte in text)
    anchor, begin, left, left_bytes, right, right_bytes = expected
    assert (tokens, size) == (left + right, right_bytes)
    if anchor < 0:
        assert behind[0][room:].tolist() == new_ids.tolist()
        return
    assert (keep, first) == (anchor + right, begin + right)
    assert covered == int(new_lengths.sum())
    part = text[position - left_bytes : position + right_bytes]
    assert run == sum(byte & 0xC0 != 0x80 for byte in part)
    whole = [*old[:keep], *new[first:]]
    start = room + first - keep
    assert list(zip(*(x[start:].tolist() for x in behind), strict=True)) == whole
    assert value == digest.of(np.concatenate([head, [t[0] for t in whole]]).astype(np.uint32))


def _cost(sizes: np.ndarray, per_token: int) -> int:
    return sum(per_token + 8 * n + (32 if n >= packing.LONG else 0) for n in sizes.tolist())


@given(lengths, st.sampled_from([20, 22, 36]), st.integers(160, 3200), st.booleans())
def test_pages_hold_whole_characters_and_stay_in_bounds(
    values: np.ndarray, per_token: int, limit: int, even: bool
) -> None:
    """Cuts cover all tokens, stand right of a token with bytes, and no page is over its limit
    unless one character's tokens are."""
    target = limit // 2 if even else limit
    pairs = packing.page_cuts(values, per_token, target, limit).tolist()
    cuts = [index for index, _ in pairs]
    assert [size for _, size in pairs] == [int(values[:index].sum()) for index in cuts]
    assert cuts == sorted(set(cuts))
    assert (cuts[-1] if cuts else 0) == len(values)
    start = 0
    for cut in cuts:
        assert cut == len(values) or values[cut - 1] > 0
        page = values[start:cut]
        if _cost(page, per_token) > limit:
            assert np.count_nonzero(page) <= 1
        start = cut


@given(lengths, st.sampled_from([20, 22, 36]), st.integers(160, 3200))
def test_the_last_page_of_a_text_is_small_and_holds_what_may_change(
    values: np.ndarray, per_token: int, limit: int
) -> None:
    """The other pages are those of the text left of the last tokens; the last page holds these, and
    no more where it would be three quarters full."""
    pairs = packing.end_cuts(values, per_token, limit).tolist()
    n, kept = len(values), 0
    for count in range(1, min(n, packing.LAST) + 1):
        if 4 * _cost(values[n - count :], per_token) > limit:
            break
        if count == n or values[n - count - 1] > 0:
            kept = count
    want = packing.page_cuts(values[: n - kept], per_token, limit, limit).tolist()
    if kept:
        start = want[-2][0] if len(want) > 1 else 0
        if want and 4 * _cost(values[start:], per_token) < 3 * limit:
            want.pop()
        want.append([n, int(values.sum())])
    assert pairs == want


@given(ids, st.data())
def test_packed_tokens_unpack_to_themselves(values: np.ndarray, data: st.DataObject) -> None:
    """For every id width and with escaped lengths; the bits are those of one large number."""
    values = values % np.uint32(1 << data.draw(st.integers(1, 31)))
    n = len(values)
    sizes = np.array(
        data.draw(st.lists(st.integers(0, 20) | st.integers(0, 70_000), min_size=n, max_size=n)),
        dtype=np.uint32,
    )
    out = np.empty(9 * n, dtype=np.uint8)
    written, bits, escapes = packing.pack(values, sizes, out)
    assert bits == max(1, int(values.max()).bit_length() if n else 0)
    assert escapes == (sizes >= packing.LONG).sum()
    plain = sum(
        (int(i) | min(int(k), packing.LONG) << bits) << at * (bits + packing.LENGTH_BITS)
        for at, (i, k) in enumerate(zip(values, sizes, strict=True))
    )
    packed = plain.to_bytes((n * (bits + packing.LENGTH_BITS) + 7) // 8, "little")
    assert out[:written].tobytes() == packed + sizes[sizes >= packing.LONG].tobytes()
    back_ids, back_sizes = np.empty(n, dtype=np.uint32), np.empty(n, dtype=np.uint32)
    total = packing.unpack(out[:written], bits, escapes, back_ids, back_sizes)
    assert back_ids.tolist() == values.tolist()
    assert back_sizes.tolist() == sizes.tolist()
    assert total == sizes.sum()
    for wrong in {escapes - 1, escapes + 1} - {-1} if escapes else ():
        assert packing.unpack(out[:written], bits, wrong, back_ids, back_sizes) == -1


@given(ids, lengths)
def test_measuring(values: np.ndarray, sizes: np.ndarray) -> None:
    """Sum, longest length, bits of the largest id."""
    n = min(len(values), len(sizes))
    values, sizes = values[:n], sizes[:n]
    want = (int(sizes.sum()), int(sizes.max()), int(values.max())) if n else (0, 0, 0)
    assert packing.measure(values, sizes) == (*want[:2], max(1, want[2].bit_length()))


@given(st.text(max_size=30), st.integers(1, 40))
def test_offsets_of_characters(text: str, count: int) -> None:
    """Counting characters from either end lands on the same bytes as slicing the string."""
    data = np.frombuffer(text.encode(), dtype=np.uint8)
    assert kernels.characters(text.encode()) == len(text)
    assert kernels.left_offset(data, count) == len(text[: max(0, len(text) - count)].encode())
    assert kernels.right_offset(data, count) == len(text[:count].encode())
