"""An append costs its window and itself, never the transcript."""

from __future__ import annotations

from pathlib import Path

import pytest

from toktier_stream.bench.generate import generate_session
from toktier_stream.cli.demo_run import run
from toktier_stream.client.replay import find_transcripts, session_of, sessions
from toktier_stream.session.engines import open_tokenizer
from toktier_stream.tokenizer.shipped import shipped_path


async def _demo(file: Path, transcripts: Path | None):
    if transcripts is not None:
        found = list(sessions(find_transcripts([transcripts]), None))
    else:
        found = [session_of(generate_session(i, 20), f"generated-{i}") for i in range(8)]
    entry = open_tokenizer(file)
    return await run(entry, found, verify_rate=0.05, partitions=4, progress=lambda *_: None)


async def test_appends_cost_their_window_and_themselves(transcripts):
    """Real transcripts where there are some, generated ones elsewhere: all ids exact, and at
    least 99 % of the appends tokenize no more than 512 characters beside their own."""
    result = await _demo(shipped_path(), transcripts)
    assert result.exact
    assert result.appends > 100
    assert result.appends_within_window >= 0.99 * result.appends
    assert result.chars_tokenized < result.chars_context / 3


@pytest.mark.families
@pytest.mark.parametrize("family", ["qwen3", "llama3_1", "gptoss", "deepseek_v3"])
async def test_real_families_are_exact_and_cheap(family, family_file, transcripts):
    """The same with the tokenizers that fleets run."""
    result = await _demo(family_file(family), transcripts)
    assert result.exact
    assert result.appends_within_window >= 0.99 * result.appends
