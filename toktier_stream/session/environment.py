"""The LMDB environment of a store: opened with care, and its errors as ours."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import lmdb

from toktier_stream import telemetry
from toktier_stream.errors import Code, ToktierError
from toktier_stream.session import unsynced

_LOG = telemetry.logger(__name__)

FORMAT: Final = b"toktier-stream store 3"

# Where damage was met, until the file is set aside; and what it is called then.
DAMAGED: Final = "damaged"
SET_ASIDE: Final = "damaged-data.mdb"

_RESERVE: Final = 1 << 20
# A transaction that has met damage is bad for whatever is asked of it after that.
_DAMAGE: Final = (
    lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.PanicError, lmdb.BadTxnError,
)  # fmt: skip
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


def open_environment(folder: Path, map_bytes: int, *, sync: bool) -> lmdb.Environment:
    """Open or create it, with room beyond ``map_bytes`` so that something can always be removed.

    A file in which damage was met before, or that a crash of the machine may have left without
    what was committed, is set aside first: all of it is in the changelog. ``sync``: a commit waits
    for the disk. Raises ``STORE_FORMAT``, ``STORE_FULL`` or ``STORE_DAMAGED``.
    """
    damaged = (folder / DAMAGED).exists()
    if damaged or not unsynced.trusted(folder):
        _LOG.warning("store_set_aside", path=str(folder), damaged=damaged)
        with suppress(FileNotFoundError):
            (folder / "data.mdb").replace(folder / SET_ASIDE)
        (folder / "lock.mdb").unlink(missing_ok=True)
        (folder / DAMAGED).unlink(missing_ok=True)
        with told(folder):
            unsynced.clear(folder)
    if not sync:
        with told(folder):
            unsynced.mark(folder)
    page = 4096
    size = (map_bytes + max(_RESERVE, map_bytes // 16)) // page * page
    with told(folder):
        env = lmdb.open(
            str(folder), map_size=size, mode=0o700, max_dbs=4, max_spare_txns=2,
            sync=sync, metasync=False, readahead=False,
        )  # fmt: skip
    try:
        empty = env.stat()["entries"] == 0
        with told(folder), env.begin(write=True) as txn:
            meta = env.open_db(b"meta", txn=txn)
            if empty:
                txn.put(b"format", FORMAT, db=meta)
            found = txn.get(b"format", db=meta)
            if found != FORMAT:
                raise ToktierError(Code.STORE_FORMAT, str(folder))
        if sync:
            with told(folder):
                env.sync(True)
                unsynced.clear(folder)
    except BaseException:
        env.close()
        raise
    return env


def stored_map_bytes(folder: Path) -> int:
    """The ``map_bytes`` that an existing environment was opened with; what LMDB remembers of it.

    Raises ``STORE_FORMAT``.
    """
    with told(folder):
        env = lmdb.open(str(folder), map_size=0, readonly=True, create=False, lock=False)
        size: int = env.info()["map_size"]
        env.close()
    # The larger of two reserves was added: take both away, and what is left is the smaller.
    return max(1, min(size - _RESERVE, size * 16 // 17))


@contextmanager
def told(path: Path) -> Iterator[None]:
    """LMDB's errors as ours, and the system's: no room, or nothing that can be used any more."""
    try:
        yield
    except lmdb.Error as error:
        raise ours(path, error) from error
    except OSError as error:
        full = error.errno in _NO_ROOM
        code = Code.STORE_FULL if full else Code.STORE_FORMAT
        raise ToktierError(code, f"{path}: {error.strerror}") from error


def ours(path: Path, error: lmdb.Error) -> ToktierError:
    """One of LMDB's errors as ours."""
    # A write that the disk takes only in part is an input/output error to LMDB.
    full = isinstance(error, lmdb.MapFullError | lmdb.DiskError) or error.code in _NO_ROOM
    if full:
        free = shutil.disk_usage(path).free
        return ToktierError(Code.STORE_FULL, f"{path}: {error}; {free} bytes free")
    if isinstance(error, _DAMAGE):
        with suppress(OSError):
            (path / DAMAGED).touch(0o600)
        return ToktierError(Code.STORE_DAMAGED, f"{path}: {error}")
    return ToktierError(Code.STORE_FORMAT, f"{path}: {error}")
