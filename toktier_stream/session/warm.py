"""Loads and compiles everything a session needs, before the first event waits for it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from toktier_stream.session.store import Store
from toktier_stream.tokenizer.face import Encoder

_TEXT = "<|im_start|>user\nSome words, 123 numbers, größe and 漢字.\n" * 20


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
            for part in (b" and on", b" and", b" on"):  # the last by a stream
                again.edit(encoder, again.bytes, again.bytes, part)
            again.find_settled(encoder)
            again.ids()
        batch.discard()
