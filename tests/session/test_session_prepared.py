"""A text encoded ahead, in any way, gives the session that a reset in place gives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from session_harness import PIECES, check_session

from toktier_stream.session import kernels
from toktier_stream.session.engines import open_registry
from toktier_stream.session.machine import Limits, Machine
from toktier_stream.session.page import Content, cut, encode
from toktier_stream.session.prepared import _pages, prepare
from toktier_stream.session.store import Store
from toktier_stream.tokenizer.face import Encoder, Tokens
from toktier_stream.tokenizer.shipped import shipped_path
from toktier_stream.wire.messages import AppendEvent, Close, Edit, Reset, Route, Status

TEXT = (" words and ".join(PIECES) * 30).encode()


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("name", ["nfc", "plain", "nfkc", "one piece"])
def test_every_encoder(
    small: None, store: Store, encoders: dict[str, Encoder], name: str, threads: int
) -> None:
    """Ids, lengths, pages and every-prefix marks: an append goes on from each alike."""
    encoder = encoders[name]
    for text in (b"", b"x", TEXT):
        session = store.begin().create(b"session")
        change = session.reset(encoder, text, prepared=prepare(encoder, text, threads=threads))
        assert (change.keep, change.tail, change.route) == (0, 0, Route.CPU)
        assert change.evidence.chars_encoded == len(text.decode())
        check_session(session, encoder, text)
        session.edit(encoder, len(text), len(text), b" and more\n")
        check_session(session, encoder, text + b" and more\n")


@given(
    words=st.lists(st.tuples(st.integers(0, 1 << 18), st.integers(0, 5000)), max_size=1500),
    short=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_pages_are_those_that_are_cut(words: list[tuple[int, int]], *, short: bool) -> None:
    """A full text's pages are written in one pass: each as its content would be, whatever the
    tokens' lengths; where one token is larger than a page, they are cut."""
    ids = np.array([i for i, _ in words], dtype=np.uint32)
    lengths = np.array([n % 9 if short else n for _, n in words], dtype=np.uint32)
    text = b"x" * int(lengths.sum())
    pages = _pages(Tokens(ids, lengths), text)
    contents = list(cut(ids, lengths, text, even=False))
    records = [encode(p) if isinstance(p, Content) else p[-1] for p in pages]
    assert records == [encode(c) for c in contents]
    for page, content in zip(pages, contents, strict=True):
        if not isinstance(page, Content):
            digest = kernels.extend(0, content.ids)
            assert page[:3] == (len(content.ids), len(content.text), len(content.text))
            assert page[3] in (0, digest)  # 0: the last one's, which is found when it is asked for


def test_tokens_of_a_device(store: Store, encoder: Encoder) -> None:
    """Ids and lengths from elsewhere, with the route they came by."""
    prepared = prepare(encoder, TEXT, tokens=encoder.encode(TEXT), route=Route.GPU)
    session = store.begin().create(b"session")
    change = session.reset(encoder, TEXT, prepared=prepared)
    assert change.route is Route.GPU
    assert change.evidence.chars_encoded == len(TEXT.decode())
    check_session(session, encoder, TEXT)


def test_the_encoding_of_something_else_is_not_used(
    store: Store, encoders: dict[str, Encoder]
) -> None:
    """Another text, or another tokenizer's tokens: the text is encoded here."""
    encoder = encoders["plain"]
    for prepared in (prepare(encoder, b"another text"), prepare(encoders["nfkc"], TEXT)):
        session = store.begin().create(b"session")
        session.reset(encoder, TEXT, prepared=prepared)
        check_session(session, encoder, TEXT)


def test_what_a_machine_would_encode(store: Store) -> None:
    """Only a reset that will be applied is worth encoding ahead; with it or without, the answer
    is the same."""
    registry = open_registry({"shipped": shipped_path()})
    machine = Machine(registry, Limits(max_session_bytes=1 << 20))
    entry = registry.resolve("shipped")
    batch = store.begin()
    reset = AppendEvent("session", 3, Reset(TEXT), tokenizer="shipped")

    assert machine.full_text(batch, reset) is entry
    assert machine.full_text(batch, replace(reset, op=Edit(TEXT))) is None
    assert machine.full_text(batch, replace(reset, op=Close())) is None
    assert machine.full_text(batch, replace(reset, tokenizer="unknown")) is None
    assert machine.full_text(batch, replace(reset, op=Reset(b"x" * (1 << 20) + b"y"))) is None

    prepared = prepare(entry.encoder, TEXT)
    ahead = machine.apply(batch, reset, 1, prepared)
    batch.discard()
    batch = store.begin()
    here = machine.apply(batch, reset, 1)
    assert ahead.status is Status.OK
    assert replace(ahead, timings=None) == replace(here, timings=None)

    assert machine.full_text(batch, reset) is None, "seen before"
    assert machine.full_text(batch, replace(reset, revision=4, expect_bytes=7)) is None, "conflict"
    assert machine.full_text(batch, replace(reset, revision=9)) is entry, "a reset may skip some"
