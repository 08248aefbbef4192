"""Open a broker by its address: ``kafka://host:port,host:port``, or ``local:`` without a server."""

from __future__ import annotations

from weakref import WeakValueDictionary

from toktier_stream.broker.cluster import LocalCluster
from toktier_stream.broker.local import LocalBroker
from toktier_stream.broker.port import Broker
from toktier_stream.errors import Code, ToktierError

_LOCAL_CLUSTERS: WeakValueDictionary[str, LocalCluster] = WeakValueDictionary()


def open_broker(address: str | LocalCluster) -> Broker:
    """A connection, not started yet.

    ``local:NAME`` (the name may be empty) means the process's embedded cluster of that name,
    which lives as long as any broker opened on it. Raises ``CONFIG_INVALID``.
    """
    if isinstance(address, LocalCluster):
        return LocalBroker(address)
    scheme, _, rest = address.partition(":")
    if scheme == "local":
        cluster = _LOCAL_CLUSTERS.get(rest)
        if cluster is None:
            cluster = _LOCAL_CLUSTERS[rest] = LocalCluster()
        return LocalBroker(cluster)
    raise ToktierError(
        Code.CONFIG_INVALID, f"broker address {address!r}: give kafka://host:port or local:"
    )
