"""Runs each contract test on both backends."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import pytest_asyncio
import trustme
from broker_harness import Bench, kafka_options, nothing_left_running
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from toktier_stream.broker.cluster import LocalCluster
from toktier_stream.broker.kafka import KafkaBroker
from toktier_stream.broker.local import LocalBroker


@pytest_asyncio.fixture(params=["local", pytest.param("kafka", marks=pytest.mark.kafka)])
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    """A started connection to a cluster of either backend."""
    if request.param == "local":
        cluster = LocalCluster()
        bench = Bench(lambda: LocalBroker(cluster))
    else:
        options = kafka_options(request.getfixturevalue("kafka_bootstrap"))
        bench = Bench(lambda: KafkaBroker(options))
    forgotten: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: forgotten.append(context))
    await bench.start()
    yield bench
    await bench.stop()
    await nothing_left_running()
    gc.collect()
    assert not forgotten


@dataclass(frozen=True)
class Papers:
    """PEM files: the authority, a client's certificate and key, and another authority."""

    authority: Path
    certificate: Path
    key: Path
    stranger: Path


@pytest.fixture(scope="module")
def own_kafka(kafka_script: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A handle on a broker that one test file may kill, pause and restart; it has SASL and TLS."""
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    papers = Papers(*(folder / name for name in ("ca", "cert", "key", "stranger")))
    authority.cert_pem.write_to_path(str(papers.authority))
    trustme.CA().cert_pem.write_to_path(str(papers.stranger))
    client = authority.issue_cert("worker@example.com")
    client.private_key_pem.write_to_path(str(papers.key))
    client.cert_chain_pems[0].write_to_path(str(papers.certificate))
    server = authority.issue_cert("127.0.0.1")
    key = load_pem_private_key(server.private_key_pem.bytes(), None)
    keystore = folder / "broker"
    keystore.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        + server.cert_chain_pems[0].bytes()
    )
    handle = kafka_script.start(sasl=True, tls=kafka_script.Tls(keystore, papers.authority))
    handle.account = kafka_script.USER, kafka_script.PASSWORD
    handle.papers = papers
    yield handle
    handle.stop()
