"""The small tokenizer that comes with the package: for the demo, examples and quick tests.

Byte-level BPE with the cl100k pattern, 12 K tokens, and the chat markers of ChatML as added
tokens. It is nobody's model; made by ops/train-tokenizer.py, see the NOTICE beside it.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path


def shipped_path() -> Path:
    """The path of ``tokenizer.json``; ``tokenizer_config.json`` lies beside it."""
    return Path(str(files(__package__) / "tokenizer.json"))
