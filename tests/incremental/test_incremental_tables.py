"""Tables on disk, and the check that stands between a wrong table and a wrong id."""

from __future__ import annotations

import dataclasses
import io
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from incremental_dictionaries import Dictionary, compiled, dictionaries, make

from toktier_stream.errors import Code, ToktierError
from toktier_stream.incremental.rules import Ints, Rules, from_merges
from toktier_stream.incremental.selftest import check
from toktier_stream.incremental.state import State
from toktier_stream.incremental.tables import Tables, build, from_arrays


def _through_a_file(t: Tables) -> Tables:
    file = io.BytesIO()
    np.savez(file, **t.to_arrays())  # type: ignore[arg-type]
    file.seek(0)
    with np.load(file) as arrays:
        return from_arrays(dict(arrays))


@compiled
@given(dictionaries())
def test_the_self_test_passes_on_tables_as_built_and_as_read_back(d: Dictionary) -> None:
    check(d.tables, d.rules)
    again = _through_a_file(d.tables)
    check(again)
    check(again, d.rules)


def test_whole_tokens_survive_the_file() -> None:
    rules = from_merges(b"abc", [(b"a", b"b")], words=[b"ca", b"bcb"])
    t = build(rules)
    assert dict(_through_a_file(t).whole) == dict(t.whole)
    assert set(t.whole) == {b"ca", b"bcb"}


def _refusal(t: Tables, rules: Rules) -> Code | None:
    try:
        check(t, rules)
    except ToktierError as error:
        return error.code
    return None


def _all_texts(t: Tables) -> Ints:
    """The state over every text of seven letters, one after another."""
    texts = np.array([[*word, -1] for word in product(b"abc", repeat=7)], dtype=np.int32)
    state = State(t)
    state.extend(texts.reshape(-1))
    return state.theta.copy()


def test_every_wrong_interval_is_found_at_load() -> None:
    """Move one end of one interval by one, each in turn. Where any text of seven letters notices,
    the check refuses the tables."""
    d = make(b"abc", [(b"a", b"b"), (b"b", b"c"), (b"ab", b"c"), (b"c", b"ab"), (b"a", b"bc")])
    forest = d.tables.forest
    right = _all_texts(d.tables)
    noticed = 0
    for name in ("low", "high"):
        for u in np.flatnonzero(forest.left):
            for by in (-1, 1):
                moved = getattr(forest, name).copy()
                moved[u] += by
                broken = dataclasses.replace(
                    d.tables, forest=dataclasses.replace(forest, **{name: moved})
                )
                if not np.array_equal(_all_texts(broken), right):
                    noticed += 1
                    assert _refusal(broken, d.rules) is Code.TOKENIZER_UNSUPPORTED
    assert noticed >= 8


def test_arrays_of_another_version_are_refused() -> None:
    arrays = make(b"abc", []).tables.to_arrays()
    arrays["format"] = arrays["format"] + 1
    with pytest.raises(ToktierError, match="STORE_FORMAT"):
        from_arrays(arrays)
    with pytest.raises(ToktierError, match="STORE_FORMAT"):
        from_arrays({})
