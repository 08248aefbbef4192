"""Renders messages with a model's own chat template, as Hugging Face's transformers does."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from toktier_stream.errors import Code, ToktierError

_SPECIAL: Final = (
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token",
)  # fmt: skip
# What a template's expressions can raise besides jinja's own errors when the messages are not
# what it expects: "a" + none, none[0], "x" * 10**20, 1 % 0, {}.x.y, endless macros.
_RENDERING: Final = (
    TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError,
    RecursionError, MemoryError,
)  # fmt: skip


class ChatTemplate:
    """One model's template. Immutable, and safe for use by several threads.

    ``source`` is Jinja; where a model has several templates, a mapping by name, of which
    ``tool_use`` serves calls with tools and ``default`` the others. ``special_tokens`` are the
    variables such as ``bos_token``; ``clock`` is what ``strftime_now`` asks. A template runs in
    a sandbox: it can neither reach Python's internals nor change the messages.
    """

    def __init__(
        self,
        source: str | Mapping[str, str],
        special_tokens: Mapping[str, str] | None = None,
        *,
        clock: Callable[[], datetime] = datetime.now,
    ) -> None:
        self._tokens = dict(special_tokens or {})
        sources = {"default": source} if isinstance(source, str) else dict(source)
        environment = _environment(clock)
        self._templates: dict[str, tuple[Template, str]] = {}
        for name, text in sources.items():
            try:
                self._templates[name] = environment.from_string(text), text
            except TemplateError as error:
                line = getattr(error, "lineno", None)
                raise _failed(f"the template has an error, {_at(line)}") from error

    @classmethod
    def load(
        cls, folder: Path | str, *, clock: Callable[[], datetime] = datetime.now
    ) -> ChatTemplate:
        """From a model's folder: ``chat_template.jinja``, else the template in
        ``tokenizer_config.json``, which also names the special tokens. Raises ``TEMPLATE``."""
        folder = Path(folder)
        config: Any = {}
        try:
            if (folder / "tokenizer_config.json").is_file():
                config = json.loads((folder / "tokenizer_config.json").read_bytes())
            file = folder / "chat_template.jinja"
            source = file.read_text("utf-8") if file.is_file() else config.get("chat_template")
        except (OSError, ValueError, AttributeError) as error:
            raise _failed(f"{folder.name}: {type(error).__name__} while reading") from error
        if isinstance(source, list):
            source = {t["name"]: t["template"] for t in source if isinstance(t, dict)}
        if not source:
            raise _failed(f"{folder.name} has no chat template")
        return cls(source, _special_tokens(config), clock=clock)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
        **variables: Any,
    ) -> str:
        """The prompt's text. ``variables`` are what single models know (``enable_thinking``).

        Raises ``TEMPLATE`` if the template refuses or fails on these messages; the error names
        the template's line and carries nothing of the messages.
        """
        name = "tool_use" if tools is not None and "tool_use" in self._templates else "default"
        if name not in self._templates:
            raise _failed("there is no default template")
        template, source = self._templates[name]
        try:
            return template.render(
                messages=messages,
                tools=tools,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **{**self._tokens, **variables},
            )
        except _RENDERING as error:
            # `from None`: the original error's words may be the messages'.
            raise _failed(_describe(error, source)) from None


class _Generation(Extension):
    """``{% generation %}`` marks the model's own words for training; its body is rendered."""

    tags = {"generation"}  # noqa: RUF012  the base class declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        # A call block, for its scope: what is set inside is not seen outside.
        return nodes.CallBlock(self.call_method("_inside"), [], [], body).set_lineno(line)

    def _inside(self, caller: Callable[[], str]) -> str:
        return caller()


def _environment(clock: Callable[[], datetime]) -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: clock().strftime(form)
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes for HTML, which no model was trained on."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: object) -> NoReturn:
    raise _Refused(str(message))


class _Refused(TemplateError):
    """The template itself called ``raise_exception``."""


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    tokens = {}
    for name in _SPECIAL:
        token = config.get(name)
        content = token.get("content") if isinstance(token, dict) else token
        if isinstance(content, str):
            tokens[name] = content
    return tokens


def _describe(error: BaseException, source: str) -> str:
    where = _at(_line(error.__traceback__))
    if isinstance(error, _Refused):
        # Words that stand in the template are the template's; others may be put together from
        # the messages.
        words = error.message if error.message and error.message in source else "no words"
        return f"the template refuses the messages, {where}: {words}"
    return f"{type(error).__name__} while rendering, {where}"


def _line(trace: TracebackType | None) -> int | None:
    line = None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def _at(line: int | None) -> str:
    return f"line {line}" if line is not None else "line unknown"


def _failed(detail: str) -> ToktierError:
    return ToktierError(Code.TEMPLATE, detail)
