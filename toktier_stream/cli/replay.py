"""``toktier-stream replay``: real transcripts as append events, turn by turn."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Annotated

import typer

from toktier_stream.broker.connect import open_broker
from toktier_stream.cli.tail import BrokerAddress
from toktier_stream.client.chat_template import ChatTemplate
from toktier_stream.client.producer import AppendProducer, ProducerOptions
from toktier_stream.client.replay import Session, find_transcripts, sessions
from toktier_stream.wire.messages import Status


def replay(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="SWE-agent .traj, Claude Code or Codex .jsonl files, or folders.", exists=True
        ),
    ],
    broker: BrokerAddress,
    tokenizer: Annotated[
        str, typer.Option(help="Alias the worker knows; empty: its default.")
    ] = "",
    template: Annotated[
        Path | None,
        typer.Option(help="tokenizer_config.json with the chat template; default: ChatML."),
    ] = None,
    prefix: Annotated[str, typer.Option(help="Put before each session id.")] = "",
    pause: Annotated[float, typer.Option(help="Seconds between the turns of a session.")] = 0.0,
    topic: Annotated[str, typer.Option(help="The input topic.")] = "toktier.appends",
    topic_tokens: Annotated[str, typer.Option(help="The topic of answers.")] = "toktier.tokens",
) -> None:
    """Send transcripts to a running pipeline as append events and wait for every answer.

    Exit code 1 if an event was not answered OK.
    """
    chat = ChatTemplate.load(template) if template else None
    options = ProducerOptions(tokenizer=tokenizer, topic=topic, topic_tokens=topic_tokens)
    found = list(sessions(find_transcripts(files), chat))
    failed = asyncio.run(_replay(broker, options, found, prefix, pause))
    raise typer.Exit(1 if failed else 0)


async def _replay(
    address: str, options: ProducerOptions, found: list[Session], prefix: str, pause: float
) -> int:
    broker = open_broker(address)
    await broker.start()
    failed = 0
    started = time.monotonic()
    try:
        async with AppendProducer(broker, options) as producer:

            async def run(session: Session) -> int:
                bad = 0
                for text in session.texts:
                    ticket = await producer.send_text(prefix + session.session_id, text)
                    update = await ticket.answer(options.answer_timeout_s)
                    bad += update.status is not Status.OK
                    await asyncio.sleep(pause)
                typer.echo(f"{session.session_id}: {len(session.texts)} turns, {bad} refused")
                return bad

            failed = sum(await asyncio.gather(*map(run, found)))
    finally:
        await broker.stop()
    events = sum(len(s.texts) for s in found)
    typer.echo(f"{events} events of {len(found)} sessions in {time.monotonic() - started:.1f} s")
    return failed
