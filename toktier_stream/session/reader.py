"""Where LMDB has the pages and index nodes of a store's sessions, and reading one session's."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import lmdb

from toktier_stream.errors import Code, ToktierError
from toktier_stream.session.batch import KEY_BYTES
from toktier_stream.session.environment import ours

_NUMBER_BYTES: Final = 4


def record_name(key: bytes) -> bytes:
    """The key in LMDB of a page's key in the changelog."""
    return key[1 + KEY_BYTES :] + key[1 : 1 + KEY_BYTES]


def record_names(txn: Any, db: Any) -> Iterator[tuple[int, bytes]]:
    """Number and session key of every page and index node."""
    for name in txn.cursor(db).iternext(values=False):
        yield int.from_bytes(name[:_NUMBER_BYTES], "big"), name[_NUMBER_BYTES:]


class SessionReader:
    """Reads one session's records from LMDB and holds them to their checksums."""

    __slots__ = ("_db", "_env", "_key", "_path")

    def __init__(self, path: Path, env: lmdb.Environment, db: Any, key: bytes) -> None:
        self._path = path
        self._env = env
        self._db = db
        self._key = key

    def read(self, number: int, crc: int) -> bytes:
        """See :class:`toktier_stream.session.page.Reader`."""
        try:
            with self._env.begin() as txn:
                data = txn.get(number.to_bytes(_NUMBER_BYTES, "big") + self._key, db=self._db)
        except lmdb.Error as error:
            raise ours(self._path, error) from error
        if data is None:
            raise ToktierError(Code.STORE_CORRUPT, f"record {number} is missing")
        if zlib.crc32(data) != crc:
            raise ToktierError(Code.STORE_CORRUPT, f"record {number} fails its checksum")
        return bytes(data)
