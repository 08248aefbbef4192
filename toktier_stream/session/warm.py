"""Loads and compiles everything a session needs, before the first event waits for it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from toktier_stream.session.store import Store
from toktier_stream.tokenizer.face import Encoder

_TEXT = "<|im_start|>user\nWords in a cafe\u0301, 123 numbers, größe and 漢字.\n" * 20
"""Normalization changes it: the second accent is a character of its own."""
_WALL = b"qzjxkvbwyf" * 2000
"""A piece that is long enough to be carried on by the state of its prefixes."""


def warm(encoder: Encoder) -> None:
    """Drive one small session through reset, append, edit and reload in a temporary store.

    Compiles the kernels on a machine's first run (tens of seconds), loads them from the cache
    afterwards (about a second).
    """
    text = _TEXT.encode()
    with (
        tempfile.TemporaryDirectory(prefix="toktier-warm-") as folder,
        Store.open(Path(folder), map_bytes=64 << 20, hot_bytes=0) as store,
    ):
        batch = store.begin()
        session = batch.create(b"warm")
        session.reset(encoder, text)
        session.edit(encoder, session.bytes, session.bytes, text[:100])
        session.edit(encoder, 600, 610, b"in the middle")
        store.commit(batch, changelog_offset=0)
        batch = store.begin()
        again = batch.session(b"warm")
        if again is not None:
            for _ in range(8):  # at last by a stream
                again.edit(encoder, again.bytes, again.bytes, b" on")
                again.find_settled(encoder)
            again.ids()
        wall = batch.create(b"wall")
        wall.reset(encoder, _WALL)
        for part in (_WALL[:1000], _WALL[:1000], b"ab", b"cd"):
            wall.edit(encoder, wall.bytes, wall.bytes, part)
            wall.find_settled(encoder)
        wall.edit(encoder, 1000, 1010, _WALL[:6000])
        wall.edit(encoder, wall.bytes, wall.bytes, b"ab")
        store.commit(batch, changelog_offset=1)
        batch = store.begin()
        stored = batch.session(b"wall")
        if stored is not None:
            for part in (_WALL[:1000], b"ab"):
                stored.edit(encoder, stored.bytes, stored.bytes, part)
                stored.find_settled(encoder)
        batch.discard()
