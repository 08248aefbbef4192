"""Worker processes that are killed, stopped, robbed of their disks, and started again.

A fleet does what a supervisor does: whoever ends is started again. What ends by itself, without
having been hurt, is counted and told.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random

import lmdb

from toktier_stream.config import Settings
from toktier_stream.tokenizer.shipped import shipped_path

START_S = 600.0
SESSION_TIMEOUT_S = 6.0


class Worker:
    """One place in the fleet: its folder, its log, and the process that runs there now."""

    def __init__(self, settings: Settings, number: int, folder: Path, tokenizer: Path) -> None:
        self.number = number
        self.state = folder / f"state-{number}"
        self.log = folder / f"worker-{number}.log"
        self.process: asyncio.subprocess.Process | None = None
        self.hurt = False
        topics = ("appends", "tokens", "checks", "rejects", "sessions")
        told = {f"TOPIC_{t.upper()}": getattr(settings, f"topic_{t}") for t in topics}
        told |= {
            "BROKER": settings.broker,
            "GROUP": settings.group,
            "PARTITIONS": str(settings.partitions),
            "STATE_DIR": str(self.state),
            "TOKENIZERS__MODEL": str(tokenizer),
            "DEFAULT_TOKENIZER": "model",
            "SESSION_TIMEOUT_S": str(SESSION_TIMEOUT_S),
            "TRANSACTION_TIMEOUT_S": "20",
            "STORE_MAP_BYTES": str(settings.store_map_bytes),
            "MAX_SESSION_BYTES": str(settings.max_session_bytes),
            "PART_BYTES": str(settings.part_bytes),
            "DELIVERY": settings.delivery,
            "MISS_BYTES": "8192",
        }
        kept = {k: v for k, v in os.environ.items() if not k.startswith("TOKTIER_")}
        kept |= {k: v for k, v in os.environ.items() if k == "TOKTIER_CACHE"}
        self._environment = kept | {f"TOKTIER_{k}": v for k, v in told.items()}

    async def start(self) -> None:
        self.hurt = False
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "toktier_stream", "worker"),
                env=self._environment,
                stdout=log,
                stderr=log,
            )

    def signal(self, number: int) -> None:
        """Send a signal; one that has ended meanwhile takes none."""
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(number)

    async def kill(self) -> None:
        """As power loss does."""
        self.hurt = True
        self.signal(signal.SIGKILL)
        if self.process is not None:
            await self.process.wait()

    async def end(self) -> int:
        """As an orchestrator does: SIGTERM, then a long wait."""
        self.hurt = True
        self.signal(signal.SIGTERM)
        assert self.process is not None
        return await asyncio.wait_for(self.process.wait(), START_S)


class Fleet:
    """All workers of a run."""

    def __init__(
        self, settings: Settings, count: int, folder: Path, tokenizer: Path | None = None
    ) -> None:
        self.workers = [
            Worker(settings, i, folder, tokenizer or shipped_path()) for i in range(count)
        ]
        self.ended: Counter[str] = Counter()
        self._keeper: asyncio.Task[None] | None = None
        self._held: set[int] = set()

    async def start(self) -> None:
        for worker in self.workers:
            await worker.start()
        self._keeper = asyncio.create_task(self._keep())

    async def _keep(self) -> None:
        """Start again whoever has ended; the held ones are somebody's who will."""
        while True:
            for worker in self.workers:
                process = worker.process
                if worker.number in self._held or process is None or process.returncode is None:
                    continue
                if not worker.hurt:
                    self.ended[f"by itself: {process.returncode}"] += 1
                await worker.start()
            await asyncio.sleep(0.2)

    async def kill(self, worker: Worker, between: object = None) -> None:
        """Kill, do something to what it left, and start it again."""
        self._held.add(worker.number)
        try:
            await worker.kill()
            if callable(between):
                between(worker)
            await worker.start()
        finally:
            self._held.discard(worker.number)

    async def stop(self) -> list[int]:
        """End all in order; returns the exit codes."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait({self._keeper})
        for worker in self.workers:
            worker.signal(signal.SIGCONT)
        return list(await asyncio.gather(*(w.end() for w in self.workers)))


def wipe(worker: Worker) -> None:
    """The disk is gone."""
    if worker.state.is_mount():
        for path in worker.state.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    else:
        shutil.rmtree(worker.state, ignore_errors=True)


def damage_records(rng: Random, worker: Worker) -> int:
    """Bits flip in stored values, where a checksum must find them; returns how many."""
    flipped = 0
    for folder in sorted(worker.state.glob("*/data.mdb")):
        # A file whose pages are bad already has no records to be found.
        with (
            contextlib.suppress(lmdb.Error),
            lmdb.open(str(folder.parent), max_dbs=16, map_size=1 << 30) as environment,
        ):
            for name in (b"sessions", b"pages"):
                database = environment.open_db(name, create=False)
                with environment.begin(write=True, db=database) as txn:
                    found = [(bytes(k), bytes(v)) for k, v in txn.cursor() if v]
                    for key, value in rng.sample(found, min(3, len(found))):
                        at = rng.randrange(len(value))
                        bad = value[:at] + bytes([value[at] ^ 1 << rng.randrange(8)])
                        txn.put(key, bad + value[at + 1 :])
                        flipped += 1
    return flipped


def damage_page(rng: Random, worker: Worker) -> int:
    """A page of the file is overwritten by noise, whatever it holds; returns how many."""
    hit = 0
    for file in sorted(worker.state.glob("*/data.mdb")):
        pages = file.stat().st_size // 4096
        if pages < 4:
            continue
        with file.open("r+b") as data:
            data.seek(4096 * rng.randrange(2, pages))
            data.write(rng.randbytes(4096))
            hit += 1
    return hit


def mount_small(folder: Path, size: str) -> bool:
    """A file system of that size, where mounting is permitted."""
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    return done.returncode == 0


def unmount(folder: Path) -> None:
    """Take it away again."""
    subprocess.run(["umount", "-l", str(folder)], capture_output=True, check=False)
