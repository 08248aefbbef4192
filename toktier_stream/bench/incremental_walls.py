"""Appends to long runs without boundaries, beside appends to prose of the same length.

Sessions take turns, in memory. Times are medians of CPU time; the first turn warms up. The ids of
each whole text are compared with those of one encode at the end.
"""

from __future__ import annotations

import base64
import os
import statistics
import string
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any, Final

import numpy as np

from toktier_stream.bench.prose import Prose
from toktier_stream.session import giant
from toktier_stream.session.engines import open_tokenizer
from toktier_stream.session.record import Session
from toktier_stream.session.store import Store
from toktier_stream.session.warm import warm
from toktier_stream.tokenizer.encoder import FastEncoder
from toktier_stream.tokenizer.face import Encoder

CONTEXT: Final = 1_000_000
APPEND: Final = 1_000
"""Characters of a session before, and of each append."""
TURN: Final = 20
"""Appends in a row: tables are in the processor's caches then, as on a busy worker."""


def walls(
    name: str, path: Path, rounds: int, *, context: int = CONTEXT, append: int = APPEND
) -> dict[str, Any] | None:
    """Measure one tokenizer; None where pieces are not byte-level BPE behind a pre-tokenizer.

    Raises ``RuntimeError`` if any id differs.
    """
    encoder = open_tokenizer(path).encoder
    if not isinstance(encoder, FastEncoder) or giant.kit_of(encoder) is None:
        return None
    warm(encoder)
    texts = _texts(context + append * TURN * (rounds + 1))
    load = os.getloadavg()[0]
    with (
        tempfile.TemporaryDirectory(prefix="toktier-bench-") as folder,
        Store.open(folder) as store,
    ):
        batch = store.begin()
        subjects = {kind: _Subject(batch.create(kind.encode()), encoder) for kind in texts}
        for kind, subject in subjects.items():
            subject.start(texts[kind][:context])
        times: dict[str, list[float]] = {kind: [] for kind in texts}
        for turn in range(rounds + 1):
            begin = context + turn * TURN * append
            for kind, subject in subjects.items():
                done = subject.append(texts[kind], begin, append)
                times[kind] += done if turn else []
        for kind, subject in subjects.items():
            if not np.array_equal(subject.session.ids(), encoder.encode(texts[kind].encode()).ids):
                raise RuntimeError(f"ids differ: {kind} with {name}")
        batch.discard()
    us = {kind: 1e6 * statistics.median(values) for kind, values in times.items()}
    return {
        "vocabulary": name,
        "context": context,
        "append": append,
        "load_average": load,
        "us": us,
        "times_prose": {kind: value / us["prose"] for kind, value in us.items()},
    }


class _Subject:
    """One session that grows."""

    def __init__(self, session: Session, encoder: Encoder) -> None:
        self.session = session
        self._encoder = encoder

    def start(self, text: str) -> None:
        self.session.reset(self._encoder, text.encode())

    def append(self, text: str, begin: int, size: int) -> list[float]:
        """Seconds of each of a turn's appends."""
        session, encoder, out = self.session, self._encoder, []
        for at in range(begin, begin + TURN * size, size):
            new = text[at : at + size].encode()
            start = time.thread_time()
            session.edit(encoder, session.bytes, session.bytes, new)
            out.append(time.thread_time() - start)
        return out


def _texts(size: int) -> dict[str, str]:
    rng = Random(1)
    return {
        "prose": Prose(Random(1)).sentences(size)[:size],
        "one letter": "a" * size,
        "letters": "".join(rng.choices(string.ascii_lowercase, k=size)),
        "mixed letters": "".join(rng.choices(string.ascii_letters, k=size)),
        "digits": "".join(rng.choices(string.digits, k=size)),
        "base64": base64.b64encode(rng.randbytes(size)).decode()[:size],
    }
