"""What live sessions take in memory: of a process of its own, which opens a store that another has
filled, appends once to each session, and looks at itself before and after."""

from __future__ import annotations

import ctypes
import gc
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil

from toktier_stream.bench.generate import generate_context
from toktier_stream.errors import Code, ToktierError
from toktier_stream.session.engines import open_tokenizer
from toktier_stream.session.store import Store
from toktier_stream.session.warm import warm
from toktier_stream.tokenizer.face import Encoder

APPEND: Final = 1_500
HOT_BYTES: Final = 256 << 20
"""What live sessions may take: a worker's default."""
BATCH: Final = 64

_WARM: Final = 8  # small sessions that are live before: what the first of all brings along
_SHIFT: Final = 7  # characters between two sessions' texts: no two are equal
_PROGRAM: Final = """
import json, sys
from pathlib import Path
from toktier_stream.bench.store_memory import live_sessions
print(json.dumps(live_sessions(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))))
"""

Result = dict[str, Any]


def residence(tokenizer: Path, sessions: int, tokens: int, folder: Path | None = None) -> Result:
    """Fill a store with sessions of about so many tokens, and ask another process."""
    with tempfile.TemporaryDirectory(prefix="toktier-bench-", dir=folder) as place:
        entry = open_tokenizer(tokenizer)
        given = generate_context(1, 6 * tokens + _SHIFT * sessions)
        ends = np.cumsum(entry.encoder.encode(given.encode()).lengths.astype(np.int64))
        if len(ends) < tokens:
            raise ToktierError(Code.CONFIG_INVALID, f"a text of {len(ends)} tokens is too short")
        size = len(given.encode()[: int(ends[tokens - 1])].decode(errors="ignore"))
        with Store.open(place, sync=False) as store:
            texts = [(b"warm-%d" % i, given[i : i + 20_000]) for i in range(_WARM)]
            texts += [(b"%d" % i, given[_SHIFT * i :][:size]) for i in range(sessions)]
            for name, text in texts:
                batch = store.begin()
                batch.create(name).reset(entry.encoder, text.encode())
                store.commit(batch, changelog_offset=0)
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, place, str(tokenizer), str(sessions)],
            capture_output=True,
            text=True,
            check=True,
        )
    found: Result = json.loads(done.stdout)
    return {"sessions": sessions, **found}


def live_sessions(place: Path, tokenizer: Path, sessions: int) -> Result:
    """Append once to each session of a store, so that all are live as far as ``hot_bytes`` allows,
    and look at this process's own memory (LMDB's map, which the system can take back, apart)."""
    entry = open_tokenizer(tokenizer)
    warm(entry.encoder)
    new = generate_context(2, APPEND).encode()
    with Store.open(place, sync=False, hot_bytes=HOT_BYTES) as store:
        _append(store, entry.encoder, [b"warm-%d" % i for i in range(_WARM)], new)
        before, known = _own_memory(), store.stat()
        tokens = _append(store, entry.encoder, [b"%d" % i for i in range(sessions)], new)
        after, stat = _own_memory(), store.stat()
    return {
        "tokens": tokens / sessions,
        "live": stat.hot_sessions - known.hot_sessions,
        "hot_limit": HOT_BYTES,
        "accounted_bytes": stat.hot_bytes - known.hot_bytes,
        "before_bytes": before,
        "after_bytes": after,
        "stored_bytes": stat.used_bytes,
    }


def _append(store: Store, encoder: Encoder, names: Iterable[bytes], new: bytes) -> int:
    """Append to each; returns the tokens that they had."""
    waiting, tokens = list(names), 0
    while waiting:
        batch = store.begin()
        for name in waiting[:BATCH]:
            session = batch.session(name)
            if session is None:
                raise RuntimeError("the benchmark's session is gone")
            tokens += session.tokens
            session.edit(encoder, session.bytes, session.bytes, new)
        store.commit(batch, changelog_offset=0)
        del waiting[:BATCH]
    return tokens


def _own_memory() -> int:
    """Without what was freed and not yet given back to the system."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    info = psutil.Process().memory_info()
    own: int = info.rss - getattr(info, "shared", 0)
    return own
