"""Reads Codex session logs (``rollout-*.jsonl``): one record a line, ``type`` and ``payload``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from toktier_stream.client.transcripts.model import Growth, Turn
from toktier_stream.client.transcripts.values import content_text, to_json, tool_call

_TYPES = frozenset({"session_meta", "response_item", "event_msg", "turn_context", "compacted"})
_SILENT = frozenset({"ghost_snapshot", "other"})  # bookkeeping that is never sent to the model


def recognizes(record: Any) -> bool:
    """Whether a line's record is of this format."""
    return (
        isinstance(record, dict)
        and record.get("type") in _TYPES
        and isinstance(record.get("payload"), dict)
    )


def read(records: Iterable[Any]) -> tuple[tuple[Turn, ...], list[str]]:
    """The turns, and notes.

    What a model call produced (reasoning, texts, calls) is one assistant message, from its first
    item to the first that did not come from the model.
    """
    log = _Log()
    for record in records:
        if recognizes(record):
            log.record(record["type"], record["payload"])
        else:
            log.unknown["record"] += 1
    notes = [f"{n} items of unknown type {kind}" for kind, n in sorted(log.unknown.items())]
    return log.growth.finish(), notes


class _Log:
    """The state of reading one log."""

    def __init__(self) -> None:
        self.growth = Growth()
        self.unknown: Counter[str] = Counter()
        self._open: dict[str, Any] | None = None  # the assistant message of a call in progress

    def record(self, kind: str, payload: Mapping[str, Any]) -> None:
        if kind == "session_meta":
            self._system(payload)
        elif kind == "response_item":
            self._item(payload)
        elif kind == "compacted":
            self._compacted(payload)
        elif kind == "event_msg" and payload.get("type") == "thread_rolled_back":
            self._rolled_back(payload)

    def _system(self, payload: Mapping[str, Any]) -> None:
        instructions = payload.get("base_instructions") or payload.get("instructions")
        if isinstance(instructions, dict):
            instructions = instructions.get("text")
        # A resumed session writes its meta record again; the instructions are sent once.
        if isinstance(instructions, str) and not self.growth.messages:
            self.growth.add({"role": "system", "content": instructions})

    def _item(self, item: Mapping[str, Any]) -> None:
        match item.get("type"):
            case "message" if item.get("role") == "assistant":
                self._say(content_text(item.get("content")))
            case "message":
                self._other(str(item.get("role") or "user"), content_text(item.get("content")))
            case "reasoning":
                self._think(item)
            case "function_call":
                self._call(item.get("call_id"), item.get("name"), item.get("arguments"))
            case "custom_tool_call":
                # A free-form text, which the API carries as the one argument `input`.
                self._call(item.get("call_id"), item.get("name"), {"input": item.get("input")})
            case "local_shell_call":
                self._call(item.get("call_id"), "local_shell", item.get("action"))
            case "web_search_call":
                self._call(item.get("id"), "web_search", item.get("action"))
            case "function_call_output" | "custom_tool_call_output":
                self._output(item)
            case kind if kind not in _SILENT:
                self.unknown[str(kind)] += 1

    def _assistant(self) -> dict[str, Any]:
        if self._open is None:
            self._open = {"role": "assistant", "content": ""}
            self.growth.add(self._open)
        return self._open

    def _say(self, text: str) -> None:
        message = self._assistant()
        message["content"] = f"{message['content']}\n{text}" if message["content"] else text

    def _think(self, item: Mapping[str, Any]) -> None:
        """Reasoning in clear: the content where it is logged, else its summary; often neither."""
        text = content_text(item.get("content")) or content_text(item.get("summary"))
        if text:
            message = self._assistant()
            before = message.get("reasoning_content")
            message["reasoning_content"] = f"{before}\n{text}" if before else text

    def _call(self, identity: Any, name: Any, arguments: Any) -> None:
        self._assistant().setdefault("tool_calls", []).append(tool_call(identity, name, arguments))

    def _output(self, item: Mapping[str, Any]) -> None:
        output = item.get("output")
        if isinstance(output, dict):
            output = output.get("content", to_json(output))
        self._other("tool", content_text(output), tool_call_id=str(item.get("call_id") or ""))

    def _other(self, role: str, content: str, **more: str) -> None:
        self._open = None
        self.growth.add({"role": role, "content": content, **more})

    def _compacted(self, payload: Mapping[str, Any]) -> None:
        """The history was replaced: by the list that is logged, else by a summary."""
        self._open = None
        messages = self.growth.messages
        head = next((i for i, m in enumerate(messages) if m["role"] != "system"), len(messages))
        self.growth.rewind(head)
        replacement = payload.get("replacement_history")
        if isinstance(replacement, list):
            for item in replacement:
                if isinstance(item, dict):
                    self._item(item)
            self._open = None
        else:
            self._other("user", content_text(payload.get("message")))

    def _rolled_back(self, payload: Mapping[str, Any]) -> None:
        """The person took back the last ``num_turns`` of their messages and all that followed."""
        self._open = None
        count = payload.get("num_turns")
        users = [i for i, m in enumerate(self.growth.messages) if m["role"] == "user"]
        if isinstance(count, int) and 0 < count <= len(users):
            self.growth.rewind(users[-count])
