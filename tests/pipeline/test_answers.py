"""What each kind of event is answered with, on both brokers."""

from __future__ import annotations

import numpy as np
import pytest
from pipeline_harness import Running, make_settings, rebuilt

from toktier_stream.errors import Code
from toktier_stream.session.engines import open_tokenizer
from toktier_stream.tokenizer.shipped import shipped_path
from toktier_stream.wire import digest
from toktier_stream.wire.messages import Close, Edit, Reset, Route, Status

REFERENCE = open_tokenizer(shipped_path()).reference
TEXT = "<|im_start|>user\nThe staging pipe" + " and a longer tail of words" * 40


@pytest.fixture
def settings(backend, state_dir):
    return make_settings(backend, state_dir)


async def test_a_session_lives_through_every_kind_of_event(backend, settings, hands):
    """Reset, append, edit, shrink and close: each answer's splice gives the reference's ids."""
    async with Running(backend, settings):
        h = await hands(settings)
        text = TEXT
        answers = [await h.reset("s", 1, text)]
        for revision, (start, end, new) in enumerate(
            [
                (None, None, "line closely.<|im_end|>\n"),
                (20, 30, "production"),
                (0, 0, "<|im_start|>system\nBe brief.<|im_end|>\n"),
                (5, 800, ""),
                (None, None, " 1 2  34\r\n"),
                (0, None, ""),
            ],
            2,
        ):
            raw = text.encode()
            if start is not None:
                end = len(raw) if end is None else end
                op = Edit(new.encode(), start, end)
                text = (raw[:start] + new.encode() + raw[end:]).decode()
            else:
                op = Edit(new.encode())
                text += new
            answer = await h.ask("s", revision, op, request_id=f"r{revision}")
            assert (answer.status, answer.request_id) == (Status.OK, f"r{revision}")
            answers.append(answer)
            expected = REFERENCE.ids(text)
            assert rebuilt({"s": answers})["s"] == expected.tolist()
            assert answer.total_tokens == len(expected)
            assert answer.total_bytes == len(text.encode())
            assert answer.digest == digest.of(expected)
            assert answer.session_revision == revision
        closed = await h.ask("s", 8, Close())
        assert (closed.status, closed.closed, closed.total_tokens) == (Status.OK, True, 0)


async def test_an_append_is_spliced_and_carries_its_evidence(backend, settings, hands):
    """The answer to an append keeps the old tokens and says why that is exact."""
    async with Running(backend, settings):
        h = await hands(settings)
        await h.reset("s", 1, TEXT)
        answer = await h.append("s", 2, "line closely.")
        evidence = answer.evidence
        assert answer.route is Route.SPLICE
        assert answer.keep > 100
        assert len(answer.token_ids) < 4 * 20
        assert evidence is not None
        assert evidence.window_chars == 512
        assert evidence.run_tokens >= 2
        assert 0 < evidence.boundary_byte < len(TEXT)
        assert evidence.chars_encoded <= 512 + len("line closely.")
        assert answer.timings is not None


async def test_repeats_reuse_and_staleness_are_told_apart(backend, settings, hands):
    """The same event again is a duplicate; the same revision with other content is not."""
    async with Running(backend, settings):
        h = await hands(settings)
        first = await h.reset("s", 1, TEXT)
        again = await h.reset("s", 1, TEXT)
        assert (again.status, again.digest, again.token_ids) == (
            Status.DUPLICATE,
            first.digest,
            b"",
        )
        reused = await h.reset("s", 1, TEXT + "x")
        assert (reused.status, reused.code) == (Status.REJECTED, Code.REVISION_REUSED)
        for revision in range(2, 8):
            await h.append("s", revision, f" {revision}")
        old = await h.reset("s", 1, TEXT)
        assert (old.status, old.code) == (Status.REJECTED, Code.STALE_REVISION)
        assert old.session_revision == 7
        full = await h.append("s", 7, " 7", want_full=True)
        assert full.status is Status.DUPLICATE
        stream = np.frombuffer(full.token_ids, dtype="<u4")
        assert stream.tolist() == REFERENCE.ids(TEXT + " 2 3 4 5 6 7").tolist()


async def test_what_needs_the_full_text_says_so(backend, settings, hands):
    """State miss, gap, closed: NEED_RESET, and a reset heals it."""
    async with Running(backend, settings):
        h = await hands(settings)
        miss = await h.append("s", 1, "text")
        assert (miss.status, miss.code) == (Status.NEED_RESET, Code.STATE_MISS)
        assert (await h.reset("s", 2, "text")).status is Status.OK
        gap = await h.append("s", 4, "more")
        assert (gap.status, gap.code) == (Status.NEED_RESET, Code.REVISION_GAP)
        assert gap.session_revision == 2
        assert (await h.reset("s", 9, "text and more")).status is Status.OK
        await h.ask("s", 10, Close())
        after = await h.append("s", 11, "late")
        assert (after.status, after.code) == (Status.NEED_RESET, Code.SESSION_CLOSED)
        assert (await h.reset("s", 12, "again")).status is Status.OK


async def test_conflicts_change_nothing(backend, settings, hands):
    """A producer that is wrong about the session is told, and may go on from the truth."""
    async with Running(backend, settings):
        h = await hands(settings)
        first = await h.reset("s", 1, TEXT)
        for wrong, code in (
            ({"expect_bytes": 3}, Code.EXPECT_BYTES),
            ({"expect_digest": first.digest ^ 1}, Code.EXPECT_DIGEST),
        ):
            answer = await h.append("s", 2, " more", **wrong)
            assert (answer.status, answer.code) == (Status.CONFLICT, code)
            assert (answer.total_tokens, answer.digest) == (first.total_tokens, first.digest)
        right = await h.append(
            "s", 2, " more", expect_bytes=first.total_bytes, expect_digest=first.digest
        )
        assert right.status is Status.OK


async def test_refusals_name_their_reason_and_apply_nothing(backend, state_dir, hands):
    """Unknown or changed tokenizer, offsets out of range or inside a character, too large."""
    settings = make_settings(backend, state_dir, max_session_bytes=4096)
    async with Running(backend, settings):
        h = await hands(settings)
        first = await h.reset("s", 1, "é" * 100)
        refused = [
            (Reset(b"x"), {"tokenizer": "nobody"}, Code.UNKNOWN_TOKENIZER),
            (Edit(b"x"), {"tokenizer": "sha256:" + "0" * 64}, Code.UNKNOWN_TOKENIZER),
            (Edit(b"x", 3, 4), {}, Code.OFFSET_IN_CHARACTER),
            (Edit(b"x", 0, 201), {}, Code.OFFSET_RANGE),
            (Edit(b"x" * 4000), {}, Code.SESSION_TOO_LARGE),
        ]
        for op, fields, code in refused:
            answer = await h.ask("s", 2, op, **fields)
            assert (answer.status, answer.code) == (Status.REJECTED, code)
            assert code.value in answer.message
        assert (await h.append("s", 2, "x", expect_digest=first.digest)).status is Status.OK
        rejects = await h.until(settings.topic_rejects, len(refused))
        assert [dict(r.headers)["error.code"].decode() for r in rejects] == [
            code.value for *_, code in refused
        ]


async def test_large_texts_travel_in_parts_both_ways(backend, state_dir, hands):
    """A context larger than a part is joined before it acts, and its answer is split."""
    from toktier_stream.broker.port import OutRecord
    from toktier_stream.wire.codec import encode_event
    from toktier_stream.wire.messages import AppendEvent
    from toktier_stream.wire.parts import split_event

    settings = make_settings(backend, state_dir, part_bytes=8192)
    text = "".join(f"line {i}: größer {i * i}\n" for i in range(3000))
    async with Running(backend, settings):
        h = await hands(settings)
        parts = split_event(AppendEvent("big", 1, Reset(text.encode())), 8192)
        records = [OutRecord(settings.topic_appends, *encode_event(p)) for p in parts]
        assert len(records) > 5
        # Another session's event between the parts is answered without waiting for them.
        await h.send(*records[:3])
        assert (await h.reset("other", 1, "short")).status is Status.OK
        await h.send(*records[3:])
        (answer,) = await h.next()
        assert np.frombuffer(answer.token_ids, "<u4").tolist() == REFERENCE.ids(text).tolist()
        tokens = await h.everything(settings.topic_tokens)
        assert max(len(r.value or b"") for r in tokens) < 8192 + 2048
        # A revision whose parts are interrupted fails alone; the session goes on.
        await h.send(
            *[
                OutRecord(settings.topic_appends, *encode_event(p))
                for p in split_event(AppendEvent("big", 2, Edit(text.encode())), 8192)[:2]
            ]
        )
        answers = {a.revision: a for a in [await h.append("big", 2, " end")]}
        assert answers[2].status is Status.OK
