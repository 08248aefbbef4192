"""Generated sessions: reproducible, sized as measured, varied, never one block repeated."""

from __future__ import annotations

import hashlib
import itertools
import json
import unicodedata
from random import Random

import pytest

from toktier_stream.bench.generate import (
    append_chars,
    generate_appends,
    generate_context,
    generate_session,
)
from toktier_stream.client.transcripts import Format, render, turns

PINNED = "621c96e5c112c163b65670802a494818ac79352815d2a7dccf581b2089f99b74"


def test_a_seed_is_a_session() -> None:
    """The same text on every machine and Python version, and another one for another seed."""
    text = generate_context(1, 100_000)
    assert hashlib.sha256(text.encode()).hexdigest() == PINNED
    assert generate_context(2, 100_000)[:1000] != text[:1000]


def test_append_sizes_are_the_measured_ones() -> None:
    """Median 1.4 K, P90 9 to 14 K, P99 38 K; 0.8 % reach 50 K and 0.5 % reach 100 K."""
    rng = Random(0)
    sizes = sorted(append_chars(rng) for _ in range(50_000))
    assert 1300 <= sizes[25_000] <= 1500
    assert 9_000 <= sizes[45_000] <= 14_000
    assert 34_000 <= sizes[49_500] <= 42_000
    assert 0.006 <= sum(size >= 50_000 for size in sizes) / len(sizes) <= 0.010
    assert 0.003 <= sum(size >= 100_000 for size in sizes) / len(sizes) <= 0.007


def test_rendered_appends_have_those_sizes() -> None:
    """What a call adds, markers and arguments included, is as long as was drawn."""
    sizes = sorted(
        len(text) for seed in range(4) for text in itertools.islice(generate_appends(seed), 1, 400)
    )
    assert 1200 <= sizes[len(sizes) // 2] <= 1700
    assert 8_000 <= sizes[len(sizes) * 9 // 10] <= 15_000
    assert sizes[0] < 200


def test_a_session_grows_call_by_call() -> None:
    """Each call's text begins with the one before it; messages are well formed."""
    session = generate_session(3, 40)
    assert session.format is Format.GENERATED
    texts = [render(call) for call in turns(session)]
    assert len(texts) == 40
    assert all(b.startswith(a) and len(b) > len(a) for a, b in itertools.pairwise(texts))
    assert "".join(itertools.islice(generate_appends(3), 40)) == texts[-1]
    *_, messages = turns(session)
    assert [m["role"] for m in messages[:2]] == ["system", "user"]
    calls = [c for m in messages for c in m.get("tool_calls", ())]
    results = [m["tool_call_id"] for m in messages if m["role"] == "tool"]
    assert [c["id"] for c in calls] == results
    assert all(isinstance(json.loads(c["function"]["arguments"]), dict) for c in calls)


def test_a_full_context_is_compacted() -> None:
    """Past the limit a call starts over: the system prompt stays, a summary follows."""
    session = generate_session(4, 60, compact_above=60_000)
    rewritten = [turn for turn in session.turns[1:] if turn.keep == 1]
    assert rewritten
    assert all(turn.messages[0]["content"].startswith("Summary") for turn in rewritten)
    lengths = [len(render(call)) for call in turns(session)]
    assert sum(b < a for a, b in itertools.pairwise(lengths)) == len(rewritten)


@pytest.mark.parametrize("chars", [0, 1, 999, 250_000])
def test_a_context_has_exactly_the_length(chars: int) -> None:
    """Benchmarks compare sizes, so they are exact."""
    text = generate_context(7, chars)
    assert len(text) == chars
    assert generate_context(7, chars + 100).startswith(text)


def test_everything_a_tokenizer_stumbles_on_is_there() -> None:
    """CR/LF, tabs, lone CR, escapes, emoji, several scripts, text that NFC changes, markers."""
    text = generate_context(1, 1_500_000)
    for part in ("\r\n", "\t", "\x1b[", "\U0001f680", "\u200d", "  ", "\\n"):
        assert part in text
    for script in ("CYRILLIC", "GREEK", "ARABIC", "HEBREW", "DEVANAGARI", "THAI", "CJK", "HANGUL"):
        assert any(unicodedata.name(c, "").startswith(script) for c in set(text)), script
    assert unicodedata.normalize("NFC", text) != text
    assert text.count("<|im_end|>") > 100
    assert "<tool_call>" in text
    assert "<|endoftext|>" in text


def test_a_long_context_is_not_one_block_repeated() -> None:
    """Nearly every stretch of 128 characters is unique, and stretches of 64 characters from the
    second half do not stand in the first."""
    text = generate_context(2, 4_000_000)
    windows = [text[i : i + 128] for i in range(0, len(text) - 128, 128)]
    assert len(set(windows)) > 0.98 * len(windows)
    half = text[:2_000_000]
    samples = [text[i : i + 64] for i in range(2_000_000, 4_000_000 - 64, 10_007)]
    assert sum(sample in half for sample in samples) < 0.05 * len(samples)
