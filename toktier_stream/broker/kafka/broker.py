"""A connection to a Kafka cluster."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from toktier_stream.broker.kafka.admin import KafkaAdmin
from toktier_stream.broker.kafka.consumer import KafkaGroupConsumer
from toktier_stream.broker.kafka.options import KafkaOptions
from toktier_stream.broker.kafka.publisher import KafkaPublisher
from toktier_stream.broker.kafka.reader import KafkaReader
from toktier_stream.broker.kafka.transaction import KafkaTransaction
from toktier_stream.broker.port import Copies, RebalanceCallback, TopicSpec


def _above_debug(record: logging.LogRecord) -> bool:
    return record.levelno > logging.DEBUG


class KafkaBroker:
    """See :class:`toktier_stream.broker.port.Broker`."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._admin = KafkaAdmin(options)

    async def start(self) -> None:
        """Check the options and connect. Raises ``CONFIG_INVALID``, ``CODEC_MISSING`` and
        ``BROKER_UNREACHABLE``."""
        self._options.check()
        # At this level aiokafka logs records with their values, which may be transcripts.
        for name in ("aiokafka.conn", "aiokafka.producer.producer"):
            logging.getLogger(name).addFilter(_above_debug)
        await self._admin.start()

    async def stop(self) -> None:
        """Disconnect. What was opened on this connection is stopped by its owner, before."""
        await self._admin.stop()

    async def ensure_topics(self, topics: Sequence[TopicSpec], *, create: bool) -> None:
        await self._admin.ensure_topics(topics, create=create)

    async def partitions(self, topic: str) -> int:
        return await self._admin.partitions(topic)

    def group_consumer(
        self,
        topic: str,
        group: str,
        *,
        on_assigned: RebalanceCallback,
        on_revoked: RebalanceCallback,
        instance_id: str = "",
        copies: Copies | None = None,
    ) -> KafkaGroupConsumer:
        return KafkaGroupConsumer(
            self._options, self._admin, topic, group, on_assigned, on_revoked, instance_id, copies
        )

    def transaction(self, transactional_id: str) -> KafkaTransaction:
        return KafkaTransaction(self._options, self._admin, transactional_id)

    def publisher(self, *, linger_ms: int = 0) -> KafkaPublisher:
        return KafkaPublisher(self._options, self._admin, linger_ms)

    def reader(self, topic: str) -> KafkaReader:
        return KafkaReader(self._options, self._admin, topic)
