"""The campaign finds planted faults, and counts what it tried."""

from __future__ import annotations

import dataclasses

import numpy as np
import pattern_samples
import pytest
from compiled_samples import tables_of

from toktier_stream.tokenizer.split_campaign import Campaign, RandomText, Report
from toktier_stream.tokenizer.tables import MatcherTables


def run(name: str, tables: MatcherTables, cuts: int = 400) -> Report:
    return Campaign(pattern_samples.ALL[name], tables, seed=1).run(cuts)


def with_boundary(name: str, left: str, right: str, two_sided: bool) -> MatcherTables:
    """The tables of ``name`` with one boundary too many."""
    tables = tables_of(name)
    pair = tables.class_of[ord(left)], tables.class_of[ord(right)]
    both, one = tables.two_sided.copy(), tables.one_sided.copy()
    one[pair] = True
    both[pair] |= two_sided
    return dataclasses.replace(tables, two_sided=both, one_sided=one)


def test_sound_tables_pass_and_are_counted() -> None:
    """A clean run reports what it tried."""
    report = run("qwen3", tables_of("qwen3"))
    assert report.divergences == ()
    assert report.two_sided + report.one_sided >= 400
    assert report.texts > 0
    assert report.characters >= report.texts


@pytest.mark.parametrize(
    ("left", "right", "two_sided"),
    [(" ", "1", True), (" ", "a", True), (" ", "a", False), ("\n", " ", False)],
)
def test_one_boundary_too_many_is_found(left: str, right: str, two_sided: bool) -> None:
    """A single wrong pair, of either kind, shows up as a divergence at a cut."""
    tables = with_boundary("qwen3", left, right, two_sided)
    found = run("qwen3", tables, 20_000).divergences
    assert found
    assert all(d.cut > 0 for d in found)


def test_a_wrong_transition_is_found() -> None:
    """A table that cuts elsewhere than the reference is told apart from a wrong boundary."""
    tables = tables_of("qwen3")
    letter = tables.class_of[ord("x")]
    action = tables.action.copy()
    action[tables.next_state[0, letter], letter] = 1
    found = run("qwen3", dataclasses.replace(tables, action=action)).divergences
    assert found
    assert any(d.promise == "the tables cut as the reference does" for d in found)


def test_the_campaign_stops_where_there_is_nothing_to_cut() -> None:
    """Without boundaries it does not run for ever."""
    report = run("none", tables_of("none"))
    assert report.two_sided == report.one_sided == 0
    assert report.texts == 200


def test_texts_repeat_with_their_seed() -> None:
    """The same seed gives the same texts, so that a divergence can be looked at again."""
    first = RandomText.over(tables_of("o200k"), 5)
    again = RandomText.over(tables_of("o200k"), 5)
    other = RandomText.over(tables_of("o200k"), 6)
    texts = [first.text(20) for _ in range(50)]
    assert texts == [again.text(20) for _ in range(50)]
    assert texts != [other.text(20) for _ in range(50)]
    assert all(1 <= len(t) <= 20 for t in texts)
    assert np.mean([len(t) for t in texts]) > 5
