"""Killed at any instant, a store is what it was after some commit, and the changelog completes it.

``TOKTIER_TEST_CRASHES`` kills so many times (default 3).
"""

from __future__ import annotations

import os
import pickle
import random
import subprocess
import sys
from pathlib import Path

from session_harness import MadeUp, check_session, dump

from toktier_stream.session.store import Store

_CRASHES = int(os.environ.get("TOKTIER_TEST_CRASHES", "3"))


def _spawn(folder: Path, seed: int) -> subprocess.Popen[str]:
    here = Path(__file__).parent
    command = [sys.executable, str(here / "crash_writer.py"), str(folder), str(seed)]
    environment = {**os.environ, "PYTHONPATH": f"{here}:{here.parent.parent}"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def test_kill_loop(tmp_path: Path) -> None:
    """After each kill: no damage, not behind the last reported commit, not ahead of the changelog,
    equal to the changelog replayed up to where the store stands; the tail brings it to the end."""
    choose = random.Random(1)
    mirror = Store.open(tmp_path / "mirror", map_bytes=32 << 20)
    for crash in range(_CRASHES):
        writer = _spawn(tmp_path, crash)
        assert writer.stdout is not None
        assert writer.stdout.readline() == "open\n"
        reported = 0
        for _ in range(choose.randrange(1, 40)):
            reported = int(writer.stdout.readline())
        if choose.random() < 0.5:
            # Anywhere in the next batch, not just after a commit.
            for _ in range(choose.randrange(200_000)):
                pass
        writer.kill()
        writer.wait()
        reported = max([reported, *map(int, writer.stdout.read().split())])

        assert (tmp_path / "store" / "unsynced").exists() == (crash % 2 == 1)
        with Store.open(tmp_path / "store", map_bytes=32 << 20) as store:
            stands = store.changelog_offset
            assert store.source_offset == stands * 3
            published = max(int(p.name[4:]) for p in tmp_path.glob("log-*"))
            assert reported <= stands <= published
            assert store.check().damaged == ()
            for number in range(mirror.changelog_offset + 1, stands + 1):
                mirror.restore(pickle.loads((tmp_path / f"log-{number}").read_bytes()), number)
            assert dump(mirror) == dump(store)
            for number in range(stands + 1, published + 1):
                changes = pickle.loads((tmp_path / f"log-{number}").read_bytes())
                store.restore(changes, number)
                mirror.restore(changes, number)
            for name in store.session_ids():
                session = store.load(name)
                assert session is not None
                check_session(session, MadeUp(), session.text())
    mirror.close()
