"""Transcripts of coding agents as their tools keep them on disk, read into model calls."""

from toktier_stream.client.transcripts.chatml import render, render_one
from toktier_stream.client.transcripts.model import Format, Message, Transcript, Turn, turns
from toktier_stream.client.transcripts.read import read_transcript

__all__ = [
    "Format",
    "Message",
    "Transcript",
    "Turn",
    "read_transcript",
    "render",
    "render_one",
    "turns",
]
