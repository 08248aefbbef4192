"""The GPU path on a real card: exactness of every family first, then what an encode costs.

Made to run in minutes on a machine that has numpy, CuPy and tokenizers and nothing else of ours.
Tables are compiled where numba is, and can be prepared elsewhere (:func:`prepare`). Everything
that is timed was compared with the reference before. With ``shim`` for a device the kernels run on
one CPU core: that shows that all of this works, and its times mean nothing.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from toktier_gpu.campaign import SHORT_SIZES, Outcome, Samples, run, words_of
from toktier_gpu.crossover import sources_text
from toktier_gpu.cupy_device import CupyDevice
from toktier_gpu.device import DeviceError
from toktier_gpu.host import GpuEncoder
from toktier_gpu.plan import Limits
from toktier_gpu.shim_device import ShimDevice, build
from toktier_gpu.tables import DeviceTables
from toktier_stream.bench.generate import generate_context
from toktier_stream.bench.gpu_clock import Card, Clock, Family, OpenCard, Timing
from toktier_stream.tokenizer.artifact import Artifact, byte_level_alphabet
from toktier_stream.tokenizer.paths import cache_root
from toktier_stream.tokenizer.reference import Reference, ReferenceEncoder

if TYPE_CHECKING:
    from toktier_stream.tokenizer.encoder import FastEncoder

TABLES: Final = "device-tables.npz"
"""Prepared tables, beside a family's tokenizer.json."""

BYTE_LEVEL: Final = (
    "qwen3", "llama3_1", "gptoss", "deepseek_v3", "llama3", "gpt4o", "gpt35turbo", "deepseek_v4",
    "claude", "gpt2",
)  # fmt: skip
"""The families that the device serves, by the names of ``toktier-stream tokenizers fetch``."""

SHIM: Final = "shim"

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Settings:
    """How much of everything."""

    seconds: float = 420
    """After this nothing new is started."""
    random_characters: int = 1_000_000
    real_characters: int = 1_500_000
    sizes: Sequence[int] = (1_000, 10_000, 100_000, 1_000_000, 8_000_000)
    """Characters of a single text."""
    batches: Sequence[tuple[int, int]] = ((1024, 1_000), (256, 16_000), (64, 117_000), (8, 10**6))
    """(texts, characters of each)."""
    repeats: int = 15
    limits: Limits = Limits(bytes=1 << 24)  # noqa: RUF009 - frozen
    """Half a gigabyte of device memory."""
    peers: bool = True

    @classmethod
    def small(cls) -> Settings:
        """What one CPU core does of this in half a minute per family."""
        return cls(
            random_characters=20_000,
            real_characters=20_000,
            sizes=(1_000, 10_000),
            batches=((16, 500),),
            repeats=3,
            limits=Limits(bytes=1 << 16, texts=64, buckets=(1 << 14,)),
            peers=False,
        )

    def with_characters(self, characters: int) -> Settings:
        """The same with so many random characters per family, and half as many again real ones."""
        return replace(
            self, random_characters=characters, real_characters=characters + characters // 2
        )


def open_device(name: str) -> OpenCard:
    """``shim``, or the number of a CUDA device."""
    if name == SHIM:
        folder = cache_root() / "gpu-shim"

        def shim(graphs: bool) -> Card:
            return ShimDevice(build(folder), mode="shuffled")

        return shim

    def cuda(graphs: bool) -> Card:
        return CupyDevice(int(name), graphs)

    return cuda


def load(file: Path, name: str = "") -> Family:
    """A tokenizer.json, or the folder it is in. Raises ``TOKENIZER_LOAD``, or DeviceError where
    its tables can neither be read nor made, or the GPU does not serve it."""
    artifact = Artifact.load(file)
    reference = Reference(artifact)
    name = name or artifact.path.parent.name
    tables, cpu = _tables(name, artifact, reference)
    vocabulary = sorted(reference.tokenizer.get_vocab(with_added_tokens=False))
    return Family(
        name=name,
        artifact=artifact,
        tables=tables,
        reference=ReferenceEncoder(reference),
        cpu=cpu,
        vocabulary=words_of(vocabulary, byte_level_alphabet()),
        literals=[t.content for t in artifact.added_tokens],
    )


def _tables(
    name: str, artifact: Artifact, reference: Reference
) -> tuple[DeviceTables, FastEncoder | None]:
    if importlib.util.find_spec("numba") is None:
        try:
            return DeviceTables.load(artifact.path.parent / TABLES), None
        except OSError as error:
            raise DeviceError(f"{name}: no numba here, and no {TABLES}") from error
    # Only here, because it needs numba.
    from toktier_stream.tokenizer.admission import load_encoder
    from toktier_stream.tokenizer.tables import Refusal

    encoder = load_encoder(artifact, reference=reference)
    if isinstance(encoder, Refusal):
        raise DeviceError(f"{name} is not served: {encoder}")
    tables = DeviceTables.build(encoder.compiled)
    if isinstance(tables, Refusal):
        raise DeviceError(f"{name} is not served: {tables}")
    return tables, encoder


def prepare(file: Path) -> Path:
    """Leave a family's tables beside its file, for a machine without numba. Raises as
    :func:`load`."""
    family = load(file)
    target = family.artifact.path.parent / TABLES
    family.tables.save(target)
    return target


def real_texts(files: Iterable[Path], characters: int) -> Iterator[bytes]:
    """Texts of about 20,000 characters: the files given, then the standard library's sources."""
    given = (file.read_bytes().decode(errors="ignore") for file in files)
    for text in (*given, sources_text(4 * characters).decode()):
        for at in range(0, len(text), 20_000):
            if characters <= 0:
                return
            part = text[at : at + min(20_000, characters)]
            characters -= len(part)
            yield part.encode()


def exactness(
    family: Family, encoder: GpuEncoder, files: Sequence[Path], settings: Settings
) -> dict[str, Outcome]:
    """Random and real text against the reference (random text against the CPU engine if there
    is one, which the reference judges elsewhere)."""
    limits = encoder.limits
    outcomes = {}
    for name, sizes in (("long", None), ("short", SHORT_SIZES)):
        options = {} if sizes is None else {"sizes": sizes}
        samples = Samples(family.tables, family.vocabulary, family.literals, 20, **options)
        batches = samples.batches(min(1 << 20, limits.bytes), limits.texts)
        share = settings.random_characters // (1 if sizes is None else 4)
        outcomes[f"random, {name} texts"] = run(encoder, family.fallback, batches, share)
    texts = list(real_texts(files, settings.real_characters))
    groups = (texts[i : i + 16] for i in range(0, len(texts), 16))
    outcomes["real text"] = run(encoder, family.reference, groups, settings.real_characters)
    return outcomes


def check(
    files: Sequence[Path] | dict[str, Path],
    open_card: OpenCard,
    texts: Sequence[Path] = (),
    settings: Settings | None = None,
    tell: Tell = print,
) -> dict[str, Any]:
    """Exactness of all families, then timings, as far as the time goes. Fit for JSON.

    ``files``: tokenizer.json files or their folders, by name where they have one. Raises
    DeviceError if there is no device.
    """
    chosen = settings or Settings()
    end = time.monotonic() + chosen.seconds
    named = files if isinstance(files, dict) else {file.name: file for file in files}
    result: dict[str, Any] = {
        "device": _name_of(open_card),
        "host": {"cpus": os.cpu_count(), "load_average": os.getloadavg()[0], **_versions()},
        "exactness": {},
        "timings": {},
        "profile": {},
        "peers": {},
    }
    families = []
    for name, file in named.items():
        if time.monotonic() > end:
            tell(f"{name}: no time left")
            break
        family = load(file, name)
        outcomes = _exact(family, open_card, texts, chosen)
        families.append(family)
        result["exactness"][name] = {n: asdict(o) for n, o in outcomes.items()}
        for kind, outcome in outcomes.items():
            tell(
                f"{name}, {kind}: {outcome.characters:,} characters in {outcome.texts:,} "
                f"texts, {outcome.left_to_cpu} left to the CPU, "
                f"{len(outcome.differences)} differences"
            )
    for family in families:
        if time.monotonic() > end:
            tell(f"{family.name}: no time left for timings")
            continue
        _timings(result, family, open_card, chosen, end, tell)
    return result


def _name_of(open_card: OpenCard) -> str:
    card = open_card(True)
    try:
        return card.name
    finally:
        card.close()


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("cupy", "numpy", "tokenizers"):
        if importlib.util.find_spec(package) is not None:
            module = importlib.import_module(package)
            found[package] = str(module.__version__)
    return found


def _exact(
    family: Family, open_card: OpenCard, texts: Sequence[Path], settings: Settings
) -> dict[str, Outcome]:
    card = open_card(True)
    try:
        encoder = GpuEncoder(family.tables, family.fallback, card, settings.limits)
        return exactness(family, encoder, texts, settings)
    finally:
        card.close()


@cache
def _context(characters: int) -> str:
    """Generated agent sessions, the same for every family."""
    return generate_context(7, characters)


def _timings(
    result: dict[str, Any],
    family: Family,
    open_card: OpenCard,
    settings: Settings,
    end: float,
    tell: Tell,
) -> None:
    longest = max((*settings.sizes, *(n * size for n, size in settings.batches)))
    context = _context(min(longest, settings.limits.bytes // 2))
    workloads = [(1, size) for size in settings.sizes] + list(settings.batches)
    timings = result["timings"][family.name] = []
    profile = result["profile"][family.name] = {}
    with ExitStack() as stack:
        clock = Clock(
            family, open_card, settings.limits, settings.repeats, stack, peers=settings.peers
        )
        peers = clock.peers
        result["peers"][family.name] = {**peers.versions, **peers.refused}
        for count, size in workloads:
            texts = [
                context[at : at + size].encode()
                for at in range(0, min(count * size, len(context)), size)
            ]
            if time.monotonic() > end or sum(map(len, texts)) > settings.limits.bytes:
                continue
            timing = clock.time(texts)
            timings.append({**asdict(timing), "mb_per_s": timing.megabytes_per_second})
            profile[f"{len(texts)} x {size}"] = clock.profile(texts)
            tell(f"{family.name}, {len(texts)} x {size:,} characters: {_line(timing)}")


def _line(t: Timing) -> str:
    against = f"; CPU engine {t.cpu_engine:,.0f}" if t.cpu_engine else ""
    if t.cpu_engine_threads:
        against += f", on all cores {t.cpu_engine_threads:,.0f}"
    for name, peer in t.peers.items():
        against += f"; {name} {peer.us:,.0f}{'' if peer.exact else '*'}"
    return (
        f"{t.encode_graph:,.0f} µs with graphs ({t.megabytes_per_second:,.0f} MB/s), "
        f"{t.encode_eager:,.0f} without; up {t.upload:,.0f}, kernels {t.kernels_graph:,.0f}, "
        f"down {t.download_ids:,.0f} ids, {t.download_ids_and_lengths:,.0f} with spans{against}"
    )


def write(result: dict[str, Any], file: Path) -> None:
    """The result as JSON. Raises OSError."""
    file.write_text(json.dumps(result, indent=1) + "\n")


def differences(result: dict[str, Any]) -> int:
    """Differences that the exactness checks found."""
    return sum(
        len(outcome["differences"])
        for outcomes in result["exactness"].values()
        for outcome in outcomes.values()
    )
