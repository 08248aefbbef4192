"""The compiled splice of an append against the same by single steps."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from session_harness import LITERALS, PIECES, RUNS, check_session, family, fresh
from tokenizers import normalizers

from toktier_stream.session import settled, splice
from toktier_stream.session.appending import appender_of
from toktier_stream.session.spliced import Splice
from toktier_stream.tokenizer.encoder import FastEncoder
from toktier_stream.tokenizer.face import Encoder
from toktier_stream.tokenizer.reference import ReferenceEncoder

EXAMPLES = int(os.environ.get("TOKTIER_TEST_SESSION_EXAMPLES", "60"))
_SETTINGS = settings(
    max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

Pair = tuple[Encoder, ReferenceEncoder]

runs = st.tuples(st.sampled_from(RUNS), st.integers(1, 30)).map(lambda x: x[0] * x[1])
mixed = st.lists(st.sampled_from((*PIECES, *LITERALS)), max_size=20).map("".join)
words = st.lists(st.sampled_from(("the ", "pipe", " line", "語 ", "é, ", "\n")), max_size=30)
texts = st.lists(runs | mixed | words.map("".join), max_size=4).map("".join)


@pytest.fixture(scope="module")
def families(
    encoders: dict[str, Encoder],
    oracles: dict[str, ReferenceEncoder],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Pair]:
    """The made families; "wide" looks for some added tokens in normalized text."""
    found: dict[str, Pair] = {name: (encoders[name], oracles[name]) for name in encoders}
    path = tmp_path_factory.mktemp("wide") / "wide.json"
    found["wide"] = family(path, normalizers.NFC(), normalized=True, words=())
    return found


def told(found: Splice) -> tuple[object, ...]:
    """All that both ways say of a splice."""
    end = found.end
    assert end is not None
    return (
        found.keep, found.ids.tolist(), found.lengths.tolist(), found.tail, found.begin, found.stop,
        bytes(found.text), found.route, found.evidence, found.digest, found.grown,
        end.byte, end.token, end.ids.tolist(), end.lengths.tolist(), bytes(end.text),
    )  # fmt: skip


@pytest.mark.parametrize("name", ["plain", "nfc", "nfkc", "wide"])
@given(old=texts, parts=st.lists(texts, min_size=1, max_size=4))
@_SETTINGS
def test_the_compiled_splice_is_that_of_single_steps(
    small: None, families: dict[str, Pair], name: str, old: str, parts: list[str]
) -> None:
    """Append by append, with what it says about settled tokens; and the session is exact."""
    encoder, oracle = families[name]
    assert isinstance(encoder, FastEncoder)
    longest = encoder.longest_token
    window = max(splice.FIRST_WINDOW, 2 * longest)
    text = old
    session = fresh(encoder, text.encode())
    for part in parts:
        new, size = part.encode(), session.bytes
        view = session.view(max(0, size - window), size)
        found = appender_of(encoder).splice(size, session.digest, view, new, window)
        slow = splice.behind_window(session, view, encoder, new, window, longest)
        if found is not None:
            assert slow is not None
            assert told(found) == told(slow)
        elif name == "plain":
            # Elsewhere it leaves what normalization may change.
            assert slow is None
        session.edit(encoder, size, size, new)
        text += part
        check_session(session, oracle, text.encode())
        if found is not None and found.settled is not None:
            counted = settled.by_cut(session, encoder, ())
            assert max(found.settled, 0) == counted


def test_most_appends_are_spliced_so(families: dict[str, Pair]) -> None:
    """Prose, also where characters are wide."""
    encoder, _ = families["nfc"]
    assert isinstance(encoder, FastEncoder)
    for text in ("the quick brown fox, don't stop. " * 40, "日本語の文字。the 中文,標点! " * 40):
        session = fresh(encoder, text.encode())
        size, window = session.bytes, 512
        view = session.view(size - 4 * window, size)
        new = text[:300].encode()
        found = appender_of(encoder).splice(size, session.digest, view, new, window)
        assert found is not None
        assert found.evidence.window_chars == window
