"""The tokenizer that the package ships: what it holds, and its chat template."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from toktier_stream.bench.generate import generate_context, generate_session
from toktier_stream.client.chat_template import ChatTemplate
from toktier_stream.client.transcripts import render, turns
from toktier_stream.tokenizer.shipped import shipped_path

MARKERS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>",
    "</tool_call>", "<tool_response>", "</tool_response>",
)  # fmt: skip


SHIPPED = Tokenizer.from_file(str(shipped_path()))
TEMPLATE = ChatTemplate.load(shipped_path().parent)


def test_it_is_small_and_explained() -> None:
    """Below a megabyte, with its config and the licences of its corpus beside it."""
    assert shipped_path().stat().st_size < 1_000_000
    assert "PSF" in (shipped_path().parent / "NOTICE").read_text()
    model = json.loads(shipped_path().read_bytes())["model"]
    assert 8_000 <= len(model["vocab"]) <= 16_000
    assert len(model["merges"]) == len(model["vocab"]) - 256


def test_markers_are_tokens_of_their_own() -> None:
    """Each is one id after the vocabulary, wherever it stands."""
    for marker in MARKERS:
        encoded = SHIPPED.encode(f"a{marker}b", add_special_tokens=False)
        assert encoded.tokens == ["a", marker, "b"]
        assert encoded.ids[1] >= 12_288


@given(st.text())
def test_any_text_survives(text: str) -> None:
    """Every byte is in the vocabulary: nothing is unknown, nothing changed."""
    ids = SHIPPED.encode(text, add_special_tokens=False).ids
    assert SHIPPED.decode(ids, skip_special_tokens=False) == text


def test_it_compresses_what_agents_write() -> None:
    """At least 2.9 characters a token on generated sessions it was not trained on."""
    text = generate_context(9, 300_000)
    assert len(text) >= 2.9 * len(SHIPPED.encode(text, add_special_tokens=False).ids)


CALLS = st.lists(
    st.fixed_dictionaries(
        {
            "function": st.fixed_dictionaries(
                {"name": st.text(max_size=5), "arguments": st.text(max_size=5)}
            )
        }
    ),
    max_size=2,
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "tool"]), "content": st.text(max_size=9)},
        optional={"reasoning_content": st.text(max_size=9), "tool_calls": CALLS},
    ),
    max_size=4,
)


@given(MESSAGES, st.booleans())
def test_its_template_is_the_default_rendering(
    messages: list[dict[str, Any]], prompt: bool
) -> None:
    """The template in its config and ``render`` say the same."""
    assert TEMPLATE.render(messages, add_generation_prompt=prompt) == render(
        messages, add_generation_prompt=prompt
    )


def test_its_template_renders_whole_sessions_alike() -> None:
    """On generated sessions too, call by call."""
    for call in turns(generate_session(5, 15)):
        assert TEMPLATE.render(call) == render(call)
