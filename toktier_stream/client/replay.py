"""A transcript as the sequence of texts that an agent platform would send."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from toktier_stream.client.chat_template import ChatTemplate
from toktier_stream.client.transcripts import Transcript, read_transcript, render, turns
from toktier_stream.errors import Code, ToktierError

_SUFFIXES = (".traj", ".jsonl", ".json")


@dataclass(frozen=True, slots=True)
class Session:
    """A session to send: its id and the full text at each model call."""

    session_id: str
    texts: tuple[str, ...]
    notes: tuple[str, ...] = ()


def find_transcripts(places: list[Path]) -> list[Path]:
    """Transcript files in the given files and folders. Raises ``TRANSCRIPT_FORMAT`` if none."""
    files: list[Path] = []
    for place in places:
        if place.is_dir():
            files.extend(p for p in sorted(place.rglob("*")) if p.suffix in _SUFFIXES)
        else:
            files.append(place)
    if not files:
        raise ToktierError(Code.TRANSCRIPT_FORMAT, "no .traj, .json or .jsonl file found")
    return files


def sessions(files: list[Path], template: ChatTemplate | None) -> Iterator[Session]:
    """Read each file and render it turn by turn. Raises ``TRANSCRIPT_FORMAT``."""
    for file in files:
        yield session_of(read_transcript(file), f"{file.parent.name}/{file.name}", template)


def session_of(
    transcript: Transcript, session_id: str, template: ChatTemplate | None = None
) -> Session:
    """The session's texts, in the model's template; in ChatML where there is none or where it
    refuses these messages (many templates forbid roles that agents use)."""
    notes = list(transcript.notes)
    if template is not None:
        try:
            texts = tuple(
                template.render(messages, add_generation_prompt=True)
                for messages in turns(transcript)
            )
            return Session(session_id, texts, tuple(notes))
        except ToktierError as error:
            if error.code is not Code.TEMPLATE:
                raise
            notes.append("the model's template refuses these messages: sent as ChatML")
    texts = tuple(render(messages, add_generation_prompt=True) for messages in turns(transcript))
    return Session(session_id, texts, tuple(notes))
