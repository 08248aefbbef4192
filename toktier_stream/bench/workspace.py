"""An invented project, and what an agent's tools say about it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from toktier_stream.bench import outputs, words
from toktier_stream.bench.prose import Prose


class ToolUse(NamedTuple):
    """A tool's name, its arguments as JSON, and its output."""

    name: str
    arguments: str
    output: str


@dataclass(slots=True)
class _File:
    path: str
    lines: list[str] = field(default_factory=list)


_LONGEST: Final = 1200  # lines; then the agent turns to another file
_TOOLS: Final = (
    "read", "search", "list", "diff", "test", "logs", "api", "document", "table", "binary",
)  # fmt: skip
_WEIGHTS: Final = (32, 10, 4, 14, 12, 4, 4, 18, 1.2, 0.3)


class Workspace:
    """Files that are written, read again, searched and changed as a session goes on.

    Every use takes the number of characters its output should have, and fills it exactly. Files
    grow as they are read, so the project is as large as the session needs, and no two stretches
    of a session are alike unless the agent read the same lines twice, as agents do.
    """

    def __init__(self, prose: Prose) -> None:
        self._p = prose
        self._files: list[_File] = []
        self._sources = {language: prose.code(language) for language in words.CODE}

    def use(self, chars: int) -> ToolUse:
        """One use of a tool whose output has ``chars`` characters."""
        p = self._p
        p.turn_to_another_topic()
        (tool,) = p.rng.choices(_TOOLS, weights=_WEIGHTS)
        match tool:
            case "read":
                return self._read(chars)
            case "search":
                word = p.noun()
                return self._bash(f"rg -n '{word}' .", self._hits(word), chars)
            case "list":
                return self._bash("ls -laR", outputs.listing(p), chars)
            case "diff":
                return self._bash("git diff", self._patch(), chars)
            case "test":
                return self._bash(f"pytest -x {p.path('py')}", self._report(), chars)
            case "logs":
                return self._bash(f"docker logs {p.noun()}", outputs.logs(p), chars)
            case "table":
                return self._bash(f"cat {p.path('csv')}", outputs.table(p), chars)
            case "binary":
                return self._bash(f"xxd {p.noun()}.bin", outputs.dump(p), chars)
            case "api":
                arguments = p.arguments(url=f"http://localhost:8080/{p.noun()}", method="GET")
                return ToolUse("fetch", arguments, fill(outputs.json_lines(p), chars))
            case _:
                arguments = p.arguments(url=p.path("md"))
                return ToolUse("fetch", arguments, fill(outputs.markdown(p), chars))

    def edit(self, chars: int) -> ToolUse:
        """A change of a file: the bulk is in the arguments, the output is a line."""
        file = self._file()
        count = 1 + chars // 120
        start = self._p.number(1 + len(file.lines))
        old = self._lines(file, start, count)
        room = max(20, chars - sum(map(len, old)) - count)
        new = fill(self._source(file), room).split("\n")
        file.lines[start : start + count] = new
        arguments = self._p.arguments(
            file_path=file.path, old_string="\n".join(old), new_string="\n".join(new)
        )
        return ToolUse("edit_file", arguments, f"The file {file.path} has been updated.")

    def schemas(self) -> list[dict[str, Any]]:
        """The tools' declarations, as they stand in a system prompt."""
        p = self._p
        tools = []
        for name, fields in (
            ("read_file", ("file_path", "offset", "limit")),
            ("bash", ("command", "description")),
            ("edit_file", ("file_path", "old_string", "new_string")),
            ("fetch", ("url", "method")),
        ):
            properties = {f: {"type": "string", "description": p.sentence()} for f in fields}
            schema = {"type": "object", "properties": properties, "required": [fields[0]]}
            description = p.sentences(300)
            tools.append({"name": name, "description": description, "parameters": schema})
        return tools

    def _bash(self, command: str, lines: Iterator[str], chars: int) -> ToolUse:
        arguments = self._p.arguments(command=command, description=self._p.phrase(5))
        return ToolUse("bash", arguments, fill(lines, chars))

    def _file(self) -> _File:
        if self._files and self._p.chance(0.6):
            # Recent files more often: an agent works in a corner of the project.
            file = self._files[-1 - int(len(self._files) * self._p.rng.random() ** 3)]
            if len(file.lines) < _LONGEST:
                return file
        file = _File(self._p.path(self._p.pick(tuple(words.CODE))))
        self._files.append(file)
        return file

    def _source(self, file: _File) -> Iterator[str]:
        return self._sources[file.path.rsplit(".", 1)[-1]]

    def _lines(self, file: _File, start: int, count: int) -> list[str]:
        source = self._source(file)
        while len(file.lines) < start + count:
            file.lines.append(next(source))
        return file.lines[start : start + count]

    def _read(self, chars: int) -> ToolUse:
        """With line numbers; long readings go on where nothing was read yet."""
        file = self._file()
        start = self._p.number(1 + len(file.lines)) if chars < 4000 else len(file.lines)

        def numbered() -> Iterator[str]:
            at = start
            while True:
                (line,) = self._lines(file, at, 1)
                at += 1
                yield f"{at:6}\t{line}"

        arguments = self._p.arguments(file_path=file.path, offset=start + 1, limit=2000)
        return ToolUse("read_file", arguments, fill(numbered(), chars))

    def _hits(self, word: str) -> Iterator[str]:
        while True:
            file = self._file()
            at = self._p.number(len(file.lines) + 40)
            for _ in range(1 + self._p.number(8)):
                (line,) = self._lines(file, at, 1)
                at += 1 + self._p.number(30)
                yield f"{file.path}:{at}:{line}  # {word}"

    def _patch(self) -> Iterator[str]:
        p = self._p
        while True:
            file = self._file()
            source = self._source(file)
            yield f"diff --git a/{file.path} b/{file.path}"
            yield f"index {p.hexadecimal(7)}..{p.hexadecimal(7)} 100644"
            yield f"--- a/{file.path}\n+++ b/{file.path}"
            for _ in range(1 + p.number(4)):
                start = p.number(len(file.lines) + 20)
                context = self._lines(file, start, 7)
                yield f"@@ -{start + 1},7 +{start + 1},{5 + p.number(8)} @@ {context[0].strip()}"
                yield from (f" {line}" for line in context[:3])
                yield from (f"-{line}" for line in context[3:5])
                yield from (f"+{next(source)}" for _ in range(1 + p.number(6)))
                yield from (f" {line}" for line in context[5:])

    def _report(self) -> Iterator[str]:
        """Test results with tracebacks through the project's files."""
        p = self._p
        yield f"{' test session starts ':=^80}"
        while True:
            module = p.path("py")
            for _ in range(p.number(12)):
                yield f"{module}::test_{p.verb()}_{p.noun()} PASSED  [{p.number(101):3}%]"
            yield f"{f' test_{p.verb()}_{p.noun()} ':_^80}"
            yield "Traceback (most recent call last):"
            for _ in range(2 + p.number(6)):
                file = self._file()
                at = p.number(len(file.lines) + 30)
                (line,) = self._lines(file, at, 1)
                where = f'"/workspace/project/{file.path}", line {at + 1}'
                yield f"  File {where}, in {p.verb()}_{p.noun()}\n    {line.strip()}"
            yield f"{p.noun().title()}Error: {p.phrase(6)}: {p.number(99)} != {p.number(99)}"


def fill(lines: Iterator[str], chars: int) -> str:
    """Lines joined to exactly ``chars`` characters; the last is cut, as tools cut long outputs."""
    out: list[str] = []
    size = 0
    while size < chars:
        out.append(next(lines) + "\n")
        size += len(out[-1])
    return "".join(out)[:chars]
