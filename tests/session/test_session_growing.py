"""Sessions of families without cuts: exact, and appends that cost what they append."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from session_harness import LETTERS, applied, artifact, check_session, fresh, spec

from toktier_stream.incremental.change import Settled
from toktier_stream.incremental.families import OnePieceEncoder
from toktier_stream.session import growing
from toktier_stream.session.store import Store
from toktier_stream.tokenizer.artifact import Artifact
from toktier_stream.tokenizer.face import Encoder
from toktier_stream.tokenizer.reference import Reference, ReferenceEncoder
from toktier_stream.wire.messages import Route

_SETTINGS = settings(
    max_examples=int(os.environ.get("TOKTIER_TEST_EXAMPLES", "60")),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

MADE = {
    prepend: (
        OnePieceEncoder(artifact(spec(prepend))),
        ReferenceEncoder(Reference(artifact(spec(prepend)))),
    )
    for prepend in (True, False)
}

texts = st.text(LETTERS, max_size=20) | st.lists(
    st.sampled_from(["<s>", "</s>", "<a", "b>", "\n\n", "▁▁", " ", "é<", "abab", "cccc", "ab a "]),
    max_size=8,
).map("".join)
steps = st.lists(
    st.tuples(st.integers(0, 1000), st.integers(0, 1000), texts, st.booleans()), max_size=8
)


@pytest.mark.parametrize("prepend", [True, False])
@given(start=texts, todo=steps)
@_SETTINGS
def test_every_change_equals_the_reference(
    small: None, prepend: bool, start: str, todo: list[tuple[int, int, str, bool]]
) -> None:
    """Appends, truncations and edits, with small pages and marks close to each other."""
    encoder, reference = MADE[prepend]
    text = start * 8
    session = fresh(encoder, text.encode())
    for x, y, new, append in todo:
        a, b = sorted(len(text) * v // 1000 for v in (x, y))
        if append:
            a = b = len(text)
        elif x % 3 == 0:
            b = len(text)
        before = session.ids()
        start_byte, end_byte = len(text[:a].encode()), len(text[:b].encode())
        change = session.edit(encoder, start_byte, end_byte, new.encode())
        text = text[:a] + new + text[b:]
        check_session(session, reference, text.encode())
        assert applied(before, change) == session.ids().tolist()


def test_appends_cost_what_they_append() -> None:
    """However long the text is; the mark stands in the evidence and in the header."""
    encoder, reference = MADE[True]
    session = fresh(encoder, b"ab aab <a> b\n\n " * 4000)
    text = session.text()
    session.edit(encoder, len(text), len(text), b" ab" * 100)
    for step in range(60):
        text = session.text()
        change = session.edit(encoder, len(text), len(text), b" ab aa\n\nb" * (1 + step % 7))
        assert change.route is Route.SPLICE
        assert 0 < change.evidence.boundary_byte < len(text)
        assert change.evidence.chars_encoded < 3000
        assert len(change.ids) < 200
    assert 1 <= len(session.header().marks) < 12
    check_session(session, reference, session.text())


def test_marks_are_stored(tmp_path: Path) -> None:
    """A session goes on from its marks after a restart."""
    encoder, reference = MADE[False]
    for part in range(4):
        with Store.open(tmp_path / "s", map_bytes=16 << 20) as store:
            batch = store.begin()
            session = batch.session(b"one")
            if session is None:
                session = batch.create(b"one")
                session.reset(encoder, b"ab aab <a> b\n\n " * 500)
            else:
                change = session.edit(encoder, session.bytes, session.bytes, b" aab" * 200)
                assert (change.route is Route.SPLICE) or part == 1
                check_session(session, reference, session.text())
            marks = session.header().marks
            store.commit(batch, changelog_offset=part)
            again = store._stored(b"one")
            assert again is not None
            assert again.header().marks == marks


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=300))
def test_few_marks_at_growing_distances(sizes: list[int]) -> None:
    """The newest is kept, their number is logarithmic, and there is one at any distance, within a
    factor."""
    marks: growing.Marks = ()
    end = 0
    for size in sizes:
        end += size
        marks = growing.thin((*marks, Settled(end, end, inside=False, since=end)), end)
        assert marks[-1].size == end
        assert list(marks) == sorted(marks, key=lambda m: m.size)
    assert len(marks) <= 2 + 2 * max(1, end.bit_length())


@pytest.mark.families
@pytest.mark.parametrize("family", ["gemma3", "llama2"])
def test_real_families(
    family_file: Callable[[str], Path], transcripts: Path | None, family: str
) -> None:
    """Real text in appends, and a truncation now and then; held to the reference."""
    loaded = Artifact.load(family_file(family))
    encoder: Encoder = OnePieceEncoder(loaded)
    reference = Reference(loaded)
    source = __doc__ * 5 if transcripts is None else (transcripts / "README.md").read_text() * 5
    source += "日本語、中文。👩‍💻 \t\tthe end\n\n\n" * 3
    text = source[:700]
    session = fresh(encoder, text.encode())
    at = 700
    for step in range(14):
        new = source[at : at + 30 * (step + 1)]
        at += len(new)
        keep = len(text) - (37 if step % 4 == 3 else 0)
        before = session.ids()
        change = session.edit(encoder, len(text[:keep].encode()), session.bytes, new.encode())
        text = text[:keep] + new
        assert session.ids().tolist() == reference.ids(text).tolist()
        assert applied(before, change) == session.ids().tolist()
