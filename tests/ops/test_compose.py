"""The compose file: held to its schema, the settings, and the topics that a worker expects."""

from __future__ import annotations

import copy
import os
import re
import stat
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from docker_files import (
    COLLECTOR,
    DOCKER,
    Yaml,
    collector_problems,
    habit_problems,
    host_ports,
    listener_problems,
    read_yaml,
    reference_problems,
    schema_problems,
    seconds,
    size,
)

from toktier_stream.broker.kafka import KafkaBroker, KafkaOptions
from toktier_stream.broker.kafka.admin import admitted_batch_bytes
from toktier_stream.broker.port import TopicSpec
from toktier_stream.cli.worker import CLOSING_S
from toktier_stream.config import Settings, load
from toktier_stream.errors import Code, ToktierError
from toktier_stream.pipeline.worker import topic_specs

COMPOSE = read_yaml(DOCKER / "compose.yaml")
SERVICES = COMPOSE["services"]
WORKER: dict[str, str] = SERVICES["worker"]["environment"]
KAFKA: dict[str, str] = SERVICES["kafka"]["environment"]

Change = Callable[[Yaml], object]


def changed(parsed: Yaml, change: Change) -> Yaml:
    """A deep copy with one change."""
    other = copy.deepcopy(parsed)
    change(other)
    return other


@pytest.fixture
def worker_settings(monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The settings that the worker of the compose file reads from its environment."""
    for name in [name for name in os.environ if name.startswith("TOKTIER_")]:
        monkeypatch.delenv(name)
    for name, value in WORKER.items():
        monkeypatch.setenv(name, value)
    return load()


def test_it_follows_the_compose_specification() -> None:
    """The schema that Docker itself publishes accepts the file."""
    assert schema_problems(COMPOSE) == []


def test_a_word_that_compose_does_not_know_is_found() -> None:
    """A misspelt key of a service is a violation of the schema."""
    wrong = changed(COMPOSE, lambda c: c["services"]["worker"].update(depend_on=["kafka"]))
    assert len(schema_problems(wrong)) == 1


def test_every_name_leads_somewhere() -> None:
    """Services waited for exist and can be waited for; files and volumes exist."""
    assert reference_problems(COMPOSE) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda c: c["services"].pop("jaeger"), "collector: no service jaeger"),
        (lambda c: c["services"]["kafka"].pop("healthcheck"), "kafka has no health check"),
        (lambda c: c["services"]["topics"].pop("restart"), "topics is restarted"),
        (lambda c: c["volumes"].pop("cache"), "worker: no volume cache"),
        (lambda c: c["volumes"].update(more=None), "volume more is not used"),
        (
            lambda c: c["services"]["topics"]["volumes"][0].update(source="./topic.sh"),
            "./topic.sh does not exist",
        ),
        (
            lambda c: c["services"]["kafka"].update(
                depends_on={"worker": {"condition": "service_started"}}
            ),
            "kafka waits for itself",
        ),
    ],
)
def test_a_name_that_leads_nowhere_is_found(change: Change, problem: str) -> None:
    """Each kind of dangling reference is told by name."""
    found = reference_problems(changed(COMPOSE, change))
    assert problem in "; ".join(found)


def test_images_are_pinned_ports_local_and_resources_limited() -> None:
    """Nothing floats, nothing is open to the network, nothing can take the machine."""
    assert habit_problems(COMPOSE) == []


@pytest.mark.parametrize(
    ("service", "change", "problem"),
    [
        ("kafka", {"image": "apache/kafka:latest"}, "is not pinned"),
        ("kafka", {"image": "apache/kafka"}, "is not pinned"),
        ("kafka", {"ports": ["9092:9092"]}, "is not on loopback"),
        ("jaeger", {"ports": ["127.0.0.1:4318:16686"]}, "port 4318 is taken"),
        ("worker", {"deploy": {"resources": {"limits": {"cpus": "1"}}}}, "no limit of memory"),
    ],
)
def test_bad_habits_are_found(service: str, change: Yaml, problem: str) -> None:
    """A floating tag, an open port, a port used twice and a missing limit are told."""
    found = habit_problems(changed(COMPOSE, lambda c: c["services"][service].update(change)))
    assert problem in "; ".join(found)


def test_kafka_listeners_fit_together() -> None:
    """Each listener has a protocol and an address that leads to it; this node is the controller."""
    assert listener_problems(KAFKA, "kafka") == []


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("KAFKA_ADVERTISED_LISTENERS", "kafka:19092", "broker:19092"),
        ("KAFKA_ADVERTISED_LISTENERS", "kafka:19092", "kafka:9092"),
        ("KAFKA_LISTENERS", "localhost:9093", "localhost:9094"),
        ("KAFKA_LISTENERS", "HOST://:9092,", ""),
        ("KAFKA_INTER_BROKER_LISTENER_NAME", "NETWORK", "CONTROLLER"),
        ("KAFKA_NODE_ID", "1", "2"),
    ],
)
def test_kafka_listeners_that_do_not_fit_are_found(name: str, old: str, new: str) -> None:
    """A wrong host, port, name or number is told."""
    wrong = KAFKA | {name: KAFKA[name].replace(old, new)}
    assert wrong != KAFKA
    assert listener_problems(wrong, "kafka") != []


def test_clients_reach_kafka_where_it_says_it_is() -> None:
    """The worker's broker address and the health check's are advertised, and so is localhost's."""
    advertised = KAFKA["KAFKA_ADVERTISED_LISTENERS"]
    address = WORKER["TOKTIER_BROKER"].removeprefix("kafka://")
    assert f"//{address}" in advertised
    assert f"--bootstrap-server {address} " in SERVICES["kafka"]["healthcheck"]["test"][1]
    port = host_ports(SERVICES["kafka"])[9092]
    assert f"//localhost:{port}" in advertised
    assert f"kafka://localhost:{port}" in (DOCKER / "README.md").read_text()


def test_kafka_is_made_for_one_node_and_our_records(worker_settings: Settings) -> None:
    """The node's own topics ask for one replica, and its limit is at least each topic's."""
    replication = {v for k, v in KAFKA.items() if "REPLICATION_FACTOR" in k or "MIN_ISR" in k}
    assert replication == {"1"}
    options = KafkaOptions()
    largest = max(spec.max_record_bytes for spec in expected_topics(worker_settings))
    for name in ("KAFKA_MESSAGE_MAX_BYTES", "KAFKA_REPLICA_FETCH_MAX_BYTES"):
        assert int(KAFKA[name]) == options.max_request_size
        assert int(KAFKA[name]) >= largest
    assert KAFKA["KAFKA_AUTO_CREATE_TOPICS_ENABLE"] == "false"
    data = {v["target"] for v in SERVICES["kafka"]["volumes"]}
    assert data == {KAFKA["KAFKA_LOG_DIRS"]}


def expected_topics(settings: Settings) -> list[TopicSpec]:
    """The topics as the worker itself would create them: ``max_record_bytes`` is the topic's
    ``max.message.bytes`` here."""
    batch = KafkaOptions().batch_bytes
    return [
        replace(spec, max_record_bytes=max(admitted_batch_bytes(spec.max_record_bytes), batch))
        for spec in topic_specs(settings)
    ]


def created_topics(folder: Path, environment: dict[str, str]) -> list[TopicSpec]:
    """The topics that topics.sh creates, told by a stand-in of kafka-topics.sh."""
    log, stand_in = folder / "calls", folder / "kafka-topics.sh"
    stand_in.write_text(f'#!/bin/sh\necho "$@" >> {log}\n')
    stand_in.chmod(stat.S_IRWXU)
    subprocess.run(
        ["sh", str(DOCKER / "topics.sh")],
        env={"PATH": os.environ["PATH"], "KAFKA_TOPICS": str(stand_in)} | environment,
        check=True,
    )
    call = re.compile(
        r"--bootstrap-server (\S+) --create --if-not-exists --topic (\S+) --partitions (\d+)"
        r" --config cleanup.policy=(compact|delete) --config max.message.bytes=(\d+)"
    )
    calls = [call.fullmatch(line) for line in log.read_text().splitlines()]
    broker = environment["TOKTIER_BROKER"].removeprefix("kafka://")
    assert {c and c[1] for c in calls} == {broker}
    return [TopicSpec(c[2], int(c[3]), c[4] == "compact", int(c[5])) for c in calls if c]


def test_topics_are_those_that_the_worker_expects(
    tmp_path: Path, worker_settings: Settings
) -> None:
    """Names, partitions, compaction and limits are the worker's own, with the same environment."""
    created = created_topics(tmp_path, SERVICES["topics"]["environment"])
    assert created == expected_topics(worker_settings)
    assert len(created) == 5
    # With nothing told, the script has the worker's defaults.
    (tmp_path / "calls").unlink()
    bare = created_topics(tmp_path, {"TOKTIER_BROKER": WORKER["TOKTIER_BROKER"]})
    assert bare == expected_topics(Settings.model_construct())


@pytest.mark.parametrize(
    "other",
    [
        {"TOKTIER_PARTITIONS": "12"},
        {"TOKTIER_MAX_EVENT_BYTES": "4194304", "TOKTIER_PART_BYTES": "2097152"},
        {"TOKTIER_TOPIC_APPENDS": "a.in", "TOKTIER_TOPIC_SESSIONS": "a.log"},
    ],
)
def test_topics_follow_the_settings(
    tmp_path: Path,
    worker_settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    other: dict[str, str],
) -> None:
    """Other limits, numbers or names give other topics, in the script as in the worker."""
    for name, value in other.items():
        monkeypatch.setenv(name, value)
    created = created_topics(tmp_path, SERVICES["topics"]["environment"] | other)
    assert created == expected_topics(load())
    assert created != expected_topics(worker_settings)


@pytest.mark.kafka
async def test_a_worker_accepts_the_topics_on_a_real_broker(
    tmp_path: Path, worker_settings: Settings, kafka_bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Topics with exactly the script's numbers pass the check that a worker makes at its start;
    a limit as small as the largest record does not, since producers fill batches."""
    names = {
        f"TOKTIER_TOPIC_{kind}": f"ops-{uuid4().hex[:8]}.{kind.lower()}"
        for kind in ("APPENDS", "TOKENS", "CHECKS", "REJECTS", "SESSIONS")
    }
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    created = created_topics(tmp_path, SERVICES["topics"]["environment"] | names)
    small = replace(created[2], name=f"{created[2].name}.small", max_record_bytes=64 << 10)
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka_bootstrap)
    await admin.start()
    try:
        await admin.create_topics([new_topic(spec) for spec in (*created, small)])
    finally:
        await admin.close()
    broker = KafkaBroker(KafkaOptions(bootstrap_servers=kafka_bootstrap))
    await broker.start()
    try:
        await broker.ensure_topics(topic_specs(load()), create=False)
        with pytest.raises(ToktierError) as refused:
            await broker.ensure_topics([small], create=False)
    finally:
        await broker.stop()
    assert refused.value.code is Code.TOPIC_LIMIT


def new_topic(spec: TopicSpec) -> NewTopic:
    """A request for a topic whose ``max.message.bytes`` is the spec's number."""
    settings = {
        "cleanup.policy": "compact" if spec.compacted else "delete",
        "max.message.bytes": str(spec.max_record_bytes),
    }
    return NewTopic(spec.name, spec.partitions, 1, topic_configs=settings)


def test_the_topic_script_runs_in_the_broker_image() -> None:
    """The same version, mounted where it is called, after the broker is healthy."""
    topics = SERVICES["topics"]
    assert topics["image"] == SERVICES["kafka"]["image"]
    assert topics["entrypoint"] == ["/bin/sh", topics["volumes"][0]["target"]]
    assert topics["depends_on"]["kafka"]["condition"] == "service_healthy"
    assert WORKER.items() >= topics["environment"].items()


def test_worker_variables_are_settings(worker_settings: Settings) -> None:
    """Each TOKTIER_ variable is a field of the settings, and the worker reads what is written."""
    names = {name.removeprefix("TOKTIER_").split("__")[0].lower() for name in WORKER}
    assert names <= Settings.model_fields.keys()
    assert worker_settings.broker == WORKER["TOKTIER_BROKER"]
    assert worker_settings.tokenizers == {"qwen3": Path("/tokenizers/qwen3")}
    assert worker_settings.default_tokenizer == "qwen3"
    assert worker_settings.trace_ratio == 1
    assert not worker_settings.create_topics


def test_workers_can_be_several() -> None:
    """Nothing in a worker exists once: no name, port or member id, and the store is its own."""
    worker = SERVICES["worker"]
    assert worker.keys().isdisjoint({"container_name", "hostname", "ports"})
    assert "TOKTIER_INSTANCE_ID" not in WORKER
    sources = {v["target"]: v.get("source") for v in worker["volumes"]}
    assert sources["/var/lib/toktier"] is None
    assert sources["/var/cache/toktier"] == "cache"
    image = (DOCKER / "Dockerfile").read_text()
    assert "TOKTIER_STATE_DIR=/var/lib/toktier" in image
    assert "TOKTIER_CACHE=/var/cache/toktier" in image


def test_workers_are_kept_small_and_unprivileged(worker_settings: Settings) -> None:
    """The memory limit holds what the settings allow, and stopping has the time it asks for."""
    s, worker = worker_settings, SERVICES["worker"]
    per_partition = s.hot_bytes + s.inflight_bytes + 2 * s.batch_bytes
    bounded = s.partitions * per_partition + s.parts_memory_bytes + s.verify_queue_bytes
    assert bounded <= 0.75 * size(worker["deploy"]["resources"]["limits"]["memory"])
    assert seconds(worker["stop_grace_period"]) > s.shutdown_deadline_s + CLOSING_S
    image = (DOCKER / "Dockerfile").read_text()
    assert f"127.0.0.1:{s.health_listen.rpartition(':')[2]}/livez" in image
    assert worker["init"] is True
    assert worker["read_only"] is True
    assert worker["cap_drop"] == ["ALL"]


def test_telemetry_arrives() -> None:
    """The worker's endpoint is the collector's receiver; its pages and Jaeger's are published."""
    config = read_yaml(COLLECTOR)
    assert collector_problems(config) == []
    collector = SERVICES["collector"]
    receiver = config["receivers"]["otlp"]["protocols"]["http"]["endpoint"]
    assert WORKER["TOKTIER_OTLP_ENDPOINT"] == "http://collector:" + receiver.split(":")[1]
    metrics = int(config["exporters"]["prometheus"]["endpoint"].split(":")[1])
    health = int(config["extensions"]["health_check"]["endpoint"].split(":")[1])
    assert {metrics, health} <= host_ports(collector).keys()
    default = re.fullmatch(
        r"\$\{env:JAEGER_ENDPOINT:-(\w+):4317\}",
        config["exporters"]["otlp_grpc/jaeger"]["endpoint"],
    )
    assert default is not None
    assert default[1] in collector["depends_on"]
    mounted = {v["target"] for v in collector["volumes"]}
    assert collector["command"] == [f"--config={path}" for path in mounted]
    readme = (DOCKER / "README.md").read_text()
    for port in (host_ports(SERVICES["jaeger"])[16686], metrics, health):
        assert f"http://localhost:{port}" in readme


def test_the_collector_refuses_before_its_container_is_full() -> None:
    """The memory limiter acts well below the container's limit, which the Go runtime knows."""
    limiter = read_yaml(COLLECTOR)["processors"]["memory_limiter"]
    limit = size(SERVICES["collector"]["deploy"]["resources"]["limits"]["memory"])
    runtime = int(SERVICES["collector"]["environment"]["GOMEMLIMIT"].removesuffix("MiB")) << 20
    assert limiter["spike_limit_mib"] < limiter["limit_mib"]
    assert limiter["limit_mib"] << 20 <= runtime < limit


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda c: c["processors"].pop("batch"), "processors: batch is not defined"),
        (lambda c: c["exporters"].update(debug={}), "exporters: debug is not used"),
        (lambda c: c["service"]["extensions"].append("pprof"), "extensions: pprof is not defined"),
        (lambda c: c["service"]["pipelines"]["traces"]["processors"].reverse(), "not the first"),
        (lambda c: c["service"]["pipelines"]["metrics"].pop("exporters"), "has no exporters"),
    ],
)
def test_a_collector_that_does_not_fit_is_found(change: Change, problem: str) -> None:
    """An undefined, unused or misplaced component is told."""
    assert problem in "; ".join(collector_problems(changed(read_yaml(COLLECTOR), change)))
