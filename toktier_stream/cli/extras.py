"""Says which extra a command needs, instead of a traceback about a missing module."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from toktier_stream.errors import Code, ToktierError


@contextmanager
def worker_extra() -> Iterator[None]:
    """Wrap imports that need ``pip install 'toktier-stream[worker]'``. Raises ``EXTRA_MISSING``."""
    try:
        yield
    except ImportError as error:
        module = (error.name or "a module").partition(".")[0]
        if module == "toktier_stream":
            raise
        detail = f"{module} is missing: pip install 'toktier-stream[worker]'"
        raise ToktierError(Code.EXTRA_MISSING, detail) from error
