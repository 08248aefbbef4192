"""``ops/kafka.py`` as a module: it is a script of its own, outside every package."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType


@cache
def kafka_module() -> ModuleType:
    """The script, loaded once."""
    path = Path(__file__).resolve().parents[2] / "ops" / "kafka.py"
    spec = importlib.util.spec_from_file_location("ops_kafka", path)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["ops_kafka"] = module
    spec.loader.exec_module(module)
    return module
