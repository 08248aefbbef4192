"""The check made whenever a model is loaded: its fast state against BPE by heap.

Every canonical token must come back whole, and random tokens put together must give what the heap
gives. A failure refuses the model: the reference serves it then, and no id is ever wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from toktier_stream.errors import Code, ToktierError
from toktier_stream.incremental.canonical import offline, pair_table
from toktier_stream.incremental.jit import kernel
from toktier_stream.incremental.rules import UNKNOWN, Ints, Rules, from_spec
from toktier_stream.incremental.state import State
from toktier_stream.incremental.tables import Tables, build

_GROUPS = 20_000
_LARGEST_GROUP = 6


def load(spec: Mapping[str, Any]) -> Tables:
    """Checked tables of a parsed tokenizer.json. Raises ``TOKENIZER_UNSUPPORTED`` with the reason,
    ``TOKENIZER_LOAD`` for a file that contradicts itself."""
    rules = from_spec(spec)
    tables = build(rules)
    check(tables, rules)
    return tables


def check(tables: Tables, rules: Rules | None = None, seed: int = 0) -> None:
    """Raises ``TOKENIZER_UNSUPPORTED`` if the tables give other tokens than BPE.

    With ``rules`` the heap works from the original merges, which checks the normalization too;
    without (tables read from disk), from the merges that the tables hold.
    """
    _each_token(tables)
    _random_groups(tables, rules, np.random.default_rng(seed))


def spell(tables: Tables, nodes: Ints) -> Ints:
    """The symbols of each node one after another, a barrier after each."""
    forest = tables.forest
    return _spell(forest.left, forest.right, forest.symbol, forest.length, nodes)


def _each_token(tables: Tables) -> None:
    forest = tables.forest
    nodes = np.arange(1, forest.nodes + 1, dtype=np.int32)
    state = State(tables)
    state.extend(spell(tables, nodes))
    ends = np.cumsum(forest.length[nodes].astype(np.int64) + 1) - 1
    if not np.array_equal(state.theta[ends], nodes):
        raise ToktierError(Code.TOKENIZER_UNSUPPORTED, "a token is not its own last token")


def _random_groups(tables: Tables, rules: Rules | None, rng: np.random.Generator) -> None:
    forest = tables.forest
    if rules is None:
        inner = np.flatnonzero(forest.left).astype(np.int32)
        inner = inner[np.argsort(forest.rank[inner], kind="stable")]
        table = pair_table(forest.left[inner], forest.right[inner], inner)
        atoms = np.where(forest.root > 0, forest.root, UNKNOWN).astype(np.int32)
    else:
        table = pair_table(rules.lefts, rules.rights, rules.products)
        atoms = rules.atoms
    # Groups of tokens without their barriers, so that merges across tokens happen.
    nodes = rng.integers(1, forest.nodes + 1, _GROUPS).astype(np.int32)
    spelled = spell(tables, nodes)
    ends = np.cumsum(forest.length[nodes].astype(np.int64) + 1) - 1
    inside = rng.integers(0, _LARGEST_GROUP, _GROUPS) > 0
    symbols = np.delete(spelled, ends[inside])
    expected = offline(symbols, atoms, table)
    state = State(tables)
    state.extend(symbols)
    last = state.theta[state.boundaries(state.length)[1:]]
    found = np.where(last > 0, last if rules is None else forest.row[np.maximum(last, 0)], UNKNOWN)
    if not np.array_equal(found, expected):
        raise ToktierError(Code.TOKENIZER_UNSUPPORTED, "the state differs from offline BPE")


@kernel
def _spell(left: Ints, right: Ints, symbol: Ints, length: Ints, nodes: Ints) -> Ints:
    total = 0
    for u in nodes:
        total += length[u] + 1
    out = np.empty(total, np.int32)
    stack = np.empty(len(left) + 1, np.int32)
    p = 0
    for u in nodes:
        stack[0] = u
        at = 1
        while at > 0:
            at -= 1
            v = stack[at]
            if left[v] == 0:
                out[p] = symbol[v]
                p += 1
            else:
                stack[at], stack[at + 1] = right[v], left[v]
                at += 2
        out[p] = -1
        p += 1
    return out
