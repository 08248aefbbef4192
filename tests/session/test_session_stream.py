"""Streams: many small appends in a row, exact after each; and the tokens that are said to stay."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from session_harness import LITERALS, PIECES, RUNS, applied, check_session, family, fresh
from tokenizers import normalizers

sys.path.append(str(Path(__file__).parent.parent / "incremental"))
from incremental_texts import piece

from toktier_stream.incremental import tail
from toktier_stream.session import giant, stream
from toktier_stream.session.engines import open_tokenizer
from toktier_stream.session.record import Session
from toktier_stream.session.store import Store
from toktier_stream.tokenizer.encoder import FastEncoder
from toktier_stream.tokenizer.face import Encoder
from toktier_stream.tokenizer.reference import Reference, ReferenceEncoder
from toktier_stream.wire.messages import Route

EXAMPLES = int(os.environ.get("TOKTIER_TEST_SESSION_EXAMPLES", "60"))
APPENDS = int(os.environ.get("TOKTIER_TEST_APPENDS", "200"))
_SETTINGS = settings(
    max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

Pair = tuple[Encoder, ReferenceEncoder]

runs = st.tuples(st.sampled_from(RUNS), st.integers(1, 30)).map(lambda x: x[0] * x[1])
mixed = st.lists(st.sampled_from((*PIECES, *LITERALS)), max_size=8).map("".join)
letters = st.text("abeXq 1.\n'<|", max_size=30)
texts = st.lists(runs | mixed | letters | st.text(max_size=5), max_size=4).map("".join)
widths = st.lists(st.integers(1, 5), min_size=1, max_size=8)


@pytest.fixture(scope="module")
def families(
    encoders: dict[str, Encoder],
    oracles: dict[str, ReferenceEncoder],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Pair]:
    """The made families; "whole" takes some whole words although their merges do not make them,
    "wide" looks for some added tokens in normalized text."""
    found: dict[str, Pair] = {name: (encoders[name], oracles[name]) for name in encoders}
    folder = tmp_path_factory.mktemp("more")
    words = ("aaaaaaa", "77", "ababX", "Ġbbb", "===", "Ġx")
    found["whole"] = family(folder / "whole.json", None, normalized=False, words=words)
    found["wide"] = family(folder / "wide.json", normalizers.NFC(), normalized=True, words=())
    return found


@pytest.fixture
def eager(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream is tried at every small append, with a short open piece, marks beside it."""
    monkeypatch.setattr(stream, "_FIRST", 1)
    monkeypatch.setattr(stream, "_AGAIN", 0)
    monkeypatch.setattr(stream, "SMALL", 24)
    monkeypatch.setattr(tail, "LONG", 60)
    monkeypatch.setattr(tail, "_MARGIN", 1)
    monkeypatch.setattr(tail, "_LOOK", 2)
    monkeypatch.setattr(giant, "GIANT", 60)
    monkeypatch.setattr(giant, "_SPAN", 1)


class Settled:
    """Holds every promise about settled tokens to what comes after it."""

    def __init__(self) -> None:
        self.count = 0
        self.ids: list[int] = []

    def check(self, session: Session, encoder: Encoder) -> int:
        """After an append; how many tokens are not settled."""
        ids = session.ids().tolist()
        assert ids[: self.count] == self.ids
        now = session.find_settled(encoder)
        assert self.count <= now <= len(ids)
        self.count = now
        self.ids = ids[: self.count]
        return len(ids) - self.count


@pytest.mark.parametrize("name", ["plain", "nfc", "nfkc", "whole", "wide", "one piece"])
@given(start=texts, new=texts, steps=widths, data=st.data())
@_SETTINGS
def test_every_small_append_equals_the_reference(
    eager: None, families: dict[str, Pair], name: str, start: str, new: str, steps: list[int],
    data: st.DataObject,
) -> None:  # fmt: skip
    """Text that comes in a few characters at a time, then an edit, then more of it."""
    encoder, oracle = families[name]
    text = start
    session = fresh(encoder, text.encode())
    for turn in range(2):
        settled = Settled()
        settled.check(session, encoder)
        at = i = 0
        while at < len(new):
            part = new[at : at + steps[i % len(steps)]]
            at, i = at + len(part), i + 1
            old = session.ids()
            done = session.edit(encoder, session.bytes, session.bytes, part.encode())
            text += part
            assert applied(old, done) == session.ids().tolist()
            check_session(session, oracle, text.encode())
            settled.check(session, encoder)
        if turn == 0:
            a, b = sorted(data.draw(st.integers(0, len(text))) for _ in range(2))
            session.edit(encoder, len(text[:a].encode()), len(text[:b].encode()), b"x")
            text = text[:a] + "x" + text[b:]
            check_session(session, oracle, text.encode())


def test_small_appends_in_a_row_go_by_a_stream(families: dict[str, Pair]) -> None:
    """From the second on; each encodes about what it appends and nothing of the session is read."""
    encoder, oracle = families["plain"]
    text = "the quick brown fox jumps over the lazy dog. " * 40
    session = fresh(encoder, text.encode())
    routes = []
    for part in ("The", " qu", "ick", " b", "ro", "wn", " ", "f", "ox."):
        done = session.edit(encoder, session.bytes, session.bytes, part.encode())
        text += part
        routes.append(done.route)
        if done.route is Route.STREAM:
            assert done.evidence.chars_encoded <= len(part) + 2
            assert done.evidence.run_tokens > 2
            assert done.evidence.run_chars > encoder.longest_token
    assert routes == [Route.SPLICE, *[Route.STREAM] * 8]
    check_session(session, oracle, text.encode())
    # What is unusual goes the ordinary way, and a stream begins again after a while.
    for part, route in (("<|", Route.STREAM), ("end|>", Route.SPLICE), ("x", Route.SPLICE)):
        assert session.edit(encoder, session.bytes, session.bytes, part.encode()).route is route
        text += part
    for _ in range(12):
        done = session.edit(encoder, session.bytes, session.bytes, b"ab")
        text += "ab"
    assert done.route is Route.STREAM
    check_session(session, oracle, text.encode())


def test_versions_of_a_session_have_streams_of_their_own(
    tmp_path: Path, families: dict[str, Pair]
) -> None:
    """A discarded batch leaves the stream where it was; a reset and an edit end it."""
    encoder, oracle = families["plain"]
    text = "the quick brown fox jumps over the lazy dog. " * 20
    with Store.open(tmp_path / "s", map_bytes=16 << 20) as store:
        batch = store.begin()
        batch.create(b"one").reset(encoder, text.encode())
        store.commit(batch, changelog_offset=0)
        chooser = random.Random(4)
        routes = []
        for turn in range(60):
            batch = store.begin()
            session = batch.session(b"one")
            assert session is not None
            part = chooser.choice((" th", "e", " q", "ab", "1", ".", "\n", "X"))
            changed = text + part
            done = session.edit(encoder, session.bytes, session.bytes, part.encode())
            routes.append(done.route)
            if turn % 20 == 13:
                session.edit(encoder, 3, 9, b"!")
                changed = changed[:3] + "!" + changed[9:]
            check_session(session, oracle, changed.encode())
            if chooser.random() < 0.3:
                batch.discard()
            else:
                store.commit(batch, changelog_offset=turn)
                text = changed
        assert routes.count(Route.STREAM) > 30


@pytest.mark.parametrize("name", ["plain", "nfc", "whole", "wide"])
def test_versions_that_go_on_from_one_state_do_not_meet(
    families: dict[str, Pair], name: str
) -> None:
    """In threads, too: the state of a version is never written to."""
    encoder, oracle = families[name]
    chooser = random.Random(name)
    for start in ("the lazy dog " * 50, "ab" * 3000, "aXbq" * 1200, "a" * 9000, "1234567" * 900):
        session = fresh(encoder, start.encode())
        text = start
        for new in ("ab", "qX", "a" * 700):
            session.edit(encoder, session.bytes, session.bytes, new.encode())
            text += new
        state = session._stream
        before = None if state is None or state.tail is None else state.tail.block.copy()

        def go_on(seed: int, version: Session, grown: str) -> tuple[list[int], str]:
            rng = random.Random(seed)
            for _ in range(12):
                new = "".join(rng.choices("abqX1 ", k=rng.choice((1, 3, 900))))
                version.edit(encoder, version.bytes, version.bytes, new.encode())
                grown += new
            return version.ids().tolist(), grown

        with ThreadPoolExecutor(4) as pool:
            versions = [session.fork() for _ in range(8)]
            seeds = chooser.sample(range(1000), 8)
            for ids, grown in pool.map(go_on, seeds, versions, [text] * 8):
                assert ids == oracle.encode(grown.encode()).ids.tolist()
        if state is not None and state.tail is not None:
            assert before is not None
            assert state.tail.block.tolist() == before.tolist()


@pytest.mark.parametrize("name", ["plain", "nfc", "whole"])
def test_large_appends_to_walls_equal_the_reference(families: dict[str, Pair], name: str) -> None:
    """Long pieces and many short ones, in steps of every size, other text in between."""
    encoder, oracle = families[name]
    chooser = random.Random(name)
    for few in ("ab", "aXbq", "1", "1a", "abq 1.\n", "é漢a"):
        text = "".join(chooser.choices(few, k=6000))
        session = fresh(encoder, text.encode())
        settled, routes = Settled(), []
        for _ in range(40):
            new = "".join(chooser.choices(few, k=chooser.choice((1, 4, 60, 255, 1000, 2500))))
            if chooser.random() < 0.1:
                new += chooser.choice((" the fox. ", "\n\n", "<|end", "e\u0301", "<|end|>"))
            old = session.ids()
            done = session.edit(encoder, session.bytes, session.bytes, new.encode())
            text += new
            routes.append(done.route)
            assert applied(old, done) == session.ids().tolist()
            check_session(session, oracle, text.encode())
            settled.check(session, encoder)
        assert Route.STREAM in routes


@pytest.mark.parametrize("name", ["plain", "nfc", "whole"])
def test_settled_tokens_follow_closely(families: dict[str, Pair], name: str) -> None:
    """On ordinary text no more than a few tokens are open, streamed or not; in a giant piece a
    bounded number."""
    encoder, _ = families[name]
    chooser = random.Random(name)
    words = ["the", "fox", "it's", "lazy,", "brown.\n", "12", "émile", "(x)", "don't"]
    for step in (3, 400):
        session = fresh(encoder, b"the ")
        settled, behind = Settled(), []
        for _ in range(200):
            new = " ".join(chooser.choices(words, k=60 if step > 3 else 1))[:step] + " "
            session.edit(encoder, session.bytes, session.bytes, new.encode())
            behind.append(settled.check(session, encoder))
        assert sorted(behind)[len(behind) // 2] <= 4
        assert max(behind) <= 16
    session = fresh(encoder, b"a" * 30_000)
    settled = Settled()
    for _ in range(30):
        session.edit(encoder, session.bytes, session.bytes, b"qX" * 200)
        assert settled.check(session, encoder) < 600


FAMILIES = ("qwen3", "llama3_1", "gptoss", "deepseek_v3", "gpt35turbo", "gpt2", "gpt4o")


@pytest.mark.families
@pytest.mark.parametrize("family", FAMILIES)
def test_real_families(family_file: Callable[[str], Path], family: str) -> None:
    """TOKTIER_TEST_APPENDS: how many appends of 1 to 5 characters, each against the whole text:
    prose, code, CJK, emoji, marks, random Unicode, added tokens whole and split."""
    entry = open_tokenizer(family_file(family))
    encoder = entry.encoder
    assert isinstance(encoder, FastEncoder)
    reference = Reference(entry.artifact)
    tags = [t.content for t in entry.artifact.added_tokens[:60]]
    chooser = random.Random(family)
    done = streamed = 0
    while done < APPENDS:
        text = piece(chooser, tags) * 2
        session = fresh(encoder, text.encode())
        settled = Settled()
        while len(text) < 1000:
            new, at = piece(chooser, tags), 0
            while at < len(new):
                part = new[at : at + chooser.randint(1, 5)]
                at += len(part)
                old = session.ids()
                change = session.edit(encoder, session.bytes, session.bytes, part.encode())
                text += part
                expected = reference.ids(text).tolist()
                assert applied(old, change) == expected
                assert session.ids().tolist() == expected
                settled.check(session, encoder)
                done += 1
                streamed += change.route is Route.STREAM
    assert streamed > done // 10
