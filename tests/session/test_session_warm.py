"""After warming nothing is compiled any more: the first events of a kind would wait for it."""

from __future__ import annotations

import gc
import random
from pathlib import Path

import pytest
from numba.core.dispatcher import Dispatcher

from toktier_stream.session.engines import open_registry
from toktier_stream.session.prepared import prepare
from toktier_stream.session.store import Store
from toktier_stream.session.warm import warm
from toktier_stream.tokenizer.face import Encoder

PROSE = (
    "Some words come and go, 123 numbers, größe, cafe\u0301, 漢字. def f(x): return x\n" * 9000
).encode()


def whole(size: int) -> bytes:
    """Prose of about a size."""
    return PROSE[:size].decode(errors="ignore").encode()


def compiled() -> dict[str, int]:
    """How many versions of each kernel are in this process."""
    found = [d for d in gc.get_objects() if isinstance(d, Dispatcher)]
    return {f"{d.py_func.__module__}.{d.py_func.__name__}": len(d.overloads) for d in found}


def use(encoder: Encoder, store: Store, name: bytes, text: bytes, threads: int) -> None:
    """Everything that happens to a session, of sizes that take other ways."""
    batch = store.begin()
    session = batch.create(name)
    session.reset(encoder, text, prepared=prepare(encoder, text, threads=threads))
    for size in (3, 3, 3, 3, 200, 1400, 3, 3, 3, 3, 50_000, 300_000):
        session.edit(encoder, session.bytes, session.bytes, whole(size))
        session.find_settled(encoder)
    session.edit(encoder, 500, 502, b"hello there")
    session.edit(encoder, 0, session.bytes - len(whole(7000)), b"")
    store.commit(batch, changelog_offset=store.changelog_offset + 1)
    batch = store.begin()
    again = batch.session(name)
    assert again is not None
    for size in (3, 3, 1400):
        again.edit(encoder, again.bytes, again.bytes, whole(size))
        again.find_settled(encoder)
    assert again.text()
    assert len(again.ids()) == again.tokens
    store.commit(batch, changelog_offset=store.changelog_offset + 1)


@pytest.mark.parametrize("family", ["qwen3", "gpt35turbo", "gemma3"])
def test_nothing_is_compiled_after_warming(family: str, family_file, tmp_path: Path) -> None:
    """Prose small and large, streams, walls without a boundary, edits, and sessions read again."""
    encoder = open_registry({"t": family_file(family)}, "t").resolve("t").encoder
    warm(encoder)
    before = compiled()
    wall = bytes(random.Random(1).choices(b"abcdefghijklmnopqrstuvwxyz", k=60_000))
    with Store.open(tmp_path, map_bytes=1 << 30) as store:
        use(encoder, store, b"small", whole(9_000), 1)
        use(encoder, store, b"large", whole(600_000), 2)
        use(encoder, store, b"wall", wall, 1)
        assert store.check().damaged == ()
    more = {name: n - before.get(name, 0) for name, n in compiled().items()}
    assert {name: n for name, n in more.items() if n} == {}
