"""Topics and committed positions of a Kafka cluster, asked with plain requests.

aiokafka's admin client is not used: its metadata requests let brokers create missing topics, and
it takes a group coordinator's error for "nothing committed".
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Final

from aiokafka.client import AIOKafkaClient, CoordinationType
from aiokafka.errors import (
    KafkaError,
    NoError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
    for_code,
)
from aiokafka.protocol.admin import CreateTopicsRequest, DescribeConfigsRequest
from aiokafka.protocol.commit import OffsetFetchRequest
from aiokafka.protocol.metadata import MetadataRequest

from toktier_stream.broker.kafka.failures import FAILURES, unreachable, within
from toktier_stream.broker.kafka.options import KafkaOptions
from toktier_stream.broker.partitioner import partition_of
from toktier_stream.broker.port import Committed, OutRecord, TopicSpec
from toktier_stream.errors import Code, ToktierError

_TOPIC_RESOURCE: Final = 2
_RETRY_S: Final = 0.1
_NEVER_COMMITTED: Final = -1


@dataclass(frozen=True, slots=True)
class _Topic:
    partitions: int
    ready: bool
    """Whether every partition has a leader; a topic just made may have none, or no partitions."""


def admitted_batch_bytes(max_record_bytes: int) -> int:
    """The max.message.bytes for records up to ``max_record_bytes`` of key, value and headers: it
    counts a whole batch, with framing and with what a codec adds to what it cannot compress."""
    return max_record_bytes + max_record_bytes // 100 + (64 << 10)


class KafkaAdmin:
    """A connection for questions about topics and groups, shared by all objects of a broker."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._client: Any = None
        self._counts: dict[str, int] = {}
        self._without_key = 0

    async def start(self) -> None:
        """Connect. Raises ``BROKER_UNREACHABLE`` within the connect timeout."""
        if self._client is not None:
            return
        client = AIOKafkaClient(**self._options.client_arguments())
        started = False
        try:
            async with asyncio.timeout(self._options.connect_timeout_s):
                await client.bootstrap()
            started = True
        except FAILURES as error:
            raise await unreachable(self._options) from error
        finally:
            if not started:
                await client.close()
        self._client = client

    async def stop(self) -> None:
        """Disconnect; may be called again."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def place(self, record: OutRecord) -> int:
        """The partition of a record, as Kafka's default partitioner chooses it. Raises
        ``TOPIC_MISSING``, and ``EVENT_TOO_LARGE`` beyond ``max_request_size``."""
        count = self._counts.get(record.topic) or await self.partitions(record.topic)
        size = len(record.key or b"") + len(record.value or b"")
        size += sum(len(name) + len(value) for name, value in record.headers)
        if size > self._options.max_request_size:
            raise ToktierError(
                Code.EVENT_TOO_LARGE,
                f"{size} bytes for topic {record.topic}, with max_request_size"
                f" {self._options.max_request_size}",
            )
        if record.partition is not None:
            if not 0 <= record.partition < count:
                raise ToktierError(
                    Code.TOPIC_MISSING,
                    f"{record.topic} has {count} partitions, not number {record.partition}",
                )
            return record.partition
        if record.key is None:
            self._without_key += 1
            return self._without_key % count
        return partition_of(record.key, count)

    async def partitions(self, topic: str) -> int:
        """Number of partitions, asked now. Raises ``TOPIC_MISSING``."""
        async with self._deadline(f"topic {topic}"):
            while True:
                found = (await self._topics([topic])).get(topic)
                if found is None or found.partitions:
                    break
                await asyncio.sleep(_RETRY_S)
        if found is None:
            raise ToktierError(Code.TOPIC_MISSING, topic)
        self._counts[topic] = found.partitions
        return found.partitions

    async def committed(self, group: str, topic: str, partition: int) -> Committed | None:
        """What a group has committed. A coordinator that moves or loads is asked again."""
        async with self._deadline(f"committed position of {group}"):
            while True:
                try:
                    return await self._committed(group, topic, partition)
                except KafkaError as error:
                    if not error.retriable:
                        raise
                await asyncio.sleep(_RETRY_S)

    async def ensure_topics(self, topics: Sequence[TopicSpec], *, create: bool) -> None:
        """Check topics and, with ``create``, make those that are missing."""
        names = [spec.name for spec in topics]
        async with self._deadline(f"topics {', '.join(names)}"):
            found = await self._topics(names)
            missing = [spec for spec in topics if spec.name not in found]
            if missing and not create:
                raise ToktierError(Code.TOPIC_MISSING, ", ".join(spec.name for spec in missing))
            if missing:
                await self._create(missing)
            while not all(name in found and found[name].ready for name in names):
                await asyncio.sleep(_RETRY_S)
                found = await self._topics(names)
            settings = await self._settings(names)
        for spec in topics:
            self._check(spec, found[spec.name].partitions, settings[spec.name])
            self._counts[spec.name] = spec.partitions

    def _check(self, spec: TopicSpec, partitions: int, settings: dict[str, str]) -> None:
        if partitions != spec.partitions:
            raise ToktierError(
                Code.TOPIC_MISSING,
                f"{spec.name} has {partitions} partitions, not {spec.partitions}",
            )
        limit = int(settings["max.message.bytes"])
        if limit < spec.max_record_bytes:
            raise ToktierError(
                Code.TOPIC_LIMIT,
                f"{spec.name} has max.message.bytes={limit}, records have up to"
                f" {spec.max_record_bytes}",
            )
        if self._options.max_request_size < spec.max_record_bytes:
            raise ToktierError(
                Code.TOPIC_LIMIT,
                f"max_request_size is {self._options.max_request_size}, records of {spec.name}"
                f" have up to {spec.max_record_bytes}",
            )
        if limit < self._options.batch_bytes:
            raise ToktierError(
                Code.TOPIC_LIMIT,
                f"{spec.name} has max.message.bytes={limit}, batches have up to batch_bytes="
                f"{self._options.batch_bytes}",
            )
        if spec.compacted and "compact" not in settings["cleanup.policy"]:
            raise ToktierError(
                Code.CONFIG_INVALID,
                f"topic {spec.name} has cleanup.policy={settings['cleanup.policy']}, not compact",
            )

    def _connection(self) -> Any:
        if self._client is None:
            raise ToktierError(Code.CLIENT_CLOSED, "the broker connection is not started")
        return self._client

    def _deadline(self, what: str) -> AbstractAsyncContextManager[None]:
        return within(self._options.connect_timeout_s, what)

    async def _ask(self, request: Any) -> Any:
        """Ask any node, and another one when it does not answer."""
        while True:
            client = self._connection()
            try:
                return await client.send(client.get_random_node(), request)
            except KafkaError as error:
                if not error.retriable:
                    raise
            await asyncio.sleep(_RETRY_S)

    async def _topics(self, names: Sequence[str]) -> dict[str, _Topic]:
        answer = await self._ask(MetadataRequest(list(names), allow_auto_topic_creation=False))
        found: dict[str, _Topic] = {}
        for topic in answer.to_object()["topics"]:
            error = for_code(topic["error_code"])
            if error is UnknownTopicOrPartitionError:
                continue
            if error is not NoError and not error.retriable:
                raise error(topic["topic"])
            leaders = [partition["leader"] for partition in topic["partitions"]]
            ready = error is NoError and min(leaders) >= 0
            found[topic["topic"]] = _Topic(len(leaders), ready)
        return found

    async def _create(self, specs: Sequence[TopicSpec]) -> None:
        wanted: list[Any] = []
        for spec in specs:
            settings = {}
            if spec.compacted:
                settings["cleanup.policy"] = "compact"
            if spec.max_record_bytes:
                limit = max(admitted_batch_bytes(spec.max_record_bytes), self._options.batch_bytes)
                settings["max.message.bytes"] = str(limit)
            # -1: the broker's default replication factor.
            wanted.append((spec.name, spec.partitions, -1, [], list(settings.items())))
        metadata = await self._ask(MetadataRequest([], allow_auto_topic_creation=False))
        answer = await self._connection().send(
            metadata.controller_id,
            CreateTopicsRequest(wanted, self._options.request_timeout_ms, False),
        )
        for name, code, *message in answer.topic_errors:
            error = for_code(code)
            # Another process may have been faster: its topic is checked like any other.
            if error not in (NoError, TopicAlreadyExistsError):
                raise error(f"{name}: {message[0] if message else error.__name__}")

    async def _settings(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        keys = ["max.message.bytes", "cleanup.policy"]
        answer = await self._ask(
            DescribeConfigsRequest([(_TOPIC_RESOURCE, name, keys) for name in names], False)
        )
        found = {}
        for code, message, _, name, entries in answer.resources:
            error = for_code(code)
            if error is not NoError:
                raise error(f"{name}: {message}")
            found[name] = {entry[0]: entry[1] for entry in entries}
        return found

    async def _committed(self, group: str, topic: str, partition: int) -> Committed | None:
        client = self._connection()
        coordinator = await client.coordinator_lookup(CoordinationType.GROUP, group)
        answer = await client.send(coordinator, OffsetFetchRequest(group, [(topic, [partition])]))
        codes = [answer.error_code]
        codes += [code for _, partitions in answer.topics for *_, code in partitions]
        for code in codes:
            error = for_code(code)
            if error is not NoError:
                raise error(f"{group} {topic}/{partition}")
        ((_, ((_, offset, metadata, _),)),) = answer.topics
        return None if offset == _NEVER_COMMITTED else Committed(offset, metadata or "")
