"""What aiokafka does otherwise than this system needs, where only its own code can show it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import (
    ConcurrentTransactions,
    ConsumerStoppedError,
    IllegalOperation,
    KafkaError,
    ProducerFenced,
)
from aiokafka.producer.sender import AddPartitionsToTxnHandler

import toktier_stream.broker.kafka.transaction  # noqa: F401 (sets the wait that is tested)
from toktier_stream.broker.kafka.failures import translated
from toktier_stream.errors import Code, ToktierError


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (IllegalOperation("no transaction"), Code.CLIENT_CLOSED),
        (ConsumerStoppedError(), Code.CLIENT_CLOSED),
        (AssertionError("no node"), Code.BROKER_UNREACHABLE),
        (ProducerFenced(), Code.PRODUCER_FENCED),
    ],
)
def test_what_is_no_kafka_error_is_translated_too(error: Exception, code: Code) -> None:
    """``IllegalOperation`` and ``ConsumerStoppedError`` are plain exceptions; whoever caught the
    base class alone would let them end the worker without a code."""
    assert isinstance(error, KafkaError) == (code is Code.PRODUCER_FENCED)
    with pytest.raises(ToktierError) as refused, translated("a call"):
        raise error
    assert refused.value.code is code


async def test_a_transaction_right_behind_another_is_asked_for_again_at_once() -> None:
    """The broker refuses it for about a millisecond, while the markers of the last one are
    written; aiokafka's own wait of 20 would be most of an answer's latency."""
    producer = AIOKafkaProducer(transactional_id="t")
    try:
        handler = AddPartitionsToTxnHandler(producer._sender, [TopicPartition("a", 0)])
        refused = SimpleNamespace(errors=[("a", [(0, ConcurrentTransactions.errno)])])
        assert handler.handle_response(refused) <= 0.005
    finally:
        await producer.client.close()
        producer._closed = True
