"""The shadow verifier finds wrong ids, says so, sets the session aside, and keeps evidence."""

from __future__ import annotations

import asyncio
import json
import stat
import time

import numpy as np
import pytest
from pipeline_harness import WITHIN_S, Running, local_backend, make_settings

from toktier_stream.errors import Code
from toktier_stream.pipeline.verifier import Sample, ShadowVerifier
from toktier_stream.session.engines import open_tokenizer
from toktier_stream.telemetry import Instruments
from toktier_stream.tokenizer.face import Tokens
from toktier_stream.tokenizer.registry import Entry, Registry
from toktier_stream.tokenizer.shipped import shipped_path
from toktier_stream.wire.answers import decode_check
from toktier_stream.wire.messages import Route, Status, Verdict

TEXT = "an ordinary text whose ids will be changed on their way out"


class Faulty:
    """The real encoder with one fault in its ids."""

    def __init__(self, encoder, fault):
        self._encoder, self._fault = encoder, fault

    def __getattr__(self, name):
        return getattr(self._encoder, name)

    def encode(self, text):
        tokens = self._encoder.encode(text)
        return Tokens(*self._fault(tokens.ids.copy(), tokens.lengths.copy()))


def substituted(ids, lengths):
    ids[-1] ^= 1
    return ids, lengths


def swapped(ids, lengths):
    ids[[0, -1]], lengths[[0, -1]] = ids[[-1, 0]], lengths[[-1, 0]]
    return ids, lengths


def deleted(ids, lengths):
    lengths[-2] += lengths[-1]
    return ids[:-1], lengths[:-1]


def duplicated(ids, lengths):
    lengths = np.append(lengths, np.uint32(1))
    lengths[-2] -= 1
    return np.append(ids, ids[-1]), lengths


@pytest.mark.parametrize("fault", [substituted, swapped, deleted, duplicated])
@pytest.mark.parametrize("with_text", [False, True])
async def test_a_wrong_answer_is_found_reported_and_set_aside(
    tmp_path, state_dir, hands, backend, fault, with_text, monkeypatch
):
    """Each kind of fault: a MISMATCH record, a quarantine until a reset, evidence in a 0600 file
    that holds the text only where that is configured."""
    evidence = tmp_path / "evidence"
    settings = make_settings(backend, state_dir, evidence_dir=evidence, evidence_text=with_text)
    registry = Registry(settings.tokenizers, settings.default_tokenizer)
    good = registry.resolve("small").encoder
    current = {"encoder": Faulty(good, fault)}
    monkeypatch.setattr(Entry, "encoder", property(lambda self: current["encoder"]))
    async with Running(backend, settings, registry):
        h = await hands(settings)
        assert (await h.reset("s", 1, TEXT)).status is Status.OK
        records = await h.until(settings.topic_checks, 1)
        current["encoder"] = good
        check = decode_check(records[0].key, records[0].value, records[0].headers)
        assert check.verdict is Verdict.MISMATCH
        assert check.first_difference >= 0
        async with asyncio.timeout(WITHIN_S):
            revision = 2
            while (answer := await h.append("s", revision, " more")).status is Status.OK:
                revision += 1
        assert (answer.status, answer.code) == (Status.NEED_RESET, Code.QUARANTINED)
        assert (await h.reset("s", revision + 1, TEXT)).status is Status.OK
    (file, *_) = sorted(evidence.iterdir())
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    kept = json.loads(file.read_text())
    assert kept["text_sha256"] == check.text_sha256
    assert (kept.get("text", "").startswith(TEXT)) is with_text


async def test_correct_answers_match_and_the_sample_is_seeded(state_dir, hands):
    """No false positive, and the share that is sampled is the one asked for."""
    backend = local_backend()
    broker = backend.connect()
    await broker.start()
    settings = make_settings(backend, state_dir, verify_rate=0.25, verify_seed=7)
    async with Running(backend, settings) as running:
        from pipeline_harness import Hands

        h = Hands(broker, settings)
        await h.open()
        for i in range(200):
            assert (await h.reset(f"s{i}", 1, f"{TEXT} {i}")).status is Status.OK
        await running.worker.drain_verifier()
        stats = running.worker.stats
        checks = await h.until(settings.topic_checks, stats.verified)
    assert 25 <= stats.verified <= 75
    assert stats.verifier_mismatches == 0
    assert len(checks) == stats.verified
    assert {decode_check(c.key, c.value, c.headers).verdict for c in checks} == {Verdict.MATCH}
    await broker.stop()


async def test_a_full_queue_drops_and_counts(state_dir, hands, backend):
    """Verification that falls behind drops samples; answers never wait for it."""
    settings = make_settings(backend, state_dir, verify_queue=1, verify_queue_bytes=1024)
    async with Running(backend, settings) as running:
        h = await hands(settings)
        answer = await h.reset("s", 1, "words " * 5000)
        assert answer.status is Status.OK
        assert (await h.append("s", 2, " more")).status is Status.OK
        assert running.worker.stats.verifier_dropped >= 1
        assert running.worker.stats.verified == 0


async def test_a_text_beyond_the_judge_does_not_end_verification():
    """Where the reference gives up there is no verdict; the next sample gets one."""
    reference = open_tokenizer(shipped_path()).reference
    verdicts = []
    verifier = ShadowVerifier(
        lambda sample, record: verdicts.append((sample.session_id, record.verdict)),
        Instruments(),
        queue=8,
        queue_bytes=1 << 28,
    )
    verifier.start()
    for name, text in (("endless", b" " * 11_000_000 + b"x"), ("short", b"and on")):
        ids = reference.ids("and on")
        sample = Sample(0, 0, name, 1, "sha256:x", Route.CPU, "exact", text, ids, reference)
        assert verifier.offer(sample)
    async with asyncio.timeout(WITHIN_S):
        await verifier.drain()
    await verifier.stop()
    assert verdicts == [("short", Verdict.MATCH)]


@pytest.mark.alone
async def test_the_verifier_keeps_to_its_share_of_a_core():
    """Between two checks it rests for as long as its share asks; who comes meanwhile waits, and
    who finds the queue full is told so before a text is read."""
    entry = open_tokenizer(shipped_path())
    text = b"some words that take the reference a while. " * 20_000
    ids = entry.encoder.encode(text).ids
    took = []

    async def three(load: float) -> None:
        verifier = ShadowVerifier(
            lambda sample, record: None, Instruments(), queue=3, queue_bytes=1 << 28, load=load
        )
        for name in ("a", "b", "c"):
            sample = Sample(
                0, 0, name, 1, "sha256:x", Route.CPU, "exact", text, ids, entry.reference
            )
            assert verifier.offer(sample)
        assert verifier.turned_away(1)
        assert verifier.dropped == 1
        verifier.start()
        began = time.monotonic()
        async with asyncio.timeout(WITHIN_S):
            await verifier.drain()
        took.append(time.monotonic() - began)
        assert (verifier.checked, verifier.mismatches) == (3, 0)
        await verifier.stop()

    await three(1.0)
    await three(0.2)
    # Three checks with two rests of four checks' length between them: 11 checks' time.
    assert took[1] > 2 * took[0]
