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


FAULTS = {
    "an off-by-one at a segment's edge": (
        "segments[k + 1u] : bytes;\n        if (mark[start] & LITERAL) {",
        "segments[k + 1u] - 1u : bytes;\n        if (mark[start] & LITERAL) {",
    ),
    "a segment that reaches into the next text": (
        "bool starts = (here & (TEXT | LITERAL)) ||",
        "bool starts = (here & LITERAL) ||",
    ),
    "a lost tail of the last tile": (
        "return (bytes + TILE - 1u) / TILE;",
        "return bytes / TILE;",
    ),
    "the class of the character before": (
        "point = (point & 15u) << 12 |",
        "point = (point & 7u) << 12 |",
    ),
    "a piece cut where a token spans": (
        "return may_cut(spans, left, right);",
        "return may_cut(spans, left, right) || left == right;",
    ),
    "the rightmost instead of the leftmost pair": (
        "if (candidate < best) {",
        "if (candidate <= best && candidate != NONE) {",
    ),
    "overlapping pairs merged at once": (
        "taken = (*candidates & bit) && !taken;",
        "taken = *candidates & bit;",
    ),
    "neighbours of a merge not looked up again (medium)": (
        "if (bit_of(chosen, i) || (behind != NONE && bit_of(chosen, behind)))",
        "if (bit_of(chosen, i))",
    ),
    "neighbours of a merge not looked up again (long)": (
        "code[before] = find_pair(pairs, shift, symbol[before], made);",
        "",
    ),
    "a race for room in a list": (
        "if (mask && lane == 0u) base = atomicAdd(count, (u32)__popc(mask));",
        "if (mask && lane == 0u) { base = *count; atomicAdd(count, (u32)__popc(mask)); }",
    ),
    "a barrier that some threads never reach": (
        "    if (warp == 0u) {\n        u32 mine",
        "    if (warp == 0u) {\n        __syncthreads();\n        u32 mine",
    ),
}


@pytest.fixture(scope="module")
def small() -> Subject:
    """The tokenizer that comes with the package."""
    return subject(shipped_path())


def test_the_sources_as_they_are(small: Subject) -> None:
    """The check itself finds nothing where nothing is wrong."""
    assert not found(None, small)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_seen(fault: str, small: Subject) -> None:
    """A differential campaign of a few thousand characters is enough for each."""
    assert found(mutated(*FAULTS[fault]), small)


def test_a_literal_that_is_not_the_longest_is_seen() -> None:
    """Of two added tokens that start together the longer one counts."""
    tested = made([(b"x", b"y")], raw=("<a", "<a>"))
    source = mutated("if (final[node]) longest", "if (final[node] && !longest) longest")
    of = device("plain", source)
    outcome = run(tested.encoder(of, TINY), tested.reference, iter([[b"xy<a>xy<a<a>"]]), 1)
    assert outcome.differences
    of.close()


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
