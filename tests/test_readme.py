"""The README's examples run as they stand, against a real worker on the embedded broker."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from pathlib import Path

import pytest
from pipeline_harness import Running, local_backend, make_settings

from toktier_stream.broker import connect
from toktier_stream.client.chat_template import ChatTemplate
from toktier_stream.session.engines import open_tokenizer
from toktier_stream.tokenizer.shipped import shipped_path

README = (Path(__file__).parent.parent / "README.md").read_text()


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


async def run(code: str, names: dict) -> None:
    """Execute a block that awaits at its top level."""
    compiled = compile(code, "README.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    outcome = eval(compiled, names)
    if inspect.iscoroutine(outcome):
        await outcome


async def test_the_producer_and_the_consumer_run_as_written(tmp_path, monkeypatch):
    """Producing: resets, appends and messages are answered. Consuming: ids of whole sessions."""
    producing, consuming = blocks("python")
    backend = local_backend()
    default = {
        f"topic_{t}": f"toktier.{t}" for t in ("appends", "tokens", "checks", "rejects", "sessions")
    }
    settings = make_settings(
        backend,
        tmp_path,
        tokenizers={"qwen3": shipped_path()},
        default_tokenizer="qwen3",
        **default,
    )
    monkeypatch.setattr(connect, "open_broker", lambda _address: backend.connect())
    names = {
        "transcript": "a first text",
        "tool_result": ", and a tool's result",
        "messages": [{"role": "user", "content": "hello"}],
        "model_folder": shipped_path().parent,
        "ChatTemplate": ChatTemplate,
    }
    async with Running(backend, settings):
        await run(producing, names)
        assert names["update"].status == "OK"
        seen = []

        class Watching:
            """Hands the example its names, and ends it after one session."""

            resync = None

        consumer_names = {"broker": names["broker"], "producer": Watching}
        task = asyncio.create_task(
            run(
                consuming.replace(
                    "session.ids ",
                    "seen.append((session.session_id, session.ids.copy())); session.ids ",
                ),
                {**consumer_names, "seen": seen},
            )
        )
        async with asyncio.timeout(60):
            while not seen:
                await asyncio.sleep(0.02)
        task.cancel()
        await asyncio.wait({task})
    reference = open_tokenizer(shipped_path()).reference
    session, ids = seen[0]
    assert session == "run-17"
    assert ids.tolist() == reference.ids("a first text").tolist()


def test_the_toml_example_is_a_valid_configuration(tmp_path, monkeypatch):
    """The worker.toml of the README has no unknown field."""
    from toktier_stream.config import load

    (toml,) = blocks("toml")
    file = tmp_path / "worker.toml"
    file.write_text(toml)
    assert load(file).default_tokenizer == "qwen3"


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)#:]+)\)", README))
def test_links_lead_somewhere(target):
    """Every file the README names exists."""
    assert (Path(__file__).parent.parent / target).exists()
