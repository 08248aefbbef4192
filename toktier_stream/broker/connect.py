"""Open a broker by its address: ``kafka://host:port,host:port``, or ``local:`` without a server."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from toktier_stream.broker.cluster import LocalCluster
from toktier_stream.broker.local import LocalBroker
from toktier_stream.broker.port import Broker
from toktier_stream.errors import Code, ToktierError

if TYPE_CHECKING:
    from toktier_stream.broker.kafka import KafkaOptions

_LOCAL_CLUSTERS: WeakValueDictionary[str, LocalCluster] = WeakValueDictionary()


def open_broker(address: str | LocalCluster | KafkaOptions) -> Broker:
    """A connection, not started yet. Raises ``CONFIG_INVALID``.

    ``local:NAME`` (the name may be empty) means the process's embedded cluster of that name,
    which lives as long as any broker opened on it. Whoever needs more of Kafka than its
    addresses gives :class:`KafkaOptions`.
    """
    if isinstance(address, LocalCluster):
        return LocalBroker(address)
    if not isinstance(address, str):
        return _kafka(address)
    scheme, _, rest = address.partition(":")
    servers = rest.removeprefix("//").rstrip("/")
    if scheme == "kafka" and rest.startswith("//") and servers:
        from toktier_stream.broker.kafka.options import KafkaOptions

        return _kafka(KafkaOptions(bootstrap_servers=servers))
    if scheme == "local":
        cluster = _LOCAL_CLUSTERS.get(rest)
        if cluster is None:
            cluster = _LOCAL_CLUSTERS[rest] = LocalCluster()
        return LocalBroker(cluster)
    raise ToktierError(
        Code.CONFIG_INVALID, f"broker address {address!r}: give kafka://host:port or local:"
    )


def _kafka(options: KafkaOptions) -> Broker:
    # Imported here, so that the embedded broker does not load aiokafka.
    from toktier_stream.broker.kafka import KafkaBroker

    return KafkaBroker(options)
