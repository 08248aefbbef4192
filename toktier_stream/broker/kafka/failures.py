"""What aiokafka raises, in this system's codes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from aiokafka.errors import (
    CommitFailedError,
    ConsumerStoppedError,
    IllegalGenerationError,
    IllegalOperation,
    IllegalStateError,
    InvalidProducerEpoch,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    NodeNotReadyError,
    ProducerClosed,
    ProducerFenced,
    RebalanceInProgressError,
    RecordListTooLargeError,
    RequestTimedOutError,
    UnknownMemberIdError,
    UnknownTopicOrPartitionError,
)

from toktier_stream.broker.kafka.options import KafkaOptions
from toktier_stream.errors import Code, ToktierError

# ConsumerStoppedError and IllegalOperation are no KafkaError; TimeoutError is an OSError. aiokafka
# asserts that it knows a broker, and just after one has hung it may know none.
FAILURES = (KafkaError, ConsumerStoppedError, IllegalOperation, OSError, AssertionError)

_CODES: tuple[tuple[Code, tuple[type[Exception], ...]], ...] = (
    (Code.PRODUCER_FENCED, (ProducerFenced, InvalidProducerEpoch)),
    (
        Code.PARTITION_LOST,
        (
            CommitFailedError,
            IllegalGenerationError,
            IllegalStateError,
            RebalanceInProgressError,
            UnknownMemberIdError,
        ),
    ),
    (Code.EVENT_TOO_LARGE, (MessageSizeTooLargeError, RecordListTooLargeError)),
    (Code.TOPIC_MISSING, (UnknownTopicOrPartitionError,)),
    (Code.CLIENT_CLOSED, (ConsumerStoppedError, IllegalOperation, ProducerClosed)),
    (
        Code.BROKER_UNREACHABLE,
        (
            KafkaConnectionError,
            KafkaTimeoutError,
            NodeNotReadyError,
            RequestTimedOutError,
            OSError,
            AssertionError,
        ),
    ),
)


def code_of(error: Exception) -> Code:
    """The code of an error of aiokafka."""
    for code, types in _CODES:
        if isinstance(error, types):
            return code
    return Code.BROKER_ERROR


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Raise aiokafka's errors as :class:`ToktierError`; ``what`` names what was asked for."""
    try:
        yield
    except FAILURES as error:
        told = "no answer in time" if isinstance(error, TimeoutError) else str(error)
        raise ToktierError(code_of(error), f"{what}: {told or type(error).__name__}") from error


@asynccontextmanager
async def within(seconds: float, what: str) -> AsyncIterator[None]:
    """:func:`translated` with a time limit, past which ``BROKER_UNREACHABLE`` is raised."""
    with translated(what):
        async with asyncio.timeout(seconds):
            yield


def known_offset(metadata: Any) -> int:
    """The offset in an acknowledgement. Raises ``BROKER_ERROR`` when the broker has recognised a
    repeated batch and no longer knows where the first one went."""
    offset: int = metadata.offset
    if offset < 0:
        raise ToktierError(
            Code.BROKER_ERROR, f"{metadata.topic}/{metadata.partition}: offset not known"
        )
    return offset


async def unreachable(options: KafkaOptions) -> ToktierError:
    """The error for a cluster that did not answer, with what a plain connection meets there."""
    told = []
    for address in options.bootstrap_servers.split(","):
        host, _, port = address.strip().rpartition(":")
        try:
            async with asyncio.timeout(2.0):
                _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        except TimeoutError:
            told.append(f"{address}: no connection within 2 s")
        except ValueError as error:
            told.append(f"{address}: {error}")
        except OSError as error:
            told.append(f"{address}: {os.strerror(error.errno) if error.errno else error}")
        else:
            writer.close()
            told.append(
                f"{address}: something listens there, but does not answer as Kafka with"
                f" security_protocol {options.security_protocol}"
            )
    return ToktierError(Code.BROKER_UNREACHABLE, "; ".join(told))
