"""Answers that come again, as workers that deliver at least once send them: a consumer drops them,
however late they come."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import numpy as np
import pytest

from toktier_stream.broker.local import LocalBroker
from toktier_stream.broker.port import OutRecord, TopicSpec
from toktier_stream.client.consumer import ConsumerOptions, TokenConsumer
from toktier_stream.wire import digest as digests
from toktier_stream.wire.answers import encode_update
from toktier_stream.wire.messages import Status, TokenUpdate

LAST = "last"


def history(random_: random.Random, sessions: int, events: int) -> list[TokenUpdate]:
    """Applied updates of sessions that grow, are edited, reset, closed and begun again."""
    states: dict[str, tuple[int, list[int]]] = {}
    updates = []
    for offset in range(events):
        session = f"s{random_.randrange(sessions)}"
        revision, ids = states.get(session, (0, None))
        new = [random_.randrange(1000) for _ in range(random_.randrange(1, 6))]
        keep = tail = 0
        closed = False
        if ids is not None and random_.random() < 0.1:
            closed, new = True, []
        elif ids is not None and random_.random() < 0.8:
            keep = random_.randrange(len(ids) + 1)
            tail = random_.randrange(len(ids) - keep + 1)
        elif ids is not None and random_.random() < 0.3:
            revision = 0  # the worker forgot it: it begins again
        old = ids or []
        ids = old[:keep] + new + (old[len(old) - tail :] if tail else [])
        array = np.array(ids, np.uint32)
        updates.append(
            TokenUpdate(
                session_id=session,
                revision=revision + 1,
                status=Status.OK,
                keep=keep,
                token_ids=np.array(new, "<u4").tobytes(),
                tail=tail,
                total_tokens=len(ids),
                digest=digests.extend(digests.EMPTY, array),
                closed=closed,
                source_offset=offset,
            )
        )
        states[session] = (revision + 1, None if closed else ids)
    return updates


async def received(updates: list[TokenUpdate]) -> tuple[list[tuple], TokenConsumer]:
    """What a consumer yields for these updates."""
    broker = LocalBroker()
    await broker.ensure_topics([TopicSpec("toktier.tokens", 1)], create=True)
    publisher = broker.publisher()
    await publisher.start()
    end = TokenUpdate(LAST, 1, Status.OK, token_ids=b"\0\0\0\0", total_tokens=1, digest=1)
    await publisher.publish(
        [OutRecord("toktier.tokens", *encode_update(u)) for u in [*updates, end]]
    )
    found = []
    async with TokenConsumer(broker, ConsumerOptions(from_start=True)) as consumer:
        async with asyncio.timeout(30):
            async for tokens in consumer.updates():
                if tokens.session_id == LAST:
                    return found, consumer
                found.append((tokens.session_id, tokens.revision, tokens.ids.tolist()))
    raise AssertionError


@pytest.mark.parametrize("seed", range(8))
async def test_repeats_at_any_later_place_change_nothing(seed):
    """The stream with repeats (whole runs of it, single ones, of other statuses) gives what the
    stream without them gives."""
    random_ = random.Random(seed)
    updates = history(random_, 5, 300)
    places: list[tuple[float, TokenUpdate]] = [(float(i), u) for i, u in enumerate(updates)]
    for _ in range(40):
        start = random_.randrange(len(updates))
        run = updates[start : start + random_.randrange(1, 12)]
        after = start + len(run) + random_.choice((0, 3, 100)) - 0.5
        places += [(after + 1e-3 * i, u) for i, u in enumerate(run)]
        again = replace(run[0], status=Status.DUPLICATE, token_ids=b"", keep=0, tail=0)
        places.append((after, again))
    mixed = [u for _, u in sorted(places, key=lambda place: place[0])]

    wanted, _ = await received(updates)
    found, consumer = await received(mixed)

    assert len(wanted) == 300
    assert found == wanted
    assert consumer.duplicates > 100
    assert consumer.diverged == 0
