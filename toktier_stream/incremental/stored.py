"""Tables of every-prefix BPE on disk, beside those of the exact engine (tokenizer/cache.py).

A file is kept under what its tables were built from and the sources that built them, and carries a
checksum. Tables that were read are held to offline BPE as freshly built ones are; a file that is
missing, damaged, of other sources or does not pass costs building again, never an id.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

from toktier_stream.errors import ToktierError
from toktier_stream.incremental import selftest
from toktier_stream.incremental.jit import source_hash
from toktier_stream.incremental.rules import Rules
from toktier_stream.incremental.tables import Tables, build, from_arrays
from toktier_stream.tokenizer import cache
from toktier_stream.tokenizer.admission import sources_hash, table_folder
from toktier_stream.tokenizer.merges import MergeTables


def tables(
    origin: str,
    make: Callable[[], Rules],
    *,
    rules: Rules | None = None,
    folder: Path | None = None,
) -> Tables:
    """The tables of one model, read from ``folder`` (default: the cache's) or built and left there.

    ``origin`` names the model's content. ``make`` gives its rules where they are needed; ``rules``
    are these if they are at hand, for a check against the original merges. Raises
    ``TOKENIZER_UNSUPPORTED`` for a model that every-prefix BPE does not serve.
    """
    place = table_folder() if folder is None else folder
    key = f"every-prefix {origin} {source_hash()} {sources_hash()}"
    found = _read(place, key, rules)
    if found is not None:
        return found
    model = make() if rules is None else rules
    built = build(model)
    selftest.check(built, model)
    with suppress(OSError):  # a folder that cannot be written costs building again
        cache.store(place, key, built.to_arrays())
    return built


def origin_of(merges: MergeTables) -> str:
    """A name for the content of the exact engine's rules."""
    digest = hashlib.blake2b(bytes((merges.separate,)), digest_size=16)
    for array in (merges.pairs, merges.emit, merges.words, merges.long_index, merges.blob):
        digest.update(f"{array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _read(folder: Path, key: str, rules: Rules | None) -> Tables | None:
    arrays = cache.load(folder, key)
    if arrays is None:
        return None
    try:
        found = from_arrays(arrays)
        selftest.check(found, rules)
    except (ToktierError, KeyError, ValueError):
        return None
    return found
