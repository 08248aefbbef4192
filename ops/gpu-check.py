#!/usr/bin/env python3
"""Checks the GPU path on this machine's card and measures it, in a few minutes.

    pip install cupy-cuda12x nvidia-cuda-nvrtc-cu12 tokenizers numpy   # numba too, if it can be had
    ops/gpu-check.py ~/.cache/toktier-stream/tokenizers --json gpu.json

What ``toktier-stream bench gpu`` does, for a machine on which only that much can be installed. The
folder holds FAMILY/tokenizer.json. Without numba on the card's machine, run the same with
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

from toktier_gpu.device import DeviceError  # noqa: E402
from toktier_stream.bench import gpu  # noqa: E402


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, help="holds FAMILY/tokenizer.json")
    parser.add_argument("--families", help="names, by commas; default: all that are there")
    parser.add_argument("--text", type=Path, nargs="*", default=[], help="files of real text")
    parser.add_argument("--json", type=Path, help="where to write the result")
    parser.add_argument("--minutes", type=float, default=7.0)
    parser.add_argument("--characters", type=float, help="random ones, per family")
    parser.add_argument("--device", default="0", help="number of a CUDA device, or shim")
    parser.add_argument("--prepare", action="store_true", help="only leave the tables there")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """0: exact; 1: differences; 2: no device, or no tables."""
    options = parse(arguments)
    names = options.families.split(",") if options.families else gpu.BYTE_LEVEL
    folders = [
        options.folder / n for n in names if (options.folder / n / "tokenizer.json").exists()
    ]
    settings = gpu.Settings.small() if options.device == gpu.SHIM else gpu.Settings()
    if options.characters:
        settings = settings.with_characters(int(options.characters))
    settings = dataclasses.replace(settings, seconds=60 * options.minutes)
    try:
        if options.prepare:
            for folder in folders:
                print(gpu.prepare(folder))
            return 0
        result = gpu.check(folders, gpu.open_device(options.device), options.text, settings)
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
