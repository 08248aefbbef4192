"""The GPU path on a real card: exactness of every family first, then what an encode costs.

Made to run in minutes on a machine that has numpy, CuPy and tokenizers and nothing else of ours.
Tables are compiled where numba is, and can be prepared elsewhere (:func:`prepare`). Everything
that is timed was compared with the reference before.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import sysconfig
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from toktier_gpu.campaign import SHORT_SIZES, Outcome, Samples, run, words_of
from toktier_gpu.device import Device, DeviceError, Plan
from toktier_gpu.host import GpuEncoder
from toktier_gpu.plan import TOKENS, Limits
from toktier_gpu.tables import DeviceTables
from toktier_stream.bench.generate import generate_context
from toktier_stream.tokenizer.artifact import Artifact, byte_level_alphabet
from toktier_stream.tokenizer.face import Encoder
from toktier_stream.tokenizer.reference import Reference, ReferenceEncoder

TABLES: Final = "device-tables.npz"
"""Prepared tables, beside a family's tokenizer.json."""

SIZES: Final = (1_000, 10_000, 100_000, 1_000_000, 8_000_000)
"""Characters of a single text."""
LIMITS: Final = Limits(bytes=1 << 24)
"""Half a gigabyte of device memory."""
BATCHES: Final = ((1024, 1_000), (256, 16_000), (64, 117_000), (8, 1_000_000))
"""(texts, characters of each)."""

Tell = Callable[[str], None]


class Card(Device, Protocol):
    """A device that can be waited for and looked into."""

    def synchronize(self) -> None:
        """Wait for all that was started."""
        ...

    def profile(self, plan: Plan, repeats: int = 5) -> list[tuple[str, float]]:
        """Microseconds of each launch."""
        ...


OpenCard = Callable[[bool], Card]
"""A device, with CUDA graphs or without."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How much of everything."""

    seconds: float = 420
    """After this nothing new is started."""
    random_characters: int = 1_000_000
    real_characters: int = 1_500_000
    sizes: Sequence[int] = SIZES
    batches: Sequence[tuple[int, int]] = BATCHES
    repeats: int = 15
    limits: Limits = LIMITS


@dataclass(frozen=True, slots=True)
class Family:
    """One tokenizer on the card's machine."""

    name: str
    tables: DeviceTables
    reference: ReferenceEncoder
    cpu: Encoder | None
    """The exact CPU engine, where it can run."""
    vocabulary: Sequence[str]
    literals: Sequence[str]

    @property
    def fallback(self) -> Encoder:
        """What encodes the texts that the device leaves."""
        return self.cpu or self.reference


@dataclass(frozen=True, slots=True)
class Timing:
    """One workload, medians in microseconds. ``encode`` is the whole call, ids and byte lengths
    in host memory; the parts were measured one by one, with a wait behind each."""

    texts: int
    characters: int
    bytes: int
    tokens: int
    left_to_cpu: int
    encode_graph: float
    encode_eager: float
    pack: float
    upload: float
    kernels_graph: float
    kernels_eager: float
    download_ids: float
    download_ids_and_lengths: float
    cpu_engine: float | None
    reference: float | None

    @property
    def megabytes_per_second(self) -> float:
        """Of the whole call with graphs."""
        return self.bytes / self.encode_graph


def load(folder: Path) -> Family:
    """A family's folder. Raises ``TOKENIZER_LOAD``, or DeviceError where its tables can neither
    be read nor made, or the GPU does not serve it."""
    artifact = Artifact.load(folder)
    reference = Reference(artifact)
    tables, cpu = _tables(folder, artifact, reference)
    vocabulary = sorted(reference.tokenizer.get_vocab(with_added_tokens=False))
    return Family(
        name=folder.name,
        tables=tables,
        reference=ReferenceEncoder(reference),
        cpu=cpu,
        vocabulary=words_of(vocabulary, byte_level_alphabet()),
        literals=[t.content for t in artifact.added_tokens],
    )


def _tables(
    folder: Path, artifact: Artifact, reference: Reference
) -> tuple[DeviceTables, Encoder | None]:
    if importlib.util.find_spec("numba") is None:
        try:
            return DeviceTables.load(folder / TABLES), None
        except OSError as error:
            raise DeviceError(f"{folder.name}: no numba here, and no {TABLES}") from error
    # Only here, because it needs numba.
    from toktier_stream.tokenizer.admission import load_encoder
    from toktier_stream.tokenizer.tables import Refusal

    encoder = load_encoder(artifact, reference=reference)
    if isinstance(encoder, Refusal):
        raise DeviceError(f"{folder.name} is not served: {encoder}")
    tables = DeviceTables.build(encoder.compiled)
    if isinstance(tables, Refusal):
        raise DeviceError(f"{folder.name} is not served: {tables}")
    return tables, encoder


def prepare(folder: Path) -> None:
    """Leave a family's tables beside its file, for a machine without numba. Raises as
    :func:`load`."""
    load(folder).tables.save(folder / TABLES)


def real_texts(files: Iterable[Path], characters: int) -> Iterator[bytes]:
    """Texts of about 20,000 characters: the files given, then the standard library's sources."""
    sources = Path(sysconfig.get_paths()["stdlib"]).rglob("*.py")
    for file in (*files, *sorted(sources)):
        text = file.read_bytes().decode(errors="ignore")
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


def _median(repeats: int, action: Callable[[], object]) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return 1e6 * statistics.median(times)


class Clock:
    """Times workloads of one family on two devices: one replays graphs, one launches."""

    def __init__(self, family: Family, open_card: OpenCard, settings: Settings) -> None:
        """Raises DeviceError."""
        self._family = family
        self._settings = settings
        self._cards = {graphs: open_card(graphs) for graphs in (True, False)}
        self._encoders = {
            graphs: GpuEncoder(family.tables, family.fallback, card, settings.limits)
            for graphs, card in self._cards.items()
        }
        for encoder in self._encoders.values():
            encoder.warm()

    def time(self, texts: Sequence[bytes]) -> Timing:
        """Raises DeviceError, also if ids or lengths differ from the CPU's."""
        encoder = self._encoders[True]
        before = sum(encoder.fallbacks.values())
        batch = encoder.encode(texts)
        left = sum(encoder.fallbacks.values()) - before
        oracle = self._family.fallback
        for i, text in enumerate(texts):
            expected = oracle.encode(text)
            if not (expected.ids == batch[i].ids).all() or len(expected) != len(batch[i]):
                raise DeviceError(f"text {i} of a timed batch differs")
        cpu = self._family.cpu
        size = sum(map(len, texts))
        repeats = max(3, min(self._settings.repeats, 60_000_000 // size))
        whole = {
            graphs: _median(repeats, lambda e=e: e.encode(texts))  # type: ignore[misc]
            for graphs, e in self._encoders.items()
        }
        parts = self._parts(texts, size, repeats, len(batch.ids))
        return Timing(
            texts=len(texts),
            characters=sum(len(t.decode()) for t in texts),
            bytes=size,
            tokens=len(batch.ids),
            left_to_cpu=left,
            encode_graph=whole[True],
            encode_eager=whole[False],
            **parts,
            cpu_engine=None if cpu is None else _median(3, lambda: [cpu.encode(t) for t in texts]),
            reference=_median(1, lambda: [self._family.reference.encode(t) for t in texts])
            if size <= 1_100_000
            else None,
        )

    def _parts(
        self, texts: Sequence[bytes], size: int, repeats: int, tokens: int
    ) -> dict[str, float]:
        encoder, card = self._encoders[True], self._cards[True]
        plan = encoder.plan_for(size)
        data = encoder.packed(texts, size)

        def upload() -> None:
            card.upload(encoder.buffers.input, data)
            card.synchronize()

        def kernels(graphs: bool) -> None:
            self._cards[graphs].run(self._encoders[graphs].plan_for(size))
            self._cards[graphs].synchronize()

        upload()
        other = self._encoders[False]
        self._cards[False].upload(other.buffers.input, data)
        self._cards[False].synchronize()
        card.run(plan)
        report = card.download(encoder.buffers.report, encoder.buffers.report_size)
        count = int(report.view("<u4")[TOKENS])
        return {
            "pack": _median(repeats, lambda: encoder.packed(texts, size)),
            "upload": _median(repeats, upload),
            "kernels_graph": _median(repeats, lambda: kernels(True)),
            "kernels_eager": _median(repeats, lambda: kernels(False)),
            "download_ids": _median(repeats, lambda: card.download(encoder.buffers.out, 4 * count)),
            "download_ids_and_lengths": _median(
                repeats, lambda: card.download(encoder.buffers.out, 8 * count)
            ),
        }

    def profile(self, texts: Sequence[bytes]) -> list[tuple[str, float]]:
        """Microseconds of each kernel on one batch. Raises DeviceError."""
        encoder, card = self._encoders[False], self._cards[False]
        size = sum(map(len, texts))
        card.upload(encoder.buffers.input, encoder.packed(texts, size))
        return card.profile(encoder.plan_for(size))

    def close(self) -> None:
        """Give both devices back."""
        for encoder in self._encoders.values():
            encoder.close()


def check(
    folders: Sequence[Path],
    open_card: OpenCard,
    files: Sequence[Path] = (),
    settings: Settings | None = None,
    tell: Tell = print,
) -> dict[str, Any]:
    """Exactness of all families, then timings, as far as the time goes. Fit for JSON.

    Raises DeviceError if there is no device.
    """
    chosen = settings or Settings()
    end = time.monotonic() + chosen.seconds
    probe = open_card(True)
    result: dict[str, Any] = {"device": probe.name, "exactness": {}, "timings": {}, "profile": {}}
    probe.close()
    families = []
    for folder in folders:
        if time.monotonic() > end:
            tell(f"{folder.name}: no time left")
            break
        family = load(folder)
        card = open_card(True)
        encoder = GpuEncoder(family.tables, family.fallback, card, chosen.limits)
        outcomes = exactness(family, encoder, files, chosen)
        encoder.close()
        families.append(family)
        result["exactness"][family.name] = {n: asdict(o) for n, o in outcomes.items()}
        for name, outcome in outcomes.items():
            tell(
                f"{family.name}, {name}: {outcome.characters:,} characters in {outcome.texts:,} "
                f"texts, {outcome.left_to_cpu} left to the CPU, "
                f"{len(outcome.differences)} differences"
            )
    for family in families:
        if time.monotonic() > end:
            tell(f"{family.name}: no time left for timings")
            continue
        result["timings"][family.name], result["profile"][family.name] = _timings(
            family, open_card, chosen, end, tell
        )
    return result


def _timings(
    family: Family, open_card: OpenCard, settings: Settings, end: float, tell: Tell
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    clock = Clock(family, open_card, settings)
    longest = max((*settings.sizes, *(n * size for n, size in settings.batches)))
    context = generate_context(7, min(longest, settings.limits.bytes // 2))
    workloads = [(1, size) for size in settings.sizes] + list(settings.batches)
    timings, profile = [], {}
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
    clock.close()
    return timings, profile


def _line(t: Timing) -> str:
    against = f"; CPU engine {t.cpu_engine:,.0f}" if t.cpu_engine else ""
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
