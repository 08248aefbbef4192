"""ChatML: the rendering for models whose own chat template is not at hand."""

from __future__ import annotations

import json
from collections.abc import Iterable

from toktier_stream.client.transcripts.model import Message


def render(messages: Iterable[Message], *, add_generation_prompt: bool = False) -> str:
    """The messages between ``<|im_start|>`` and ``<|im_end|>`` markers.

    Reasoning stands in ``<think>`` and tool calls in ``<tool_call>`` tags, as Qwen has them.
    Nothing in a message's rendering depends on its neighbours, so a list that grew renders to a
    text that grew.
    """
    text = "".join(render_one(message) for message in messages)
    return text + "<|im_start|>assistant\n" if add_generation_prompt else text


def render_one(message: Message) -> str:
    """One message of :func:`render`."""
    parts = []
    reasoning = message.get("reasoning_content")
    if reasoning:
        parts.append(f"<think>\n{reasoning}\n</think>\n")
    if message.get("content"):
        parts.append(message["content"])
    for call in message.get("tool_calls") or ():
        function = call["function"]
        name = json.dumps(function["name"], ensure_ascii=False)
        parts.append(
            f'<tool_call>\n{{"name": {name}, "arguments": {function["arguments"]}}}\n</tool_call>'
        )
    return f"<|im_start|>{message['role']}\n" + "\n".join(parts) + "<|im_end|>\n"
