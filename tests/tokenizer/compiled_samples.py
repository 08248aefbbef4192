"""Compiled tables of the sample pre-tokenizers, each compiled once per test run."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pattern_samples

from toktier_stream.tokenizer import stages
from toktier_stream.tokenizer.classes import Probe
from toktier_stream.tokenizer.educational import Twin
from toktier_stream.tokenizer.matcher import ReferencePieces, compile_pre_tokenizer
from toktier_stream.tokenizer.stages import Pipeline
from toktier_stream.tokenizer.tables import MatcherTables

PROBE = Probe()
SMALL = ("qwen3", "o200k", "deepseek", "gpt2", "cl100k possessive", "falcon", "whitespace")
"""Samples that between them have every kind of stage: for the costlier property tests."""


def admitted(spec: dict[str, Any] | None) -> MatcherTables:
    """The tables of a pre-tokenizer that must be admitted."""
    return _admitted(json.dumps(spec))


@cache
def _admitted(spec: str) -> MatcherTables:
    tables = compile_pre_tokenizer(json.loads(spec), PROBE)
    assert isinstance(tables, MatcherTables), str(tables)
    return tables


def tables_of(name: str) -> MatcherTables:
    return admitted(pattern_samples.ALL[name])


def pipeline_of(name: str) -> Pipeline:
    pipeline = stages.read(pattern_samples.ALL[name])
    assert isinstance(pipeline, Pipeline), str(pipeline)
    return pipeline


@cache
def twin_of(name: str) -> Twin:
    return Twin(pipeline_of(name), PROBE)


@cache
def reference_of(name: str) -> ReferencePieces:
    return ReferencePieces(pattern_samples.ALL[name])
