"""Hypothesis strategies for every message, shared by the wire's tests."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from toktier_stream.errors import Code
from toktier_stream.wire.messages import (
    AppendEvent,
    CheckRecord,
    Close,
    Edit,
    Evidence,
    Operation,
    Reject,
    Reset,
    Route,
    Status,
    Timings,
    TokenUpdate,
    Verdict,
)

I64 = (1 << 63) - 1
U64 = (1 << 64) - 1

session_ids = st.text(min_size=1, max_size=120)
"""At most 480 bytes: 120 characters of 4."""
names = st.text(max_size=120)
texts = st.text(max_size=200).map(str.encode)
counts = st.integers(0, I64)
sometimes = st.booleans()


@st.composite
def edits(draw: st.DrawFn) -> Edit:
    """An append, or a replacement with ordered offsets."""
    if draw(st.booleans()):
        return Edit(draw(texts))
    start = draw(counts)
    return Edit(draw(texts), start, draw(st.integers(start, I64)))


operations: st.SearchStrategy[Operation] = st.one_of(texts.map(Reset), edits(), st.just(Close()))

events = st.builds(
    AppendEvent,
    session_id=session_ids,
    revision=st.integers(1, I64),
    op=operations,
    request_id=names,
    tokenizer=names,
    expect_bytes=st.none() | st.integers(-I64 - 1, I64),
    expect_digest=st.none() | st.integers(0, U64),
    sent_at_us=st.integers(-I64 - 1, I64),
    want_full=st.booleans(),
)

positions = st.integers(-1, I64)

evidences = st.builds(
    Evidence,
    window_chars=counts,
    widenings=counts,
    fallback=st.booleans(),
    boundary_byte=positions,
    run_tokens=counts,
    run_chars=counts,
    right_boundary_byte=positions,
    right_run_tokens=counts,
    chars_encoded=counts,
    engine=names,
)


@st.composite
def _settled(draw: st.DrawFn, update: TokenUpdate) -> TokenUpdate:
    return replace(update, settled=draw(st.integers(0, update.total_tokens)))


updates = st.builds(
    TokenUpdate,
    session_id=session_ids,
    revision=st.integers(1, I64),
    status=st.sampled_from(Status),
    request_id=names,
    tokenizer=names,
    code=st.none() | st.sampled_from(Code),
    message=st.text(max_size=80),
    keep=counts,
    token_ids=st.lists(st.binary(min_size=4, max_size=4), max_size=40).map(b"".join),
    tail=counts,
    total_tokens=counts,
    total_bytes=counts,
    digest=st.integers(0, U64),
    session_revision=counts,
    route=st.sampled_from(Route),
    evidence=st.none() | evidences,
    timings=st.none() | st.builds(Timings, counts, counts, counts),
    closed=st.booleans(),
    source_offset=positions,
).flatmap(_settled)

checks = st.builds(
    CheckRecord,
    session_id=session_ids,
    revision=counts,
    tokenizer=names,
    verdict=st.sampled_from(Verdict),
    route=st.sampled_from(Route),
    text_sha256=st.binary(min_size=32, max_size=32).map(bytes.hex),
    text_bytes=counts,
    tokens_emitted=counts,
    tokens_reference=counts,
    first_difference=positions,
    reference_version=names,
    engine=names,
    checked_at_us=counts,
)

header_lists = st.lists(
    st.tuples(
        st.sampled_from(["content-type", "traceparent", "error.code", "source.offset", "x"]),
        st.binary(max_size=20),
    ),
    max_size=6,
).map(tuple)

rejects = st.builds(
    Reject,
    code=st.sampled_from(Code),
    message=st.text(max_size=80),
    topic=st.text(max_size=20),
    partition=st.integers(0, 1 << 20),
    offset=counts,
    key=st.none() | st.binary(max_size=20),
    value=st.none() | st.binary(max_size=60),
    headers=header_lists,
)
