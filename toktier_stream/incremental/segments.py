"""From UTF-8 to symbols: added tokens cut out leftmost-longest, characters mapped, one prepended.

The tail of a text can be *undecided*: an added token may begin there and end in what comes later.
Symbols after that point are those of the text as it stands, and are made again on the next append.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from toktier_stream.incremental.automaton import root_children, trie
from toktier_stream.incremental.jit import kernel
from toktier_stream.incremental.pipeline import NO_SYMBOL, OnePiece, literal_code
from toktier_stream.incremental.rules import Ints, Symbols


@dataclass(frozen=True, slots=True)
class Read:
    """Symbols of a stretch of text: ``codes`` int32[n] and the source bytes of each, uint8[n]
    (0 for a prepended symbol). The first ``decided`` of them, from ``decided_bytes`` bytes, cannot
    change by what follows; ``fresh``: there a segment would begin."""

    codes: Ints
    widths: Symbols
    decided: int
    decided_bytes: int
    fresh: bool


class Reader:
    """The text side of one tokenizer. Immutable, safe for threads."""

    def __init__(self, pipeline: OnePiece) -> None:
        self.pipeline = pipeline
        words = sorted((t.content.encode(), i) for i, t in enumerate(pipeline.literals))
        spelling: Symbols = np.frombuffer(b"".join(w for w, _ in words), dtype=np.uint8)
        lengths = np.array([len(w) for w, _ in words], dtype=np.int64)
        self._child, self._label, ends, levels = trie(
            spelling, np.cumsum(lengths) - lengths, lengths, wide=False
        )
        self._code: Ints = np.zeros(len(self._label), dtype=np.int32)  # 0: no literal ends here
        self._code[ends] = [literal_code(i) for _, i in words]
        self._first = root_children(self._child, self._label, 256)
        self.reach = len(levels) - 2
        """Bytes of the longest literal."""

    def read(self, text: bytes, fresh: bool) -> Read:
        """Symbols of valid UTF-8; ``fresh``: a segment begins where it begins."""
        data = np.frombuffer(text, dtype=np.uint8)
        room = len(data) * (1 if self.pipeline.prepend == NO_SYMBOL else 2) + 1
        codes, widths = np.empty(room, dtype=np.int32), np.empty(room, dtype=np.uint8)
        count, decided, decided_bytes, fresh_there = _read(
            data,
            fresh,
            self.pipeline.code_of,
            self.pipeline.prepend,
            self._first,
            self._child,
            self._label,
            self._code,
            codes,
            widths,
        )
        return Read(codes[:count], widths[:count], decided, decided_bytes, bool(fresh_there))


@kernel
def _read(
    data: Symbols,
    fresh: bool,
    code_of: Ints,
    prepend: int,
    first: Ints,
    child: Ints,
    label: Symbols,
    code: Ints,
    codes: Ints,
    widths: Symbols,
) -> tuple[int, int, int, bool]:
    n = len(data)
    count = i = 0
    decided = decided_bytes = -1
    fresh_there = fresh
    while i < n:
        lead = data[i]
        state = first[lead]
        if state > 0:
            end = i + 1
            matched, matched_end = 0, 0
            while True:
                if code[state] != 0:
                    matched, matched_end = code[state], end
                a, b = child[state], child[state + 1]
                if end == n:
                    if a < b and decided < 0:  # what follows may make it a (longer) literal
                        decided, decided_bytes, fresh_there = count, i, fresh
                    break
                while a < b and label[a] < data[end]:
                    a += 1
                if a == b or label[a] != data[end]:
                    break
                state = a
                end += 1
            if matched != 0:
                codes[count], widths[count] = matched, matched_end - i
                count += 1
                i = matched_end
                fresh = True
                continue
        if fresh:
            fresh = False
            if prepend >= 0:
                codes[count], widths[count] = prepend, 0
                count += 1
        if lead < 0x80:
            point, width = np.int64(lead), 1
        elif lead < 0xE0:
            point, width = (np.int64(lead) & 0x1F) << 6 | (data[i + 1] & 0x3F), 2
        elif lead < 0xF0:
            point = (np.int64(lead) & 0x0F) << 12 | (np.int64(data[i + 1]) & 0x3F) << 6
            point, width = point | (data[i + 2] & 0x3F), 3
        else:
            point = (np.int64(lead) & 0x07) << 18 | (np.int64(data[i + 1]) & 0x3F) << 12
            point |= (np.int64(data[i + 2]) & 0x3F) << 6
            point, width = point | (data[i + 3] & 0x3F), 4
        codes[count], widths[count] = code_of[point], width
        count += 1
        i += width
    if decided < 0:
        decided, decided_bytes, fresh_there = count, n, fresh
    return count, decided, decided_bytes, fresh_there
