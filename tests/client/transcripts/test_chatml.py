"""The default rendering: its exact form, and that growth of the list is growth of the text."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from toktier_stream.client.transcripts import render

CALLS = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.just("1"),
            "type": st.just("function"),
            "function": st.fixed_dictionaries({"name": st.text(), "arguments": st.text()}),
        }
    ),
    max_size=2,
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": st.text()},
        optional={"reasoning_content": st.text(), "tool_calls": CALLS},
    ),
    max_size=6,
)


@given(MESSAGES, MESSAGES)
def test_rendering_distributes_over_concatenation(
    left: list[dict[str, Any]], right: list[dict[str, Any]]
) -> None:
    """So a list that grew is a text that grew: an append, never an edit."""
    assert render(left) + render(right) == render(left + right)


def test_the_form() -> None:
    """Markers, reasoning, text and calls stand where Qwen's models expect them."""
    call = {"id": "1", "type": "function", "function": {"name": "ls", "arguments": '{"p": "é"}'}}
    messages = [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": "look",
            "reasoning_content": "hm",
            "tool_calls": [call],
        },
        {"role": "tool", "content": "a\r\nb", "tool_call_id": "1"},
    ]
    assert render(messages, add_generation_prompt=True) == (
        "<|im_start|>user\nhi<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nhm\n</think>\n\nlook\n"
        '<tool_call>\n{"name": "ls", "arguments": {"p": "é"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>tool\na\r\nb<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
