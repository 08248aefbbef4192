"""Reads a transcript file, whatever tool wrote it: the format is found from the content."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from toktier_stream.client.transcripts import claude_code, codex, messages, swe_agent
from toktier_stream.client.transcripts.model import Format, Transcript, Turn
from toktier_stream.client.transcripts.values import mend
from toktier_stream.errors import Code, ToktierError

_NO_JSON = object()


def read_transcript(path: Path) -> Transcript:
    """The transcript in a file: SWE-agent, Claude Code, Codex, or a plain message list.

    The last line of a log may be unfinished (a tool is still writing it): it is left out and
    noted. Raises ``TRANSCRIPT_FORMAT`` for a file that cannot be read, for no known format, and
    for a broken line anywhere else, with the line's number.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _refused(path, f"{error.strerror or type(error).__name__}") from error
    document = _parse(content)
    notes: list[str] = []
    records = _lines(path, content, notes) if document is _NO_JSON else [document]
    records, mended = mend(records)
    if mended:
        notes.append(f"{mended} strings with half of a surrogate pair")
    format_, (turns, more) = _read(path, records)
    if not turns:
        raise _refused(path, "it holds no message")
    return Transcript(path.name, format_, turns, (*notes, *more))


def _read(path: Path, records: list[Any]) -> tuple[Format, tuple[tuple[Turn, ...], list[str]]]:
    first = records[0] if records else None
    if len(records) == 1 and swe_agent.recognizes(first):
        return Format.SWE_AGENT, swe_agent.read(first)
    if len(records) == 1 and (entries := messages.list_of(first)) is not None:
        return Format.MESSAGES, messages.read(entries)
    # Logs begin with bookkeeping of changing kinds, so any of the first lines may tell.
    for record in records[:20]:
        if codex.recognizes(record):
            return Format.CODEX, codex.read(records)
        if claude_code.recognizes(record):
            return Format.CLAUDE_CODE, claude_code.read(records)
        if messages.recognizes(record):
            return Format.MESSAGES, messages.read(records)
    raise _refused(path, "no known format")


def _parse(content: bytes) -> Any:
    try:
        return json.loads(content.decode("utf-8-sig"))
    except ValueError:  # of the decoder too: UnicodeDecodeError is one
        return _NO_JSON


def _lines(path: Path, content: bytes, notes: list[str]) -> list[Any]:
    lines = content.split(b"\n")
    last = max((i for i, line in enumerate(lines) if line.strip()), default=-1)
    records = []
    for number, line in enumerate(lines):
        if not line.strip():
            continue
        record = _parse(line)
        if record is not _NO_JSON:
            records.append(record)
        elif number == last and records:
            notes.append(f"line {number + 1} is unfinished")
        else:
            raise _refused(path, f"line {number + 1} is no JSON")
    return records


def _refused(path: Path, reason: str) -> ToktierError:
    return ToktierError(Code.TRANSCRIPT_FORMAT, f"{path.name}: {reason}")
