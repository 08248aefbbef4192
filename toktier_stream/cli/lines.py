"""JSON lines in and out, in order: what the shell verbs share."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from toktier_stream.errors import Code, ToktierError


def objects() -> Iterator[dict[str, Any] | ToktierError]:
    """Each line of standard input as an object, or the error it is answered with."""
    for line in sys.stdin.buffer:
        if not line.strip():
            continue
        yield _parse(line)


def _parse(line: bytes) -> dict[str, Any] | ToktierError:
    try:
        value = json.loads(line)
    except UnicodeDecodeError:
        return ToktierError(Code.INVALID_UTF8)
    except (ValueError, RecursionError):  # the latter for a nesting beyond any limit
        return ToktierError(Code.UNDECODABLE, "not a JSON object")
    return value if isinstance(value, dict) else ToktierError(Code.UNDECODABLE, "not an object")


def text_of(value: Any) -> bytes:
    """A JSON string as UTF-8. Raises ``UNDECODABLE`` or ``LONE_SURROGATE``."""
    if not isinstance(value, str):
        raise ToktierError(Code.UNDECODABLE, "the text is not a string")
    if value.isascii():
        return value.encode()
    return _utf8(value)


def _utf8(value: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError:
        pass
    # Raised out here: the exception of the codec holds the text.
    raise ToktierError(Code.LONE_SURROGATE)


def put(value: dict[str, Any]) -> None:
    """One line of standard output, at once: whoever asks line by line is answered line by line."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")
    sys.stdout.flush()


def put_error(error: ToktierError, **fields: Any) -> None:
    """An error as a line."""
    put({**fields, "error": error.code.value, "message": str(error)})
