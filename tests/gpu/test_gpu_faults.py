"""Seeded faults: each is put into the kernels' own text, and some check must see it."""

from __future__ import annotations

import pytest
from gpu_harness import SMALL, Subject, device, made, subject

from toktier_gpu import sources
from toktier_gpu.campaign import run
from toktier_gpu.device import DeviceError
from toktier_gpu.host import GpuEncoder
from toktier_gpu.plan import Limits
from toktier_gpu.tables import DeviceTables
from toktier_stream.tokenizer.shipped import shipped_path

TINY = Limits(bytes=4096, texts=16, buckets=())


def mutated(old: str, new: str) -> str:
    """The sources with the only occurrence of ``old`` replaced."""
    source = sources.joined()
    assert source.count(old) == 1
    return source.replace(old, new)


def found(source: str | None, tested: Subject, kind: str = "plain") -> bool:
    """Whether the campaign sees anything wrong: other ids, or an error of the device."""
    of = device(kind, source, mode="preempted", blocks=2)
    try:
        encoder = GpuEncoder(tested.tables, tested.cpu, of, TINY)
        batches = tested.samples(1).batches(TINY.bytes, TINY.texts)
        outcome = run(encoder, tested.cpu, batches, 3_000 if kind == "thread" else 30_000)
    except DeviceError:
        return True
    finally:
        of.close()
    return bool(outcome.differences) or not encoder.works


# Kernel, what is wrong with it, and how.
FAULTS = (
    ("clear", "tokens of an earlier batch", "        tok[i] = 0;", "        if (!i) tok[i] = 0;"),
    (
        "mark_texts",
        "texts of one byte overlooked",
        "if (starts[i] < starts[i + 1u]) mark",
        "if (starts[i] + 1u < starts[i + 1u]) mark",
    ),
    (
        "classes",
        "the class of another character",
        "point = (point & 15u) << 12 |",
        "point = (point & 7u) << 12 |",
    ),
    (
        "find_segments",
        "a segment that reaches into the next text",
        "bool starts = (here & (TEXT | LITERAL)) ||",
        "bool starts = (here & LITERAL) ||",
    ),
    (
        "sum_tiles",
        "sums that include the tile itself",
        "        tiles[t] = sum;\n        sum += here;",
        "        sum += here;\n        tiles[t] = sum;",
    ),
    (
        "write_segments",
        "an off-by-one at a segment's start",
        "segments[at++] = first + (u32)__ffs(bits) - 1u;",
        "segments[at++] = first + (u32)__ffs(bits);",
    ),
    (
        "match_segments",
        "an off-by-one at a segment's end",
        "segments[k + 1u] : bytes;\n        if (mark[start] & LITERAL) {",
        "segments[k + 1u] - 1u : bytes;\n        if (mark[start] & LITERAL) {",
    ),
    (
        "count_pieces",
        "half of the places one to the left",
        "low_bit_of_bytes(words[1]) << 8;",
        "low_bit_of_bytes(words[1]) << 7;",
    ),
    (
        "write_pieces",
        "an off-by-one at a piece's start",
        "pieces[at++] = first + (u32)__ffs(bits) - 1u;",
        "pieces[at++] = first + (u32)__ffs(bits);",
    ),
    (
        "look_up_pieces",
        "the last piece one byte short",
        "size = (k + 1u < count ? pieces[k + 1u] : bytes) - start;",
        "size = (k + 1u < count ? pieces[k + 1u] : bytes - 1u) - start;",
    ),
    (
        "cut_pieces",
        "a piece cut where a token spans",
        "return may_cut(spans, left, right);",
        "return may_cut(spans, left, right) || left == right;",
    ),
    (
        "look_up_parts",
        "parts that fit no size class",
        "bool is_short = size && size <= SHORT_BYTES,",
        "bool is_short = size && size + 4u <= SHORT_BYTES,",
    ),
    (
        "merge_short",
        "the rightmost instead of the leftmost pair",
        "if (candidate < best) {",
        "if (candidate <= best && candidate != NONE) {",
    ),
    (
        "merge_medium",
        "neighbours of a merge not looked up again",
        "if (bit_of(chosen, i) || (behind != NONE && bit_of(chosen, behind)))",
        "if (bit_of(chosen, i))",
    ),
    (
        "merge_medium",
        "overlapping pairs merged at once",
        "taken = (*candidates & bit) && !taken;",
        "taken = *candidates & bit;",
    ),
    (
        "merge_long",
        "neighbours of a merge not looked up again",
        "code[before] = find_pair(pairs, shift, symbol[before], made);",
        "",
    ),
    (
        "count_tokens",
        "a token at the end of a tile's part overlooked",
        "for (u32 b = 0; b < PER_THREAD && first + b < bytes; b++)\n        bits |=",
        "for (u32 b = 0; b + 1u < PER_THREAD && first + b < bytes; b++)\n        bits |=",
    ),
    (
        "write_tokens",
        "lengths above 15 bytes cut off",
        "out[tokens + at] = tok[i] >> ID_BITS;",
        "out[tokens + at] = tok[i] >> ID_BITS & 15u;",
    ),
    ("write_offsets", "no total behind the last text", "t <= texts;", "t < texts;"),
    (
        "all by tiles",
        "a lost tail of the last tile",
        "return (bytes + TILE - 1u) / TILE;",
        "return bytes / TILE;",
    ),
    (
        "all with lists",
        "a race for room in a list",
        "if (mask && lane == 0u) base = atomicAdd(count, (u32)__popc(mask));",
        "if (mask && lane == 0u) { base = *count; atomicAdd(count, (u32)__popc(mask)); }",
    ),
    (
        "all with sums",
        "a barrier that some threads never reach",
        "    if (warp == 0u) {\n        u32 mine",
        "    if (warp == 0u) {\n        __syncthreads();\n        u32 mine",
    ),
)

# Of those that need added tokens which overlap.
LITERAL_FAULTS = (
    (
        "find_literals",
        "a literal that is not the longest",
        "if (final[node]) longest",
        "if (final[node] && !longest) longest",
    ),
    (
        "choose_literals",
        "literals chosen that overlap",
        "if (at < free) continue;",
        "if (at + 1u < free) continue;",
    ),
)


@pytest.fixture(scope="module")
def small() -> Subject:
    """The tokenizer that comes with the package."""
    return subject(shipped_path())


def test_the_sources_as_they_are(small: Subject) -> None:
    """The check itself finds nothing where nothing is wrong."""
    assert not found(None, small)


def _named(fault: tuple[str, str, str, str]) -> str:
    return f"{fault[0]}: {fault[1]}"


@pytest.mark.parametrize("fault", FAULTS, ids=_named)
def test_a_fault_is_seen(fault: tuple[str, str, str, str], small: Subject) -> None:
    """A differential campaign of a few thousand characters is enough for each."""
    assert found(mutated(*fault[2:]), small)


@pytest.mark.parametrize("fault", LITERAL_FAULTS, ids=_named)
def test_a_fault_among_literals_is_seen(fault: tuple[str, str, str, str]) -> None:
    """Of added tokens that start together the longest counts, of those that overlap the first."""
    tested = made([(b"x", b"y")], raw=("<a", "<a>", ">x"))
    of = device("plain", mutated(*fault[2:]))
    texts = [b"xy<a>xy<a<a>", b"<a>xy>x"]
    outcome = run(tested.encoder(of, TINY), tested.reference, iter([texts]), 1)
    assert outcome.differences
    of.close()


def test_every_kernel_has_its_fault() -> None:
    """None is without one that was found."""
    kernels = {kernel.name for kernel in sources.kernels(sources.joined())}
    assert kernels <= {fault[0] for fault in (*FAULTS, *LITERAL_FAULTS)}


RACES = {
    "no barrier between a block's sums": (
        "        if (lane_of() == 31u) sums[warps] = before + mine;\n    }\n    __syncthreads();",
        "        if (lane_of() == 31u) sums[warps] = before + mine;\n    }",
    ),
    "no warp barrier behind the symbols of a round": (
        "            if (lane == 0u) for (u32 w = 0; w < WORDS; w++) alive[w] = left[w];\n"
        "            __syncwarp();",
        "            if (lane == 0u) for (u32 w = 0; w < WORDS; w++) alive[w] = left[w];",
    ),
    "no barrier before the codes are looked up": (
        "s.alive[w] &= ~s.gone[w];\n    __syncthreads();",
        "s.alive[w] &= ~s.gone[w];",
    ),
}


@pytest.mark.parametrize("race", RACES)
def test_a_missing_barrier_is_seen(race: str, small: Subject) -> None:
    """ThreadSanitizer sees a race on the texts that reach the place."""
    of = device("thread", mutated(*RACES[race]), blocks=1)
    with pytest.raises(DeviceError, match="data race"):
        GpuEncoder(small.tables, small.cpu, of, TINY)._run([b"e" * 100, b"e" * 700, b"and" * 300])
    of.close()


def test_a_wrong_class_table_is_seen(small: Subject) -> None:
    """One character in another class changes ids somewhere."""
    arrays = dict(small.tables.arrays)
    properties = arrays["properties"].copy()
    properties[arrays["pages"][0], ord("#")] = properties[arrays["pages"][0], ord("q")]
    wrong = DeviceTables({**arrays, "properties": properties}, small.tables.numbers)
    of = device()
    encoder = GpuEncoder(wrong, small.cpu, of, SMALL)
    batches = small.samples(1).batches(SMALL.bytes, SMALL.texts)
    assert run(encoder, small.cpu, batches, 20_000).differences
    of.close()
