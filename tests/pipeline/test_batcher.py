"""The slow lane by itself: exact, fair, bounded, and never lost with a device."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from toktier_stream.pipeline.batcher import Batcher, Miss, outcome
from toktier_stream.pipeline.fair_queue import FairQueue
from toktier_stream.session.engines import open_tokenizer
from toktier_stream.telemetry import Instruments
from toktier_stream.tokenizer.face import Tokens
from toktier_stream.tokenizer.shipped import shipped_path
from toktier_stream.wire.messages import Route

ENTRY = open_tokenizer(shipped_path())
ENCODER = ENTRY.encoder
WITHIN_S = 30.0
TEXTS = [f"text number {i} with some words; ".encode() * (1 + 7 * i) for i in range(24)]


class Device:
    """A device by the CPU engine. It waits for the gate; ``leaves`` names texts it does not do."""

    def __init__(self, *, min_bytes: int = 0, max_bytes: int = 1 << 16, max_texts: int = 8) -> None:
        self.min_bytes = min_bytes
        self.max_bytes = max_bytes
        self.max_texts = max_texts
        self.works = True
        self.gate = threading.Event()
        self.gate.set()
        self.busy = threading.Event()
        self.batches: list[list[bytes]] = []
        self.leaves: Callable[[bytes], str] = lambda _: ""
        self.raises = False

    def encode(self, texts: Sequence[bytes]) -> Sequence[Tokens | str]:
        """See :class:`toktier_stream.pipeline.batcher.DeviceEncoder`."""
        self.busy.set()
        self.gate.wait(WITHIN_S)
        self.batches.append(list(texts))
        if self.raises:
            raise OSError("the device fell off")
        return [self.leaves(text) or ENCODER.encode(text) for text in texts]


class Lane:
    """A batcher with hands: submits texts and waits for what comes back."""

    def __init__(self, device: Device | None = None, **options: object) -> None:
        devices = {ENCODER.fingerprint: device} if device else None
        values = {"threads": 2, "queue_bytes": 1 << 30, "devices": devices, **options}
        self.batcher = Batcher(Instruments(), **values)  # type: ignore[arg-type]
        self.back: list[Miss] = []
        self._changed = threading.Condition()

    def submit(self, text: bytes, partition: int = 0) -> Miss | None:
        """The miss, or None if the lane is full."""
        miss = Miss(partition, ENCODER, text, self._done)
        return miss if self.batcher.submit(miss) else None

    def _done(self, miss: Miss) -> None:
        with self._changed:
            self.back.append(miss)
            self._changed.notify_all()

    def wait(self, count: int) -> None:
        """Wait until that many are back."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.back) >= count, WITHIN_S)


@pytest.fixture
def lane() -> Iterator[Callable[..., Lane]]:
    """Makes started lanes."""
    made: list[Lane] = []

    def make(device: Device | None = None, **options: object) -> Lane:
        made.append(Lane(device, **options))
        made[-1].batcher.start()
        return made[-1]

    yield make
    for each in made:
        each.batcher.stop()


def check(miss: Miss, route: Route) -> None:
    """Ids and lengths of the reference, on the way that was meant."""
    prepared = outcome(miss)
    assert prepared is not None
    assert prepared.route is route
    assert prepared.tokens.ids.tolist() == ENTRY.reference.ids(miss.text.decode()).tolist()
    assert int(prepared.tokens.lengths.sum()) == len(miss.text)
    assert 0 < miss.submitted <= miss.began <= miss.ended


@pytest.mark.parametrize("threads", [1, 3])
def test_on_the_cpu(lane: Callable[..., Lane], threads: int) -> None:
    """Everything comes back once, exact, whatever the number of threads."""
    at = lane(threads=threads)
    texts = [*TEXTS, b"", b"divided among threads that are idle. " * 20_000]
    sent = [at.submit(text, i % 3) for i, text in enumerate(texts)]
    at.wait(len(texts))
    assert {id(m) for m in at.back} == {id(m) for m in sent}
    for miss in at.back:
        check(miss, Route.CPU)
    assert at.batcher.held_bytes == 0


def behind_the_first(at: Lane, device: Device) -> None:
    """All texts are submitted, and the device is busy with the first until its gate opens."""
    device.gate.clear()
    at.submit(TEXTS[0])
    assert device.busy.wait(WITHIN_S)
    for text in TEXTS[1:]:
        at.submit(text)


def test_a_burst_is_one_launch(lane: Callable[..., Lane]) -> None:
    """What gathers while the device is busy leaves in batches, within its limits."""
    device = Device(max_texts=8, max_bytes=1 << 16)
    at = lane(device)
    behind_the_first(at, device)
    device.gate.set()
    at.wait(len(TEXTS))
    sizes = [len(b) for b in device.batches]
    assert sizes[0] == 1
    assert max(sizes) > 1
    assert all(len(b) <= 8 and sum(map(len, b)) <= 1 << 16 for b in device.batches)
    assert any(m.prepared and m.prepared.route is Route.GPU for m in at.back)
    for miss in at.back:
        check(miss, Route.GPU if miss.tokens is not None else Route.CPU)


def test_a_backlog_spills(lane: Callable[..., Lane]) -> None:
    """While the device does not come back, what its next launch cannot take is done by the CPU."""
    device = Device(max_bytes=4096)
    at = lane(device)
    device.gate.clear()
    texts = [b"waiting for a device, " * 100 for _ in range(12)]
    at.submit(texts[0])
    assert device.busy.wait(WITHIN_S)
    for text in texts[1:]:
        at.submit(text)
    at.wait(len(texts) - 1 - 4096 // len(texts[0]))
    for miss in at.back:
        check(miss, Route.CPU)
    device.gate.set()
    at.wait(len(texts))


def test_too_little_for_a_launch(lane: Callable[..., Lane]) -> None:
    """Below the device's threshold the CPU is faster: no launch."""
    device = Device(min_bytes=1 << 15)
    at = lane(device)
    at.submit(b"small")
    at.wait(1)
    check(at.back[0], Route.CPU)
    assert device.batches == []


def test_texts_that_the_device_leaves(lane: Callable[..., Lane]) -> None:
    """They come back by the CPU, the others of the launch by the device."""
    device = Device()
    device.leaves = lambda text: "normalization" if len(text) % 2 else ""
    at = lane(device)
    for text in TEXTS:
        at.submit(text)
    at.wait(len(TEXTS))
    for miss in at.back:
        fits = len(miss.text) <= device.max_bytes and not len(miss.text) % 2
        check(miss, Route.GPU if fits and miss.tokens is not None else Route.CPU)
    assert {m.prepared.route for m in at.back if m.prepared} == {Route.GPU, Route.CPU}


@pytest.mark.parametrize("how", ["raises", "leaves all", "is given up"])
def test_a_device_that_fails(lane: Callable[..., Lane], how: str) -> None:
    """In the middle of a burst: nothing is lost, and it goes on without."""
    device = Device()
    device.raises = how == "raises"
    if how == "leaves all":
        device.leaves = lambda _: "device"
    at = lane(device)
    behind_the_first(at, device)
    device.works = how != "is given up"
    device.gate.set()
    at.wait(len(TEXTS))
    for miss in at.back:
        check(miss, Route.GPU if how == "is given up" and miss.tokens is not None else Route.CPU)


def test_tokens_that_do_not_make_up_the_text(lane: Callable[..., Lane]) -> None:
    """A device whose memory is damaged is found out by the lengths; the CPU encodes that text."""
    device = Device()
    plain = device.encode

    def damaged(texts: Sequence[bytes]) -> Sequence[Tokens | str]:
        results = list(plain(texts))
        for i, text in enumerate(texts):
            if len(text) % 3 == 0 and isinstance(tokens := results[i], Tokens):
                lengths = tokens.lengths.copy()
                lengths[len(lengths) // 2] ^= 1
                results[i] = Tokens(tokens.ids, lengths)
        return results

    device.encode = damaged  # type: ignore[method-assign]
    at = lane(device)
    texts = [text for text in TEXTS if len(text) <= device.max_bytes]
    for text in texts:
        at.submit(text)
    at.wait(len(texts))
    for miss in at.back:
        if miss.tokens is not None:
            check(miss, Route.CPU if len(miss.text) % 3 == 0 else Route.GPU)
    assert {m.prepared.route for m in at.back if m.prepared and m.tokens} == {Route.CPU, Route.GPU}


def test_the_lane_is_bounded(lane: Callable[..., Lane]) -> None:
    """Beyond the bound it says no; an empty lane takes a text of any size."""
    device = Device(max_bytes=1 << 20)
    at = lane(device, queue_bytes=100_000)
    device.gate.clear()
    assert at.submit(b"x" * 500_000)
    assert at.submit(b"small") is None
    device.gate.set()
    at.wait(1)
    assert at.submit(b"small")
    at.wait(2)


def test_stopping_drops_what_waits(lane: Callable[..., Lane]) -> None:
    """It returns as soon as what is in the making is made, and takes nothing more."""
    device = Device()
    at = lane(device)
    device.gate.clear()
    for text in TEXTS[:5]:
        at.submit(text)
    assert device.busy.wait(WITHIN_S)
    threading.Timer(0.05, device.gate.set).start()
    at.batcher.stop()
    assert at.submit(TEXTS[0]) is None


def test_an_error_of_the_encoder_comes_back(lane: Callable[..., Lane]) -> None:
    """Refusals are met again in their place; anything else is raised there."""

    class Broken:
        fingerprint = "broken"
        engine = "broken"

        def encode(self, text: bytes) -> Tokens:
            raise ZeroDivisionError

    at = lane()
    miss = Miss(0, Broken(), b"text", at._done)  # type: ignore[arg-type]
    assert at.batcher.submit(miss)
    at.wait(1)
    with pytest.raises(ZeroDivisionError):
        outcome(at.back[0])


def test_keys_take_turns() -> None:
    """Nobody waits behind all that another has queued; unwanted heads keep their place."""
    queue: FairQueue[str, int] = FairQueue(lambda n: n)
    for item in (1, 2, 3, 4):
        queue.put("a", item)
    queue.put("b", 10)
    queue.put("c", 20)
    assert (len(queue), queue.bytes) == (6, 40)
    assert [queue.take() for _ in range(4)] == [1, 10, 20, 2]
    assert queue.take(lambda n: n > 3) is None
    assert [queue.take(), queue.take(), queue.take()] == [3, 4, None]
    assert (len(queue), queue.bytes) == (0, 0)
