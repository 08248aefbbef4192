"""Reads plain message lists: a JSON array, ``{"messages": […]}``, or one message a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toktier_stream.client.transcripts.model import Growth, Turn
from toktier_stream.client.transcripts.values import content_text, tool_call


def recognizes(entry: Any) -> bool:
    """Whether this is a message: something with a role."""
    return isinstance(entry, dict) and isinstance(entry.get("role"), str)


def list_of(document: Any) -> Sequence[Any] | None:
    """The message list in a parsed JSON file, if it is one."""
    entries = document.get("messages") if isinstance(document, dict) else document
    return entries if isinstance(entries, list) and entries and recognizes(entries[0]) else None


def read(entries: Sequence[Any]) -> tuple[tuple[Turn, ...], list[str]]:
    """The turns, and notes."""
    growth = Growth()
    notes = []
    for number, entry in enumerate(entries):
        if recognizes(entry):
            growth.add(_message(entry))
        else:
            notes.append(f"entry {number} is no message")
    return growth.finish(), notes


def _message(entry: Mapping[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": entry["role"], "content": content_text(entry.get("content"))}
    for name in ("reasoning_content", "tool_call_id", "name"):
        if isinstance(entry.get(name), str):
            message[name] = entry[name]
    calls = entry.get("tool_calls")
    if isinstance(calls, list) and calls:
        message["tool_calls"] = [
            tool_call(call.get("id"), function.get("name"), function.get("arguments"))
            for call in calls
            if isinstance(call, dict) and isinstance(function := call.get("function", call), dict)
        ]
    return message
