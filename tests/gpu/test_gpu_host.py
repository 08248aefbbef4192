"""The host around the device: batches, fallbacks with their reasons, errors, and its imports."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from gpu_harness import SMALL, Subject, device, made, subject

from toktier_gpu.batch import Batch
from toktier_gpu.campaign import first_texts
from toktier_gpu.device import Buffer, DeviceError, Plan, Raw
from toktier_gpu.host import Fallback, GpuEncoder
from toktier_gpu.plan import Limits
from toktier_gpu.tables import DeviceTables
from toktier_stream.tokenizer.face import Encoder
from toktier_stream.tokenizer.shipped import shipped_path


def assert_exact(batch: Batch, oracle: Encoder, texts: Sequence[bytes]) -> None:
    """Every text's tokens are the oracle's."""
    assert len(batch) == len(texts)
    for i, text in enumerate(texts):
        expected = oracle.encode(text)
        assert np.array_equal(batch[i].ids, expected.ids)
        assert np.array_equal(batch[i].lengths, expected.lengths)
        assert int(batch[i].lengths.sum()) == len(text)


class Broken:
    """A device whose next calls fail; ``heals`` is what recover() says."""

    name = "broken"
    blocks = 1

    def __init__(self, heals: bool) -> None:
        self.inner = device()
        self.heals = heals
        self.fails = False

    def _check(self) -> None:
        if self.fails:
            raise DeviceError("out of order")

    def allocate(self, size: int) -> Buffer:
        return self.inner.allocate(size)

    def staging(self, size: int) -> Raw:
        self._check()
        return self.inner.staging(size)

    def upload(self, to: Buffer, data: Raw) -> None:
        self.inner.upload(to, data)

    def run(self, plan: Plan) -> None:
        self.inner.run(plan)

    def download(self, source: Buffer, size: int) -> Raw:
        self._check()
        return self.inner.download(source, size)

    def recover(self) -> bool:
        return self.heals

    def close(self) -> None:
        self.inner.close()


class Reporting(Broken):
    """A device that reports these offsets of two texts instead of its own."""

    def __init__(self) -> None:
        super().__init__(heals=True)
        self.offsets: list[int] = []

    def download(self, source: Buffer, size: int) -> Raw:
        data = super().download(source, size).copy()
        if self.offsets and size > 4 * SMALL.texts:
            words = data.view(np.uint32)
            words[7] = self.offsets[-1]
            words[-(SMALL.texts + 1) :][:3] = self.offsets
        return data


@pytest.fixture(scope="module")
def small() -> Subject:
    """The tokenizer that comes with the package."""
    return subject(shipped_path())


TEXTS = [
    b"",
    "Hello, wörld! It's  12345\r\n\r\n\t日本語".encode(),
    b"",
    b"<|im_start|>user\n" * 9,
    b" ",
]


def test_texts_are_encoded_alone(small: Subject) -> None:
    """Neighbours in a batch do not reach into each other; empty texts have no tokens."""
    of = device()
    encoder = small.encoder(of)
    pairs = [b"  ", b"a", b"<|im_", b"end|>", b"\r", b"\n", b"'", b"s", b"12", b"34", b" x", b"y"]
    for texts in ([], [b""], [b"", b""], TEXTS, pairs, [b"x"]):
        assert_exact(encoder.encode(texts), small.reference, texts)
    assert not any(encoder.fallbacks.values())
    of.close()


@pytest.mark.parametrize("size", [4095, 4096, 4097, 8191, 8192, 8193, 16383, 16384])
def test_batches_that_end_at_the_edge_of_a_tile(small: Subject, size: int) -> None:
    """The last byte of a tile, of a plan's capacity and of the buffers belongs to the batch."""
    of = device(mode="shuffled")
    encoder = small.encoder(of)
    line = "def f(x): return x  # naïve 日本\n".encode()
    whole = (line * (size // len(line) + 1))[:size].decode(errors="ignore").encode()
    whole += b"z" * (size - len(whole))
    for texts in ([whole], [whole[:-1], b"q"], [b"", whole, b""]):
        assert_exact(encoder.encode(texts), small.reference, texts)
    assert not any(encoder.fallbacks.values())
    of.close()


def test_more_than_a_batch_holds(small: Subject) -> None:
    """Texts beyond a batch's bytes or number go in several; a text beyond them, to the CPU."""
    of = device()
    encoder = small.encoder(of)
    texts = [b"word and word " * 400] * 5 + [b"x y"] * 150 + [b"too large " * 2000]
    assert_exact(encoder.encode(texts), small.reference, texts)
    assert {f: n for f, n in encoder.fallbacks.items() if n} == {Fallback.SIZE: 1}
    of.close()


def test_over_long_segments_and_pieces_go_to_the_cpu(small: Subject) -> None:
    """Each counted by its reason; the other texts of the batch stay on the device."""
    of = device()
    limits = Limits(bytes=1 << 14, texts=64, buckets=(), segment=3000, piece=1024, rounds=1)
    encoder = small.encoder(of, limits)
    texts = [b"fine text", b"e" * 3500, b"e" * 1500, b"and" * 300, b"more fine text"]
    assert_exact(encoder.encode(texts), small.reference, texts)
    used = {f: n for f, n in encoder.fallbacks.items() if n}
    assert used == {Fallback.SEGMENT: 1, Fallback.PIECE: 2}
    of.close()


@pytest.mark.parametrize("piece", [130, 1000, 1023, 1025])
def test_pieces_at_a_limit_of_any_size(small: Subject, piece: int) -> None:
    """A block has room for as many places as the limit lets through."""
    of = device("address")
    encoder = small.encoder(of, Limits(bytes=1 << 13, texts=64, buckets=(), piece=piece))
    texts = [b"e" * piece, b"e" * (piece - 1), b"e" * (piece + 1)]
    assert_exact(encoder.encode(texts), small.reference, texts)
    assert encoder.works
    assert {f: n for f, n in encoder.fallbacks.items() if n} == {Fallback.PIECE: 1}
    of.close()


@pytest.mark.parametrize(
    "wrong", [{"bytes": 0}, {"bytes": (1 << 30) + 1}, {"piece": (1 << 16) + 1}, {"texts": 0}]
)
def test_limits_beyond_the_kernels_are_refused(wrong: dict[str, int]) -> None:
    """32-bit places, 48 KiB of shared memory."""
    with pytest.raises(ValueError, match=r"at most|texts"):
        Limits(**wrong)


def test_what_is_left_is_named(small: Subject) -> None:
    """An attempt gives tokens or a reason, text by text, and leaves the rest to its caller."""
    of = Broken(heals=True)
    encoder = GpuEncoder(small.tables, small.cpu, of, SMALL)
    texts = [b"fine", b"", b"x" * (SMALL.bytes + 1), b"also fine"]
    first, empty, large, last = encoder.attempt(texts)
    assert large is Fallback.SIZE
    for result, text in ((first, texts[0]), (empty, texts[1]), (last, texts[3])):
        assert not isinstance(result, Fallback)
        assert np.array_equal(result.ids, small.reference.encode(text).ids)
    of.fails = True
    assert encoder.attempt(texts) == [
        Fallback.DEVICE, Fallback.DEVICE, Fallback.SIZE, Fallback.DEVICE
    ]  # fmt: skip
    assert {f: n for f, n in encoder.fallbacks.items() if n} == {
        Fallback.DEVICE: 3, Fallback.SIZE: 2
    }  # fmt: skip
    of.close()


def test_added_tokens_that_overlap_without_end_go_to_the_cpu() -> None:
    """A group of overlapping literals that one thread would have to walk alone has a limit."""
    tested = made([(b"a", b"b")], raw=("éé", "é"))
    of = device()
    encoder = tested.encoder(of, Limits(bytes=1 << 12, texts=8, buckets=(), literals=100))
    texts = ["é".encode() * 40, "é".encode() * 1000, b"ab"]
    assert_exact(encoder.encode(texts), tested.reference, texts)
    assert {f: n for f, n in encoder.fallbacks.items() if n} == {Fallback.LITERALS: 1}
    of.close()


@pytest.mark.parametrize("heals", [False, True])
def test_the_caller_outlives_the_device(small: Subject, heals: bool) -> None:
    """A failing device costs time: the batch goes to the CPU, and so do later ones unless the
    device recovers."""
    of = Broken(heals)
    encoder = GpuEncoder(small.tables, small.cpu, of, SMALL)
    of.fails = True
    assert_exact(encoder.encode(TEXTS), small.reference, TEXTS)
    assert encoder.fallbacks[Fallback.DEVICE] == len(TEXTS)
    of.fails = False
    assert_exact(encoder.encode(TEXTS), small.reference, TEXTS)
    assert encoder.works is heals
    assert encoder.fallbacks[Fallback.DEVICE] == len(TEXTS) * (1 if heals else 2)
    of.close()


def test_threads_take_turns(small: Subject) -> None:
    """Concurrent calls get their own texts' tokens."""
    of = device()
    encoder = small.encoder(of)
    calls = [[b"thread %d " % i * (i + 1), b"", b"and %d" % i] for i in range(24)]
    with ThreadPoolExecutor(max_workers=4) as pool:
        batches = list(pool.map(encoder.encode, calls))
    for batch, texts in zip(batches, calls, strict=True):
        assert_exact(batch, small.reference, texts)
    of.close()


def test_a_killed_device_process(small: Subject) -> None:
    """A device that vanishes in the middle is an error like any other."""
    of = device()
    encoder = small.encoder(of)
    of.close()
    assert_exact(encoder.encode(TEXTS), small.reference, TEXTS)
    assert not encoder.works
    encoder.close()
    assert_exact(encoder.encode(TEXTS), small.reference, TEXTS)


def test_a_device_that_disagrees_is_refused(small: Subject) -> None:
    """The first text is compared with the CPU engine before anything is served."""
    arrays = dict(small.tables.arrays)
    arrays["emit"] = arrays["emit"] ^ np.uint32(1)
    arrays["words"] = np.zeros_like(arrays["words"])
    of = device()
    with pytest.raises(DeviceError, match="disagrees"):
        GpuEncoder(DeviceTables(arrays, small.tables.numbers), small.cpu, of, SMALL)
    of.close()


def test_what_a_device_is_held_to_before_it_serves(small: Subject) -> None:
    """Texts of every size class, in several launches; one wrong entry of a table is found, and a
    device that fails on the way."""
    of = device(mode="shuffled")
    limits = Limits(bytes=1 << 16, texts=64, buckets=(1 << 12,))
    encoder = small.encoder(of, limits)
    encoder.compare(first_texts())
    assert encoder.fallbacks[Fallback.DEVICE] == 0
    of.close()
    with pytest.raises(DeviceError, match="failed"):
        encoder.compare(first_texts())
    arrays = dict(small.tables.arrays)
    word = small.cpu.encode(b" return").ids
    emit = arrays["emit"].copy()
    words = arrays["words"].copy()
    assert len(word) == 1
    emit[(emit & 0xFFFFF) == word[0]] ^= np.uint32(1)
    values = words[2::3]
    values[values == word[0]] ^= np.uint64(1)
    again = device()
    wrong = DeviceTables({**arrays, "emit": emit, "words": words}, small.tables.numbers)
    with pytest.raises(DeviceError, match="disagrees"):
        GpuEncoder(wrong, small.cpu, again, limits).compare(first_texts())
    again.close()


def test_counts_that_cannot_be(small: Subject) -> None:
    """A text without a token, or with more than it has bytes, is the device's fault."""
    of = Reporting()
    encoder = GpuEncoder(small.tables, small.cpu, of, SMALL)
    texts = [b"some text", b"and some more of it"]
    for offsets in ([0, 0, 5], [0, 12, 14], [0, 9, 5]):
        of.offsets = offsets
        assert_exact(encoder.encode(texts), small.reference, texts)
    assert encoder.fallbacks[Fallback.DEVICE] == 6
    of.close()


def test_tables_survive_a_file(small: Subject, tmp_path: Path) -> None:
    """What is saved for a machine without the compiler is what is loaded there."""
    small.tables.save(tmp_path / "tables.npz")
    loaded = DeviceTables.load(tmp_path / "tables.npz")
    assert loaded.numbers == small.tables.numbers
    assert loaded.arrays.keys() == small.tables.arrays.keys()
    for name, array in small.tables.arrays.items():
        assert np.array_equal(loaded.arrays[name], array)
        assert loaded.arrays[name].dtype == array.dtype


def test_imports_what_a_gpu_machine_has() -> None:
    """numpy and tokenizers suffice: no store, no Kafka client, no compiler, no CuPy."""
    code = (
        "import sys\n"
        "absent = 'lmdb aiokafka numba cupy jinja2 structlog opentelemetry'\n"
        "for m in absent.split(): sys.modules[m] = None\n"
        "import toktier_gpu.host, toktier_gpu.campaign, toktier_gpu.cupy_device\n"
        "import toktier_stream.bench.gpu\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
