"""Endless lines of what tools print: listings, logs, JSON, documents, tables, dumps."""

from __future__ import annotations

import json
from collections.abc import Iterator

from toktier_stream.bench import words
from toktier_stream.bench.prose import Prose

_MODES = ("drwxr-xr-x.  3", "-rw-r--r--.  1", "-rwxr-xr-x.  1", "lrwxrwxrwx.  1")
_LEVELS = ("\x1b[32mINFO\x1b[0m", "\x1b[33mWARN\x1b[0m", "DEBUG", "\x1b[31mERROR\x1b[0m")


def listing(p: Prose) -> Iterator[str]:
    """``ls -laR``."""
    while True:
        yield f"./{p.path().rsplit('/', 1)[0]}:\ntotal {p.number(4000)}"
        for _ in range(3 + p.number(20)):
            size = f"{p.number(10**6):8} Jun {1 + p.number(28):2} 0{p.number(10)}:15"
            name = f"{p.verb()}_{p.noun()}.{p.pick(words.SUFFIXES)}"
            yield f"{p.pick(_MODES)} user user {size} {name}"


def logs(p: Prose) -> Iterator[str]:
    """A service's log with colours, and progress bars that return without a newline."""
    while True:
        who = f"{p.pick(_LEVELS)} [{p.noun()}-{p.number(32)}]"
        yield f"{p.when()} {who} {p.phrase(6)} {p.noun()}={p.uuid()} took={p.number(999)}ms"
        if p.chance(0.05):
            step = 5 + p.number(20)
            bar = (f"\r{p.noun()}: {i:3}% |{'█' * (i // 10):10}|" for i in range(0, 101, step))
            yield "".join(bar)


def json_lines(p: Prose) -> Iterator[str]:
    """Records of an API: indented, or one a line, some with escaped characters."""
    indent = 2 if p.chance(0.6) else None
    escaped = p.chance(0.3)
    while True:
        value = {"id": p.uuid(), p.noun(): p.value(), p.noun(): p.value()}
        yield from json.dumps(value, indent=indent, ensure_ascii=escaped).split("\n")


def markdown(p: Prose) -> Iterator[str]:
    """Documentation: English with passages in other scripts, lists, commands, chat markers."""
    while True:
        title = p.phrase(3).title()
        yield f"## {title} {p.pick(words.EMOJI)}" if p.chance(0.4) else f"## {title}"
        yield f"\n{p.sentences(100 + p.number(600))}\n"
        if p.chance(0.4):
            yield " ".join(p.foreign() for _ in range(1 + p.number(4))) + "\n"
        if p.chance(0.3):
            for _ in range(4):
                yield f"- **{p.noun()}**: {p.phrase(8)} [{p.noun()}]({p.path('md')})"
        if p.chance(0.1):
            yield f"A prompt stands between {p.pick(words.MARKERS)} and {p.pick(words.MARKERS)}."
        if p.chance(0.2):
            yield f"```bash\npip install {p.noun()} && {p.verb()} --{p.noun()}={p.number(64)}\n```"


def table(p: Prose) -> Iterator[str]:
    """A CSV file with quotes and the line ends of another system."""
    yield ",".join(p.noun() for _ in range(5)) + "\r"
    while True:
        text = p.foreign() if p.chance(0.3) else p.phrase(3)
        price = f'"{p.number(9999):,}.{p.number(100):02}"'
        yield f"{p.number(10**6)},{p.when()},{p.noun()},{price},{text}\r"


def dump(p: Prose) -> Iterator[str]:
    """A hex dump, and now and then an image in base64: long runs of letters without a space."""
    at = 0
    while True:
        if p.chance(0.02):
            yield f"data:image/png;base64,{p.blob(600 + p.number(2000))}"
        h = p.hexadecimal(32)
        yield f"{at:08x}: {' '.join(h[i : i + 4] for i in range(0, 32, 4))}  |{'.' * 16}|"
        at += 16
