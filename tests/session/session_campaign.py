"""A long differential run of sessions on real tokenizers: real text, appends and hostile edits.

    python tests/session/session_campaign.py --minutes 5 qwen3 gptoss …

Every change is applied to a session in a store and held to the reference on the whole text: ids,
the answer's splice, the digest. Prints counts and what the certificates came to, per family.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

import numpy as np  # noqa: E402
from session_harness import PIECES, applied  # noqa: E402

from toktier_stream.incremental.families import OnePieceEncoder, refusal  # noqa: E402
from toktier_stream.session.store import Store  # noqa: E402
from toktier_stream.tokenizer.admission import load_encoder  # noqa: E402
from toktier_stream.tokenizer.artifact import Artifact  # noqa: E402
from toktier_stream.tokenizer.face import Encoder  # noqa: E402
from toktier_stream.tokenizer.reference import Reference, ReferenceEncoder  # noqa: E402
from toktier_stream.tokenizer.tables import Refusal  # noqa: E402
from toktier_stream.wire import digest  # noqa: E402

HOSTILE = (
    *PIECES, "0123456789" * 9, "7" * 200, "\r\n" * 30, "\n" * 120, " " * 300, "\r", "\u0301" * 40,
    "e\u0301" * 30, "日本語、中文。" * 20, "「漢字」、", "かゞ", "―─…", "a" * 400, "=" * 300,
    "Aa" * 90,
    "<|im_start|>", "<|im_end|>", "<|im_", "im_end|>", "<|eot_id|>", "<|end_of_text|>",
    "<|endoftext", "|>", "<think>", "</think>", "<tool_call>", "\u200b", "\u2028", "\x85",
    "\x1c", "ǆ", "İ", "ﬁ",
)  # fmt: skip


def strings(value: object) -> Iterator[str]:
    """All longer strings of a log record."""
    if isinstance(value, str):
        if len(value) > 40:
            yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)


def transcripts(folder: Path, literals: list[str]) -> list[str]:
    """The logs as transcripts: their strings, joined by chat markers."""
    found = []
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".traj":
            records: list[object] = [json.loads(path.read_text())]
        elif path.suffix == ".jsonl":
            records = [json.loads(line) for line in path.read_text().splitlines() if line]
        else:
            continue
        parts = [s for record in records for s in strings(record)]
        marker = random.Random(len(parts))
        found.append("".join(p + marker.choice([*literals[:40], "\n\n"]) for p in parts))
    return found


def family(name: str, path: Path, texts_in: Path, seconds: float, seed: int) -> Counter[str]:
    """One family's run; raises AssertionError at the first difference."""
    artifact = Artifact.load(path)
    reference = Reference(artifact)
    fast = load_encoder(artifact, reference=reference)
    encoder: Encoder
    if not isinstance(fast, Refusal):
        encoder = fast
    elif not refusal(artifact):
        encoder = OnePieceEncoder(artifact)
    else:
        encoder = ReferenceEncoder(reference)
    literals = [t.content for t in artifact.added_tokens]
    texts = transcripts(texts_in, literals)
    choose = random.Random(f"{name} {seed}")
    counts: Counter[str] = Counter()
    counts[f"engine {encoder.engine}"] = 0
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder, Store.open(folder, map_bytes=1 << 28) as store:
        while time.monotonic() < end:
            _life(store, encoder, reference, texts, literals, choose, counts)
    return counts


def _life(
    store: Store,
    encoder: Encoder,
    reference: Reference,
    texts: list[str],
    literals: list[str],
    choose: random.Random,
    counts: Counter[str],
) -> None:
    source = choose.choice(texts)
    at = choose.randrange(len(source))
    size = choose.choice((0, 30, 700, 3_000, 12_000, 30_000))
    text = source[at : at + size]
    at += size
    batch = store.begin()
    batch.create(b"session").reset(encoder, text.encode())
    batch.changes()
    store.commit(batch, changelog_offset=0)
    counts["sessions"] += 1
    for _ in range(25):
        hostile = "".join(choose.choices(HOSTILE, k=choose.randint(0, 5)))
        kind = choose.random()
        first = last = size = len(text)
        if kind < 0.45:
            length = min(int(choose.lognormvariate(6.6, 1.2)), 20_000)
            new = source[at : at + length]
            at += length
        elif kind < 0.6:
            new = hostile
        else:
            first = choose.randint(max(0, len(text) - choose.choice((50, 2_000, 10**6))), len(text))
            last = min(len(text), first + choose.choice((0, 0, 1, 2, 30, 800)))
            if choose.random() < 0.2:
                last = len(text)
            new = hostile
            if literals and choose.random() < 0.4:
                literal = choose.choice(literals)
                cut = choose.randint(0, len(literal))
                new += choose.choice((literal, literal[:cut], literal[cut:]))
        batch = store.begin()
        session = batch.session(b"session")
        assert session is not None
        before = session.ids()
        start, end = len(text[:first].encode()), len(text[:last].encode())
        change = session.edit(encoder, start, end, new.encode())
        text = text[:first] + new + text[last:]
        want = reference.ids(text)
        ids = session.ids()
        engine = "ids" if np.array_equal(encoder.encode(text.encode()).ids, want) else "the encoder"
        assert np.array_equal(ids, want), f"{engine}: {change.evidence}, [{start}, {end})"
        assert applied(before, change) == want.tolist(), "change"
        assert session.digest == digest.of(want), "digest"
        counts["append" if first == last == size else "edit"] += 1
        counts["chars verified"] += len(text)
        found = change.evidence
        kind_of = "whole, small text"
        if found.fallback:
            kind_of = "fallback"
        elif found.boundary_byte >= 0 or found.right_boundary_byte >= 0:
            kind_of = f"certified, {found.widenings} widenings"
        counts[kind_of] += 1
        if choose.random() < 0.85:
            batch.changes()
            store.commit(batch, changelog_offset=0)
        else:
            batch.discard()
            session = store.begin().session(b"session")
            assert session is not None
            text = session.text().decode()
            counts["aborted"] += 1
    report = store.check()
    assert not report.damaged
    assert not report.orphans
    session = store.load(b"session")
    assert session is not None
    assert np.array_equal(session.ids(), reference.ids(text)), "stored ids"


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("families", nargs="+")
    parser.add_argument("--tokenizers", type=Path, required=True, help="NAME/tokenizer.json each")
    parser.add_argument("--transcripts", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=1.0, help="per family")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    for name in args.families:
        path = args.tokenizers / name / "tokenizer.json"
        counts = family(name, path, args.transcripts, args.minutes * 60, args.seed)
        print(name, dict(sorted(counts.items())), flush=True)


if __name__ == "__main__":
    main()
