"""A long differential run of sessions on real tokenizers, in one report.

    python tests/session/session_campaign.py --tokenizers DIR --transcripts DIR \
        --changes 6000 --characters 8000000 --report report.json qwen3 gptoss …

Three parts per family, every change held to the reference tokenizer on the whole text:

*lives*  short sessions, real text appended and hostile edits; ids, the answer's splice and the
         digest after every change, with aborted batches and a check of the store after each life;
*replay* every transcript request by request, as the smallest edits; ids after every request;
*long*   a generated session append by append, hostile ones between; ids at doubling sizes.

The report counts changes, certificates (first window, widened, fallback) and differences; the exit
status is 1 if there is any difference.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

import numpy as np  # noqa: E402
from session_harness import PIECES, applied  # noqa: E402

from toktier_stream.bench.generate import generate_appends  # noqa: E402
from toktier_stream.client.edits import smallest_edit  # noqa: E402
from toktier_stream.client.transcripts import (  # noqa: E402
    Transcript,
    read_transcript,
    render,
    turns,
)
from toktier_stream.errors import ToktierError  # noqa: E402
from toktier_stream.session.engines import open_tokenizer  # noqa: E402
from toktier_stream.session.record import Change, Session  # noqa: E402
from toktier_stream.session.store import Store  # noqa: E402
from toktier_stream.tokenizer.face import Encoder  # noqa: E402
from toktier_stream.tokenizer.reference import Reference  # noqa: E402
from toktier_stream.wire import digest  # noqa: E402
from toktier_stream.wire.messages import Evidence  # noqa: E402

HOSTILE = (
    *PIECES, "0123456789" * 9, "7" * 200, "\r\n" * 30, "\n" * 120, " " * 300, "\r", "\u0301" * 40,
    "e\u0301" * 30, "日本語、中文。" * 20, "「漢字」、", "かゞ", "―─…", "a" * 400, "=" * 300,
    "Aa" * 90,
    "<|im_start|>", "<|im_end|>", "<|im_", "im_end|>", "<|eot_id|>", "<|end_of_text|>",
    "<|endoftext", "|>", "<think>", "</think>", "<tool_call>", "\u200b", "\u2028", "\x85",
    "\x1c", "ǆ", "İ", "ﬁ", "1/2", "½", "3⁄4", "⅞", "1,234.5", "12 345",
)  # fmt: skip

_LIFE_SIZES = (0, 30, 300, 1_500, 4_000)
_FIRST_SAMPLE = 250_000


@dataclass
class Family:
    """One tokenizer under test and what came of it."""

    name: str
    encoder: Encoder
    reference: Reference
    choose: random.Random
    counts: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)

    @property
    def literals(self) -> list[str]:
        """The added tokens."""
        return [t.content for t in self.reference.artifact.added_tokens]

    def hostile(self) -> str:
        """Text that tokenizers stumble over, with whole and cut literals of this one."""
        choose = self.choose
        text = "".join(choose.choices(HOSTILE, k=choose.randint(0, 5)))
        if self.literals and choose.random() < 0.4:
            literal = choose.choice(self.literals)
            cut = choose.randint(0, len(literal))
            text += choose.choice((literal, literal[:cut], literal[cut:]))
        return text

    def counted(self, part: str, evidence: Evidence, *, append: bool, hostile: bool) -> None:
        """Count one change."""
        counts = self.counts
        counts["changes"] += 1
        counts[f"changes, {part}"] += 1
        counts["appends" if append else "edits"] += 1
        counts["adversarial"] += hostile
        if evidence.fallback:
            counts["fallback"] += 1
        elif evidence.boundary_byte >= 0 or evidence.right_boundary_byte >= 0:
            counts["first window" if evidence.widenings == 0 else "widened"] += 1
            counts[f"certified, {evidence.widenings} widenings"] += 1
        else:
            counts["whole text in the window"] += 1

    def same(self, what: str, text: str, session: Session) -> bool:
        """Hold a session to the reference."""
        want = self.reference.ids(text)
        self.counts["comparisons"] += 1
        self.counts["characters compared"] += len(text)
        if np.array_equal(session.ids(), want) and session.digest == digest.of(want):
            return True
        self.differences.append(f"{what}: {len(text)} characters")
        return False


def lives(family: Family, sources: list[str], changes: int) -> None:
    """Short sessions until so many changes are made."""
    with tempfile.TemporaryDirectory() as folder, Store.open(folder, map_bytes=1 << 28) as store:
        while family.counts["changes, lives"] < changes and len(family.differences) < 10:
            _life(store, family, family.choose.choice(sources))


def _life(store: Store, family: Family, source: str) -> None:
    choose, counts, encoder = family.choose, family.counts, family.encoder
    at = choose.randrange(len(source))
    size = choose.choice(_LIFE_SIZES)
    text = source[at : at + size]
    at += size
    batch = store.begin()
    batch.create(b"session").reset(encoder, text.encode())
    batch.changes()
    store.commit(batch, changelog_offset=0)
    counts["lives"] += 1
    for _ in range(25):
        kind = choose.random()
        first = last = size = len(text)
        if kind < 0.45:
            length = min(int(choose.lognormvariate(5.6, 1.2)), 6_000)
            new = source[at : at + length]
            at += length
        else:
            new = family.hostile()
            if kind >= 0.6:
                reach = choose.choice((50, 2_000, 10**6))
                first = choose.randint(max(0, size - reach), size)
                last = min(size, first + choose.choice((0, 0, 1, 2, 30, 800)))
                if choose.random() < 0.2:
                    last = size
        batch = store.begin()
        session = batch.session(b"session")
        assert session is not None
        before = session.ids()
        start, end = len(text[:first].encode()), len(text[:last].encode())
        change = session.edit(encoder, start, end, new.encode())
        text = text[:first] + new + text[last:]
        family.counted("lives", change.evidence, append=first == last == size, hostile=kind >= 0.45)
        what = f"{family.name}, {change.evidence}, [{start}, {end})"
        if not family.same(what, text, session):
            batch.discard()
            return
        if applied(before, change) != session.ids().tolist():
            family.differences.append(f"the answer's splice: {what}")
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
    stored = store.load(b"session")
    assert stored is not None
    counts["checks of the store"] += 1
    if report.damaged or report.orphans:
        family.differences.append(f"{family.name}: the store's check says {report}")
    family.same(f"{family.name}, stored", text, stored)


def replay(family: Family, transcripts: list[Transcript]) -> None:
    """Every transcript as a session; each request compared."""
    with tempfile.TemporaryDirectory() as folder, Store.open(folder, map_bytes=1 << 30) as store:
        for number, transcript in enumerate(transcripts):
            name = b"transcript %d" % number
            sent = b""
            for messages in turns(transcript):
                text = render(messages)
                new = text.encode()
                batch = store.begin()
                session = batch.session(name)
                if session is None:
                    session = batch.create(name)
                    session.reset(family.encoder, new)
                else:
                    edit = smallest_edit(sent, new)
                    change = session.edit(family.encoder, edit.start, edit.end, edit.replacement)
                    append = edit.start == len(sent)
                    family.counted("replay", change.evidence, append=append, hostile=False)
                family.same(f"{family.name}, transcript {number}", text, session)
                store.commit(batch, changelog_offset=0)
                sent = new
                family.counts["requests replayed"] += 1


def long(family: Family, characters: int, seed: int) -> None:
    """One generated session; compared at doubling sizes and at its end."""
    parts: list[str] = []
    size, sample = 0, _FIRST_SAMPLE
    with tempfile.TemporaryDirectory() as folder, Store.open(folder, map_bytes=1 << 30) as store:
        for number, text in enumerate(generate_appends(seed)):
            hostile = number % 8 == 5
            piece = family.hostile() if hostile else text[: characters - size]
            change = _grown(store, family, piece)
            if change is not None:
                family.counted("long", change.evidence, append=True, hostile=hostile)
            parts.append(piece)
            size += len(piece)
            if size >= min(sample, characters):
                session = store.load(b"long")
                assert session is not None
                family.same(f"{family.name}, long", "".join(parts), session)
                family.counts["longest session"] = size
                sample *= 2
            if size >= characters:
                return


def _grown(store: Store, family: Family, text: str) -> Change | None:
    batch = store.begin()
    session = batch.session(b"long")
    change = None
    if session is None:
        batch.create(b"long").reset(family.encoder, text.encode())
    else:
        change = session.edit(family.encoder, session.bytes, session.bytes, text.encode())
    store.commit(batch, changelog_offset=0)
    return change


def transcripts(folder: Path) -> list[Transcript]:
    """All logs that a reader knows."""
    found = []
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        try:
            found.append(read_transcript(path))
        except ToktierError:
            print(f"not a transcript: {path.name}", flush=True)
    return found


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("families", nargs="+")
    parser.add_argument("--tokenizers", type=Path, required=True, help="NAME/tokenizer.json each")
    parser.add_argument("--transcripts", type=Path, required=True)
    parser.add_argument("--changes", type=int, default=100, help="of short sessions, per family")
    parser.add_argument("--characters", type=int, default=300_000, help="of the long session")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--report", type=Path, help="written after every family")
    args = parser.parse_args()
    logs = transcripts(args.transcripts)
    sources = [render(list(turns(log))[-1]) for log in logs]
    report: dict[str, object] = {}
    total: Counter[str] = Counter()
    differences: list[str] = []
    for name in args.families:
        started = time.monotonic()
        entry = open_tokenizer(args.tokenizers / name / "tokenizer.json")
        choose = random.Random(f"{name} {args.seed}")
        family = Family(name, entry.encoder, entry.reference, choose)
        lives(family, sources, args.changes)
        replay(family, logs)
        long(family, args.characters, args.seed)
        counts = dict(sorted(family.counts.items()))
        total.update({k: v for k, v in counts.items() if k != "longest session"})
        differences += family.differences
        report[name] = {"engine": entry.encoder.engine, **counts}
        done = {
            "seed": args.seed, "transcripts": len(logs), "families": report,
            "total": dict(sorted(total.items())), "differences": differences,
        }  # fmt: skip
        if args.report:
            args.report.write_text(json.dumps(done, indent=1) + "\n")
        seconds = time.monotonic() - started
        print(f"{name}: {counts}, {len(family.differences)} differences, {seconds:.0f} s")
        sys.stdout.flush()
    print("total:", dict(sorted(total.items())), f"{len(differences)} differences")
    sys.exit(1 if differences else 0)


if __name__ == "__main__":
    main()
