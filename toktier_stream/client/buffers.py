"""One session's ids on the consumer's side: a growing buffer, patched in O(Δ)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from toktier_stream.errors import Code, ToktierError
from toktier_stream.wire import digest as digests
from toktier_stream.wire.messages import TokenUpdate

_SMALLEST = 1024


class TokenBuffer:
    """The ids of one session. ``ids`` is a read-only view that stays valid until the next update
    (a patch may overwrite what a kept view shows; copy it to keep it)."""

    def __init__(self) -> None:
        self._data = np.empty(_SMALLEST, dtype=np.uint32)
        self._length = 0
        self.digest = digests.EMPTY
        self.revision = 0
        self.source_offset = -1  # of the update applied last
        self.settled = 0
        """Tokens from the start that no append changes, as the last update says."""
        self.kept = 0
        """Of the tokens that were settled before it, those that it left settled."""

    @property
    def ids(self) -> npt.NDArray[np.uint32]:
        """uint32[n], read-only."""
        view = self._data[: self._length]
        view.flags.writeable = False
        return view

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return self._data.nbytes

    def apply(self, update: TokenUpdate) -> None:
        """Patch the buffer and verify the digest.

        Work is O(removed + new + tail). Raises ``DIGEST_MISMATCH`` and changes nothing if the
        update does not fit what is here.
        """
        new = np.frombuffer(update.token_ids, dtype="<u4").astype(np.uint32, copy=False)
        old = self._length
        keep, tail = update.keep, update.tail
        total = keep + len(new) + tail
        if keep + tail > old or total != update.total_tokens:
            raise ToktierError(
                Code.DIGEST_MISMATCH,
                f"keep {keep} + new {len(new)} + tail {tail} of {old} gives not "
                f"{update.total_tokens} tokens",
            )
        promised = self._data[keep : self.settled].copy()
        kept_tail = self._data[old - tail : old].copy() if tail else new[:0]
        digest = digests.without_suffix(self.digest, self._data[keep:old])
        digest = digests.extend(digests.extend(digest, new), kept_tail)
        if digest != update.digest:
            raise ToktierError(Code.DIGEST_MISMATCH, f"at {total} tokens")
        if total > len(self._data):
            grown = np.empty(max(total, 2 * len(self._data)), dtype=np.uint32)
            grown[:keep] = self._data[:keep]
            self._data = grown
        self._data[keep : keep + len(new)] = new
        self._data[keep + len(new) : total] = kept_tail
        self._length = total
        self.kept = self.settled
        if len(promised):
            # A change further left, or the whole stream once more.
            now = self._data[keep : min(self.settled, total)]
            different = np.flatnonzero(now != promised[: len(now)])
            self.kept = keep + int(different[0] if len(different) else len(now))
        self.kept = min(self.kept, update.settled)
        self.settled = update.settled
        self.digest = digest
        self.revision = update.revision
        self.source_offset = update.source_offset
