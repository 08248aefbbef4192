"""What can be told of Kafka settings and answers without a broker."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Sequence
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import NodeNotReadyError
from aiokafka.protocol.commit import OffsetFetchResponse_v3
from broker_harness import Message, nothing_left_running

from toktier_stream.broker.connect import open_broker
from toktier_stream.broker.kafka import KafkaBroker, KafkaOptions
from toktier_stream.broker.kafka.admin import KafkaAdmin
from toktier_stream.broker.kafka.reader import KafkaReader
from toktier_stream.broker.port import Committed, read_to_end
from toktier_stream.errors import Code, ToktierError

LOADING, NOT_COORDINATOR, FORBIDDEN = 14, 16, 30


def test_secrets_are_not_shown() -> None:
    """Passwords appear in no representation of the options."""
    options = KafkaOptions(sasl_username="u", sasl_password="hunter2", ssl_keyfile_password="k3y")
    assert "hunter2" not in repr(options)
    assert "k3y" not in f"{options} {[options]}"
    assert "sasl_username='u'" in repr(options)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"security_protocol": "plaintext"}, "security_protocol"),
        ({"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "GSSAPI"}, "sasl_mechanism"),
        ({"security_protocol": "SASL_PLAINTEXT", "sasl_username": "u"}, "sasl_password"),
        ({"compression": "brotli"}, "compression"),
        ({"rebalance_timeout_ms": 30_000}, "rebalance_timeout_ms"),
        ({"session_timeout_ms": 6_000}, "session_timeout_ms"),
        ({"delivery_timeout_s": 60.0}, "delivery_timeout_s"),
    ],
)
async def test_unusable_settings_stop_the_start(settings: dict[str, Any], told: str) -> None:
    """Each is found before anything is opened, and the message names the setting."""
    with pytest.raises(ToktierError) as refused:
        await KafkaBroker(KafkaOptions(**settings)).start()
    assert refused.value.code is Code.CONFIG_INVALID
    assert told in refused.value.detail


async def test_missing_tls_files_stop_the_start() -> None:
    """A certificate that cannot be read is a wrong configuration, not a crash."""
    options = KafkaOptions(security_protocol="SSL", ssl_cafile="/nowhere/ca.pem")
    with pytest.raises(ToktierError) as refused:
        await KafkaBroker(options).start()
    assert refused.value.code is Code.CONFIG_INVALID


async def test_a_codec_that_cannot_be_loaded_stops_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without cramjam only gzip and none are left, and that is told at once."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for codec in ("zstd", "lz4", "snappy"):
        with pytest.raises(ToktierError) as refused:
            await KafkaBroker(KafkaOptions(compression=codec)).start()
        assert refused.value.code is Code.CODEC_MISSING
    for codec in ("gzip", "none"):
        KafkaOptions(compression=codec).check()


def test_kafka_addresses_open_a_kafka_broker() -> None:
    """Both the address form and the options form mean the same backend."""
    assert isinstance(open_broker("kafka://one:9092,two:9092"), KafkaBroker)
    assert isinstance(open_broker(KafkaOptions()), KafkaBroker)
    for address in ("kafka://", "kafka:one:9092"):
        with pytest.raises(ToktierError):
            open_broker(address)


async def test_nobody_listening_is_told_with_the_address() -> None:
    """A refused connection names the address and the system's reason."""
    server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    with pytest.raises(ToktierError) as refused:
        await open_broker(f"kafka://127.0.0.1:{port}").start()
    assert refused.value.code is Code.BROKER_UNREACHABLE
    assert f"127.0.0.1:{port}" in refused.value.detail
    assert "refused" in refused.value.detail.lower()
    await nothing_left_running()


async def test_somebody_else_listening_is_told_apart() -> None:
    """A server that is not Kafka, and one that never answers, end within the connect timeout."""

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def keep_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    for handler in (hang_up, keep_silent):
        server = await asyncio.start_server(handler, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        options = KafkaOptions(bootstrap_servers=f"127.0.0.1:{port}", connect_timeout_s=0.5)
        async with asyncio.timeout(10):
            with pytest.raises(ToktierError) as refused:
                await KafkaBroker(options).start()
        assert refused.value.code is Code.BROKER_UNREACHABLE
        assert "something listens there" in refused.value.detail
        server.close()


class FakeCoordinator:
    """Answers offset requests from a list: error codes, exceptions, or (offset, metadata)."""

    def __init__(self, *answers: int | Exception | tuple[int, str]) -> None:
        self.answers = list(answers)

    async def coordinator_lookup(self, kind: object, key: str) -> int:
        return 1

    async def send(self, node: int, request: object) -> OffsetFetchResponse_v3:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, int):
            # Since version 2 an error of the whole group comes without any partition.
            return OffsetFetchResponse_v3(0, [], answer)
        return OffsetFetchResponse_v3(0, [("t", [(0, *answer, 0)])], 0)


def admin_of(coordinator: FakeCoordinator) -> KafkaAdmin:
    admin = KafkaAdmin(KafkaOptions())
    admin._client = coordinator
    return admin


async def test_a_moving_coordinator_is_not_an_absent_commit() -> None:
    """Errors of the coordinator are asked again; only its word counts as never committed."""
    coordinator = FakeCoordinator(LOADING, NOT_COORDINATOR, NodeNotReadyError(), (7, "note"))
    assert await admin_of(coordinator).committed("g", "t", 0) == Committed(7, "note")
    assert await admin_of(FakeCoordinator((-1, ""))).committed("g", "t", 0) is None


async def test_a_refusing_coordinator_is_an_error() -> None:
    """What waiting does not cure is raised at once."""
    with pytest.raises(ToktierError) as refused:
        await admin_of(FakeCoordinator(FORBIDDEN)).committed("g", "t", 0)
    assert refused.value.code is Code.BROKER_ERROR


class FakeConsumer:
    """A consumer whose broker answers fetches from a script, one entry for each waiting getmany:
    None (no answer came), or the records and the last stable offset of an answer. With ``late``
    an answer comes just after the wait is over, as the last thing before the poll returns."""

    def __init__(self, *script: tuple[Sequence[int], int] | None, late: bool = False) -> None:
        self._script = list(script)
        self._late = late
        self._buffer: list[Message] = []
        self._position = 0
        self._stamp: int | None = None
        self._stable = 0

    async def getmany(self, timeout_ms: int, max_records: int) -> dict[TopicPartition, Any]:
        drained = self._drain()
        if drained or not timeout_ms:
            return drained
        await asyncio.sleep(timeout_ms / 1000)
        answer = self._script.pop(0) if self._script else None
        if answer is not None:
            self._stamp = (self._stamp or 0) + 1
            self._buffer += map(Message, answer[0])
            self._stable = answer[1]
        return {} if self._late else self._drain()

    def _drain(self) -> dict[TopicPartition, Any]:
        messages, self._buffer = self._buffer, []
        if not messages:
            return {}
        self._position = messages[-1].offset + 1
        return {TopicPartition("t", 0): messages}

    async def position(self, tp: TopicPartition) -> int:
        return self._position

    def last_poll_timestamp(self, tp: TopicPartition) -> int | None:
        return self._stamp

    def last_stable_offset(self, tp: TopicPartition) -> int:
        return self._stable


def reader_of(consumer: FakeConsumer, partitions: int = 1) -> KafkaReader:
    reader = KafkaReader(KafkaOptions(), KafkaAdmin(KafkaOptions()), "t")
    reader._consumer = consumer
    reader._positions = dict.fromkeys(range(partitions), 0)
    return reader


async def test_only_an_empty_answer_means_drained() -> None:
    """Silence of a slow broker is no end; an answer without records, up to the end, is one."""
    reader = reader_of(FakeConsumer(None, None, ([], 9)))
    for timeout, drained in ((0.001, False), (0.001, False), (0.001, True)):
        assert await reader.poll(timeout, 10) == []
        assert reader.drained(0, 9) is drained
    assert not reader.drained(0, 10)


async def test_an_answer_that_came_with_the_end_of_the_wait_is_looked_at() -> None:
    """Records that arrive between aiokafka's wait and our question are delivered, not missed."""
    reader = reader_of(FakeConsumer(([3, 4], 9), late=True))
    assert [r.offset for r in await reader.poll(0.001, 10)] == [3, 4]
    assert not reader.drained(0, 9)


async def test_of_several_partitions_none_is_drained() -> None:
    """A fetch leaves out partitions beyond its size, so its silence about one tells nothing."""
    reader = reader_of(FakeConsumer(([], 9)), partitions=2)
    assert await reader.poll(0.001, 10) == []
    assert not reader.drained(0, 9)


async def test_reading_to_an_end_that_compaction_has_emptied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A log whose last records are gone is read to its end without waiting for the deadline."""
    reader = reader_of(FakeConsumer(([0, 3], 20), None, ([], 20)))

    async def start(positions: dict[int, int]) -> None: ...

    async def end(partition: int) -> int:
        return 20

    monkeypatch.setattr(reader, "start", start)
    monkeypatch.setattr(reader, "end", end)
    async with asyncio.timeout(10):
        assert [r.offset async for r in read_to_end(reader, 0, 0, 30.0)] == [0, 3]
