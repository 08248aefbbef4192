"""The broker connection that the settings describe."""

from __future__ import annotations

from toktier_stream.broker.connect import open_broker
from toktier_stream.broker.kafka.compression import compress_lightly
from toktier_stream.broker.kafka.options import KafkaOptions
from toktier_stream.broker.port import Broker
from toktier_stream.config import KIB, Settings


def broker_of(settings: Settings) -> Broker:
    """A connection, not started yet. Raises ``CONFIG_INVALID``, ``CODEC_MISSING``."""
    if not settings.broker.startswith("kafka://"):
        return open_broker(settings.broker)
    compress_lightly()
    return open_broker(kafka_options(settings))


def check_broker(settings: Settings) -> None:
    """Find what would stop the connection before it is made: accounts, codecs, TLS files. Raises
    ``CONFIG_INVALID``, ``CODEC_MISSING``."""
    if settings.broker.startswith("kafka://"):
        options = kafka_options(settings)
        options.check()
        options.ssl_context()


def kafka_options(settings: Settings) -> KafkaOptions:
    """The same settings in the broker's words."""
    return KafkaOptions(
        bootstrap_servers=settings.broker.removeprefix("kafka://").rstrip("/"),
        client_id=settings.instance_id or "toktier-worker",
        compression=settings.compression,
        security_protocol=settings.security_protocol,
        sasl_mechanism=settings.sasl_mechanism,
        sasl_username=settings.sasl_username,
        sasl_password=settings.sasl_password.get_secret_value(),
        ssl_cafile=str(settings.ssl_cafile or ""),
        ssl_certfile=str(settings.ssl_certfile or ""),
        ssl_keyfile=str(settings.ssl_keyfile or ""),
        # A reject carries a whole record of the input topic and its reason.
        max_request_size=max(2 * settings.max_event_bytes, 2048 * KIB),
        session_timeout_ms=round(settings.session_timeout_s * 1000),
        heartbeat_interval_ms=round(min(3.0, settings.session_timeout_s / 4) * 1000),
        transaction_timeout_ms=round(settings.transaction_timeout_s * 1000),
        delivery_timeout_s=settings.transaction_timeout_s * 0.8,
    )
