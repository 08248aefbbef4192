"""The campaign finds planted faults of each kind, continues a report, and shows no file's text."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from toktier_stream.bench.campaign import Campaign, Report
from toktier_stream.session.engines import open_tokenizer
from toktier_stream.tokenizer.encoder import FastEncoder
from toktier_stream.tokenizer.face import Tokens
from toktier_stream.tokenizer.registry import Entry
from toktier_stream.tokenizer.shipped import shipped_path

ROUNDS = 10  # each kind at least once


class Faulty:
    """The real encoder with one rare fault."""

    def __init__(self, encoder, *, ids=None, lengths=None, cut=None):
        self._encoder, self._ids, self._lengths, self._cut = encoder, ids, lengths, cut

    def __getattr__(self, name):
        return getattr(self._encoder, name)

    def encode(self, text):
        tokens = self._encoder.encode(text)
        ids, lengths = tokens.ids.copy(), tokens.lengths.copy()
        if self._ids and self._ids in text:
            ids[0] ^= 1
        if self._lengths and self._lengths in text and len(lengths) > 1 and lengths[0] > 1:
            lengths[0] -= 1
            lengths[1] += 1
        return Tokens(ids, lengths)

    def last_cut(self, text, low, high):
        cut = self._encoder.last_cut(text, low, high)
        return cut if cut < 0 or not self._cut else max(low, cut - self._cut)


def divides_badly(encoder: FastEncoder) -> FastEncoder:
    """The real encoder, dividing where only one-sided cuts are."""
    matcher = replace(encoder.compiled.matcher, two_sided=encoder.compiled.matcher.one_sided)
    return FastEncoder(encoder.fingerprint, replace(encoder.compiled, matcher=matcher).frozen())


@pytest.fixture
def entry():
    return open_tokenizer(shipped_path())


def test_the_engine_passes(entry):
    """No difference, and every kind of round did something."""
    campaign = Campaign(entry)
    for _ in range(ROUNDS):
        campaign.round()
    r = campaign.report
    assert r.divergences == []
    assert min(r.strings, r.chars, r.cuts, r.splices, r.code_points, r.piece_texts) >= 20


@pytest.mark.parametrize(
    ("fault", "kinds"),
    [
        ({"ids": b"\n"}, {"string", "splice", "run", "code point"}),
        ({"lengths": b"\n"}, {"string", "run", "code point"}),
        ({"cut": 1}, {"cut"}),
    ],
)
def test_planted_faults_are_found(entry, fault, kinds, monkeypatch):
    """A wrong id, a wrong length, a cut one byte off."""
    broken = Faulty(entry.encoder, **fault)
    monkeypatch.setattr(Entry, "encoder", property(lambda self: broken))
    campaign = Campaign(entry)
    for _ in range(ROUNDS):
        campaign.round()
    assert campaign.exhausted or campaign.report.divergences
    assert {d["kind"] for d in campaign.report.divergences} <= kinds


def test_one_sided_cuts_do_not_divide(entry, monkeypatch):
    """Parts between cuts that are safe on the right side only are not the whole's tokens."""
    broken = divides_badly(entry.encoder)
    monkeypatch.setattr(Entry, "encoder", property(lambda self: broken))
    campaign = Campaign(entry)
    while not campaign.exhausted:
        campaign.round()
    assert {d["kind"] for d in campaign.report.divergences} >= {"cut", "pieces"}


def test_a_report_is_continued_only_by_the_same_campaign(entry):
    """Rounds go on where they stopped; another seed starts anew."""
    first = Campaign(entry, seed=3)
    first.round()
    saved = Report(**json.loads(json.dumps(first.report.as_dict())))
    assert Campaign(entry, 3, saved).report.rounds == 1
    assert Campaign(entry, 4, saved).report.rounds == 0


def test_the_command_compares_files_and_exits_by_what_it_found(tmp_path, entry):
    """Real text is counted, the report is written, a second run goes on from it."""
    text = tmp_path / "text.txt"
    text.write_text("Plain words, größer and 漢字, <|im_start|> too.\n" * 2000)
    report = tmp_path / "report.json"
    command = [
        *(sys.executable, "-m", "toktier_stream", "verify", str(shipped_path()), str(text)),
        *("--strings", "500", "--cuts", "1", "--report", str(report), "--json"),
    ]
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert found["real_chars"] == len(text.read_text())
        assert found["chars"] >= found["real_chars"]
        assert found["strings"] >= 500
        assert found["cuts"] >= 1
    assert json.loads(report.read_text()) == found
    assert found["divergences"] == []
