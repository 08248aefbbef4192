"""Compiled tables on disk: one file per key, written whole or not at all, checked when read.

A file is a line of JSON (names, types, shapes, a checksum) and the arrays behind it, each on a
cache line. Anything wrong with a file (missing, cut short, altered, another format) means that the
tables are compiled again; nothing of it is used.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Arrays = Mapping[str, npt.NDArray[Any]]

FORMAT: Final = "toktier-tables-1"
_LINE: Final = 64
_HEADER_LIMIT: Final = 1 << 20


def _padded(size: int) -> int:
    return -(-size // _LINE) * _LINE


def path_of(folder: Path, key: str) -> Path:
    """The file of a key in a folder of compiled tables."""
    name = hashlib.sha256(f"{FORMAT}\n{key}".encode()).hexdigest()[:32]
    return folder / f"{name}.tables"


def store(folder: Path, key: str, arrays: Arrays) -> None:
    """Write the arrays under a key, replacing what was there. Raises OSError."""
    entries, body, at = [], [], 0
    for name, array in arrays.items():
        data = np.ascontiguousarray(array).tobytes()
        entries.append([name, array.dtype.str, list(array.shape), at, len(data)])
        body.append(data.ljust(_padded(len(data)), b"\0"))
        at += _padded(len(data))
    payload = b"".join(body)
    header = {"format": FORMAT, "key": key, "arrays": entries, "checksum": _checksum(payload)}
    line = json.dumps(header, separators=(",", ":")).encode() + b"\n"
    folder.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=folder, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(line.ljust(_padded(len(line)), b"\0"))
            file.write(payload)
        Path(name).replace(path_of(folder, key))
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def load(folder: Path, key: str) -> dict[str, npt.NDArray[Any]] | None:
    """The arrays of a key, read-only; None if there is no sound file."""
    try:
        data = np.fromfile(path_of(folder, key), dtype=np.uint8)
    except OSError:
        return None
    head = data[:_HEADER_LIMIT].tobytes()
    end = head.find(b"\n")
    try:
        header = json.loads(head[: max(end, 0)])
        if header["format"] != FORMAT or header["key"] != key:
            return None
        payload = data[_padded(end + 1) :]
        if _checksum(payload) != header["checksum"]:
            return None
        return {
            name: _view(payload[at : at + size], dtype, shape)
            for name, dtype, shape, at, size in header["arrays"]
        }
    except (ValueError, KeyError, TypeError):
        return None


def _view(data: npt.NDArray[np.uint8], dtype: str, shape: list[int]) -> npt.NDArray[Any]:
    array = data.view(np.dtype(dtype)).reshape(shape)
    array.setflags(write=False)
    return array


def _checksum(payload: Any) -> str:
    return hashlib.blake2b(payload, digest_size=16).hexdigest()
