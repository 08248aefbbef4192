"""Commits that are not waited for: what a store may rely on after it was not closed.

A commit that waits for the disk costs milliseconds, and the changelog holds all of it anyway. So a
worker's store hands its commits to the operating system and goes on. The end of the process,
however it comes, takes none of them: the system has them. A crash of the machine can take any of
them, in any order, and leave a file that looks sound. So the store's folder holds a mark, as long
as something in it may not be on the disk: the boot (Linux's ``boot_id``) in which it was written.
A mark of another boot means that this machine, or the one that the disk was attached to, ended
without having closed the store: then the file is not to be trusted, and is set aside for the
changelog to fill a new one.

The mark is on the disk before the first commit, and goes after everything is.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Final

MARK: Final = "unsynced"
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


@cache
def boot() -> str:
    """What names this run of the operating system; empty where nothing does."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def trusted(folder: Path) -> bool:
    """Whether what lies in the folder is what was committed there."""
    try:
        return (folder / MARK).read_text() == boot() != ""
    except FileNotFoundError:
        return True
    except OSError:
        return False


def mark(folder: Path) -> None:
    """Say that commits from here on may not be on the disk. Raises ``OSError``."""
    if (folder / MARK).exists() and trusted(folder):
        return
    descriptor = os.open(folder / MARK, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(descriptor, boot().encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    _sync(folder)


def clear(folder: Path) -> None:
    """Say that everything is on the disk. Only after it is. Raises ``OSError``."""
    if (folder / MARK).exists():
        (folder / MARK).unlink()
        _sync(folder)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
