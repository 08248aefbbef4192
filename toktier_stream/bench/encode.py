"""Full encodes of fresh text: the exact engine beside the reference and other tokenizers.

In each round every engine is made anew and encodes two texts of the same kind: the first is
*cold*, the second *warm* (tables touched, memories filled; but see :func:`_with_toktier`). No text
is ever encoded twice by an engine, not even by another instance: some remember whole texts. Engines
take turns; times are CPU time of the process without Python's garbage collector, medians over the
rounds; every timed answer is compared with the reference's ids.
"""

from __future__ import annotations

import gc
import importlib.metadata
import importlib.util
import json
import os
import re
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt

from toktier_stream.bench import peers, words
from toktier_stream.bench.generate import generate_appends
from toktier_stream.bench.peers_toktier import open_toktier
from toktier_stream.errors import Code, ToktierError
from toktier_stream.tokenizer.admission import load_encoder
from toktier_stream.tokenizer.artifact import Artifact
from toktier_stream.tokenizer.encoder import FastEncoder
from toktier_stream.tokenizer.tables import Refusal

SIZES = (10_000, 100_000, 1_000_000, 4_000_000)
KINDS = ("code", "prose", "chat", "CJK")
OURS = "toktier-stream"
BUDGET = 8_000_000
"""Characters of one text that one size may use: large sizes have fewer rounds."""
WINDOW = 1_900
"""Characters of the window that an append of 1.4 K characters re-encodes."""

Progress = Callable[[str], None]
Result = dict[str, Any]


@dataclass(frozen=True)
class Subject:
    """One tokenizer under test."""

    name: str
    artifact: Artifact
    encoder: FastEncoder

    def fresh(self) -> FastEncoder:
        """An encoder that has seen no text."""
        return FastEncoder(self.encoder.fingerprint, self.encoder.compiled)


def run(
    vocabularies: Mapping[str, Path],
    corpora: Mapping[str, str] | Sequence[str] = KINDS,
    *,
    sizes: Sequence[int] = SIZES,
    rounds: int = 5,
    starts: bool = False,
    progress: Progress = lambda _: None,
) -> Result:
    """Measure; returns what :func:`toktier_stream.bench.encode_tables.show` prints.

    ``vocabularies``: name to tokenizer.json. ``corpora``: name to text, or which of :data:`KINDS`.
    ``sizes`` are in characters; each takes other parts of a text, in pairs, and has as many rounds
    as there are pairs. ``starts``: measure start-up too. Raises ``TOKENIZER_UNSUPPORTED`` for a
    file that the exact engine does not admit.
    """
    shares = {size: 2 * size * max(1, min(rounds, BUDGET // (2 * size))) for size in sizes}
    total = sum(shares.values())
    texts = corpora if isinstance(corpora, Mapping) else default_corpora(total, corpora)
    with ExitStack() as stack:
        found = (*peers.installed(), *_with_toktier(stack))
        result: Result = {
            "rounds": rounds,
            "load_average": os.getloadavg()[0],
            "cpus": os.cpu_count(),
            "peers": {peer.name: peer.version for peer in found},
            "encode": [],
            "local": [],
            "window": [],
            "threads": [],
            "start": [],
        }
        for name, path in vocabularies.items():
            subject = load(name, path)
            for corpus, text in texts.items():
                at = 0
                for size, share in shares.items():
                    pairs = _pairs(text[at : at + share], size)
                    at += share
                    if not pairs:
                        continue
                    progress(f"{name}: {corpus}, {size:,} characters")
                    row = compare(subject, pairs, found)
                    result["encode"].append({"vocabulary": name, "corpus": corpus, **row})
            sample = next(iter(texts.values()))[:1_000_000]
            progress(f"{name}: added tokens, normalization, windows, threads")
            result["local"].append({"vocabulary": name, **local(subject, sample, rounds)})
            result["window"].append({"vocabulary": name, **windows(subject, sample, rounds)})
            result["threads"].append({"vocabulary": name, **threads(subject, sample, rounds)})
            if starts:
                progress(f"{name}: start-up with empty caches, then with full ones")
                result["start"].append({"vocabulary": name, **startup(path)})
    return result


def _with_toktier(stack: ExitStack) -> tuple[peers.Peer, ...]:
    """The ``toktier`` package's own full encode. It takes seconds to load and to get going, so each
    tokenizer is opened once and asked for a word first: *cold* then means this text only."""
    if importlib.util.find_spec("toktier") is None:
        return ()
    opened: dict[str, peers.Encode | None] = {}

    def make(artifact: Artifact) -> peers.Encode:
        if artifact.sha256 not in opened:
            opened[artifact.sha256] = None
            tokenizer = open_toktier(artifact, stack)
            tokenizer.encode("first words")
            opened[artifact.sha256] = lambda text: tokenizer.encode(text).ids
        encode = opened[artifact.sha256]
        if encode is None:
            raise ValueError("toktier: an unknown tokenizer.json")
        return encode

    return (peers.Peer("toktier", importlib.metadata.version("toktier"), make),)


def _pairs(text: str, size: int) -> list[tuple[str, str]]:
    """Disjoint parts of ``size`` characters, two by two."""
    parts = [text[at : at + size] for at in range(0, len(text) - size + 1, size)]
    return list(zip(parts[::2], parts[1::2], strict=False))


def load(name: str, path: Path) -> Subject:
    """Admit one tokenizer.json. Raises ``TOKENIZER_UNSUPPORTED``, ``TOKENIZER_LOAD``."""
    artifact = Artifact.load(path)
    encoder = load_encoder(artifact)
    if isinstance(encoder, Refusal):
        raise ToktierError(Code.TOKENIZER_UNSUPPORTED, f"{name}: {encoder}")
    encoder.warm()
    return Subject(name, artifact, encoder)


def default_corpora(size: int, kinds: Sequence[str] = KINDS) -> dict[str, str]:
    """Python's own sources, their documentation, a generated agent session, and generated Chinese
    and Japanese: ``size`` characters of each, where there are as many."""
    library = Path(sysconfig.get_path("stdlib"))
    make: dict[str, Callable[[], str]] = {
        "code": lambda: _files(sorted(library.rglob("*.py")), size),
        "prose": lambda: _joined(_documentation(library), size),
        "chat": lambda: _joined(generate_appends(1), size),
        "CJK": lambda: _joined(_cjk(Random(1)), size),
    }
    return {kind: make[kind]() for kind in kinds}


def _files(paths: Sequence[Path], size: int) -> str:
    parts, have = [], 0
    for path in paths:
        part = path.read_text(encoding="utf-8", errors="ignore")
        parts.append(part)
        have += len(part)
        if have >= size:
            break
    return "".join(parts)


def _documentation(library: Path) -> Iterator[str]:
    """Python's topics of help, then what its sources say in triple quotes."""
    yield (library / "pydoc_data" / "topics.py").read_text(encoding="utf-8")
    for path in sorted(library.rglob("*.py")):
        found = re.findall(r'"""(.+?)"""', path.read_text("utf-8", "ignore"), re.DOTALL)
        yield "".join(f"{text}\n\n" for text in found)


def _joined(source: Any, size: int) -> str:
    parts, have = [], 0
    for part in source:
        parts.append(part)
        have += len(part)
        if have >= size:
            break
    return "".join(parts)


def _cjk(rng: Random) -> Any:
    """Sentences of Chinese and Japanese words, now and then one of English."""
    languages = [vocabulary for vocabulary, space in words.SCRIPTS if not space][-2:]
    weights = {len(w): [1 / (r + 8) for r in range(len(w))] for w in languages}
    while True:
        vocabulary = rng.choice(languages)
        chosen = rng.choices(vocabulary, weights[len(vocabulary)], k=rng.randint(6, 30))
        yield "".join(chosen) + rng.choice(("，", "。", "。\n", "、", " API "))


def compare(
    subject: Subject, pairs: Sequence[tuple[str, str]], found: Sequence[peers.Peer]
) -> Result:
    """All engines on pairs of texts: cold and warm milliseconds, and whether the ids are right."""
    engines: dict[str, Callable[[], Callable[[str], Any]]] = {OURS: lambda: _ours(subject)}
    for peer in found:
        engines[peer.name] = _maker(peer, subject.artifact)
    times: dict[str, list[tuple[float, float]]] = {}
    right: dict[str, bool] = {}
    tokens = 0
    for pair in pairs:
        expected: list[npt.NDArray[np.uint32]] = []
        # The reference goes first: it is the judge of this round.
        for name, make in sorted(engines.items(), key=lambda e: e[0] != "tokenizers"):
            try:
                encode = make()
            except ValueError:
                continue
            answers, seconds = zip(*(_timed(encode, text) for text in pair), strict=True)
            ids = [np.asarray(answer, dtype=np.uint32) for answer in answers]
            expected = expected or ids
            same = all(map(np.array_equal, ids, expected))
            right[name] = right.get(name, True) and same
            times.setdefault(name, []).append((seconds[0], seconds[1]))
        tokens = len(expected[1])
    size = statistics.median(len(second.encode()) for _, second in pairs)
    row: Result = {"chars": len(pairs[0][0]), "bytes": size, "tokens": tokens, "engines": {}}
    row["rounds"] = len(pairs)
    for name, taken in times.items():
        warm = statistics.median(w for _, w in taken)
        row["engines"][name] = {
            "cold_ms": 1e3 * statistics.median(c for c, _ in taken),
            "warm_ms": 1e3 * warm,
            "warm_mb_per_s": size / max(warm, 1e-9) / 1e6,
            "exact": right[name],
        }
    return row


def _timed(encode: Callable[[str], Any], text: str) -> tuple[Any, float]:
    gc.collect()
    _settle()
    gc.disable()
    try:
        start = time.process_time()
        answer = encode(text)
        return answer, time.process_time() - start
    finally:
        gc.enable()


def _settle() -> None:
    """Leave no debts of the last engine to the next: threads that work on behind an answer (CPU
    time is the whole process's), and freed memory that the allocator sorts at the next large
    request (tens of milliseconds after a tokenizer is dropped)."""
    for bits in range(12, 24):
        bytearray(1 << bits)
    deadline = time.perf_counter() + 2
    while time.perf_counter() < deadline:
        before = time.process_time()
        time.sleep(0.02)
        if time.process_time() - before < 0.001:
            return


def _ours(subject: Subject) -> Callable[[str], Any]:
    encoder = subject.fresh()
    # Ids and byte lengths, from text as peers get it.
    return lambda text: encoder.encode(text.encode()).ids


def _maker(peer: peers.Peer, artifact: Artifact) -> Callable[[], Callable[[str], Any]]:
    return lambda: peer.make(artifact)


def local(subject: Subject, text: str, rounds: int) -> Result:
    """What added tokens and characters that normalization changes cost, as multiples of the same
    text without them."""
    rng = Random(1)
    literals = [t.content for t in subject.artifact.added_tokens] or [""]
    inputs = {
        "plain": text,
        "1000 added tokens": _strewn(rng, text, [rng.choice(literals) for _ in range(1000)]),
        "5 rewritten places": _strewn(rng, text, ["e\u0301"] * 5),
        "both": _strewn(
            rng, text, [rng.choice(literals) for _ in range(1000)] + ["\u1100\u1161"] * 5
        ),
    }
    times: dict[str, list[float]] = {name: [] for name in inputs}
    for _ in range(rounds):
        for name, given in inputs.items():
            encoder, data = subject.fresh(), given.encode()
            start = time.thread_time()
            encoder.encode(data)
            times[name].append(time.thread_time() - start)
    ms = {name: 1e3 * statistics.median(t) for name, t in times.items()}
    return {"ms": ms, "times_plain": {name: value / ms["plain"] for name, value in ms.items()}}


def _strewn(rng: Random, text: str, items: Sequence[str]) -> str:
    places = sorted(rng.sample(range(len(text)), min(len(items), len(text))))
    parts, at = [], 0
    for place, item in zip(places, items, strict=False):
        parts += [text[at:place], item]
        at = place
    return "".join([*parts, text[at:]])


def windows(subject: Subject, text: str, rounds: int) -> Result:
    """Microseconds for a window, warm; the reference's in proportion."""
    parts = [text[i : i + WINDOW].encode() for i in range(0, min(len(text), 100 * WINDOW), WINDOW)]
    encoder = subject.fresh()
    reference = peers.installed()[0].make(subject.artifact)
    for part in parts:
        encoder.encode(part)
    ours, theirs = [], []
    for _ in range(rounds):
        start = time.thread_time()
        for part in parts:
            encoder.encode(part)
        ours.append((time.thread_time() - start) / len(parts))
        start = time.thread_time()
        for part in parts[:20]:
            reference(part.decode(errors="ignore"))
        theirs.append((time.thread_time() - start) / len(parts[:20]))
    return {
        "chars": WINDOW,
        "us": 1e6 * statistics.median(ours),
        "reference_us": 1e6 * statistics.median(theirs),
    }


def threads(subject: Subject, text: str, rounds: int) -> Result:
    """Wall time on one and on two threads, warm."""
    encoder, data = subject.fresh(), text.encode()
    walls: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(4 * rounds + 1):
        for count, wall in walls.items():
            start = time.perf_counter()
            encoder.encode_parallel(data, count)
            wall.append(time.perf_counter() - start)
    one, two = (statistics.median(w[1:]) for w in walls.values())
    return {"one_ms": 1e3 * one, "two_ms": 1e3 * two, "times": one / two}


_START = """
import sys, time
start = time.perf_counter()
from pathlib import Path
from toktier_stream.tokenizer.admission import load_encoder
from toktier_stream.tokenizer.artifact import Artifact
encoder = load_encoder(Artifact.load(Path(sys.argv[1])))
encoder.encode(b"Hello, world")
print(time.perf_counter() - start, time.process_time())
"""


def startup(path: Path, cache: Path | None = None) -> Result:
    """Seconds from import to the first encode in two processes, wall and CPU: with empty caches,
    unless they are kept in ``cache``, and with what the first left behind."""
    result: Result = {}
    with tempfile.TemporaryDirectory() as empty:
        folder = str(cache or empty)
        for state in ("cold", "warm"):
            done = subprocess.run(
                [sys.executable, "-c", _START, str(path)],
                env={**os.environ, "TOKTIER_CACHE": folder},
                capture_output=True,
                text=True,
                check=True,
            )
            wall, cpu = (float(x) for x in done.stdout.split())
            result[state] = {"wall_s": wall, "cpu_s": cpu}
    return result


def save(result: Result, path: Path) -> None:
    """Write the measurements as JSON."""
    path.write_text(json.dumps(result, indent=2) + "\n")
