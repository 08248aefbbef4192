"""Chat templates: the environment that models' templates expect, real templates, and errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from toktier_stream.client.chat_template import ChatTemplate
from toktier_stream.client.edits import smallest_edit
from toktier_stream.errors import Code, ToktierError

HI = [{"role": "user", "content": "hi"}]


def rendered(source: str, **variables: Any) -> str:
    return ChatTemplate(source, {"bos_token": "<s>"}).render(HI, **variables)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("  {% if true %}\na\n  {% endif %}\nb\n", "a\nb"),
        ("{{ bos_token }}|{{ eos_token }}|{{ tools is none }}", "<s>||True"),
        ("{% for m in messages %}{{ m.role }}{{ m['content'] }}{% endfor %}", "userhi"),
        ("{{ {'a': '<é&\\'>'} | tojson }}", "{\"a\": \"<é&'>\"}"),
        ("{{ {'b': 1, 'a': 2} | tojson(indent=1, sort_keys=true) }}", '{\n "a": 2,\n "b": 1\n}'),
        ("{% for i in [1, 2] %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "2"),
        ("{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "1"),
        ("a{% generation %}b{{ messages[0].content }}{% endgeneration %}c", "abhic"),
        ("{% generation %}{% set x = 1 %}{% endgeneration %}{{ x is defined }}", "False"),
        ("{{ strftime_now('%d %b %Y') }}", "26 Jul 2024"),
        ("{{ '<b>' }}", "<b>"),
    ],
)  # fmt: skip
def test_the_environment_is_what_templates_expect(source: str, expected: str) -> None:
    """Trimmed blocks, loop controls, the generation tag, JSON without escapes, no autoescape."""
    template = ChatTemplate(source, {"bos_token": "<s>"}, clock=lambda: datetime(2024, 7, 26))
    assert template.render(HI) == expected


def test_variables_reach_the_template() -> None:
    """Tools, the generation prompt and what single models know."""
    source = "{{ tools | length }}{{ add_generation_prompt }}{{ enable_thinking }}"
    assert rendered(source, tools=[{}], add_generation_prompt=True, enable_thinking=False) == (
        "1TrueFalse"
    )


def test_tools_choose_their_own_template() -> None:
    """Models with several templates have one for calls with tools."""
    template = ChatTemplate({"default": "d", "tool_use": "t"})
    assert template.render(HI) == "d"
    assert template.render(HI, tools=[]) == "t"
    assert ChatTemplate({"default": "d"}).render(HI, tools=[]) == "d"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{% if %}", "error, line 1"),
        ("\n{% for m in messages %}", "error, line 2"),
        ("\n{{ raise_exception('roles must alternate') }}", "line 2: roles must alternate"),
        ("{{ raise_exception({'a': messages | length}) }}", "no words"),
        ("{{ raise_exception('bad: ' + messages[0].content) }}", "no words"),
        ("a\n\n{{ messages[0].content + none }}", "TypeError while rendering, line 3"),
        ("{{ messages[5].content.x }}", "UndefinedError"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
        ("{{ messages[0].content | int // 0 }}", "ZeroDivisionError"),
        ("{{ {'a': namespace()} | tojson }}", "TypeError"),
    ],
)
def test_failures_name_the_line_and_no_text(source: str, words: str) -> None:
    """Whatever goes wrong is one error code, and nothing of the messages is in it."""
    secret = [{"role": "user", "content": "secret"}]
    with pytest.raises(ToktierError, match=words) as caught:
        ChatTemplate(source).render(secret)
    error: BaseException | None = caught.value
    assert caught.value.code is Code.TEMPLATE
    assert "secret" not in str(error)
    assert caught.value.__suppress_context__ or "error, line" in words


def test_a_folder_is_loaded(tmp_path: Path) -> None:
    """The template and the special tokens come from tokenizer_config.json; a template in a file
    of its own goes first; several templates come as a list."""
    config: dict[str, Any] = {
        "bos_token": {"content": "<s>", "__type": "AddedToken"},
        "eos_token": "</s>",
        "unk_token": None,
        "chat_template": "{{ bos_token }}{{ eos_token }}{{ unk_token is defined }}",
    }
    file = tmp_path / "tokenizer_config.json"
    file.write_text(json.dumps(config))
    assert ChatTemplate.load(tmp_path).render(HI) == "<s></s>False"
    config["chat_template"] = [{"name": "default", "template": "list{{ bos_token }}"}]
    file.write_text(json.dumps(config))
    assert ChatTemplate.load(str(tmp_path)).render(HI) == "list<s>"
    (tmp_path / "chat_template.jinja").write_text("own{{ eos_token }}")
    assert ChatTemplate.load(tmp_path).render(HI) == "own</s>"


@pytest.mark.parametrize("content", ["{}", "[]", "no json", '{"chat_template": null}', None])
def test_a_folder_without_a_template_is_refused(tmp_path: Path, content: str | None) -> None:
    """Whatever is wrong with the file."""
    if content is not None:
        (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(ToktierError) as caught:
        ChatTemplate.load(tmp_path)
    assert caught.value.code is Code.TEMPLATE


CALL = {"id": "1", "type": "function", "function": {"name": "ls", "arguments": '{"p": "é"}'}}
TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "hi"},
    {
        "role": "assistant",
        "content": "let me look",
        "reasoning_content": "hm",
        "tool_calls": [CALL],
    },
    {"role": "tool", "content": "a\nb", "tool_call_id": "1"},
]
Family = Callable[[str], Path]


@pytest.mark.families
def test_qwen3(family_file: Family) -> None:
    """Reasoning stands in the current exchange, tool results in a user message."""
    template = ChatTemplate.load(family_file("qwen3").parent)
    text = template.render(TALK, add_generation_prompt=True)
    assert text == (
        "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nhm\n</think>\n\nlet me look\n"
        '<tool_call>\n{"name": "ls", "arguments": {"p": "é"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\na\nb\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert template.render(HI, add_generation_prompt=True, enable_thinking=False).endswith(
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    tools = [{"type": "function", "function": {"name": "ls", "description": "<x> & é"}}]
    assert json.dumps(tools[0], ensure_ascii=False) in template.render(HI, tools=tools)


@pytest.mark.families
def test_qwen3_rewrites_history(family_file: Family) -> None:
    """A new question makes the earlier reasoning vanish: an edit in the middle, no append."""
    template = ChatTemplate.load(family_file("qwen3").parent)
    answered = [*TALK, {"role": "assistant", "content": "two files", "reasoning_content": "ok"}]
    old = template.render(answered).encode()
    new = template.render([*answered, {"role": "user", "content": "and?"}]).encode()
    assert b"<think>" in old
    assert b"<think>" not in new
    edit = smallest_edit(old, new)
    assert edit.start < len(old) - 50
    assert edit.start == old.index(b"<think>")


@pytest.mark.families
def test_llama3_1(family_file: Family) -> None:
    """Header markers, trimmed contents, and the beginning-of-text token once."""
    template = ChatTemplate.load(family_file("llama3_1").parent)
    talk = [{"role": "system", "content": " s "}, {"role": "user", "content": "hi\n"}]
    assert template.render(talk, add_generation_prompt=True) == (
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\ns<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


@pytest.mark.families
def test_deepseek_v3(family_file: Family) -> None:
    """A namespace over loops, tokens given as objects, tool calls with a null content."""
    template = ChatTemplate.load(family_file("deepseek_v3").parent)
    talk = [*TALK[:2], {**TALK[2], "content": None}, TALK[3]]
    assert template.render(talk, add_generation_prompt=True) == (
        "<｜begin▁of▁sentence｜>be brief<｜User｜>hi<｜Assistant｜><｜tool▁calls▁begin｜>"
        '<｜tool▁call▁begin｜>function<｜tool▁sep｜>ls\n```json\n{"p": "é"}\n```<｜tool▁call▁end｜>'
        "<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>a\nb<｜tool▁output▁end｜>"
        "<｜tool▁outputs▁end｜>"
    )


@pytest.mark.families
def test_gemma3_refuses_with_its_own_words(family_file: Family) -> None:
    """Its rule about roles reaches the caller, since the words are the template's."""
    template = ChatTemplate.load(family_file("gemma3").parent)
    assert template.render(HI, add_generation_prompt=True) == (
        "<bos><start_of_turn>user\nhi<end_of_turn>\n<start_of_turn>model\n"
    )
    with pytest.raises(ToktierError, match="must alternate"):
        template.render(HI * 2)


@pytest.mark.families
def test_every_template_there_is_renders_a_growing_conversation(family_file: Family) -> None:
    """Of all the families that ship one: the question is in each rendering."""
    for name in ("qwen3", "llama3", "llama3_1", "deepseek_v3", "gemma3"):
        template = ChatTemplate.load(family_file(name).parent)
        talk = [*HI, {"role": "assistant", "content": "ho"}, {"role": "user", "content": "und?"}]
        texts = [template.render(talk[:n]) for n in (1, 2, 3)]
        assert "hi" in texts[0]
        assert "ho" in texts[1]
        assert "und?" in texts[2]


@pytest.mark.families
def test_gptoss_ships_none(family_file: Family) -> None:
    """This family's config has no template, and that is said."""
    with pytest.raises(ToktierError, match="no chat template"):
        ChatTemplate.load(family_file("gptoss").parent)
