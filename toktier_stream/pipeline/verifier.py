"""The shadow verifier: a seeded sample of answers, re-encoded by the reference off the hot path.

It can hardly slow an answer down: it uses a set share of one core, samples wait in a queue bounded
in number and bytes, and what does not fit is dropped and counted, before its text is read. Its
verdicts go to the checks topic with the partition's next transaction; a mismatch also sets the
session aside until a reset and keeps evidence.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from opentelemetry import trace

from toktier_stream import telemetry
from toktier_stream.errors import ToktierError
from toktier_stream.tokenizer.face import Ids
from toktier_stream.tokenizer.reference import REFERENCE_VERSION, Reference
from toktier_stream.wire.messages import CheckRecord, Route, TokenUpdate, Verdict

_LOG = telemetry.logger(__name__)


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer to check: the complete text, and the stream a consumer now holds."""

    partition: int
    offset: int
    session_id: str
    revision: int
    tokenizer: str
    route: Route
    engine: str
    text: bytes
    ids: Ids
    reference: Reference
    context: trace.SpanContext | None = None

    @property
    def size(self) -> int:
        """Bytes held while the sample waits."""
        return len(self.text) + self.ids.nbytes


class Sampler:
    """Decides by a seeded hash, so that a replay samples the same answers."""

    def __init__(
        self, rate: float, seed: int, turned_away: Callable[[int], bool] = lambda _: False
    ) -> None:
        """``turned_away``: see :meth:`ShadowVerifier.turned_away`."""
        self._below = int(rate * (1 << 64))
        self._prefix = f"{seed}:".encode()
        self.turned_away = turned_away

    def wants(self, session_id: str, revision: int) -> bool:
        """Whether the answer to this revision is sampled."""
        if not self._below:
            return False
        key = self._prefix + session_id.encode() + b":%d" % revision
        digest = hashlib.blake2b(key, digest_size=8).digest()
        return int.from_bytes(digest, "big") < self._below


def emitted(stream: Ids, answer: TokenUpdate) -> Ids:
    """The stream a consumer holds after ``answer``: what was emitted, in the place it fills."""
    new = np.frombuffer(answer.token_ids, dtype="<u4").astype(np.uint32)
    return np.concatenate((stream[: answer.keep], new, stream[len(stream) - answer.tail :]))


def check(sample: Sample) -> CheckRecord:
    """Encode the sample's text with the reference and compare. CPU-bound; runs in a thread."""
    expected = sample.reference.ids(sample.text.decode())
    same = len(expected) == len(sample.ids) and bool(np.array_equal(expected, sample.ids))
    first = -1
    if not same:
        shared = min(len(expected), len(sample.ids))
        different = np.flatnonzero(expected[:shared] != sample.ids[:shared])
        first = int(different[0]) if len(different) else shared
    return CheckRecord(
        session_id=sample.session_id,
        revision=sample.revision,
        tokenizer=sample.tokenizer,
        verdict=Verdict.MATCH if same else Verdict.MISMATCH,
        route=sample.route,
        text_sha256=hashlib.sha256(sample.text).hexdigest(),
        text_bytes=len(sample.text),
        tokens_emitted=len(sample.ids),
        tokens_reference=len(expected),
        first_difference=first,
        reference_version=REFERENCE_VERSION,
        engine=sample.engine,
        checked_at_us=time.time_ns() // 1000,
    )


class ShadowVerifier:
    """One task and one thread; ``on_verdict`` is called on the loop with each result."""

    def __init__(
        self,
        on_verdict: Callable[[Sample, CheckRecord], None],
        instruments: telemetry.Instruments,
        *,
        queue: int,
        queue_bytes: int,
        load: float = 1.0,
        evidence_dir: Path | None = None,
        evidence_text: bool = False,
    ) -> None:
        """``load``: the share of one core that it may use, over time."""
        self._on_verdict = on_verdict
        self._instruments = instruments
        self._limit = queue
        self._limit_bytes = queue_bytes
        self._rest = 1 / load - 1
        self._counting = threading.Lock()
        self._evidence_dir = evidence_dir
        self._evidence_text = evidence_text
        self._queue: asyncio.Queue[Sample] = asyncio.Queue()
        self._bytes = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="verifier")
        self._task: asyncio.Task[None] | None = None
        for verdict in Verdict:
            # A counter that begins with its first mismatch would show no increase to an alert.
            instruments.add("toktier.checks", 0, verdict=verdict.value)
        self.dropped = 0
        self.checked = 0
        self.mismatches = 0

    def start(self) -> None:
        """Begin to work on the queue."""
        self._task = asyncio.create_task(self._run(), name="shadow-verifier")

    def offer(self, sample: Sample) -> bool:
        """Queue a sample, or drop and count it. Never waits."""
        if self.turned_away(sample.size):
            return False
        self._bytes += sample.size
        self._queue.put_nowait(sample)
        return True

    def turned_away(self, size: int) -> bool:
        """Whether a sample of ``size`` bytes has no room now; then it counts as dropped. Safe in
        any thread: whoever would have to read a long text for a sample asks first."""
        if self._queue.qsize() < self._limit and self._bytes + size <= self._limit_bytes:
            return False
        with self._counting:
            self.dropped += 1
        self._instruments.add("toktier.checks.dropped")
        return True

    async def drain(self) -> None:
        """Wait until everything queued is checked."""
        await self._queue.join()

    async def stop(self) -> None:
        """Stop at once; what still waits is dropped and counted."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        waiting = self._queue.qsize()
        self.dropped += waiting
        if waiting:
            self._instruments.add("toktier.checks.dropped", waiting)
        self._thread.shutdown(wait=True, cancel_futures=True)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            sample = await self._queue.get()
            began = time.monotonic()
            try:
                await self._check(loop, sample)
            finally:
                self._bytes -= sample.size
                self._queue.task_done()
            if self._rest:
                await asyncio.sleep(self._rest * (time.monotonic() - began))

    async def _check(self, loop: asyncio.AbstractEventLoop, sample: Sample) -> None:
        links = [trace.Link(sample.context)] if sample.context else []
        with telemetry.tracer().start_as_current_span(telemetry.SPAN_VERIFY, links=links) as span:
            try:
                record = await loop.run_in_executor(self._thread, check, sample)
            except ToktierError as error:
                # The judge has no answer for this text, so there is nothing to hold ours to.
                self._instruments.add("toktier.checks", verdict=error.code.value)
                _LOG.warning("verifier_no_answer", code=error.code.value, offset=sample.offset)
                return
            span.set_attribute(telemetry.ATTR_SESSION, sample.session_id)
            span.set_attribute(telemetry.ATTR_REVISION, sample.revision)
            self.checked += 1
            self._instruments.add("toktier.checks", verdict=record.verdict.value)
            if record.verdict is Verdict.MISMATCH:
                self.mismatches += 1
                _LOG.error("verifier_mismatch", **_evidence(sample, record))
                await loop.run_in_executor(self._thread, self._keep_evidence, sample, record)
            self._on_verdict(sample, record)

    def _keep_evidence(self, sample: Sample, record: CheckRecord) -> None:
        if self._evidence_dir is None:
            return
        try:
            self._evidence_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
            evidence = _evidence(sample, record)
            if self._evidence_text:
                evidence["text"] = sample.text.decode()
                evidence["ids"] = sample.ids.tolist()
            name = f"{record.text_sha256[:16]}-{sample.partition}-{sample.offset}.json"
            target = os.open(
                self._evidence_dir / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600
            )
            with os.fdopen(target, "w") as file:
                json.dump(evidence, file)
        except OSError as error:
            # Evidence is an aid; a full disk must not stop verification.
            _LOG.error("verifier_evidence_not_written", errno=error.errno)


def _evidence(sample: Sample, record: CheckRecord) -> dict[str, object]:
    return {**asdict(record), "partition": sample.partition, "offset": sample.offset}
