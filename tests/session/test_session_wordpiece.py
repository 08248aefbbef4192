"""Sessions over WordPiece: windows encoded by the reference, spliced at derived cuts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from session_harness import check_session

sys.path.append(str(Path(__file__).parent.parent / "tokenizer"))
from wordpiece_samples import bert_spec, encoder_of, entry_of, texts

from toktier_stream.session.store import Store
from toktier_stream.tokenizer.reference import ReferenceEncoder
from toktier_stream.tokenizer.wordpiece import WordPieceEncoder
from toktier_stream.wire.messages import Route


@pytest.fixture(scope="module", params=["uncased", "cased"])
def encoder(request: pytest.FixtureRequest) -> WordPieceEncoder:
    """A small BERT."""
    return encoder_of(entry_of(bert_spec(lowercase=request.param == "uncased")))


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    start=st.lists(texts, max_size=6).map(" ".join),
    edits=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 40), texts), max_size=6),
)
def test_random_edits(
    small: None,
    store: Store,
    encoder: WordPieceEncoder,
    start: str,
    edits: list[tuple[float, int, str]],
) -> None:
    """Appends and edits anywhere, of words, white space only, marks and literals' parts."""
    oracle = ReferenceEncoder(encoder.reference)
    session = store.begin().create(b"session")
    session.reset(encoder, start.encode())
    text = start
    for place, gone, new in edits:
        first = round(place * len(text))
        last = min(len(text), first + gone)
        low, high = len(text[:first].encode()), len(text[:last].encode())
        session.edit(encoder, low, high, new.encode())
        text = text[:first] + new + text[last:]
        check_session(session, oracle, text.encode())


def test_a_long_session_is_spliced(store: Store, encoder: WordPieceEncoder) -> None:
    """An append to a long text and an edit in its middle encode a window, not the text."""
    text = "the quick brown fox, and 23 more words; " * 500
    session = store.begin().create(b"session")
    session.reset(encoder, text.encode())
    oracle = ReferenceEncoder(encoder.reference)
    for at in (len(text), len(text) // 2):
        change = session.edit(encoder, at, at, b" and more of it")
        text = text[:at] + " and more of it" + text[at:]
        assert change.route is Route.SPLICE
        assert change.evidence.engine == encoder.engine
        assert change.evidence.chars_encoded < 2_000
        check_session(session, oracle, text.encode())
