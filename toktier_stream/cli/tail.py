"""``toktier-stream tail``: token updates as they come, readable."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated

import typer

from toktier_stream.broker.connect import open_broker
from toktier_stream.client.consumer import ConsumerOptions, TokenConsumer
from toktier_stream.wire.messages import TokenUpdate

BrokerAddress = Annotated[
    str, typer.Option("--broker", "-b", envvar="TOKTIER_BROKER", help="kafka://host:port[,…]")
]


def tail(
    broker: BrokerAddress,
    topic: Annotated[str, typer.Option(help="The topic of token updates.")] = "toktier.tokens",
    session: Annotated[str, typer.Option(help="Only this session.")] = "",
    from_start: Annotated[bool, typer.Option(help="Begin with the oldest update.")] = False,
    count: Annotated[int, typer.Option("-n", help="Stop after this many; 0: never.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Show token updates as they come: session, revision, status, route, what was kept and what
    is new, the window, and the time from the producer."""
    asyncio.run(_tail(broker, topic, session, from_start, count, as_json))


async def _tail(
    address: str, topic: str, session: str, from_start: bool, count: int, as_json: bool
) -> None:
    broker = open_broker(address)
    await broker.start()
    shown = 0
    try:
        options = ConsumerOptions(topic=topic, from_start=from_start)
        async with TokenConsumer(broker, options) as consumer:
            if not as_json:
                typer.echo(_HEADER)
            async for update in consumer.answers():
                if session and update.session_id != session:
                    continue
                typer.echo(_json(update) if as_json else _line(update))
                shown += 1
                if shown == count:
                    return
    finally:
        await broker.stop()


_HEADER = (
    f"{'session':<28} {'rev':>7} {'status':<10} {'route':<9} {'keep':>8} {'new':>7} {'tail':>7} "
    f"{'total':>8} {'window':>7} {'total ms':>9}  code"
)


def _line(u: TokenUpdate) -> str:
    window = u.evidence.window_chars if u.evidence else 0
    total_ms = f"{u.timings.total_us / 1000:.1f}" if u.timings and u.timings.total_us else "-"
    name = u.session_id if len(u.session_id) <= 28 else u.session_id[:27] + "…"
    return (
        f"{name:<28} {u.revision:>7} {u.status.value:<10} {u.route.value or '-':<9} {u.keep:>8} "
        f"{len(u.token_ids) // 4:>7} {u.tail:>7} {u.total_tokens:>8} {window:>7} {total_ms:>9}"
        f"  {u.code.value if u.code else ''}"
    ).rstrip()


def _json(u: TokenUpdate) -> str:
    return json.dumps(
        {
            "session": u.session_id,
            "revision": u.revision,
            "status": u.status.value,
            "code": u.code.value if u.code else None,
            "route": u.route.value,
            "keep": u.keep,
            "new": len(u.token_ids) // 4,
            "tail": u.tail,
            "total": u.total_tokens,
            "settled": u.settled,
            "bytes": u.total_bytes,
            "digest": f"{u.digest:016x}",
            "window_chars": u.evidence.window_chars if u.evidence else None,
            "total_us": u.timings.total_us if u.timings else None,
        }
    )
