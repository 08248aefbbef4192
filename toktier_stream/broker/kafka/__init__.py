"""The Kafka backend of the broker port, over aiokafka."""

from toktier_stream.broker.kafka.broker import KafkaBroker
from toktier_stream.broker.kafka.options import KafkaOptions

__all__ = ["KafkaBroker", "KafkaOptions"]
