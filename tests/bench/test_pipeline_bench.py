"""The load of the pipeline's benchmark, and that it judges every answer it times."""

from __future__ import annotations

import io
import itertools
import json
import statistics
import subprocess
import sys
from dataclasses import replace
from random import Random

import pytest
from rich.console import Console

from toktier_stream.bench import pipeline, pipeline_load, pipeline_tables, restore
from toktier_stream.bench.generate import append_chars
from toktier_stream.bench.workload import Shares, Workload, recorded_gaps
from toktier_stream.broker.local import LocalReader
from toktier_stream.errors import Code, ToktierError
from toktier_stream.tokenizer.shipped import shipped_path
from toktier_stream.wire.messages import Status

SMALL = pipeline.Plan(
    rates=(40.0,),
    seconds=0.6,
    warm_s=0.2,
    shares=Shares(full=0.2, sessions=4, most_tokens=3_000),
    partitions=2,
    verify_chars=10_000_000,
)
POOL = "Some words of a transcript, größe and 漢字, 123 numbers.\n" * 4_000


def command(arguments):
    """The command in a process of its own: it sets up logging, affinity and the heap for itself."""
    return subprocess.run(
        [sys.executable, "-m", "toktier_stream", *arguments],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def run(plan=SMALL, broker="local:"):
    return pipeline.run("small", shipped_path(), broker, plan, text=POOL)


def load(seed=1, **shares):
    return Workload(10**7, Shares(**shares), seed)


def test_sizes_are_those_of_the_paper():
    """Appends: 1.4 K, 10 K and 38 K characters at the median, P90 and P99. Full contexts: 86 K
    tokens at the median, 117 K in the mean, 10^4 to 10^6, 2.3 % of the requests."""
    rng = Random(3)
    sizes = sorted(append_chars(rng) for _ in range(20_000))
    assert 1_200 < sizes[10_000] < 1_600
    assert 9_000 < sizes[18_000] < 14_000
    assert 32_000 < sizes[19_800] < 45_000
    work = load(sessions=4_000, chars_per_token=1.0)
    tokens = [r.chars for r in work.opening()]
    assert 80_000 < statistics.median(tokens) < 92_000
    assert 108_000 < statistics.mean(tokens) < 126_000
    assert 10_000 <= min(tokens) <= max(tokens) <= 1_000_000
    found = list(work.requests(iter(work.times("poisson", 1_000, 20))))
    assert 0.018 < sum(r.full for r in found) / len(found) < 0.028


@pytest.mark.parametrize("shape", ["poisson", "turns", "recorded"])
def test_arrivals_have_the_rate_and_the_seed_decides_them(shape):
    """Each shape keeps the mean rate and the order in time; sessions' shapes come in bursts."""
    gaps = [[1.0, 2.0, 1.0, 300.0], [2.0, 5.0, 60.0]]
    times = load(sessions=50).times(shape, 200, 10, gaps if shape == "recorded" else ())
    assert times == load(sessions=50).times(shape, 200, 10, gaps if shape == "recorded" else ())
    assert times != load(2, sessions=50).times(shape, 200, 10, gaps if shape == "recorded" else ())
    assert 1_600 < len(times) <= 2_400
    assert [at for at, _ in times] == sorted(at for at, _ in times)
    assert 0 <= times[0][0] <= times[-1][0] < 10
    assert {place for _, place in times} <= set(range(50))
    own = [at for at, place in times if place == times[0][1]]
    steps = [b - a for a, b in itertools.pairwise(own)]
    if shape != "poisson" and len(steps) > 4:
        assert max(steps) > 3 * statistics.median(steps)


def test_a_session_is_asked_for_in_order_behind_its_context():
    """Appends continue the session's slice of the pool; a full context is a session of its own."""
    work = load(sessions=3)
    at = {r.session: r.start + r.chars for r in work.opening()}
    for request in work.requests(iter(work.times("poisson", 500, 2))):
        if request.full:
            assert request.session not in at
        elif request.start != at[request.session]:  # the pool has ended
            assert at[request.session] + request.chars > 10**7
        at[request.session] = request.start + request.chars


def test_gaps_are_read_from_timed_lines(tmp_path):
    """Lines without a time, and files without any, are passed over."""
    timed, other = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    lines = [{"timestamp": f"2026-03-21T10:00:{s:02}.500Z"} for s in (0, 2, 5, 9)]
    timed.write_text("\n".join([*map(json.dumps, lines), "{}", "[1]", "no json"]))
    other.write_text('{"type": "mode"}\n')
    assert recorded_gaps([timed, other, tmp_path / "c.traj"]) == [[2.0, 3.0, 4.0]]
    with pytest.raises(ToktierError) as refused:
        load().times("recorded", 10, 1)
    assert refused.value.code is Code.CONFIG_INVALID


@pytest.mark.alone
def test_every_answer_is_timed_and_judged():
    """A run of a second on the embedded broker: all numbers are there, all ids are exact."""
    result = run()
    assert result["exact"]
    (point,) = result["points"]
    # A busy machine may not keep up; then the point must say so.
    assert point["kept_up"] is (point["seconds"] < SMALL.warm_s + SMALL.seconds + 1.0)
    assert point["late"] == 0
    assert 0 < point["p50_ms"] <= point["p99_ms"] <= point["max_ms"]
    assert 0 < point["from_send"]["p50_ms"] <= point["p50_ms"]
    assert point["appends"]["count"] + point["full"]["count"] == point["count"]
    assert point["judged_by_reference"] == point["checked_sessions"] > 0
    stages = {name: stage["p50_ms"] for name, stage in point["stages"].items()}
    assert set(stages) == set(pipeline.STAGES)
    assert 0.2 * point["p50_ms"] < sum(stages.values()) < 2 * point["p50_ms"]
    assert result["highest"]["50"] in (0.0, 40.0)
    console = Console(width=250, file=io.StringIO())
    pipeline_tables.show(result, console)
    assert "exact" in console.file.getvalue()


def test_a_search_ends_at_the_objective(tmp_path):
    """Rates are doubled until it is missed, then halved in between; the plot is an image."""
    plan = replace(SMALL, rates=(), first_rate=20.0, refine=1, objectives_ms=(0,))
    result = run(plan)
    assert [p["rate"] for p in result["points"]] == [10.0, 20.0]
    assert result["highest"] == {"0": 0.0}
    pipeline_tables.plot(result, tmp_path / "load.png")
    assert (tmp_path / "load.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("mode", ["soak", "overload"])
def test_a_soak_keeps_its_rate_and_an_overload_is_recovered_from(mode, tmp_path):
    """All of it is answered, however late, with every id right; the memory is told throughout."""
    saved = tmp_path / "load.json"
    done = command(
        [
            *("bench", "pipeline", "-t", f"small={shipped_path()}", "--mode", mode),
            *("--rates", "30", "--seconds", "1", "--minutes", "0.05", "--sessions", "3"),
            *("--most-tokens", "2000", "--partitions", "1", "--save", str(saved)),
        ],
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(saved.read_text())
    rates = [p["rate"] for p in result["points"]]
    assert rates == ([30.0] * 3 if mode == "soak" else [15.0, 15.0, 90.0, 15.0, 15.0])
    assert result["exact"]
    assert 0 < result["memory"]["early_mb"] <= result["memory"]["most_mb"]
    assert all(p["worker_memory_mb"] > 20 for p in result["points"])


def wrong_id(update):
    return replace(update, token_ids=bytes([update.token_ids[0] ^ 1]) + update.token_ids[1:])


def both_wrong(update):
    """As if worker and digest agreed on wrong ids."""
    bad = wrong_id(update)
    ids = memoryview(bad.token_ids).cast("I").tolist()
    from toktier_stream.wire import digest

    return replace(bad, digest=digest.extend(digest.EMPTY, pipeline.np.array(ids, "u4")))


FAULTS = {
    "an id": wrong_id,
    "an id and the digest": both_wrong,
    "a status": lambda update: replace(update, status=Status.CONFLICT),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_one_wrong_answer_makes_the_run_wrong(fault, monkeypatch):
    """A single update that is changed on its way costs the verdict."""
    decode, changed = pipeline_load.decode_update, []

    def tampered(*record):
        update = decode(*record)
        if changed or update.parts > 1 or update.keep or not update.token_ids:
            return update
        changed.append(update)
        return FAULTS[fault](update)

    monkeypatch.setattr(pipeline_load, "decode_update", tampered)
    assert not run()["exact"]
    assert changed


def test_an_answer_that_comes_twice_makes_the_run_wrong(monkeypatch):
    """Exactly once: a repeated update is a fault, whatever its ids."""
    poll = LocalReader.poll

    async def twice(self, *arguments):
        return [r for record in await poll(self, *arguments) for r in (record, record)]

    monkeypatch.setattr(LocalReader, "poll", twice)
    assert not run(replace(SMALL, shares=replace(SMALL.shares, most_tokens=500)))["exact"]


@pytest.mark.kafka
def test_a_worker_process_is_measured_through_kafka(kafka_bootstrap, tmp_path):
    """The command as a user runs it, with a worker of its own; its CPU and memory are told."""
    saved = tmp_path / "load.json"
    done = command(
        [
            *("bench", "pipeline", "-t", f"small={shipped_path()}", "--rates", "40"),
            *("--broker", f"kafka://{kafka_bootstrap}", "--seconds", "1", "--sessions", "4"),
            *("--most-tokens", "3000", "--partitions", "2", "--shape", "turns"),
            *("--set", "batch_records=64", "--save", str(saved), "--json"),
        ],
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(saved.read_text())
    assert result["exact"]
    assert result["worker"] == {"batch_records": "64"}
    (point,) = result["points"]
    assert point["worker_cpu"] > 0
    assert point["worker_memory_mb"] > 50


def test_a_worker_that_comes_back_is_timed(tmp_path):
    """From an empty disk everything is read, with the disk of yesterday the tail; sessions go on
    with the reference's ids, and another id is told."""
    result = restore.run(
        shipped_path(), "local:", sessions=20, chars=2_000, partitions=2, checked=2, folder=tmp_path
    )
    empty, yesterday = result["empty"], result["yesterday"]
    assert empty["exact"]
    assert yesterday["exact"]
    assert 0 < yesterday["bytes"] < 0.5 * empty["bytes"]
    assert 0 < yesterday["records"] < empty["records"]
    assert empty["seconds"] > 0
    console = Console(width=200, file=io.StringIO())
    pipeline_tables.show_restore(result, console)
    assert console.file.getvalue().count("exact") == 2
    assert not list(tmp_path.iterdir())
