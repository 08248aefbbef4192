"""Health as a probe sees it: real HTTP on a real worker, on both brokers."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from http import HTTPStatus

import pytest
from pipeline_harness import PARTITIONS, Running, make_settings

from toktier_stream.broker.port import OutRecord
from toktier_stream.errors import Code, ToktierError
from toktier_stream.pipeline.health import Health, PartitionFacts, Snapshot, WorkerFacts
from toktier_stream.pipeline.health_http import (
    CONNECTIONS,
    HEAD_BYTES,
    TEXT,
    HealthServer,
    Page,
    probe,
)
from toktier_stream.pipeline.worker import Worker, health_of
from toktier_stream.session.engines import open_registry
from toktier_stream.session.machine import Machine
from toktier_stream.wire.messages import Reset

WITHIN_S = 60.0


def fetch(address: tuple[str, int], path: str, method: str = "GET"):
    """(status, headers, body) of one request."""
    connection = http.client.HTTPConnection(*address, timeout=10)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()
    finally:
        connection.close()


async def asked(address: tuple[str, int], path: str) -> tuple[int, dict]:
    """A probe's status and report, asked without holding up the loop."""
    status, _, body = await asyncio.to_thread(fetch, address, path)
    return status, json.loads(body)


async def until(address: tuple[str, int], path: str, status: int) -> dict:
    """Wait until a probe answers so; returns the report."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            found, report = await asked(address, path)
            if found == status:
                return report
            await asyncio.sleep(0.05)


class Probed(Running):
    """A running worker whose health is served, as ``toktier-stream worker`` does it."""

    async def __aenter__(self):
        self.health = health_of(self.worker._settings)
        self.worker._health = self.health
        routes = {"/livez": probe(self.health.live), "/readyz": probe(self.health.ready)}
        self.server = HealthServer("127.0.0.1:0", routes)
        self.address = self.server.start()
        return await super().__aenter__()

    async def __aexit__(self, *exception):
        try:
            await super().__aexit__(*exception)
        finally:
            self.server.stop()


async def test_probes_of_a_worker_from_its_start_to_its_end(backend, state_dir, hands):
    """Alive and not ready at first; ready with all partitions running; the report tells positions
    and lag, and no text; not ready when it stops."""
    settings = make_settings(backend, state_dir)
    async with Probed(backend, settings) as running:
        report = await until(running.address, "/readyz", 200)
        assert report["ok"]
        assert [p["partition"] for p in report["partitions"]] == list(range(PARTITIONS))
        assert {p["state"] for p in report["partitions"]} == {"running"}
        assert (await asked(running.address, "/livez"))[0] == 200
        h = await hands(settings)
        await h.reset("a-session", 1, "a text that stays private")
        async with asyncio.timeout(WITHIN_S):
            while True:
                status, report = await asked(running.address, "/readyz")
                done = [p for p in report["partitions"] if p["position"] > 0]
                if done and all(p["lag"] == 0 for p in report["partitions"]):
                    break
                await asyncio.sleep(0.1)
        assert status == 200
        assert done[0]["waiting"] == 0
        _, _, body = fetch(running.address, "/livez")
        assert b"private" not in body
        assert b"a-session" not in body
    # The last snapshot stays, for a probe that comes while the process ends.
    report = json.loads(running.health.ready().body)
    assert report["reasons"][0] == "stopping"
    assert running.health.live().ok


async def test_a_lost_broker_makes_it_unready_and_leaves_it_alive():
    """Time since the broker's last answer goes on while nothing is published."""
    now = 0.0
    health = Health(heartbeat_limit_s=15, broker_limit_s=30, clock=lambda: now)
    facts = WorkerFacts(engines=True, joined=True)
    health.publish(Snapshot(0.0, facts, broker_s=25.0))
    assert health.ready().ok
    now = 6.0
    report = health.ready()
    assert json.loads(report.body)["reasons"] == ["the broker has not answered for 31 s"]
    assert health.live().ok


@pytest.mark.parametrize(
    ("facts", "broker_s", "reason"),
    [
        (WorkerFacts(), 0.0, "engines are being loaded"),
        (WorkerFacts(engines=True), 0.0, "not a member of the group now"),
        (WorkerFacts(engines=True, joined=True), None, "the broker has not answered yet"),
        (WorkerFacts(True, True, True), 0.0, "stopping"),
        (WorkerFacts(True, True, error="REJECT_RATIO"), 0.0, "ended by REJECT_RATIO"),
        (WorkerFacts(True, True, assigned=frozenset({2})), 0.0, "partition 2 is assigned"),
        (
            WorkerFacts(
                True, True, assigned=frozenset({2}),
                partitions=(PartitionFacts(2, "restoring", 1, 0, 0, 0),),
            ),
            0.0,
            "partition 2 is restoring",
        ),
    ],
)  # fmt: skip
def test_every_reason_not_to_be_ready(facts, broker_s, reason):
    """Each is told in words, and none but an error is a reason to restart."""
    health = Health(15, 30, clock=lambda: 0.0)
    health.publish(Snapshot(0.0, facts, broker_s))
    report = health.ready()
    assert not report.ok
    assert reason in json.loads(report.body)["reasons"]
    assert health.live().ok is not bool(facts.error)


def test_a_worker_without_partitions_is_ready():
    """More workers than partitions: the spare ones do not hold up a rollout."""
    health = Health(15, 30, clock=lambda: 0.0)
    assert health.live().ok
    assert not health.ready().ok
    health.publish(Snapshot(0.0, WorkerFacts(engines=True, joined=True), 0.0))
    assert health.ready().ok


async def test_a_blocked_event_loop_is_told_by_another_thread(backend, state_dir):
    """The loop hangs; the probe still answers, and says so; it recovers with the loop."""
    settings = make_settings(backend, state_dir, heartbeat_limit_s=1.5)
    async with Probed(backend, settings) as running:
        await until(running.address, "/livez", 200)
        found: dict[str, object] = {}
        told = threading.Event()

        def watch() -> None:
            for _ in range(400):
                status, _, body = fetch(running.address, "/livez")
                if status == 503:
                    found.update(json.loads(body))
                    break
                told.wait(0.05)
            told.set()

        watcher = threading.Thread(target=watch)
        watcher.start()
        told.wait(20)  # on the loop, on purpose: nothing else runs meanwhile
        watcher.join()
        assert "event loop is silent" in str(found["reasons"])
        await until(running.address, "/livez", 200)


async def test_a_thread_that_never_returns_trips_the_watchdog(
    backend, state_dir, hands, monkeypatch
):
    """An encode hangs: its partition stands still, the others go on, /livez asks for a restart."""
    settings = make_settings(backend, state_dir, stall_limit_s=2.5, transaction_timeout_s=2)
    hung, release = threading.Event(), threading.Event()
    apply = Machine.apply

    def hang(self, batch, event, *rest):
        if event.session_id == "hangs":
            hung.set()
            release.wait(60)
        return apply(self, batch, event, *rest)

    monkeypatch.setattr(Machine, "apply", hang)
    async with Probed(backend, settings) as running:
        h = await hands(settings)
        try:
            await h.event("hangs", 1, Reset(b"some text"))
            report = await until(running.address, "/livez", 503)
            assert hung.is_set()
            (stuck,) = [p for p in report["partitions"] if p["stalled_s"] > 0]
            assert stuck["waiting"] == 1
            assert report["reasons"] == [
                r for r in report["reasons"] if f"partition {stuck['partition']} stands still" in r
            ]
        finally:
            release.set()
        await h.next()
        await until(running.address, "/livez", 200)


async def test_work_left_behind_at_the_deadline_is_told(backend, state_dir, hands, monkeypatch):
    """An encode outlasts the deadline: the worker ends all the same and says so; the event is
    answered once by the next one."""
    settings = make_settings(backend, state_dir, shutdown_deadline_s=0.5)
    hung, release = threading.Event(), threading.Event()
    apply = Machine.apply

    def hang(self, batch, event, *rest):
        hung.set()
        release.wait(60)
        return apply(self, batch, event, *rest)

    async with Running(backend, settings) as running:
        h = await hands(settings)
        monkeypatch.setattr(Machine, "apply", hang)
        await h.event("hangs", 1, Reset(b"some text"))
        await asyncio.to_thread(hung.wait, WITHIN_S)
        threading.Timer(1.5, release.set).start()
    assert running.worker.abandoned
    monkeypatch.setattr(Machine, "apply", apply)
    async with Running(backend, settings) as running:
        (answer,) = await h.next()
        assert (answer.session_id, answer.revision) == ("hangs", 1)
    assert not running.worker.abandoned
    assert len(await h.everything(settings.topic_tokens)) == 1


async def test_too_many_rejects_end_the_worker_loudly(backend, state_dir, hands):
    """Good records do not; when more than the ratio are bad, run() raises with the numbers, the
    rejects are all there, and the offsets of what was answered are committed."""
    settings = make_settings(
        backend, state_dir, reject_ratio_limit=0.5, reject_min_records=8, partitions=1
    )
    broker = backend.connect()
    await broker.start()
    worker = Worker(settings, broker, open_registry(settings.tokenizers, "small"))
    task = asyncio.create_task(worker.run())
    async with asyncio.timeout(WITHIN_S):
        await worker.ready.wait()
    h = await hands(settings)
    for n in range(5):
        await h.reset(f"s{n}", 1, "text")
    bad = [OutRecord(settings.topic_appends, b"k%d" % n, b"\xff") for n in range(20)]
    await h.send(*bad)
    async with asyncio.timeout(WITHIN_S):
        with pytest.raises(ToktierError) as ended:
            await task
    await broker.stop()
    assert ended.value.code is Code.REJECT_RATIO
    assert " of " in ended.value.detail
    assert worker.facts().error == "REJECT_RATIO"
    rejects = await h.everything(settings.topic_rejects)
    assert 0 < len(rejects) <= 20
    report = json.loads(worker._health.live().body)
    assert report["reasons"] == ["ended by REJECT_RATIO"]


@pytest.fixture
def served() -> Iterator[tuple[str, int]]:
    """A server with a good page and one that fails."""

    def fails() -> Page:
        raise ZeroDivisionError("nobody should read this")

    good = Page(HTTPStatus.OK, TEXT, b"fine\n")
    server = HealthServer("127.0.0.1:0", {"/livez": lambda: good, "/fails": fails}, request_s=1.0)
    yield server.start()
    server.stop()


def raw(address: tuple[str, int], request: bytes) -> bytes:
    """What comes back for these bytes, until the server closes."""
    with socket.create_connection(address, timeout=10) as connection:
        connection.sendall(request)
        received = b""
        try:
            while block := connection.recv(4096):
                received += block
        except ConnectionResetError:
            pass
        return received


@pytest.mark.parametrize(
    ("method", "path", "status", "body"),
    [
        ("GET", "/livez", 200, b"fine\n"),
        ("GET", "/livez?verbose=1", 200, b"fine\n"),
        ("HEAD", "/livez", 200, b""),
        ("HEAD", "/nothing", 404, b""),
        ("GET", "/nothing", 404, b"Not Found\n"),
        ("GET", "/", 404, b"Not Found\n"),
        ("POST", "/livez", 405, b"Method Not Allowed\n"),
        ("DELETE", "/livez", 405, b"Method Not Allowed\n"),
        ("GET", "/fails", 500, b"Internal Server Error\n"),
    ],
)
def test_methods_and_paths(served, method, path, status, body):
    """What exists, what does not, what is not allowed, and a page that fails."""
    found, headers, content = fetch(served, path, method)
    assert (found, content) == (status, body)
    assert ("Allow" in headers) == (status == 405)
    if method == "HEAD" and status == 200:
        assert headers["Content-Length"] == "5"


@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        (b"GET http://host/livez HTTP/1.0\r\n\r\n", b"HTTP/1.1 200"),
        (b"nonsense\r\n\r\n", b"HTTP/1.1 400"),
        (b"GET /livez HTTP/2.0\r\n\r\n", b"HTTP/1.1 400"),
        (b"GET /\xff HTTP/1.1\r\n\r\n", b"HTTP/1.1 400"),
        (b"GET http://[/ HTTP/1.1\r\n\r\n", b"HTTP/1.1 400"),
        (b"GET /livez HTTP/1.1\r\nX: " + b"x" * (HEAD_BYTES - 40), b""),
        (b"GET /livez HTTP/1.1\r\nX: " + b"x" * 2 * HEAD_BYTES + b"\r\n\r\n", b"HTTP/1.1 431"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b""),
    ],
)
def test_odd_requests_get_a_short_answer_or_none(served, request_, answer):
    """Malformed, endless, too large, TLS by mistake: closed within the limit, and it lives on."""
    assert raw(served, request_).startswith(answer)
    assert fetch(served, "/livez")[0] == 200


def test_silent_connections_do_not_keep_others_out(served):
    """As many as are allowed say nothing; the next is told 503; after the limit all is well."""
    silent = [socket.create_connection(served, timeout=10) for _ in range(CONNECTIONS)]
    try:
        assert fetch(served, "/livez")[0] == 503
        for each in silent:
            assert each.recv(1) == b""
        assert fetch(served, "/livez")[0] == 200
    finally:
        for each in silent:
            each.close()


def test_an_address_in_use_is_told_by_name(served):
    """The setting and the system's reason."""
    with pytest.raises(ToktierError) as refused:
        HealthServer(f"127.0.0.1:{served[1]}", {}).start()
    assert refused.value.code is Code.CONFIG_INVALID
    assert f"health_listen 127.0.0.1:{served[1]}" in refused.value.detail
