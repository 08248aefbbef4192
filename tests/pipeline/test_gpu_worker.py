"""A worker with a device in the slow lane: the GPU's kernels on the CPU, in the place of a card."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest
from gpu_burst import measure
from pipeline_harness import Backend, Hands, Running, make_settings, rebuilt
from shim_card import WITHIN_S, Cards

from toktier_stream.broker.port import OutRecord
from toktier_stream.config import KIB, Settings
from toktier_stream.errors import Code, ToktierError
from toktier_stream.session.engines import open_tokenizer
from toktier_stream.tokenizer.shipped import shipped_path
from toktier_stream.wire.answers import decode_update
from toktier_stream.wire.codec import encode_event
from toktier_stream.wire.messages import AppendEvent, Edit, Operation, Reset, Route, Status

pytestmark = pytest.mark.compiler
LOCAL = pytest.mark.parametrize("backend", ["local"], indirect=True)
FULL = {Route.CPU, Route.GPU, Route.REFERENCE}
"""Routes by which a whole text is encoded."""
_NUMBERS = itertools.count()
REFERENCE = open_tokenizer(shipped_path()).reference

Open = Callable[[Settings], Awaitable[Hands]]


def with_device(backend: Backend, state_dir: Path, **values: object) -> Settings:
    """Every full text goes to the device, where it fits."""
    defaults = {
        "gpu": "required", "gpu_min_bytes": 1, "gpu_batch_bytes": 64 * KIB, "miss_bytes": 256,
        "miss_linger_ms": 0, "verify_rate": 0,
    }  # fmt: skip
    return make_settings(backend, state_dir, **{**defaults, **values})


def text_of(number: int, words: int) -> str:
    """A text unlike the others."""
    return "".join(f"turn {number}.{i}: größe 漢字 don't 12345\n" for i in range(words))


def record(settings: Settings, session: str, revision: int, op: Operation) -> OutRecord:
    """An event, to be sent with others. Partitions are taken in turn by a session's number."""
    event = encode_event(AppendEvent(session, revision, op))
    digits = "".join(filter(str.isdecimal, session)) or "0"
    return OutRecord(settings.topic_appends, *event, partition=int(digits) % settings.partitions)


async def burst(hands: Hands, settings: Settings, texts: dict[str, str]) -> None:
    """Send full texts, and wait until all are in the slow lane: a small text behind them, which
    takes the other lane, is answered in each partition."""
    await hands.send(*(record(settings, s, 1, Reset(t.encode())) for s, t in texts.items()))
    small = [f"small{p}-{next(_NUMBERS)}" for p in range(settings.partitions)]
    await hands.send(
        *(
            OutRecord(
                settings.topic_appends, *encode_event(AppendEvent(s, 1, Reset(b"."))), partition=p
            )
            for p, s in enumerate(small)
        )
    )
    answered = await hands.next(len(small))
    assert {a.session_id for a in answered} == set(small)
    for answer in answered:
        hands.answers.remove(answer)


async def once_each(hands: Hands, settings: Settings) -> None:
    """Every event has one answer in the topic."""
    updates = [
        decode_update(r.key, r.value, r.headers)
        for r in await hands.everything(settings.topic_tokens)
    ]
    counts = Counter(
        (u.session_id, u.revision)
        for u in updates
        if u.part == 0 and not u.session_id.startswith("small")
    )
    assert set(counts.values()) == {1}
    assert counts.keys() == {(a.session_id, a.revision) for a in hands.answers}


def check(hands: Hands, texts: dict[str, str]) -> None:
    """Every stream is the reference's on the complete text."""
    by_session = defaultdict(list)
    for answer in hands.answers:
        assert answer.status is Status.OK, answer.message
        by_session[answer.session_id].append(answer)
    streams = rebuilt(by_session)
    assert streams.keys() == texts.keys()
    for session, text in texts.items():
        assert streams[session] == REFERENCE.ids(text).tolist()


async def busy(cards: Cards) -> None:
    """Wait until a launch is on the device."""
    assert await asyncio.to_thread(cards.one.busy.wait, WITHIN_S)


async def test_a_burst_is_launched_together(backend: Backend, state_dir: Path, hands: Open) -> None:
    """What comes while the device works is its next launch; the answers say gpu, and sessions go
    on from them by splices."""
    settings = with_device(backend, state_dir, gpu_batch_bytes=256 * KIB)
    texts = {f"s{i}": text_of(i, 25 + 2 * i) for i in range(24)}
    cards = Cards()
    async with Running(backend, settings, open_card=cards):
        h = await hands(settings)
        cards.one.watch()
        cards.one.gate.clear()
        first, *others = texts
        await h.send(record(settings, first, 1, Reset(texts[first].encode())))
        await busy(cards)
        await burst(h, settings, {s: texts[s] for s in others})
        cards.one.gate.set()
        await h.next(len(texts))
        assert {a.route for a in h.answers} == {Route.GPU}
        assert sum(cards.one.launches) == len(texts)
        assert max(cards.one.launches[1:]) > 4
        assert all(a.evidence is not None and a.evidence.chars_encoded for a in h.answers)
        launched = len(cards.one.launches)
        for session in texts:
            texts[session] += " and more"
        await h.send(*(record(settings, s, 2, Edit(b" and more")) for s in texts))
        appended = await h.next(len(texts))
        assert not {a.route for a in appended} & FULL
        assert len(cards.one.launches) == launched
        check(h, texts)
        await once_each(h, settings)
    assert cards.one.closed


@LOCAL
async def test_appends_do_not_wait_for_the_device(
    backend: Backend, state_dir: Path, hands: Open
) -> None:
    """With a burst held on the device, other sessions of the same partition are answered; the
    burst's own later events wait for it, in order."""
    settings = with_device(backend, state_dir, partitions=1)
    texts = {f"s{i}": text_of(i, 60) for i in range(6)}
    cards = Cards()
    async with Running(backend, settings, open_card=cards):
        h = await hands(settings)
        texts["quick"] = text_of(1000, 40)
        await h.reset("quick", 1, texts["quick"])
        cards.one.watch()
        cards.one.gate.clear()
        bursting = [s for s in texts if s != "quick"]
        await h.send(*(record(settings, s, 1, Reset(texts[s].encode())) for s in bursting))
        await h.send(*(record(settings, s, 2, Edit(b"\nand then")) for s in bursting))
        await busy(cards)
        for revision in range(2, 30):
            answer = await h.append("quick", revision, f" {revision}")
            assert answer.session_id == "quick"
            assert answer.route not in FULL
            texts["quick"] += f" {revision}"
        assert not cards.one.gate.is_set()
        cards.one.gate.set()
        await h.next(2 * len(bursting))
        for session in bursting:
            texts[session] += "\nand then"
            assert [a.revision for a in h.answers if a.session_id == session] == [1, 2]
        check(h, texts)


async def test_a_device_that_dies_in_the_middle(
    backend: Backend, state_dir: Path, hands: Open
) -> None:
    """The texts of the launch, those behind it and all later ones are encoded by the CPU; the
    worker goes on, and nothing is lost or answered twice."""
    settings = with_device(backend, state_dir)
    texts = {f"s{i}": text_of(i, 40) for i in range(12)}
    cards = Cards()
    async with Running(backend, settings, open_card=cards):
        h = await hands(settings)
        cards.one.gate.clear()
        cards.one.watch()
        first, *others = texts
        await h.send(record(settings, first, 1, Reset(texts[first].encode())))
        await busy(cards)
        await burst(h, settings, {s: texts[s] for s in others})
        cards.one.dies = True
        cards.one.gate.set()
        await h.next(len(texts))
        assert {a.route for a in h.answers} == {Route.CPU}
        texts["later"] = text_of(99, 80)
        await h.send(record(settings, "later", 1, Reset(texts["later"].encode())))
        assert [a.route for a in await h.next()] == [Route.CPU]
        await h.send(*(record(settings, s, 2, Edit(b" it goes on")) for s in texts))
        await h.next(len(texts))
        texts = {s: t + " it goes on" for s, t in texts.items()}
        assert len(cards.one.launches) == 1
        check(h, texts)
        await once_each(h, settings)


@LOCAL
async def test_the_cpu_helps_a_device_with_a_backlog(
    backend: Backend, state_dir: Path, hands: Open
) -> None:
    """Texts beyond what the next launch can take are answered while the device is held."""
    settings = with_device(backend, state_dir, miss_threads=1)
    texts = {f"s{i}": text_of(i, 800) for i in range(12)}
    assert sum(map(len, texts.values())) > 4 * settings.gpu_batch_bytes
    cards = Cards()
    async with Running(backend, settings, open_card=cards):
        h = await hands(settings)
        cards.one.watch()
        cards.one.gate.clear()
        await h.send(*(record(settings, s, 1, Reset(t.encode())) for s, t in texts.items()))
        held = await h.next(4)
        assert {a.route for a in held} == {Route.CPU}
        assert not cards.one.gate.is_set()
        cards.one.gate.set()
        await h.next(len(texts) - len(held))
        assert {a.route for a in h.answers} == {Route.CPU, Route.GPU}
        check(h, texts)
        await once_each(h, settings)


@LOCAL
async def test_texts_that_are_not_for_the_device(
    backend: Backend, state_dir: Path, hands: Open
) -> None:
    """A run without boundaries, and a text above a launch, come back by the CPU; the small ones
    beside them by the device."""
    settings = with_device(backend, state_dir)
    texts = {
        "run": "x" * (40 * KIB),
        "large": text_of(1, 4000),
        "fine": text_of(2, 100),
    }
    assert len(texts["large"]) > settings.gpu_batch_bytes
    cards = Cards()
    async with Running(backend, settings, open_card=cards):
        h = await hands(settings)
        for session, text in texts.items():
            answer = await h.reset(session, 1, text)
            assert answer.route is (Route.GPU if session == "fine" else Route.CPU)
        check(h, texts)


@LOCAL
@pytest.mark.families
async def test_two_tokenizers_share_the_device_thread(
    backend: Backend, state_dir: Path, hands: Open, family_file: Callable[[str], Path]
) -> None:
    """Each has a device of its own, and a launch holds texts of one; ids are each one's own."""
    files = {"small": shipped_path(), "gptoss": family_file("gptoss")}
    settings = with_device(
        backend, state_dir, tokenizers=files, default_tokenizer="small", partitions=1
    )
    cards = Cards()
    async with Running(backend, settings, open_card=cards):
        h = await hands(settings)
        for card in cards.opened:
            card.watch()
        texts = {(name, i): text_of(i, 20) for i in range(6) for name in files}
        await h.send(
            *(
                OutRecord(
                    settings.topic_appends,
                    *encode_event(AppendEvent(f"{name}{i}", 1, Reset(t.encode()), tokenizer=name)),
                )
                for (name, i), t in texts.items()
            )
        )
        answers = {a.session_id: a for a in await h.next(len(texts))}
    assert {a.route for a in answers.values()} == {Route.GPU}
    assert [sum(card.launches) for card in cards.opened] == [6, 6]
    for name, file in files.items():
        reference = open_tokenizer(file).reference
        for i in range(6):
            ids = np.frombuffer(answers[f"{name}{i}"].token_ids, dtype="<u4")
            assert ids.tolist() == reference.ids(texts[name, i]).tolist()


@LOCAL
async def test_a_required_gpu_that_is_not_there(backend: Backend, state_dir: Path) -> None:
    """The worker does not start, and says why."""
    settings = with_device(backend, state_dir, gpu_device=99)
    with pytest.raises(ToktierError) as caught:
        async with Running(backend, settings):
            raise AssertionError("it has started")
    assert caught.value.code is Code.GPU_UNAVAILABLE


@LOCAL
async def test_appends_amid_a_burst(backend: Backend, state_dir: Path) -> None:
    """In time, too: their P99 with the device always busy, beside that of a quiet worker. The
    bound is a wide one, for machines with one core to spare (see gpu_burst.py for the figures)."""
    measured = await measure(backend, state_dir, 100, device=True)
    print(measured.row())
    assert measured.full_texts > 0
    assert max(measured.launches) > 1
    quiet, busy = (float(np.percentile(t, 99)) for t in (measured.quiet, measured.busy))
    assert busy < 20 * quiet + 300
