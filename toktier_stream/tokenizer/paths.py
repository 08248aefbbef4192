"""Where compiled things are kept between runs."""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """``$TOKTIER_CACHE``, else ``toktier-stream`` in ``$XDG_CACHE_HOME`` or in ``~/.cache``."""
    configured = os.environ.get("TOKTIER_CACHE")
    if configured:
        return Path(configured).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "toktier-stream"
