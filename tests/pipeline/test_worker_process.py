"""``toktier-stream worker`` as an operator runs it: probes, metrics, signals, exit codes."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from pipeline_harness import Hands, kafka_backend, make_settings
from prometheus_client.parser import text_string_to_metric_families

from toktier_stream.broker.port import OutRecord
from toktier_stream.tokenizer.shipped import shipped_path

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]
DEADLINE_S = 4.0
CLOSING_S = 15.0


class Process:
    """A worker in a process of its own, with its log in a file."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self.process = process
        self.log = log

    def events(self) -> list[dict]:
        """What it has logged so far."""
        lines = self.log.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    async def logged(self, name: str) -> dict:
        """Wait for an event of the log."""
        async with asyncio.timeout(120):
            while True:
                for event in self.events():
                    if event["event"] == name:
                        return event
                if self.process.returncode is not None:
                    raise AssertionError(self.log.read_text())
                await asyncio.sleep(0.02)

    async def get(self, path: str) -> tuple[int, str]:
        """Status and body of one request to its health port."""
        address = await self.logged("health_listening")

        def ask() -> tuple[int, str]:
            connection = http.client.HTTPConnection(address["host"], address["port"], timeout=10)
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()

        return await asyncio.to_thread(ask)

    async def ready(self) -> None:
        """Wait until ``/readyz`` says so."""
        async with asyncio.timeout(120):
            while (await self.get("/readyz"))[0] != 200:
                await asyncio.sleep(0.05)

    async def end(self, number: int) -> tuple[int, float]:
        """Send a signal; the exit code, and the seconds it took."""
        sent = time.monotonic()
        self.process.send_signal(number)
        code = await asyncio.wait_for(self.process.wait(), 60)
        return code, time.monotonic() - sent


@pytest.fixture
def worker(kafka_bootstrap, tmp_path):
    """Starts a worker on the shared broker; it is killed if the test leaves it running."""

    @asynccontextmanager
    async def start(bootstrap=kafka_bootstrap, **environment: str):
        settings = make_settings(kafka_backend(bootstrap), tmp_path / "state", partitions=2)
        variables = {
            "TOKTIER_BROKER": settings.broker,
            "TOKTIER_GROUP": settings.group,
            "TOKTIER_PARTITIONS": "2",
            "TOKTIER_CREATE_TOPICS": "true",
            "TOKTIER_STATE_DIR": str(settings.state_dir),
            "TOKTIER_STORE_MAP_BYTES": str(settings.store_map_bytes),
            "TOKTIER_TOKENIZERS": json.dumps({"small": str(shipped_path())}),
            "TOKTIER_DEFAULT_TOKENIZER": "small",
            "TOKTIER_HEALTH_LISTEN": "127.0.0.1:0",
            "TOKTIER_SHUTDOWN_DEADLINE_S": str(DEADLINE_S),
            **{
                f"TOKTIER_TOPIC_{t.upper()}": getattr(settings, f"topic_{t}")
                for t in ("appends", "tokens", "checks", "rejects", "sessions")
            },
            **environment,
        }
        log = tmp_path / f"log-{settings.group}"
        with log.open("ab") as out:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "toktier_stream", "worker"),
                env=os.environ | variables,
                stdout=out,
                stderr=out,
            )
        try:
            yield Process(process, log), settings
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    return start


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_worker_serves_its_health_and_stops_when_told(worker, kafka_bootstrap, number):
    """Alive before it is ready; metrics in Prometheus' form count what it did; exit 0 in time."""
    async with worker() as (process, settings):
        status, body = await process.get("/livez")
        assert status == 200, body
        await process.ready()
        broker = kafka_backend(kafka_bootstrap).connect()
        await broker.start()
        hands = Hands(broker, settings)
        await hands.open()
        await hands.reset("a-session", 1, "some private text")
        await hands.send(OutRecord(settings.topic_appends, b"bad", b"\xff"))
        await hands.until(settings.topic_rejects, 1)
        await hands.close()
        await broker.stop()
        status, page = await process.get("/metrics")
        assert status == 200
        samples = {
            (s.name, s.labels.get("status") or s.labels.get("state") or s.labels.get("verdict")): (
                s.value
            )
            for family in text_string_to_metric_families(page)
            for s in family.samples
        }
        assert samples["toktier_events_total", "OK"] == 1
        assert samples["toktier_rejects_total", None] == 1
        assert samples["toktier_partitions", "running"] == 2
        assert samples["toktier_checks_total", "mismatch"] == 0
        assert samples["toktier_memory_bytes", None] > 1 << 20
        assert "private" not in page
        code, seconds = await process.end(number)
        assert code == 0, process.log.read_text()
        assert seconds < DEADLINE_S + CLOSING_S
        names = [event["event"] for event in process.events()]
        assert "worker_stopping" in names
        assert "worker_stopped" in names
        assert "private" not in process.log.read_text()


async def test_a_signal_while_engines_are_compiled_ends_it_at_once(worker, tmp_path):
    """A cold start takes long; who stops it then does not wait for it, and the exit is clean."""
    async with worker(TOKTIER_CACHE=str(tmp_path / "cold")) as (process, _):
        assert (await process.get("/livez"))[0] == 200
        status, body = await process.get("/readyz")
        assert status == 503
        assert "engines are being loaded" in body
        code, seconds = await process.end(signal.SIGTERM)
        assert code == 0, process.log.read_text()
        assert seconds < DEADLINE_S + CLOSING_S


async def test_too_many_rejects_end_the_process_with_their_code(worker, kafka_bootstrap):
    """Exit 3; the code and the numbers are in the log's last line for people."""
    limits = {"TOKTIER_REJECT_RATIO_LIMIT": "0.5", "TOKTIER_REJECT_MIN_RECORDS": "10"}
    async with worker(**limits) as (process, settings):
        await process.ready()
        broker = kafka_backend(kafka_bootstrap).connect()
        await broker.start()
        bad = [OutRecord(settings.topic_appends, b"k%d" % n, b"\xff") for n in range(30)]
        await Hands(broker, settings).send(*bad)
        await broker.stop()
        assert await asyncio.wait_for(process.process.wait(), 60) == 3
        log = process.log.read_text()
        assert "toktier-stream: REJECT_RATIO: " in log
        assert {"event": "worker_failed", "code": "REJECT_RATIO"}.items() <= next(
            e for e in process.events() if e["event"] == "worker_failed"
        ).items()
        assert "Traceback" not in log


@pytest.mark.kafka_own
async def test_a_broker_that_hangs_does_not_hold_up_the_end(worker, kafka_script):
    """The broker stands still: unready and alive; a stop ends within the deadline all the same,
    and a second signal at once."""
    own = kafka_script.start()
    try:
        async with worker(own.bootstrap) as (process, _):
            await process.ready()
            own.pause()
            assert (await process.get("/livez"))[0] == 200
            code, seconds = await process.end(signal.SIGTERM)
            assert code in (0, 1), process.log.read_text()
            assert seconds < DEADLINE_S + CLOSING_S + 5
        own.unpause()
        async with worker(own.bootstrap) as (process, _):
            await process.ready()
            own.pause()
            process.process.send_signal(signal.SIGTERM)
            await process.logged("worker_stopping")
            code, seconds = await process.end(signal.SIGINT)
            assert (code, seconds < 2) in ((130, True), (-signal.SIGINT, True))
    finally:
        own.unpause()
        own.stop()


async def test_whatever_hangs_the_process_ends():
    """A loop that is blocked for good, and a thread that never returns: exit 1 at the deadline."""
    script = """
import asyncio, threading, time
from toktier_stream.cli.worker import _end_anyway
threading.Thread(target=time.sleep, args=(60,)).start()
async def main():
    _end_anyway(0.3)
    time.sleep(60)
asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 1
    assert b"shutdown_deadline_passed" in out + err
