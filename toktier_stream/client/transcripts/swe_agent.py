"""Reads SWE-agent trajectories (``.traj``): one JSON object with the message list ``history``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

from toktier_stream.client.transcripts.model import Growth, Turn
from toktier_stream.client.transcripts.values import content_text, tool_call


def recognizes(document: Any) -> TypeGuard[dict[str, Any]]:
    """Whether a parsed JSON file is a trajectory."""
    return isinstance(document, dict) and isinstance(document.get("history"), list)


def read(document: Mapping[str, Any]) -> tuple[tuple[Turn, ...], list[str]]:
    """The turns, and notes.

    Newer trajectories keep each call's list in ``query`` (history processors shorten old
    observations, which rewrites history); older ones only the growing ``history``.
    """
    growth = Growth()
    notes: list[str] = []
    queries = [
        step.get("query") for step in document.get("trajectory") or () if isinstance(step, dict)
    ]
    if queries and all(isinstance(query, list) for query in queries):
        for query in queries:
            growth.replace(_messages(query, notes))
        growth.replace(_messages(document["history"], notes))
    else:
        for message in _messages(document["history"], notes):
            growth.add(message)
    return growth.finish(), notes


def _messages(entries: Any, notes: list[str]) -> list[dict[str, Any]]:
    out = []
    for number, entry in enumerate(entries):
        if isinstance(entry, dict) and isinstance(entry.get("role"), str):
            out.append(_message(entry))
        else:
            notes.append(f"entry {number} of the history is no message")
    return out


def _message(entry: Mapping[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": entry["role"], "content": content_text(entry.get("content"))}
    blocks = entry.get("thinking_blocks")
    if isinstance(blocks, list):
        thoughts = [b["thinking"] for b in blocks if isinstance(b, dict) and b.get("thinking")]
        if thoughts:
            message["reasoning_content"] = "\n".join(thoughts)
    calls = entry.get("tool_calls")
    if isinstance(calls, list) and calls:
        message["tool_calls"] = [
            tool_call(call.get("id"), function.get("name"), function.get("arguments"))
            for call in calls
            if isinstance(call, dict) and isinstance(function := call.get("function"), dict)
        ]
    ids = entry.get("tool_call_ids")
    if entry["role"] == "tool" and isinstance(ids, list) and ids:
        message["tool_call_id"] = str(ids[0])
    return message
