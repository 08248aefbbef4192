"""One-piece families (Gemma, Llama 2): an encoder with the common face, and their sessions."""

from __future__ import annotations

import numpy as np

from toktier_stream.incremental import pipeline, rules, selftest, stored
from toktier_stream.incremental.jit import kernel
from toktier_stream.incremental.onepiece import OnePieceSession
from toktier_stream.incremental.pipeline import CODE_POINTS
from toktier_stream.incremental.rules import Ints, Symbols
from toktier_stream.incremental.segments import Reader
from toktier_stream.incremental.tables import Tables
from toktier_stream.tokenizer.artifact import Artifact
from toktier_stream.tokenizer.face import Ids, Tokens
from toktier_stream.tokenizer.reference import fingerprint

ENGINE = "every-prefix-1"
"""Changes whenever this room could give other ids."""

refusal = pipeline.refusal
"""Why an artifact is no one-piece family; empty if it is one."""

__all__ = ["ENGINE", "OnePieceEncoder", "OnePieceSession", "refusal"]


class OnePieceEncoder:
    """An exact encoder of a one-piece family (see :class:`tokenizer.face.Encoder`).

    There are no cuts: BPE can reach across any character. Growing texts are for
    :meth:`session`, whose appends cost what they append. Safe for threads.
    """

    def __init__(self, artifact: Artifact, tables: Tables | None = None) -> None:
        """Checks every condition of :mod:`pipeline` and the tables against offline BPE.

        ``tables`` of the same artifact; if None they are read from the cache, or built and left
        there. Raises ``TOKENIZER_UNSUPPORTED``, saying why.
        """
        model = rules.from_spec(artifact.spec)
        self.pipeline = pipeline.read(artifact, model)
        if tables is None:
            self._tables = stored.tables(artifact.sha256, lambda: model, rules=model)
        else:
            self._tables = tables
            selftest.check(tables, model)
        self._reader = Reader(self.pipeline)
        self._fingerprint = fingerprint(artifact, ENGINE)
        literals = self.pipeline.literals
        self._literal_ids = np.array([t.id for t in literals], dtype=np.uint32)
        self._literal_bytes = [t.content.encode() for t in literals]
        self._byte_ids = np.array(self.pipeline.byte_ids, dtype=np.uint32)
        self._longest = max([self.tables.longest, *(len(t.content) for t in literals)])

    @property
    def tables(self) -> Tables:
        """The compiled dictionary."""
        return self._tables

    @property
    def reader(self) -> Reader:
        """Splits text into symbols and added tokens."""
        return self._reader

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    @property
    def engine(self) -> str:
        return ENGINE

    @property
    def longest_token(self) -> int:
        return self._longest

    @property
    def literal_reach(self) -> int:
        return self.reader.reach

    @property
    def splices(self) -> bool:
        return False

    def encode(self, text: bytes) -> Tokens:
        change = OnePieceSession(self).append(text)
        return Tokens(change.ids, change.lengths)

    def last_cut(self, text: bytes, low: int, high: int) -> int:
        return -1

    def first_cut(self, text: bytes, low: int, high: int) -> int:
        return -1

    def session(self, text: bytes = b"") -> OnePieceSession:
        """A session that starts with ``text``."""
        session = OnePieceSession(self)
        session.append(text)
        return session

    def emit(self, nodes: Ints, widths: Ints) -> Tokens:
        """Ids and byte lengths of a chain of states, given the source bytes of each."""
        if len(nodes) == 0 or nodes.min() > 0:
            return Tokens(self.tables.ids[nodes], widths.astype(np.uint32))
        return Tokens(*_emit(nodes, widths, self.tables.ids, self._literal_ids, self._byte_ids))

    def spell(self, theta: Ints, widths: Symbols) -> bytes:
        """The source text of consecutive symbols, told from the state after each."""
        symbol = self.tables.forest.symbol[np.maximum(theta, 0)]
        points = self.tables.points[symbol].astype("<u4")
        for (changed, width), source in self.pipeline.source_of.items():
            points[(symbol == changed) & (widths == width)] = source
        unknown = (theta < 0) & (theta >= -CODE_POINTS)
        points[unknown] = -1 - theta[unknown]
        literal = np.flatnonzero(theta < -CODE_POINTS)
        shown = widths > 0
        out, start = [], 0
        for at in [*literal.tolist(), len(theta)]:
            stretch = points[start:at][shown[start:at]]
            out.append(stretch.tobytes().decode("utf-32-le").encode())
            if at < len(theta):
                out.append(self._literal_bytes[-1 - CODE_POINTS - int(theta[at])])
            start = at + 1
        return b"".join(out)


@kernel
def _emit(nodes: Ints, widths: Ints, ids: Ids, literal_ids: Ids, byte_ids: Ids) -> tuple[Ids, Ids]:
    total = 0
    for i in range(len(nodes)):
        total += widths[i] if 0 > nodes[i] >= -CODE_POINTS else 1
    out, lengths = np.empty(total, np.uint32), np.empty(total, np.uint32)
    p = 0
    for i in range(len(nodes)):
        node, width = nodes[i], widths[i]
        if node > 0 or node < -CODE_POINTS:
            out[p] = ids[node] if node > 0 else literal_ids[-1 - CODE_POINTS - node]
            lengths[p] = width
            p += 1
            continue
        point = -1 - node  # outside the vocabulary: one token for each of its bytes
        for k in range(width):
            value = point >> (6 * (width - 1 - k))
            if width == 1:
                byte = point
            elif k > 0:
                byte = 0x80 | (value & 0x3F)
            else:
                byte = value | (0xC0 if width == 2 else 0xE0 if width == 3 else 0xF0)
            out[p], lengths[p] = byte_ids[byte], 1
            p += 1
    return out, lengths
