"""The pipeline as a list of launches over fixed buffers: sizes are read from device memory, grids
follow the capacity, so that the same list can be replayed as a CUDA graph for any batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from toktier_gpu.device import Buffer, Device, Launch, Plan
from toktier_gpu.tables import DeviceTables

TILE: Final = 4096
THREADS: Final = 256
SHORT_THREADS: Final = 128
SUM_THREADS: Final = 512
HEAD_WORDS: Final = 16
COUNTS: Final = 16
PADDING: Final = 64
"""Bytes behind the texts that kernels may read."""

MOST_BYTES: Final = 1 << 30
"""Kernels count bytes, and step over them by whole grids, in 32 bits."""
MOST_PIECE: Final = 1 << 16
"""A block's symbols then fit the 48 KiB of shared memory that a launch may ask for unbidden."""

SEGMENTS, PIECES, TOKENS = 0, 1, 7
"""Places in the counts."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one batch may hold, and what is left to the host."""

    bytes: int = 1 << 26
    """Bytes of text in a batch."""
    texts: int = 4096
    """Texts in a batch."""
    segment: int = 1 << 14
    """Bytes between synchronizing boundaries: one thread walks them."""
    piece: int = 1 << 16
    """Bytes of a piece: one block merges them."""
    rounds: int = 4096
    """Merge rounds of a long piece."""
    literals: int = 1 << 14
    """Bytes over which added tokens may overlap each other: one thread walks them."""
    buckets: tuple[int, ...] = (1 << 16, 1 << 20, 1 << 23)
    """Smaller capacities with plans of their own."""

    def __post_init__(self) -> None:
        if not 0 < self.bytes <= MOST_BYTES:
            raise ValueError(f"a batch of {self.bytes} bytes: at most {MOST_BYTES}")
        if not (self.texts > 0 and 0 < self.piece <= MOST_PIECE):
            raise ValueError(f"{self.texts} texts, pieces of {self.piece} of at most {MOST_PIECE}")


class Buffers:
    """The device memory of one encoder, and where things stand in it."""

    def __init__(self, device: Device, limits: Limits) -> None:
        """Allocates about 30 bytes per byte of text. Raises DeviceError."""
        size = -(-limits.bytes // TILE) * TILE
        self.starts_at = 4 * HEAD_WORDS
        words = self.starts_at + 4 * (limits.texts + 1)
        self.text_at = -(-words // 16) * 16
        self.input = device.allocate(self.text_at + size + PADDING)
        self.head = self.input
        self.starts = self.input.at(self.starts_at)
        self.text = self.input.at(self.text_at)
        self.flags_at = 4 * COUNTS
        self.offsets_at = self.flags_at + 4 * limits.texts
        self.report_size = self.offsets_at + 4 * (limits.texts + 1)
        self.report = device.allocate(self.report_size)
        self.counts = self.report
        self.flags = self.report.at(self.flags_at)
        self.offsets = self.report.at(self.offsets_at)
        self.cls = device.allocate(size)
        self.mark = device.allocate(size)
        self.piece = device.allocate(size)
        self.starts_here = device.allocate(size // 8)
        self.tok = device.allocate(4 * size)
        self.spare = device.allocate(4 * size)
        """Literals found, then codes of long items, then tokens before a text."""
        self.segments = device.allocate(4 * size)
        self.short_items = self.segments
        """Written when the segments are done with; short items have at least two bytes."""
        self.pieces = device.allocate(4 * size)
        self.out = device.allocate(8 * size)
        self.parts = self.out
        """Read before the output is written."""
        self.whole = device.allocate(8 * (size // 16 + 1))
        self.medium_items = device.allocate(8 * (size // 33 + 1))
        self.long_items = device.allocate(8 * (size // 129 + 1))
        self.tiles = device.allocate(4 * (size // TILE + 1))


def upload_tables(device: Device, tables: DeviceTables) -> dict[str, Buffer]:
    """Copy all tables to the device. Raises DeviceError."""
    placed = {}
    for name, array in tables.arrays.items():
        raw = np.frombuffer(array.tobytes(), dtype=np.uint8)
        placed[name] = device.allocate(len(raw))
        device.upload(placed[name], raw)
    return placed


def make_plan(
    device: Device,
    b: Buffers,
    tables: DeviceTables,
    t: dict[str, Buffer],
    limits: Limits,
    capacity: int,
) -> Plan:
    """The launches for batches of up to ``capacity`` bytes."""
    n = tables.numbers
    launches: list[Launch] = []

    def add(
        kernel: str, work: int, *arguments: Buffer | int, block: int = THREADS, shared: int = 0
    ) -> None:
        grid = max(1, min(-(-work // block), device.blocks * THREADS // block))
        launches.append(Launch(kernel, grid, block, shared, arguments))

    def by_tile(kernel: str, *arguments: Buffer | int) -> None:
        grid = max(1, min(-(-capacity // TILE), device.blocks))
        launches.append(Launch(kernel, grid, THREADS, _SUMS, arguments))

    def sum_tiles(which: int) -> None:
        shared = 4 * (SUM_THREADS // 32 + 1)
        arguments = (b.head, b.tiles, b.counts, which)
        launches.append(Launch("sum_tiles", 1, SUM_THREADS, shared, arguments))

    merging = (t["byte_pairs"], t["pairs"], n["pair_shift"], t["emit"])
    words = (t["words"], n["word_shift"])
    add("clear", capacity, b.head, b.tok, b.mark, b.counts, b.flags)
    add("mark_texts", limits.texts, b.head, b.starts, b.mark)
    add(
        "classes", capacity, b.head, b.starts, b.text, t["pages"], t["properties"],
        n["normalizes"], b.cls, b.flags,
    )  # fmt: skip
    for which in ("raw", "normalized"):
        if not n[f"{which}_reach"]:
            continue
        add(
            "find_literals", capacity, b.head, b.text, b.mark, t[f"{which}_first"],
            t[f"{which}_edges"], n[f"{which}_shift"], t[f"{which}_final"], b.spare,
        )  # fmt: skip
        add(
            "choose_literals", capacity, b.head, b.starts, b.spare, n[f"{which}_reach"],
            limits.literals, b.tok, b.mark, b.flags,
        )  # fmt: skip
    by_tile(
        "find_segments", b.head, b.cls, b.mark, t["two_sided"], n["classes"], b.starts_here,
        b.piece, b.tiles,
    )  # fmt: skip
    sum_tiles(SEGMENTS)
    by_tile("write_segments", b.head, b.starts_here, b.tiles, b.segments)
    add(
        "match_segments", capacity // 2, b.head, b.starts, b.counts, b.segments, b.cls, b.mark,
        t["machine"], n["classes"], t["program_start"], t["program"], limits.segment, b.piece,
        b.flags,
    )  # fmt: skip
    by_tile("count_pieces", b.head, b.piece, b.tiles)
    sum_tiles(PIECES)
    by_tile("write_pieces", b.head, b.piece, b.tiles, b.pieces)
    add(
        "look_up_pieces", capacity // 2, b.head, b.starts, b.text, b.mark, b.pieces, *words,
        t["long_words"], n["long_mask"], t["long_index"], t["blob"], n["longest_word"],
        limits.piece, b.tok, b.short_items, b.whole, b.counts, b.flags,
    )  # fmt: skip
    add("cut_pieces", 2 * capacity, b.text, b.whole, t["spans"], b.parts, b.counts)
    add(
        "look_up_parts", capacity // 4, b.text, b.parts, *words, b.tok, b.short_items,
        b.medium_items, b.long_items, b.counts,
    )  # fmt: skip
    add(
        "merge_short", capacity // 4, b.text, b.short_items, b.counts, *merging, b.tok,
        block=SHORT_THREADS, shared=4 * 2 * 32 * SHORT_THREADS,
    )  # fmt: skip
    add(
        "merge_medium", capacity, b.text, b.medium_items, b.counts, *merging, b.tok,
        shared=4 * 4 * 34 * (THREADS // 32),
    )  # fmt: skip
    most_words = -(-limits.piece // 32)
    launches.append(
        Launch(
            "merge_long",
            max(1, min(capacity // 129, device.blocks)),
            THREADS,
            4 * (40 + 4 * most_words + -(-most_words // 32)),
            (
                b.head, b.starts, b.text, b.long_items, b.counts, *merging, most_words,
                limits.rounds, b.spare, b.tok, b.flags,
            ),
        )
    )  # fmt: skip
    by_tile("count_tokens", b.head, b.tok, b.tiles)
    sum_tiles(TOKENS)
    by_tile("write_tokens", b.head, b.mark, b.tok, b.tiles, b.counts, b.out, b.spare)
    add("write_offsets", limits.texts, b.head, b.starts, b.spare, b.counts, b.offsets)
    return Plan(capacity, tuple(launches))


_SUMS: Final = 4 * (THREADS // 32 + 1)
"""Bytes of shared memory of a block's sums."""
