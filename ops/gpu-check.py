#!/usr/bin/env python3
"""Checks the GPU path on this machine's card and measures it, in a few minutes.

    pip install cupy-cuda12x tokenizers numpy     # or cupy-cuda13x; numba too, if it can be had
    ops/gpu-check.py ~/.cache/toktier-stream/tokenizers --json gpu.json

The folder holds FAMILY/tokenizer.json. Without numba on the card's machine, run the same with
``--prepare`` elsewhere first and take the folder along.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
# So that a checkout is enough: nothing needs to be installed.
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "gpu")]

from toktier_gpu.cupy_device import CupyDevice  # noqa: E402
from toktier_gpu.device import DeviceError  # noqa: E402
from toktier_stream.bench import gpu  # noqa: E402

BYTE_LEVEL = (
    "qwen3", "llama3_1", "gptoss", "deepseek_v3", "llama3", "gpt4o", "gpt35turbo", "deepseek_v4",
    "claude", "gpt2",
)  # fmt: skip


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, help="holds FAMILY/tokenizer.json")
    parser.add_argument("--families", help="names, by commas; default: all that are there")
    parser.add_argument("--text", type=Path, nargs="*", default=[], help="files of real text")
    parser.add_argument("--json", type=Path, help="where to write the result")
    parser.add_argument("--minutes", type=float, default=7.0)
    parser.add_argument("--characters", type=float, default=1e6, help="random ones, per family")
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--prepare", action="store_true", help="only leave the tables there")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """0: exact; 1: differences; 2: no device, or no tables."""
    options = parse(arguments)
    names = options.families.split(",") if options.families else BYTE_LEVEL
    folders = [
        options.folder / n for n in names if (options.folder / n / "tokenizer.json").exists()
    ]
    try:
        if options.prepare:
            for folder in folders:
                gpu.prepare(folder)
                print(f"{folder / gpu.TABLES}")
            return 0
        settings = dataclasses.replace(
            gpu.Settings(),
            seconds=60 * options.minutes,
            random_characters=int(options.characters),
            real_characters=int(1.5 * options.characters),
        )
        result = gpu.check(
            folders, lambda graphs: CupyDevice(options.device, graphs), options.text, settings
        )
    except DeviceError as error:
        print(error, file=sys.stderr)
        return 2
    if options.json:
        gpu.write(result, options.json)
    wrong = gpu.differences(result)
    print(f"{len(result['exactness'])} families on {result['device']}, {wrong} differences")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
