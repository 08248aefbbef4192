"""The command line as a person meets it: what it prints, and how it exits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading

import pytest

from toktier_stream.bench.generate import generate_session
from toktier_stream.client.transcripts import turns
from toktier_stream.tokenizer.shipped import shipped_path


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "toktier_stream", *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, **environment},
        check=False,
    )


def test_help_names_every_verb():
    """What a newcomer types first."""
    shown = command("--help")
    assert shown.returncode == 0
    for verb in ("demo", "worker", "replay", "tail", "inspect", "tokenizers", "check-config"):
        assert verb in shown.stdout
        assert command(verb, "--help").returncode == 0


def test_the_demo_is_exact_and_says_so_to_people_and_machines(tmp_path):
    """Exit 0 and a table; with --json the same as numbers. Logs left in files are read too."""
    shown = command("demo", "--sessions", "3", "--turns", "6", "--verify-rate", "1")
    assert shown.returncode == 0, shown.stderr
    assert "All ids equal the reference tokenizer's." in shown.stdout
    log = tmp_path / "messages.json"
    log.write_text(json.dumps(list(turns(generate_session(1, 5)))[-1]))
    machine = command("demo", "--transcripts", str(tmp_path), "--json", "--verify-rate", "1")
    assert machine.returncode == 0, machine.stderr
    result = json.loads(machine.stdout)
    assert result["exact"] is True
    assert result["events"] == result["verifier"]["checked"] == sum(result["statuses"].values())
    assert result["chars"]["tokenized"] < result["chars"]["context"]


def test_what_is_no_transcript_is_refused_in_one_sentence(tmp_path):
    """Exit 3, the code, and no traceback."""
    (tmp_path / "x.json").write_text('{"neither": "this nor that"}')
    refused = command("demo", "--transcripts", str(tmp_path))
    assert refused.returncode == 3
    assert "TRANSCRIPT_FORMAT" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_inspect_shows_name_pipeline_and_admission():
    """For people and for machines."""
    shown = command("inspect", str(shipped_path()))
    assert shown.returncode == 0
    facts = json.loads(command("inspect", "--json", str(shipped_path())).stdout)
    assert facts["name"].startswith("sha256:")
    assert facts["name"] in shown.stdout
    assert facts["splices"] is True
    assert facts["added_tokens"]["all"] > 0
    assert facts["admission"] == "engine"
    assert any("LF CR" in line for line in facts["no_boundary"])
    assert facts["no_boundary"][0] in shown.stdout


def test_warmup_leaves_everything_compiled(tmp_path):
    """The cache folder is filled, and the next start uses it."""
    first = command("warmup", TOKTIER_CACHE=str(tmp_path))
    assert first.returncode == 0, first.stderr
    assert "engine, ready in" in first.stdout
    assert "compiling" in first.stderr
    again = command("warmup", str(shipped_path()), TOKTIER_CACHE=str(tmp_path))
    assert again.returncode == 0
    assert "compiling" not in again.stderr


def test_inspect_gives_the_reason_for_a_refusal(tmp_path):
    """A pipeline that is not understood is served by the reference, and the reason is told."""
    spec = json.loads(shipped_path().read_text())
    spec["pre_tokenizer"] = {"type": "UnicodeScripts"}
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(spec))
    facts = json.loads(command("inspect", "--json", str(file)).stdout)
    assert facts["admission"] == "reference"
    assert facts["splices"] is False
    assert facts["reasons"][0]


def test_a_file_that_is_no_tokenizer_is_refused(tmp_path):
    """TOKENIZER_LOAD, exit 3."""
    file = tmp_path / "tokenizer.json"
    file.write_text("{}")
    refused = command("inspect", str(file))
    assert refused.returncode == 3
    assert "TOKENIZER_LOAD" in refused.stderr


def test_check_config_prints_the_effective_settings_with_secrets_masked(tmp_path):
    """TOML, then environment; the password is not shown."""
    file = tmp_path / "worker.toml"
    file.write_text(
        'broker = "kafka://one:9092"\nsasl_password = "hunter2"\ndefault_tokenizer = "small"\n'
        f'[tokenizers]\nsmall = "{shipped_path()}"\n'
    )
    shown = command("check-config", "-c", str(file), TOKTIER_BROKER="kafka://two:9092")
    assert shown.returncode == 0, shown.stderr
    settings = json.loads(shown.stdout)
    assert settings["broker"] == "kafka://two:9092"
    assert settings["tokenizers"]["small"]["name"].startswith("sha256:")
    assert "hunter2" not in shown.stdout


@pytest.mark.parametrize(
    ("toml", "environment", "named"),
    [
        ("brokr = 1", {}, "brokr"),
        ("", {"TOKTIER_BROKR": "x"}, "TOKTIER_BROKR"),
        ('broker = "amqp://x"', {}, "broker"),
        ("verify_rate = 2", {}, "verify_rate"),
        ("part_bytes = 1048576", {}, "part_bytes"),
        ("store_map_bytes = 1048576", {}, "store_map_bytes"),
        ("", {"TOKTIER_TOKENIZERS": "/no/json"}, "tokenizers"),
        ('default_tokenizer = "none"', {}, "default_tokenizer"),
        ("broken", {}, "worker.toml"),
    ],
)
def test_wrong_settings_are_named(tmp_path, toml, environment, named):
    """Unknown fields, misspelt variables and bad values: exit 3 and the field's name."""
    file = tmp_path / "worker.toml"
    file.write_text(toml)
    refused = command("check-config", "-c", str(file), **environment)
    assert refused.returncode == 3
    assert "CONFIG_INVALID" in refused.stderr
    assert named in refused.stderr


def test_a_worker_needs_a_real_broker():
    """The embedded broker lives in one process, and says so."""
    refused = command("worker", "-t", f"small={shipped_path()}")
    assert refused.returncode == 3
    assert "kafka://" in refused.stderr


def test_an_unreachable_broker_is_said_plainly():
    """BROKER_UNREACHABLE with the address, exit 3."""
    refused = command("worker", "-t", f"small={shipped_path()}", "--broker", "kafka://127.0.0.1:1")
    assert refused.returncode == 3
    assert "BROKER_UNREACHABLE" in refused.stderr


@pytest.mark.kafka
def test_replay_worker_and_tail_work_together(kafka_bootstrap, tmp_path):
    """Three processes and a broker: transcripts in, updates shown, clean exits."""
    import uuid

    name = uuid.uuid4().hex[:8]
    topics = {
        f"TOKTIER_TOPIC_{t.upper()}": f"{t}-{name}"
        for t in ("appends", "tokens", "checks", "rejects", "sessions")
    }
    broker = f"kafka://{kafka_bootstrap}"
    worker = subprocess.Popen(
        [
            *(sys.executable, "-m", "toktier_stream", "worker", "--create-topics"),
            *("-b", broker, "-t", f"small={shipped_path()}", "--state-dir", str(tmp_path / "s")),
        ],
        env={**os.environ, **topics, "TOKTIER_GROUP": name},
        stderr=subprocess.PIPE,
        text=True,
    )
    log: list[str] = []
    running = threading.Event()

    def read_log():
        for line in worker.stderr or ():
            log.append(line)
            if "partition_running" in line:
                running.set()

    reader = threading.Thread(target=read_log)
    reader.start()
    assert running.wait(120)
    file = tmp_path / "messages.json"
    file.write_text(json.dumps(list(turns(generate_session(1, 5)))[-1]))
    there = ("--topic-tokens", topics["TOKTIER_TOPIC_TOKENS"])
    sent = command(
        *("replay", str(file), "-b", broker, "--topic", topics["TOKTIER_TOPIC_APPENDS"]), *there
    )
    assert sent.returncode == 0, sent.stderr
    assert "0 refused" in sent.stdout
    count = int(sent.stdout.split(" events of")[0].split()[-1])
    tail = ("tail", "-b", broker, "--topic", there[1], "--from-start", "-n", str(count))
    shown = command(*tail)
    assert shown.returncode == 0
    assert shown.stdout.count(" OK ") == count
    rows = [json.loads(line) for line in command(*tail, "--json").stdout.splitlines()]
    assert [r["revision"] for r in rows] == list(range(1, count + 1))
    worker.terminate()
    assert worker.wait(60) == 0
    reader.join()
    for line in log:
        assert json.loads(line)["event"], line
