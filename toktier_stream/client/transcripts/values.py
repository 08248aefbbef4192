"""Small conversions that the readers share: content to text, tool calls, broken characters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def content_text(content: Any) -> str:
    """A message's content as text: a string, or a list of parts whose texts are joined.

    A part that is no text (an image) is named by its type, since it stands in the prompt too.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(_part_text(part) for part in content)
    return to_json(content)


def _part_text(part: Any) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping):
        text = part.get("text")
        return text if isinstance(text, str) else f"[{part.get('type', 'part')}]"
    return to_json(part)


def tool_call(identity: Any, name: Any, arguments: Any) -> dict[str, Any]:
    """A tool call in the common form; ``arguments`` is kept if it is a text already."""
    text = arguments if isinstance(arguments, str) else to_json(arguments)
    return {
        "id": str(identity or ""),
        "type": "function",
        "function": {"name": str(name or ""), "arguments": text},
    }


def to_json(value: Any) -> str:
    """JSON with its characters unescaped, as tools send it."""
    return json.dumps(value, ensure_ascii=False)


def mend(value: Any) -> tuple[Any, int]:
    """A JSON value whose every string can be encoded, and how many had to be mended.

    Tools that cut strings by UTF-16 units leave halves of surrogate pairs behind: whole pairs
    are joined and a lone half becomes U+FFFD, as any encoder to UTF-8 would have it.
    """
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"), 1
        return value, 0
    if isinstance(value, list):
        items = [mend(item) for item in value]
        return [item for item, _ in items], sum(count for _, count in items)
    if isinstance(value, dict):
        fields = {key: mend(item) for key, item in value.items()}
        return {k: item for k, (item, _) in fields.items()}, sum(c for _, c in fields.values())
    return value, 0
