"""The worker under measurement: a process of its own, on a core of its own where there is one."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

import psutil

from toktier_stream.broker.port import Broker
from toktier_stream.config import Settings
from toktier_stream.errors import Code, ToktierError
from toktier_stream.pipeline.worker import Worker
from toktier_stream.session.engines import open_registry

_STOP_S = 60.0


class Running(Protocol):
    """A worker that has been started."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def check(self) -> None:
        """Raises if the worker has ended by itself."""
        ...

    def warned(self) -> dict[str, int]:
        """Warnings and errors so far, by name; empty where the log is this process's."""
        ...

    def cpu_s(self) -> float:
        """CPU seconds used so far."""
        ...

    def memory(self) -> int:
        """Bytes of memory of its own; LMDB's mapped pages are the system's cache."""
        ...


class WorkerProcess:
    """``toktier-stream worker`` as an operator starts it, with everything told by variables."""

    def __init__(self, variables: Mapping[str, str], cores: Iterable[int], log: Path) -> None:
        self._variables = dict(variables)
        self._cores = frozenset(cores)
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._seen: psutil.Process | None = None

    async def start(self) -> None:
        """Start, pinned before the first thread exists."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith("TOKTIER_")}
        kept |= {k: v for k, v in os.environ.items() if k == "TOKTIER_CACHE"}
        mine = os.sched_getaffinity(0)
        if self._cores:
            os.sched_setaffinity(0, self._cores)  # a child inherits it
        try:
            with self._log.open("ab") as log:
                self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "toktier_stream", "worker"),
                    env=kept | self._variables,
                    stdout=log,
                    stderr=log,
                )
        finally:
            os.sched_setaffinity(0, mine)
        self._seen = psutil.Process(self._process.pid)

    async def stop(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), _STOP_S)
        except TimeoutError:
            process.kill()
            await process.wait()

    @property
    def pid(self) -> int:
        """Of the running process; 0 before the start."""
        return self._process.pid if self._process is not None else 0

    def warned(self) -> dict[str, int]:
        """What the log tells from warnings up, counted."""
        found: Counter[str] = Counter()
        for line in self._log.read_text(errors="replace").splitlines():
            try:
                told = json.loads(line)
                found[" ".join(filter(None, (told["event"], told.get("code", ""))))] += 1
            except (ValueError, KeyError, TypeError):
                found[line[:100]] += 1
        return dict(found.most_common(10))

    def check(self) -> None:
        if self._process is not None and self._process.returncode is not None:
            told = self._log.read_text(errors="replace").strip().splitlines()[-3:]
            raise ToktierError(
                Code.ANSWER_TIMEOUT, f"the worker ended with {self._process.returncode}: {told}"
            )

    def cpu_s(self) -> float:
        if self._seen is None:
            return 0.0
        times = self._seen.cpu_times()
        return float(times.user + times.system)

    def memory(self) -> int:
        return _anonymous(self.pid) if self.pid else 0


class WorkerHere:
    """A worker in this process, for the embedded broker: CPU and memory are those of both."""

    def __init__(self, settings: Settings, broker: Broker) -> None:
        registry = open_registry(settings.tokenizers, settings.default_tokenizer)
        self._worker = Worker(settings, broker, registry)
        self._task: asyncio.Task[None] | None = None
        self.restored = 0

    async def start_timed(self) -> float:
        """Start; returns the seconds from the assignment to the last partition running."""
        joined = asyncio.create_task(self._joined())
        await self.start()
        now = time.monotonic()
        self.restored = sum(p.restored for p in self._worker.facts().partitions)
        return now - await joined

    async def _joined(self) -> float:
        while not self._worker.facts().joined:  # noqa: ASYNC110 (nothing tells, facts are asked for)
            await asyncio.sleep(0.002)
        return time.monotonic()

    async def start(self) -> None:
        self._task = asyncio.create_task(self._worker.run(), name="worker")
        ready = asyncio.create_task(self._worker.ready.wait())
        await asyncio.wait({self._task, ready}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        self.check()

    async def stop(self) -> None:
        self._worker.stop()
        if self._task is not None:
            await self._task

    def warned(self) -> dict[str, int]:
        return {}

    def check(self) -> None:
        if self._task is not None and self._task.done():
            self._task.result()

    def cpu_s(self) -> float:
        return time.process_time()

    def memory(self) -> int:
        return _anonymous(os.getpid())


def _anonymous(pid: int) -> int:
    """Bytes of resident memory that no file stands behind."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def pin(pid: int, cores: Iterable[int]) -> None:
    """Bind every thread of a process to these cores. Threads that end meanwhile are passed over."""
    wanted = set(cores)
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            os.sched_setaffinity(int(task.name), wanted)
        except ProcessLookupError:
            continue
