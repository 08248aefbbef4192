"""Real byte-level vocabularies: growing pieces against the reference engine without its regex."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from incremental_texts import CODE, PROSE, piece
from test_incremental_stream import Consumer
from tokenizers import Tokenizer

from toktier_stream.incremental import selftest
from toktier_stream.incremental.search import Search
from toktier_stream.incremental.state import State
from toktier_stream.incremental.stream import PieceStream
from toktier_stream.incremental.tables import Tables

pytestmark = pytest.mark.families

NAMES = ("gpt2", "gpt35turbo", "qwen3", "llama3_1", "gptoss")
APPENDS = int(os.environ.get("TOKTIER_TEST_APPENDS", "400"))


def _load(path: Path) -> tuple[Tables, Tokenizer]:
    """The tables, and the reference engine with the same model and the text as one piece."""
    spec = json.loads(path.read_bytes())
    tables = selftest.load(spec)
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    spec |= {"normalizer": None, "added_tokens": [], "post_processor": None}
    spec |= {"pre_tokenizer": {**level, "use_regex": False}}
    return tables, Tokenizer.from_str(json.dumps(spec))


@pytest.fixture(scope="module", params=NAMES)
def family(
    request: pytest.FixtureRequest, family_file: Callable[[str], Path]
) -> tuple[Tables, Tokenizer]:
    return _load(family_file(request.param))


def _words(t: Tables, rng: random.Random, count: int) -> list[str]:
    """Random vocabulary strings that are whole characters."""
    nodes = rng.sample(range(1, t.forest.nodes + 1), count)
    symbols = selftest.spell(t, np.array(nodes, dtype=np.int32))
    words = bytes(256 + s if s < 0 else s for s in symbols.tolist()).split(b"\xff")
    return [w.decode() for w in words if w and _is_text(w)]


def _is_text(word: bytes) -> bool:
    try:
        word.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_growing_pieces_equal_the_reference(family: tuple[Tables, Tokenizer]) -> None:
    """TOKTIER_TEST_APPENDS sets how many appends are checked, each against the whole piece."""
    tables, reference = family
    rng = random.Random(7)
    # Strings that win as whole pieces (ignore_merges) first: they matter at a piece's very end.
    whole = [w.decode() for w in tables.whole if _is_text(w)]
    tags = _words(tables, rng, 3000) + whole[:300]
    done = 0
    while done < APPENDS:
        stream, consumer, text = PieceStream(tables), Consumer(), ""
        if whole:
            word = rng.choice(whole)
            cut = rng.randrange(len(word))
            consumer.apply(stream.append(word[:cut].encode()))
            text = word[:cut]
            todo = [word[cut:]]
        else:
            todo = []
        while len(text) < 1500:
            new = todo.pop() if todo else piece(rng, tags)
            consumer.apply(stream.append(new.encode()))
            text += new
            done += 1
            assert consumer.ids == reference.encode(text).ids
            assert sum(consumer.lengths) == len(text.encode()) == len(stream)
            if rng.random() < 0.1:
                text = text[: rng.randrange(len(text) + 1)]
                consumer.apply(stream.rewind(len(text.encode())))
                assert consumer.ids == reference.encode(text).ids


def test_all_searches_agree_on_every_byte(family: tuple[Tables, Tokenizer]) -> None:
    tables, _ = family
    rng = random.Random(5)
    words = "".join(_words(tables, rng, 2000))
    runs = "".join(rng.choice("a \n=-0") * rng.randrange(1, 300) for _ in range(80))
    parts = [PROSE[:60_000], CODE[:60_000], words, runs]
    data = b"".join(p.encode() for p in parts) + rng.randbytes(40_000)
    symbols = np.frombuffer(data, dtype=np.uint8)
    walked = State(tables, Search.WALK)
    walked.extend(symbols)
    for search in Search:
        state = State(tables, search)
        state.extend(symbols)
        assert np.array_equal(state.theta, walked.theta), search


def test_settled_tokens_of_real_text_stay(family: tuple[Tables, Tokenizer]) -> None:
    """And a stream resumed there, with nothing of what came before, goes on alike."""
    tables, reference = family
    text = PROSE[5000:9000] + CODE[:4000]
    final = reference.encode(text).ids
    stream = PieceStream(tables)
    behind = []
    for start in range(0, len(text), 97):
        stream.append(text[start : start + 97].encode())
        mark = stream.settled()
        assert stream.tokens().ids[: mark.tokens].tolist() == final[: mark.tokens]
        again = PieceStream.resume(tables, mark, text.encode()[mark.size :])
        assert again.tokens().ids.tolist() == final[mark.tokens :]
        behind.append(len(stream) - mark.size)
    assert np.median(behind) <= 16
