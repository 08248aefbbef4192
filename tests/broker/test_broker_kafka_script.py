"""The script that runs a Kafka broker: its commands, and that nothing outlives its owner."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from broker_harness import WITHIN_S, unique

SCRIPT = Path(__file__).resolve().parents[2] / "ops" / "kafka.py"


def script(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )


def eventually(condition: Callable[[], bool]) -> bool:
    limit = time.monotonic() + WITHIN_S
    while not condition() and time.monotonic() < limit:
        time.sleep(0.05)
    return condition()


def runs(pid: int) -> bool:
    try:
        return "kafka.Kafka" in Path(f"/proc/{pid}/cmdline").read_bytes().decode()
    except OSError:
        return False


def test_a_missing_tool_is_told_with_its_package(tmp_path: Path) -> None:
    """Without Java nothing is tried; the message says what to install."""
    told = script("start", "--name", unique("nobody"), PATH=str(tmp_path))
    assert told.returncode == 1
    assert "java is not installed" in told.stderr
    assert "apt-get install openjdk" in told.stderr


def test_nothing_to_stop_is_an_error() -> None:
    """stop and status of a broker that is not there fail without a trace."""
    for command in ("stop", "status"):
        told = script(command, "--name", unique("nobody"))
        assert (told.returncode, told.stdout) == (1, "")
        assert "not running" in told.stderr


@pytest.mark.kafka_own
def test_start_status_and_stop() -> None:
    """A broker started in the background answers until it is stopped, and leaves nothing."""
    name = unique("script")
    started = script("start", "--name", name, "--json")
    assert started.returncode == 0, started.stderr
    told = json.loads(started.stdout)
    try:
        assert runs(told["pid"])
        assert script("start", "--name", name).returncode == 1
        status = script("status", "--name", name)
        assert (status.returncode, status.stdout) == (0, f"127.0.0.1:{told['port']}\n")
    finally:
        assert script("stop", "--name", name).returncode == 0
    assert eventually(lambda: not runs(told["pid"]))
    assert not Path(told["dir"]).exists()
    assert script("status", "--name", name).returncode == 1


@pytest.mark.kafka_own
def test_a_broker_ends_with_its_owner() -> None:
    """When the owner is killed, the broker and its data go with it."""
    owner = subprocess.Popen(
        [sys.executable, str(SCRIPT), "run", "--json"], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    told = json.loads(owner.stdout.readline())
    assert runs(told["pid"])
    owner.kill()
    owner.wait(WITHIN_S)
    owner.stdout.close()
    assert eventually(lambda: not runs(told["pid"]) and not Path(told["dir"]).exists())
