"""The two clients against a real worker: growth, rewrites, lost state, restarts, divergence."""

from __future__ import annotations

import asyncio
import shutil

from pipeline_harness import Running, local_backend, make_settings

from toktier_stream.client.consumer import ConsumerOptions, TokenConsumer
from toktier_stream.client.producer import AppendProducer, ProducerOptions
from toktier_stream.pipeline.worker import topic_specs
from toktier_stream.session.engines import open_tokenizer
from toktier_stream.tokenizer.shipped import shipped_path
from toktier_stream.wire.messages import Status

REFERENCE = open_tokenizer(shipped_path()).reference


class Fleet:
    """A worker, a producer and a consumer on the embedded broker."""

    def __init__(self, tmp_path, producer=None, consumer=None, **settings):
        self.backend = local_backend()
        self.settings = make_settings(self.backend, tmp_path / "state", **settings)
        topics = {"topic_tokens": self.settings.topic_tokens, "topic": self.settings.topic_appends}
        self.producer_options = ProducerOptions(**{**topics, **(producer or {})})
        self.consumer_options = ConsumerOptions(
            **{"topic": self.settings.topic_tokens, **(consumer or {})}
        )

    def worker(self):
        return Running(self.backend, self.settings)

    def producer(self):
        return AppendProducer(self.backend.connect(), self.producer_options)

    def consumer(self, resync=None):
        return TokenConsumer(self.backend.connect(), self.consumer_options, resync)


async def until_ids(consumer, session, text):
    """Consume until the session's ids are the reference's of ``text``."""
    expected = REFERENCE.ids(text).tolist()
    async with asyncio.timeout(60):
        async for tokens in consumer.updates():
            if tokens.session_id == session and tokens.ids.tolist() == expected:
                return


async def test_texts_that_grow_and_are_rewritten_arrive_exactly(tmp_path):
    """send_text works out appends and edits by itself; the consumer's ids are the reference's."""
    fleet = Fleet(tmp_path)
    texts = ["start of it", "start of it all", "start of all", "", "anew: 12345 and é 漢字"]
    kinds = []
    async with fleet.worker(), fleet.producer() as producer, fleet.consumer() as consumer:
        for text in texts:
            ticket = await producer.send_text("s", text)
            kinds.append(ticket.kind)
            assert (await ticket.answer(60)).status is Status.OK
            await until_ids(consumer, "s", text)
        await (await producer.close("s")).answer(60)
        assert "s" not in producer._sessions  # a closed session is forgotten
        ticket = await producer.append("s", "opened again")
        assert ticket.kind == "reset"
        assert (await ticket.answer(60)).status is Status.OK
        await until_ids(consumer, "s", "opened again")
    assert kinds == ["reset", "append", "edit", "edit", "append"]


async def test_a_lost_state_is_met_by_a_reset_nobody_has_to_ask_for(tmp_path):
    """Worker state and changelog gone: NEED_RESET is answered by the producer itself."""
    fleet = Fleet(tmp_path)
    broker = fleet.backend.connect()
    await broker.ensure_topics(topic_specs(fleet.settings), create=True)
    async with fleet.producer() as producer, fleet.consumer() as consumer:
        async with fleet.worker():
            await (await producer.send_text("s", "one two")).answer(60)
        shutil.rmtree(fleet.settings.state_dir)
        other = fleet.settings.model_copy(update={"topic_sessions": "another-changelog"})
        async with Running(fleet.backend, other):
            ticket = await producer.append("s", " three")
            update = await ticket.answer(60)
            assert (update.status, update.revision) == (Status.OK, 3)
            assert producer.resets == 1
            await until_ids(consumer, "s", "one two three")


async def test_a_producer_that_starts_over_finds_its_place(tmp_path):
    """A new producer knows no revisions; the stale answer tells it where to go on."""
    fleet = Fleet(tmp_path)
    async with fleet.worker(), fleet.consumer() as consumer:
        async with fleet.producer() as first:
            for text in ("a", "a b", "a b c", "a b c d", "a b c d e", "a b c d e f"):
                await (await first.send_text("s", text)).answer(60)
        async with fleet.producer() as second:
            update = await (await second.send_text("s", "a whole new text")).answer(60)
            assert update.status is Status.OK
            assert update.revision == 7
            await until_ids(consumer, "s", "a whole new text")


async def test_without_listening_a_producer_starts_beyond_any_older_run(tmp_path):
    """Fire and forget: revisions begin at the clock, so that two runs cannot collide."""
    fleet = Fleet(tmp_path, producer={"listen": False})
    async with fleet.worker(), fleet.consumer() as consumer:
        for text in ("first run", "second run"):
            async with fleet.producer() as producer:
                await producer.send_text("s", text)
                await producer.flush()
                await until_ids(consumer, "s", text)
            await asyncio.sleep(0.01)


async def test_memory_is_bounded_and_forgotten_texts_cost_a_reset(tmp_path):
    """Beyond max_memory_bytes the oldest texts are dropped; nothing else changes."""
    fleet = Fleet(tmp_path, producer={"max_memory_bytes": 10_000})
    async with fleet.worker(), fleet.producer() as producer, fleet.consumer() as consumer:
        for i in range(5):
            await (await producer.send_text(f"s{i}", f"{i} " * 2000)).answer(60)
        ticket = await producer.send_text("s0", "0 " * 2000 + "more")
        assert ticket.kind == "reset"
        assert (await ticket.answer(60)).status is Status.OK
        await until_ids(consumer, "s0", "0 " * 2000 + "more")
        ticket = await producer.append("s1", "and an append needs no text")
        assert (await ticket.answer(60)).status is Status.OK


async def test_a_consumer_that_lost_a_session_gets_its_full_stream(tmp_path):
    """A consumer that joins late sees only the end of a session; resync brings all of it."""
    fleet = Fleet(tmp_path)
    async with fleet.worker(), fleet.producer() as producer:
        await (await producer.send_text("s", "many words before anyone listens")).answer(60)
        async with fleet.consumer(producer.resync) as late:
            text = "many words before anyone listens, and then one more"
            await (await producer.send_text("s", text)).answer(60)
            await until_ids(late, "s", text)
            assert late.diverged == 1


async def test_a_group_shares_the_sessions(tmp_path):
    """Two members of a group see every session between them, each exactly."""
    fleet = Fleet(tmp_path, consumer={"group": "fleet"})
    texts = {f"s{i}": f"text of session {i}" for i in range(16)}
    seen: dict[str, list[int]] = {}

    async def read(member):
        async for tokens in member.updates():
            seen[tokens.session_id] = tokens.ids.tolist()

    async with (
        fleet.worker(),
        fleet.producer() as producer,
        fleet.consumer() as one,
        fleet.consumer() as two,
    ):
        readers = [asyncio.create_task(read(m)) for m in (one, two)]
        for session, text in texts.items():
            await (await producer.send_text(session, text)).answer(60)
        async with asyncio.timeout(60):
            while len(seen) < len(texts):
                await asyncio.sleep(0.02)
        for reader in readers:
            reader.cancel()
    assert seen == {s: REFERENCE.ids(t).tolist() for s, t in texts.items()}


async def test_settled_ids_only_grow_while_text_is_appended(tmp_path):
    """A consumer that asks for settled ids alone: what it has is never changed by an append, it
    follows closely, and an edit in the middle says what it takes back."""
    fleet = Fleet(tmp_path, consumer={"settled_only": True})
    words = "The quick brown fox said 123 times: it's <|im_end|> émile's 漢字 (lazy) dog.\n" * 3
    text, held, retracted = "", [], 0
    async with fleet.worker(), fleet.producer() as producer, fleet.consumer() as consumer:

        async def read():
            nonlocal held, retracted
            async for tokens in consumer.updates():
                assert tokens.ids[: tokens.kept].tolist() == held[: tokens.kept]
                assert tokens.retracted == len(held) - tokens.kept
                retracted += tokens.retracted
                held = tokens.ids.tolist()
                assert len(held) == tokens.update.settled
                if tokens.revision == last:
                    return

        async with asyncio.timeout(60):
            for at in range(0, len(words), 3):
                ticket = await producer.append("s", words[at : at + 3])
                text += words[at : at + 3]
                last = (await ticket.answer(60)).revision
            tail = await producer.append("s", "x. The end of all of it. ")
            text += "x. The end of all of it. "
            last = (await tail.answer(60)).revision
            await read()
            assert retracted == 0
            expected = REFERENCE.ids(text).tolist()
            assert held == expected[: len(held)]
            assert len(expected) - len(held) <= 4
            text = text[:40] + "Q" + text[41:]
            ticket = await producer.send_text("s", text)
            last = (await ticket.answer(60)).revision
            await read()
        assert retracted > 100
        expected = REFERENCE.ids(text).tolist()
        assert held == expected[: len(held)]
        assert len(expected) - len(held) <= 4
