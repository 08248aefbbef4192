"""The table of bad inputs through the whole pipeline, on both brokers."""

from __future__ import annotations

from bad_inputs import BAD_INPUTS, MAX_EVENT_BYTES, SECRET
from pipeline_harness import Running, make_settings

from toktier_stream.broker.port import OutRecord
from toktier_stream.wire.answers import decode_reject
from toktier_stream.wire.messages import Reset, Status


async def test_every_bad_input_gets_its_code_and_nothing_is_lost(backend, state_dir, hands):
    """Unreadable: rejects topic only, original bytes kept. Refused: answered once as well.
    Either way the sessions beside it go on."""
    assert len(BAD_INPUTS) >= 25
    settings = make_settings(
        backend, state_dir, max_event_bytes=MAX_EVENT_BYTES, part_bytes=MAX_EVENT_BYTES // 2
    )
    async with Running(backend, settings):
        h = await hands(settings)
        # The topic admits more than the worker does, so that the oversized row gets in.
        await h.send(
            *(
                OutRecord(settings.topic_appends, row.key, row.value, row.headers, partition=0)
                for row in BAD_INPUTS
            )
        )
        await h.event("good", 1, Reset(b"still served"))
        rejected = [
            decode_reject(r.key, r.value, r.headers)
            for r in await h.until(settings.topic_rejects, len(BAD_INPUTS))
        ]
        refused = [row for row in BAD_INPUTS if not row.unreadable]
        while len(h.answers) < len(refused) + 1:
            await h.next()

    assert len(rejected) == len(BAD_INPUTS)
    by_offset = sorted(rejected, key=lambda reject: reject.offset)
    for row, reject in zip(BAD_INPUTS, by_offset, strict=True):
        assert reject.code is row.code, row.name
        assert (reject.key, reject.value) == (row.key, row.value), row.name
        assert reject.topic == settings.topic_appends
        assert SECRET not in reject.message
    answered = {a.session_id: a for a in h.answers}
    assert answered.pop("good").status is Status.OK
    assert len(answered) == len(refused) == len(h.answers) - 1
    for row in refused:
        answer = answered[f"bad-{row.name}"]
        assert (answer.status, answer.code) == (Status.REJECTED, row.code), row.name
        assert answer.request_id == "request" or row.code.value == "FIELD_TOO_LONG"
        assert SECRET not in answer.message


async def test_a_poison_event_quarantines_its_session_until_a_reset(backend, state_dir, hands):
    """An unreadable event cannot be skipped in an append log; only its own session waits."""
    settings = make_settings(backend, state_dir)
    async with Running(backend, settings):
        h = await hands(settings)
        await h.reset("s", 1, "some text")
        await h.reset("other", 1, "some text")
        await h.send(OutRecord(settings.topic_appends, b"s", b"\xff\xff\xff"))
        await h.until(settings.topic_rejects, 1)
        poisoned = await h.append("s", 2, " more")
        assert (poisoned.status, poisoned.code.value) == (Status.NEED_RESET, "QUARANTINED")
        assert (await h.append("other", 2, " more")).status is Status.OK
        healed = await h.ask("s", 3, Reset(b"some text and more"))
        assert healed.status is Status.OK
        assert (await h.append("s", 4, " more")).status is Status.OK
