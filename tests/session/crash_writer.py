"""A process that commits batches until it is killed; run by test_session_crash.py.

Before a batch is committed its changelog goes to a file, as Kafka would have it; after the commit
its number is printed.
"""

from __future__ import annotations

import pickle
import random
import sys
from pathlib import Path

from session_harness import MadeUp

from toktier_stream.session.store import Store


def main(folder: Path, seed: int) -> None:
    """Go on from what the store says. Every other seed leaves its commits to the system."""
    encoder = MadeUp()
    choose = random.Random(seed)
    words = [b" word", b" other", b" 123", b" a", b".\n", " é".encode()]
    with Store.open(folder / "store", map_bytes=32 << 20, sync=seed % 2 == 0) as store:
        print("open", flush=True)
        while True:
            number = store.changelog_offset + 1
            batch = store.begin()
            for name in (b"a", b"b", b"c"):
                session = batch.session(name)
                text = b"".join(choose.choices(words, k=choose.randint(1, 400)))
                if session is None or session.bytes > 60_000:
                    session = batch.create(name)
                    session.reset(encoder, text)
                elif choose.random() < 0.1:
                    batch.remove(name)
                    continue
                else:
                    at = session.bytes
                    if choose.random() < 0.3:
                        at = session.text().find(b" ", choose.randrange(at)) % (at + 1)
                    session.edit(encoder, at, session.bytes if at else 0, text)
                session.mark(revision=session.revision + 1)
            part = folder / "part"
            part.write_bytes(pickle.dumps(batch.changes()))
            part.rename(folder / f"log-{number}")
            store.commit(batch, changelog_offset=number, source_offset=number * 3)
            print(number, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
