"""Every byte-level family: random texts in batches of all sizes, held to the CPU engine and the
reference. ``TOKTIER_TEST_GPU_CHARS=1e7`` is the long form."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from gpu_harness import CHARACTERS, SMALL, device, subject

from toktier_gpu.campaign import SHORT_SIZES, Outcome, run
from toktier_gpu.plan import Limits

BYTE_LEVEL = (
    "qwen3", "llama3", "llama3_1", "gptoss", "deepseek_v3", "deepseek_v4", "gpt4o", "gpt35turbo",
    "claude", "gpt2",
)  # fmt: skip


def check(outcome: Outcome, print_line: str) -> None:
    """No difference, and nearly everything was the device's own work."""
    print(f"{print_line}: {outcome}")
    assert outcome.differences == []
    assert outcome.left_to_cpu < outcome.texts / 4


@pytest.mark.families
@pytest.mark.parametrize("family", BYTE_LEVEL)
def test_batches_of_a_family(family: str, family_file: Callable[[str], Path]) -> None:
    """Long and short texts, empty ones, and batches that fill the buffers to the last byte."""
    tested = subject(family_file(family))
    limits = SMALL if CHARACTERS < 1_000_000 else Limits(bytes=1 << 18, texts=512, buckets=(4096,))
    of = device(mode="shuffled")
    encoder = tested.encoder(of, limits)
    batches = tested.samples(3).batches(limits.bytes, limits.texts)
    check(run(encoder, tested.cpu, batches, CHARACTERS), f"{family} shuffled")
    of.set_mode("preempted", 5)
    short = tested.samples(4, sizes=SHORT_SIZES).batches(limits.bytes // 4, limits.texts)
    check(run(encoder, tested.cpu, short, CHARACTERS // 4), f"{family} preempted")
    check(run(encoder, tested.reference, batches, CHARACTERS // 8), f"{family} against reference")
    of.close()


@pytest.mark.families
@pytest.mark.parametrize("family", BYTE_LEVEL)
def test_code_points(family: str, family_file: Callable[[str], Path]) -> None:
    """Characters alone and between letters, spaces and digits: all of them in the long form,
    every 101st otherwise."""
    tested = subject(family_file(family))
    step = 1 if CHARACTERS >= 1_000_000 else 101
    points = [c for c in range(0, 0x110000, step) if not 0xD800 <= c < 0xE000]
    templates = ("{0}", " {0}a", "1{0}{0} ", "A{0}'s{0}\n")
    texts = [
        "".join(t.format(chr(c)) for c in points[i : i + 40] for t in templates).encode()
        for i in range(0, len(points), 40)
    ]
    of = device()
    encoder = tested.encoder(of, Limits(bytes=1 << 17, texts=128, buckets=()))
    batches = [texts[i : i + 100] for i in range(0, len(texts), 100)]
    outcome = run(encoder, tested.cpu, iter(batches), 1 << 60)
    print(f"{family}: {outcome}")
    assert outcome.differences == []
    assert outcome.texts == len(texts)
    of.close()


@pytest.mark.families
@pytest.mark.parametrize("family", ["llama3_1", "deepseek_v3"])
def test_real_text(
    family: str, family_file: Callable[[str], Path], transcripts: Path | None
) -> None:
    """Sources, documents and transcripts, whole and in pieces of odd sizes."""
    tested = subject(family_file(family))
    here = Path(__file__).resolve().parent
    files = [*here.parent.parent.glob("*.md"), *here.glob("*.py")]
    if transcripts is not None:
        files += [p for p in sorted(transcripts.rglob("*")) if p.is_file()][:6]
    texts = []
    for file in files:
        text = file.read_bytes()[:12_000].decode(errors="ignore")
        texts += [text.encode(), text[100:1097].encode(), text[1:2].encode()]
    of = device()
    encoder = tested.encoder(of)
    outcome = run(encoder, tested.reference, iter([texts]), 1)
    check(outcome, family)
    assert outcome.characters > 20_000
    of.close()
