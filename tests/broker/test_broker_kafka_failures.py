"""A broker that dies, hangs, comes back, or asks for a password."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from broker_harness import (
    WITHIN_S,
    Bench,
    Member,
    committed_at,
    kafka_options,
    nothing_left_running,
    unique,
    values,
)

from toktier_stream.broker.kafka import KafkaBroker, KafkaOptions
from toktier_stream.broker.port import OutRecord, Publisher, Reader, Transaction
from toktier_stream.errors import Code, ToktierError

pytestmark = pytest.mark.kafka_own


@pytest_asyncio.fixture
async def bench(own_kafka: Any) -> AsyncIterator[Bench]:
    """A started connection with short time limits to a broker that may be mistreated."""
    options = kafka_options(
        own_kafka.bootstrap,
        connect_timeout_s=20.0,
        request_timeout_ms=2_000,
        delivery_timeout_s=1.5,
        stop_timeout_s=1.0,
    )
    bench = Bench(lambda: KafkaBroker(options))
    await bench.start()
    yield bench
    await bench.stop()
    await nothing_left_running()


async def in_thread(call: Any) -> None:
    await asyncio.to_thread(call)


async def one_of_each(bench: Bench) -> tuple[str, Member, Publisher, Transaction, Reader]:
    """A topic, and everything that can be connected to it."""
    topic = await bench.topic()
    member = await bench.member(topic, unique("group"))
    publisher = await bench.publisher()
    transaction = await bench.transaction(unique("txn"))
    return topic, member, publisher, transaction, await bench.reader(topic, {0: 0})


async def test_everything_goes_on_after_a_crash_of_the_broker(bench: Bench, own_kafka: Any) -> None:
    """Nothing acknowledged is lost, nothing comes twice, and no object has to be made anew but a
    transaction that failed."""
    source, group = await bench.topic(), unique("group")
    topic, member, publisher, transaction, reader = await one_of_each(bench)
    await (await publisher.send(OutRecord(topic, b"k", b"1")))
    await transaction.publish([OutRecord(topic, b"k", b"2")], group, source, 0, committed_at(2))
    assert values(await member.collect(2)) == [b"1", b"2"]
    await member.consumer.commit(0, committed_at(1))

    own_kafka.kill()
    waiting = await publisher.send(OutRecord(topic, b"k", b"3"))
    with pytest.raises(ToktierError) as refused:
        await transaction.publish([OutRecord(topic, b"k", b"x")], group, source, 0, committed_at(9))
    assert refused.value.code is Code.BROKER_UNREACHABLE
    assert await member.silent()
    await in_thread(own_kafka.restart)

    async with asyncio.timeout(WITHIN_S):
        await waiting
    await transaction.start()
    await transaction.publish([OutRecord(topic, b"k", b"4")], group, source, 0, committed_at(3))
    # The crash may cost the group its membership; then it starts again from its commit.
    found = values(await member.collect(2))
    while found[-1] != b"4":
        found += values(await member.collect(1))
    assert found in ([b"3", b"4"], [b"2", b"3", b"4"], [b"1", b"2", b"3", b"4"])
    await bench.expect(topic, [b"1", b"2", b"3", b"4"])
    await bench.expect_committed(source, group, committed_at(3))
    seen: list[bytes | None] = []
    async with asyncio.timeout(WITHIN_S):
        while len(seen) < 4:
            seen += values(await reader.poll(1.0, 10))
    assert seen == [b"1", b"2", b"3", b"4"]


async def test_a_hanging_broker_holds_nobody_forever(bench: Bench, own_kafka: Any) -> None:
    """When the broker takes connections and never answers, publishes fail within their limit and
    every stop ends; after it wakes up, all is well."""
    source, group = await bench.topic(), unique("group")
    topic, member, publisher, transaction, reader = await one_of_each(bench)
    await transaction.publish([OutRecord(topic, b"k", b"1")], group, source, 0, committed_at(1))

    own_kafka.pause()
    try:
        waiting = await publisher.send(OutRecord(topic, b"k", b"lost or not"))
        async with asyncio.timeout(10):
            with pytest.raises(ToktierError) as refused:
                await transaction.publish(
                    [OutRecord(topic, b"k", b"x")], group, source, 0, committed_at(9)
                )
        assert refused.value.code is Code.BROKER_UNREACHABLE
        async with asyncio.timeout(20):
            await publisher.stop()
            await transaction.stop()
            await member.consumer.stop()
            await reader.stop()
        with pytest.raises(ToktierError) as refused:
            await waiting
        assert refused.value.code is Code.CLIENT_CLOSED
        await nothing_left_running_but_the_connection()
    finally:
        own_kafka.unpause()

    again = bench.broker.transaction(unique("txn"))
    async with asyncio.timeout(WITHIN_S):
        while not await started(again):
            await asyncio.sleep(0.2)
        await again.publish([OutRecord(topic, b"k", b"2")], group, source, 0, committed_at(2))
    await again.stop()
    await bench.expect_committed(source, group, committed_at(2))


async def started(transaction: Transaction) -> bool:
    """Try to start; a broker that is waking up may be out of reach for a moment."""
    try:
        await transaction.start()
    except ToktierError as error:
        if error.code is not Code.BROKER_UNREACHABLE:
            raise
        return False
    return True


async def nothing_left_running_but_the_connection() -> None:
    await asyncio.sleep(0.1)
    names = {task.get_coro().__qualname__ for task in asyncio.all_tasks()}  # type: ignore[union-attr]
    assert not {n for n in names if "Sender" in n or "Fetcher" in n or "Coordinator" in n}, names


async def test_a_missing_broker_stops_the_start_of_everything(bench: Bench, own_kafka: Any) -> None:
    """Starting anything while no broker is there ends with BROKER_UNREACHABLE and leaves nothing
    behind."""
    topic = await bench.topic()
    bench.broker._admin._options = kafka_options(  # type: ignore[attr-defined]
        own_kafka.bootstrap, connect_timeout_s=0.4, request_timeout_ms=300
    )
    options = kafka_options(own_kafka.bootstrap, connect_timeout_s=0.4, request_timeout_ms=300)
    broker = KafkaBroker(options)
    await broker.start()
    own_kafka.kill()
    try:
        starting = [
            broker.transaction(unique("txn")).start(),
            broker.publisher().start(),
            broker.reader(topic).start({0: 0}),
            broker.group_consumer(
                topic, unique("group"), on_assigned=lambda _: None, on_revoked=lambda _: None
            ).start(),
            broker.partitions(topic),
            KafkaBroker(options).start(),
        ]
        for each in starting:
            async with asyncio.timeout(10):
                with pytest.raises(ToktierError) as refused:
                    await each
            assert refused.value.code is Code.BROKER_UNREACHABLE
        await broker.stop()
    finally:
        await in_thread(own_kafka.restart)


async def _everything_works(options: KafkaOptions) -> None:
    """Topics, publishing, transactions, groups and readers, all with these options."""
    kafka = Bench(lambda: KafkaBroker(options))
    await kafka.start()
    source, topic = await kafka.topic(), await kafka.topic()
    await kafka.send([OutRecord(topic, b"k", b"1")])
    transaction = await kafka.transaction(unique("txn"))
    await transaction.publish(
        [OutRecord(topic, b"k", b"2")], unique("group"), source, 0, committed_at(1)
    )
    member = await kafka.member(topic, unique("group"))
    assert values(await member.collect(2)) == [b"1", b"2"]
    await kafka.expect(topic, [b"1", b"2"])
    await kafka.stop()


async def test_a_certificate_opens_everything(own_kafka: Any) -> None:
    """TLS both ways: each object shows the client's certificate. Without one, or with another
    authority, nothing is opened."""
    papers = own_kafka.papers
    files = {"ssl_cafile": papers.authority, "ssl_certfile": papers.certificate,
             "ssl_keyfile": papers.key}  # fmt: skip
    address = own_kafka.tls_bootstrap

    def options(**changed: object) -> KafkaOptions:
        given = {name: str(file) for name, file in (files | changed).items()}
        return kafka_options(address, security_protocol="SSL", connect_timeout_s=3.0, **given)

    await _everything_works(options())
    for wrong in ({"ssl_cafile": papers.stranger}, {"ssl_certfile": "", "ssl_keyfile": ""}):
        with pytest.raises(ToktierError) as refused:
            await KafkaBroker(options(**wrong)).start()
        assert refused.value.code is Code.BROKER_UNREACHABLE
    await nothing_left_running()


async def test_a_password_over_tls_opens_everything(own_kafka: Any) -> None:
    """SASL_SSL, as a cluster has it; a broker that the authority does not vouch for is not told
    the password."""
    user, password = own_kafka.account

    def options(authority: object) -> KafkaOptions:
        return kafka_options(
            own_kafka.sasl_tls_bootstrap,
            security_protocol="SASL_SSL",
            sasl_mechanism="SCRAM-SHA-512",
            sasl_username=user,
            sasl_password=password,
            ssl_cafile=str(authority),
            connect_timeout_s=3.0,
        )

    await _everything_works(options(own_kafka.papers.authority))
    with pytest.raises(ToktierError) as refused:
        await KafkaBroker(options(own_kafka.papers.stranger)).start()
    assert refused.value.code is Code.BROKER_UNREACHABLE
    assert password not in str(refused.value)
    await nothing_left_running()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_a_password_opens_everything(own_kafka: Any, mechanism: str) -> None:
    """Each object takes the account from the options; a wrong password is told without it."""
    user, password = own_kafka.account

    def options(secret: str) -> KafkaOptions:
        return kafka_options(
            own_kafka.sasl_bootstrap,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism=mechanism,
            sasl_username=user,
            sasl_password=secret,
        )

    # The script's broker advertises its SASL listener on the same host.
    await _everything_works(options(password))
    with pytest.raises(ToktierError) as refused:
        await KafkaBroker(options("wrong-password")).start()
    assert refused.value.code is Code.BROKER_UNREACHABLE
    assert "wrong-password" not in str(refused.value)
    await nothing_left_running()
