"""Faults put into emitted answers, and what the shadow verifier makes of them.

``python tests/pipeline/verifier_injection.py --requests 3000`` is the long form. One answer in
seven is changed on its way out, after the session's own state is made: an id substituted, deleted,
doubled, two neighbours swapped, or the tail split otherwise into as many tokens of the same bytes,
which no length tells. A sampled faulty answer must be found, a sampled clean one must match, and
what is neither checked nor counted as dropped is an error.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from pipeline_harness import Hands, Running, local_backend, make_settings

from toktier_stream import telemetry
from toktier_stream.bench.generate import generate_appends
from toktier_stream.pipeline.verifier import Sampler
from toktier_stream.session.engines import open_registry
from toktier_stream.session.machine import Machine
from toktier_stream.tokenizer.registry import Entry
from toktier_stream.wire.answers import decode_check
from toktier_stream.wire.messages import Edit, Operation, Reset, Status, TokenUpdate, Verdict

KINDS = ("substituted", "deleted", "doubled", "swapped", "split otherwise")
SHARE = 434 / 2999
_WINDOW = 32


class Faults:
    """Changes some of the answers that a machine gives; remembers which, and how."""

    def __init__(self, entry: Entry, seed: int) -> None:
        self._rng = Random(f"faults {seed}")
        self._splits = other_splits(entry)
        self.made: dict[tuple[str, int], str] = {}

    def maybe(self, answer: TokenUpdate) -> TokenUpdate:
        """The answer, changed with probability :data:`SHARE`."""
        ids = np.frombuffer(answer.token_ids, "<u4").tolist()
        if answer.status is not Status.OK or len(ids) < 2 or self._rng.random() >= SHARE:
            return answer
        kind = self._rng.choice(KINDS)
        changed = self._change(kind, ids)
        if changed == ids:
            return answer
        self.made[answer.session_id, answer.revision] = kind
        total = answer.total_tokens + len(changed) - len(ids)
        data = np.array(changed, "<u4").tobytes()
        return replace(answer, token_ids=data, total_tokens=total)

    def _change(self, kind: str, ids: list[int]) -> list[int]:
        at = self._rng.randrange(len(ids) - 1)
        match kind:
            case "substituted":
                return [*ids[:at], ids[at] ^ 1, *ids[at + 1 :]]
            case "deleted":
                return ids[:at] + ids[at + 1 :]
            case "doubled":
                return [*ids[: at + 1], *ids[at:]]
            case "swapped":
                return [*ids[:at], ids[at + 1], ids[at], *ids[at + 2 :]]
        for place in range(len(ids) - 2, -1, -1):  # the tail, as near to the end as can be
            other = self._splits(ids[place], ids[place + 1])
            if other is not None:
                return [*ids[:place], *other, *ids[place + 2 :]]
        return ids


def other_splits(entry: Entry) -> Callable[[int, int], tuple[int, int] | None]:
    """Two tokens to another two of the same bytes."""
    from tokenizers import Tokenizer

    vocabulary = Tokenizer.from_buffer(entry.artifact.data).get_vocab(with_added_tokens=False)
    token_of = {number: token for token, number in vocabulary.items()}

    def find(a: int, b: int) -> tuple[int, int] | None:
        if a not in token_of or b not in token_of:
            return None
        joined, cut = token_of[a] + token_of[b], len(token_of[a])
        for at in range(1, len(joined)):
            left, right = vocabulary.get(joined[:at]), vocabulary.get(joined[at:])
            if at != cut and left is not None and right is not None:
                return left, right
        return None

    return find


async def inject(
    requests: int, rate: float, seed: int, folder: Path, *, queue: int = 4096
) -> dict[str, Any]:
    """Run the requests through a worker; returns what was made and what was found."""
    backend = local_backend()
    settings = make_settings(
        backend, folder / f"state-{seed}-{rate}", verify_rate=rate, verify_seed=seed,
        verify_queue=queue,
    )  # fmt: skip
    registry = open_registry(settings.tokenizers, settings.default_tokenizer)
    faults = Faults(registry.resolve("small"), seed)
    apply = Machine.apply

    def changed(machine: Machine, *arguments: Any, **named: Any) -> TokenUpdate:
        return faults.maybe(apply(machine, *arguments, **named))

    Machine.apply = changed  # type: ignore[method-assign]
    broker = backend.connect()
    await broker.start()
    try:
        async with Running(backend, settings, registry) as running:
            hands = Hands(broker, settings)
            await hands.open()
            await _drive(hands, requests, seed)
            await running.worker.drain_verifier()
            stats = running.worker.stats
            records = await hands.until(settings.topic_checks, stats.verified)
            await hands.close()
    finally:
        Machine.apply = apply  # type: ignore[method-assign]
        await broker.stop()
    checks = [decode_check(r.key, r.value, r.headers) for r in records]
    verdicts = {(c.session_id, c.revision): c.verdict for c in checks}
    sampler = Sampler(rate, seed)
    answered = [a for a in hands.answers if a.status is Status.OK and not a.closed]
    sampled = [a for a in answered if sampler.wants(a.session_id, a.revision)]
    found = Counter[str]()
    missed, false = [], []
    for (session, revision), verdict in verdicts.items():
        kind = faults.made.get((session, revision))
        if kind is not None and verdict is Verdict.MISMATCH:
            found[kind] += 1
        elif kind is not None:
            missed.append((session, revision, kind))
        elif verdict is Verdict.MISMATCH:
            false.append((session, revision))
    return {
        "requests": len(answered),
        "rate": rate,
        "seed": seed,
        "faults": dict(Counter(faults.made.values())),
        "sampled": len(sampled),
        "checked": len(checks),
        "dropped": stats.verifier_dropped,
        "sampled_faults_found": dict(found),
        "sampled_faults_missed": missed,
        "clean_checked": sum(key not in faults.made for key in verdicts),
        "false_positives": false,
    }


async def _drive(hands: Hands, requests: int, seed: int) -> None:
    """Sessions that grow; one that is set aside begins anew, as a producer would have it."""
    sessions = max(4, requests // 30)
    texts = [generate_appends(seed * 997 + i) for i in range(sessions)]
    revisions = dict.fromkeys(range(sessions), 0)
    fresh = set(range(sessions))
    rng = Random(f"drive {seed}")
    sent = 0
    while sent < requests:
        turn = rng.sample(range(sessions), min(_WINDOW, sessions, requests - sent))
        for session in turn:
            revisions[session] += 1
            text = next(texts[session])[:2000].encode()
            op: Operation = Reset(text) if session in fresh else Edit(text)
            await hands.event(f"s{session}", revisions[session], op)
        fresh.clear()
        for answer in await hands.next(len(turn)):
            if answer.status is not Status.OK:
                fresh.add(int(answer.session_id[1:]))
        sent += len(turn)


def faults_until_found(rate: float, campaigns: int = 2_000) -> tuple[int, int]:
    """Median and P90 of the faulty answers it takes until one of them is sampled."""
    counts = []
    for seed in range(campaigns):
        sampler = Sampler(rate, seed)
        counts.append(next(n for n in range(1, 10**6) if sampler.wants(f"s{n % 90}", n)))
    counts.sort()
    return round(statistics.median(counts)), counts[len(counts) * 9 // 10]


def main() -> int:
    """The long form; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--rates", default="0.05,0.1,1")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    telemetry.setup_logging("error", json=True)
    good = True
    for rate in map(float, options.rates.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            report = asyncio.run(inject(options.requests, rate, options.seed, Path(folder)))
        report["faults_until_found"] = faults_until_found(rate)
        print(json.dumps(report, indent=2), flush=True)
        good &= not report["sampled_faults_missed"] and not report["false_positives"]
        good &= report["sampled"] == report["checked"] + report["dropped"]
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
