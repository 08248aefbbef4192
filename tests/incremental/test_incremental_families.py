"""Gemma 3 and Llama 2 as they are published: sessions against the reference after every change."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from incremental_texts import CODE, PROSE, piece
from test_incremental_stream import Consumer

from toktier_stream.incremental.families import OnePieceEncoder, OnePieceSession, refusal
from toktier_stream.tokenizer.artifact import Artifact
from toktier_stream.tokenizer.reference import Reference

pytestmark = pytest.mark.families

APPENDS = int(os.environ.get("TOKTIER_TEST_APPENDS", "400"))

Family = tuple[OnePieceEncoder, Reference, list[str]]


@pytest.fixture(scope="module", params=["llama2", "gemma3"])
def family(request: pytest.FixtureRequest, family_file: Callable[[str], Path]) -> Family:
    """Encoder, reference, and the added tokens (of thousands of unused ones a few)."""
    artifact = Artifact.load(family_file(request.param))
    tags = [t.content for t in artifact.added_tokens if not t.content.startswith("<unused")]
    tags += ["<unused1>", "<unused12>", "<unused123>"]
    return OnePieceEncoder(artifact), Reference(artifact), tags


def _edit(
    rng: random.Random, session: OnePieceSession, consumer: Consumer, text: str, new: str
) -> str:
    a = rng.randint(0, len(text))
    b = min(len(text), a + rng.choice((0, 1, 5, 50)))
    change = session.edit(len(text[:a].encode()), len(text[:b].encode()), new.encode())
    consumer.apply(change)
    return text[:a] + new + text[b:]


@pytest.mark.parametrize("edits", [0.0, 0.4])
def test_sessions_equal_the_reference(family: Family, edits: float) -> None:
    """TOKTIER_TEST_APPENDS sets how many changes are checked, each against the whole text."""
    encoder, reference, tags = family
    rng = random.Random(f"one piece {edits}")
    done = 0
    while done < APPENDS:
        session, consumer, text = encoder.session(), Consumer(), ""
        room = rng.choice((200, 1000, 3000))
        while len(text) < room:
            done += 1
            new = piece(rng, tags)
            if text and rng.random() < edits:
                text = _edit(rng, session, consumer, text, new[: rng.choice((0, 1, 20, 100))])
            else:
                consumer.apply(session.append(new.encode()))
                text += new
            expected = reference.encode(text.encode())
            assert consumer.ids == expected.ids.tolist()
            assert consumer.lengths == expected.lengths.tolist()
        assert session.text() == text.encode()


def test_a_long_text_is_encoded_as_the_reference_does(family: Family) -> None:
    encoder, reference, tags = family
    rng = random.Random(3)
    text = PROSE[:20_000] + CODE[:20_000] + "".join(piece(rng, tags) for _ in range(200))
    found, expected = encoder.encode(text.encode()), reference.encode(text.encode())
    assert found.ids.tolist() == expected.ids.tolist()
    assert found.lengths.tolist() == expected.lengths.tolist()


def test_a_session_resumed_from_its_settled_mark_goes_on_exactly(family: Family) -> None:
    """All that has to be kept of a session is three numbers and a short tail of text."""
    encoder, reference, tags = family
    rng = random.Random(9)
    session, text, kept = encoder.session(), "", 0
    for _ in range(60):
        new = piece(rng, tags)
        session.append(new.encode())
        text += new
        mark = session.settled()
        tail = text.encode()[mark.size :]
        kept = max(kept, len(tail))
        session = OnePieceSession.resume(encoder, mark, tail)
        expected = reference.ids(text).tolist()
        assert session.tokens().ids.tolist() == expected[mark.tokens :]
        assert session.count == len(expected)
    assert kept < 1000


def test_an_append_changes_few_old_tokens(family: Family) -> None:
    encoder, _, tags = family
    rng = random.Random(4)
    session = encoder.session()
    for _ in range(2000):
        assert session.append(piece(rng, tags).encode()).dropped <= 8


@pytest.mark.parametrize("name", ["qwen3", "bert"])
def test_other_families_are_refused(name: str, family_file: Callable[[str], Path]) -> None:
    assert refusal(Artifact.load(family_file(name)))
