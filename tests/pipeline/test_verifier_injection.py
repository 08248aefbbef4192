"""The short form of verifier_injection.py."""

from __future__ import annotations

from verifier_injection import KINDS, faults_until_found, inject


async def test_every_sampled_fault_is_found_and_nothing_else(tmp_path):
    """All answers sampled: each fault of each kind gives a mismatch, no clean answer does."""
    report = await inject(400, 1.0, 3, tmp_path)
    assert report["requests"] > 300
    assert set(report["faults"]) == set(KINDS)
    assert report["sampled_faults_found"] == report["faults"]
    assert not report["sampled_faults_missed"]
    assert not report["false_positives"]
    assert report["checked"] == report["sampled"] == report["requests"]


async def test_detection_follows_the_share_that_is_sampled(tmp_path):
    """At a tenth, a tenth of the answers is checked, and every fault among those is found."""
    report = await inject(600, 0.1, 4, tmp_path)
    assert 0.05 < report["checked"] / report["requests"] < 0.16
    assert not report["sampled_faults_missed"]
    assert not report["false_positives"]
    assert report["checked"] == report["sampled"]


async def test_under_overload_each_sample_is_checked_or_counted_as_dropped(tmp_path):
    """A queue of one: answers go out all the same, and the counts add up."""
    report = await inject(200, 1.0, 5, tmp_path, queue=1)
    assert report["dropped"] > 0
    assert report["checked"] + report["dropped"] == report["sampled"]
    assert not report["sampled_faults_missed"]
    assert not report["false_positives"]


def test_the_delay_of_detection_is_geometric():
    """As the paper has it at 5 %: half of the campaigns within 13 faulty requests, nine of ten
    within about 42."""
    median, p90 = faults_until_found(0.05)
    assert 12 <= median <= 15
    assert 39 <= p90 <= 49
