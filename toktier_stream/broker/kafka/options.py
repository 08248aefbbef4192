"""How to reach a Kafka cluster, as one immutable value, and what aiokafka is told from it."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field
from ssl import SSLContext, SSLError, create_default_context
from typing import Any

from toktier_stream.errors import Code, ToktierError

CODECS = ("none", "gzip", "lz4", "snappy", "zstd")


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """Settings of a connection; times are in the unit that the name says. Secrets are not shown.

    ``compression``: one of :data:`CODECS`. zstd is the smallest and, through cramjam, the
    fastest too on token ids and on text beyond 2 KB.
    ``max_request_size``: the largest record that can be sent or, by default, fetched at once.
    ``batch_bytes``: records of one partition are sent in batches up to this size, before
    compression; it must stay below the topics' max.message.bytes.
    ``fetch_max_wait_ms``: how long a fetch may wait at the broker. A partition that is resumed
    meanwhile waits as long, because aiokafka has one fetch in flight per broker.
    ``delivery_timeout_s``: a transaction that is not committed by then fails.
    ``stop_timeout_s``: what cannot be ended in order within this time is ended anyway.
    """

    bootstrap_servers: str = "localhost:9092"
    client_id: str = "toktier-stream"
    security_protocol: str = "PLAINTEXT"
    sasl_mechanism: str = "SCRAM-SHA-256"
    sasl_username: str = ""
    sasl_password: str = field(default="", repr=False)
    ssl_cafile: str = ""
    ssl_certfile: str = ""
    ssl_keyfile: str = ""
    ssl_keyfile_password: str = field(default="", repr=False)
    ssl_check_hostname: bool = True
    compression: str = "zstd"
    max_request_size: int = 2 << 20
    batch_bytes: int = 512 << 10
    linger_ms: int = 0
    fetch_max_bytes: int = 50 << 20
    fetch_max_wait_ms: int = 100
    max_partition_fetch_bytes: int = 0
    connect_timeout_s: float = 15.0
    request_timeout_ms: int = 30_000
    delivery_timeout_s: float = 50.0
    stop_timeout_s: float = 10.0
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    rebalance_timeout_ms: int = 60_000
    transaction_timeout_ms: int = 60_000

    def check(self) -> None:
        """Raises ``CONFIG_INVALID`` or ``CODEC_MISSING`` for what cannot work, before anything is
        opened: aiokafka would tell at the first message only."""
        if self.security_protocol not in ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"):
            raise ToktierError(
                Code.CONFIG_INVALID,
                f"security_protocol {self.security_protocol!r}: give PLAINTEXT, SSL,"
                " SASL_PLAINTEXT or SASL_SSL",
            )
        if self.security_protocol.startswith("SASL"):
            if self.sasl_mechanism not in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
                raise ToktierError(
                    Code.CONFIG_INVALID,
                    f"sasl_mechanism {self.sasl_mechanism!r}: give PLAIN, SCRAM-SHA-256 or"
                    " SCRAM-SHA-512",
                )
            if not self.sasl_username or not self.sasl_password:
                raise ToktierError(
                    Code.CONFIG_INVALID, "sasl_username and sasl_password are needed for SASL"
                )
        if self.compression not in CODECS:
            raise ToktierError(
                Code.CONFIG_INVALID, f"compression {self.compression!r}: give one of {CODECS}"
            )
        # Consumers need the codecs as well: producers elsewhere choose their own.
        if self.compression not in ("none", "gzip") and importlib.util.find_spec("cramjam") is None:
            raise ToktierError(Code.CODEC_MISSING, self.compression)
        if self.rebalance_timeout_ms < 60_000:
            raise ToktierError(
                Code.CONFIG_INVALID,
                "rebalance_timeout_ms must be at least 60000: a member that is late to rejoin"
                " loses its partitions",
            )
        if not 3 * self.heartbeat_interval_ms <= self.session_timeout_ms:
            raise ToktierError(
                Code.CONFIG_INVALID,
                "session_timeout_ms must be at least three times heartbeat_interval_ms",
            )
        if self.delivery_timeout_s * 1000 >= self.transaction_timeout_ms:
            raise ToktierError(
                Code.CONFIG_INVALID,
                "delivery_timeout_s must be shorter than transaction_timeout_ms: the broker would"
                " fence the producer first",
            )

    def ssl_context(self) -> SSLContext | None:
        """The TLS settings, or None without TLS. Raises ``CONFIG_INVALID`` for unusable files."""
        if "SSL" not in self.security_protocol:
            return None
        try:
            context = create_default_context(cafile=self.ssl_cafile or None)
            context.check_hostname = self.ssl_check_hostname
            if self.ssl_certfile:
                context.load_cert_chain(
                    self.ssl_certfile, self.ssl_keyfile or None, self.ssl_keyfile_password or None
                )
        except (OSError, SSLError) as error:
            raise ToktierError(Code.CONFIG_INVALID, f"TLS files: {error}") from error
        return context

    def client_arguments(self) -> dict[str, Any]:
        """What every aiokafka client is told."""
        return {
            "bootstrap_servers": self.bootstrap_servers,
            "client_id": self.client_id,
            "request_timeout_ms": self.request_timeout_ms,
            "security_protocol": self.security_protocol,
            "ssl_context": self.ssl_context(),
            "sasl_mechanism": self.sasl_mechanism,
            "sasl_plain_username": self.sasl_username or None,
            "sasl_plain_password": self.sasl_password or None,
        }

    def consumer_arguments(self) -> dict[str, Any]:
        """What consumers are told besides. They read committed records only and never commit by
        themselves; a position that is out of range means the oldest record."""
        return self.client_arguments() | {
            "isolation_level": "read_committed",
            "enable_auto_commit": False,
            "auto_offset_reset": "earliest",
            "fetch_max_bytes": self.fetch_max_bytes,
            "fetch_max_wait_ms": self.fetch_max_wait_ms,
            "max_partition_fetch_bytes": self.max_partition_fetch_bytes
            or max(1 << 20, self.max_request_size),
        }

    def producer_arguments(self) -> dict[str, Any]:
        """What producers are told besides."""
        return self.client_arguments() | {
            "compression_type": None if self.compression == "none" else self.compression,
            "enable_idempotence": True,
            "max_request_size": self.max_request_size,
            "max_batch_size": self.batch_bytes,
        }
