"""Manifests, alerts, dashboard, runbooks: held to their schemas, the settings and the metrics."""

from __future__ import annotations

import copy
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import kubernetes_validate
import pytest
import trustme
from cloudcoil.models.keda.v1alpha1 import ScaledObject, TriggerAuthentication
from docker_files import DOCKER, Yaml, read_yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard
from operations_files import (
    ALERTS,
    DASHBOARD,
    KUBERNETES,
    RUNBOOKS,
    documents,
    expression_problems,
    lost,
    page_names,
    quantity,
)
from typer.testing import CliRunner

from toktier_stream.cli.app import app
from toktier_stream.cli.worker import CLOSING_S
from toktier_stream.config import Settings, load
from toktier_stream.telemetry import METRICS
from toktier_stream.tokenizer.shipped import shipped_path
from toktier_stream.wire.messages import Route, Status, Verdict

(STATEFULSET,) = documents("statefulset.yaml")
POD: Yaml = STATEFULSET["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
AUTHENTICATION, SCALED = documents("scaledobject.yaml")
RULES = [rule for group in read_yaml(ALERTS)["groups"] for rule in group["rules"]]
RULE = {rule["alert"]: rule for rule in RULES}
PANELS = [p for p in json.loads(DASHBOARD.read_text())["panels"] if p["type"] != "row"]

Change = Callable[[Yaml], object]


@pytest.fixture(scope="module")
def names() -> dict[str, set[str]]:
    """What a worker's page shows."""
    return page_names()


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The settings that a pod reads: the file and the container's environment."""
    for name in [name for name in os.environ if name.startswith("TOKTIER_")]:
        monkeypatch.delenv(name)
    for name, value in pod_environment().items():
        monkeypatch.setenv(name, value)
    return load(KUBERNETES / "worker.toml")


def pod_environment() -> dict[str, str]:
    """The container's variables, with a stand-in for what the cluster fills in."""
    return {e["name"]: e.get("value", "from-the-cluster") for e in CONTAINER["env"]}


# Kubernetes


@pytest.mark.parametrize("file", ["statefulset.yaml", "service.yaml", "disruption.yaml"])
def test_manifests_follow_the_schemas_of_kubernetes(file: str) -> None:
    """Strictly: a name that the API does not know is refused."""
    for document in documents(file):
        version = kubernetes_validate.latest_version()
        kubernetes_validate.validate(document, version, strict=True)
        wrong = copy.deepcopy(document)
        wrong["spec"]["replica"] = 3
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(wrong, version, strict=True)


@pytest.mark.parametrize(
    ("model", "document"), [(ScaledObject, SCALED), (TriggerAuthentication, AUTHENTICATION)]
)
def test_scaling_follows_the_schemas_of_keda(model: type[ScaledObject], document: Yaml) -> None:
    """KEDA's own types take every name, and keep it."""
    read = model.model_validate(document)
    assert lost(document, read.model_dump(mode="json", by_alias=True, exclude_none=True)) == []
    wrong = copy.deepcopy(document)
    wrong["spec"]["maxReplicaCont"] = 3
    read = model.model_validate(wrong)
    dumped = read.model_dump(mode="json", by_alias=True, exclude_none=True)
    assert lost(wrong, dumped) == [".spec.maxReplicaCont"]


def test_every_manifest_is_applied_and_every_name_leads_somewhere() -> None:
    """The kustomization lists what is there; selectors, ports, volumes and secrets fit."""
    kustomization = read_yaml(KUBERNETES / "kustomization.yaml")
    there = {p.name for p in KUBERNETES.glob("*.yaml")} - {"kustomization.yaml"}
    assert set(kustomization["resources"]) == there
    (generated,) = kustomization["configMapGenerator"]
    assert all((KUBERNETES / f).exists() for f in generated["files"])
    labels = STATEFULSET["spec"]["template"]["metadata"]["labels"]
    (service,) = documents("service.yaml")
    (budget,) = documents("disruption.yaml")
    assert STATEFULSET["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert service["spec"]["selector"].items() <= labels.items()
    assert budget["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert STATEFULSET["spec"]["serviceName"] == service["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None"
    target = SCALED["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("StatefulSet", STATEFULSET["metadata"]["name"])
    assert "replicas" not in STATEFULSET["spec"]
    (trigger,) = SCALED["spec"]["triggers"]
    assert trigger["authenticationRef"]["name"] == AUTHENTICATION["metadata"]["name"]
    volumes = {v["name"]: v for v in POD["volumes"]}
    claims = {c["metadata"]["name"] for c in STATEFULSET["spec"]["volumeClaimTemplates"]}
    assert {m["name"] for m in CONTAINER["volumeMounts"]} == volumes.keys() | claims
    assert volumes["config"]["configMap"]["name"] == generated["name"]
    secrets = {e["valueFrom"]["secretKeyRef"]["name"] for e in CONTAINER["env"]
               if "secretKeyRef" in e.get("valueFrom", {})}  # fmt: skip
    secrets.add(volumes["kafka-ca"]["secret"]["secretName"])
    secrets |= {r["name"] for r in AUTHENTICATION["spec"]["secretTargetRef"]}
    assert len(secrets) == 1


def test_the_settings_are_accepted_by_check_config(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the files it names in place: valid, printed, and the password masked. A misspelt name
    is refused."""
    monkeypatch.setenv("TOKTIER_TOKENIZERS", json.dumps({"qwen3": str(shipped_path())}))
    ca = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(str(ca))
    monkeypatch.setenv("TOKTIER_SSL_CAFILE", str(ca))
    file = str(KUBERNETES / "worker.toml")
    assert CONTAINER["args"] == ["--config", "/etc/toktier/config/worker.toml"]
    checked = CliRunner().invoke(app, ["check-config", "--config", file])
    assert checked.exit_code == 0, checked.exception
    shown = json.loads(checked.stdout)
    assert shown["instance_id"] == "from-the-cluster"
    assert "from-the-cluster" not in shown["sasl_password"]
    wrong = tmp_path / "wrong.toml"
    wrong.write_text("shutdown_deadlin_s = 3\n" + Path(file).read_text())
    assert CliRunner().invoke(app, ["check-config", "--config", str(wrong)]).exit_code != 0


def test_pods_and_settings_fit_together(settings: Settings) -> None:
    """Grace, ports, paths, memory, disk and the number of workers follow from the settings."""
    s = settings
    assert POD["terminationGracePeriodSeconds"] > s.shutdown_deadline_s + CLOSING_S
    (port,) = CONTAINER["ports"]
    assert s.health_listen == f"0.0.0.0:{port['containerPort']}"
    annotations = STATEFULSET["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(port["containerPort"])
    assert annotations["prometheus.io/path"] == "/metrics"
    for name, path in (("startup", "/livez"), ("liveness", "/livez"), ("readiness", "/readyz")):
        probe = CONTAINER[f"{name}Probe"]
        assert probe["httpGet"] == {"path": path, "port": port["name"]}
        assert probe["timeoutSeconds"] >= 5
    mounts = {m["name"]: m["mountPath"] for m in CONTAINER["volumeMounts"]}
    assert s.state_dir.is_relative_to(mounts["state"])
    assert str(s.ssl_cafile).startswith(mounts["kafka-ca"])
    assert pod_environment()["TOKTIER_CACHE"].startswith(mounts["state"])
    spec = SCALED["spec"]
    assert 1 < spec["minReplicaCount"] <= spec["maxReplicaCount"] <= s.partitions
    most = -(-s.partitions // spec["minReplicaCount"])
    memory = quantity(CONTAINER["resources"]["limits"]["memory"])
    bounded = most * (s.hot_bytes + s.inflight_bytes + 2 * s.batch_bytes)
    assert bounded + s.parts_memory_bytes + s.verify_queue_bytes <= 0.75 * memory
    (claim,) = STATEFULSET["spec"]["volumeClaimTemplates"]
    disk = quantity(claim["spec"]["resources"]["requests"]["storage"])
    assert most * s.store_map_bytes < disk
    assert 0 < s.quota_bytes < 0.9 * s.store_map_bytes
    (trigger,) = spec["triggers"]
    asked = trigger["metadata"]
    assert f"kafka://{asked['bootstrapServers']}" == s.broker
    assert (asked["consumerGroup"], asked["topic"]) == (s.group, s.topic_appends)
    assert asked["sasl"] == s.sasl_mechanism.lower().replace("-sha-", "_sha")
    assert (asked["tls"] == "enable") == ("SSL" in s.security_protocol)


def test_pods_have_no_rights_that_the_image_does_not_need() -> None:
    """Not root, the image's own user, nothing writable but its volumes."""
    user = re.search(r"^USER (\d+):(\d+)$", (DOCKER / "Dockerfile").read_text(), re.MULTILINE)
    assert user is not None
    security = POD["securityContext"]
    assert security["runAsNonRoot"] is True
    assert [security["runAsUser"], security["runAsGroup"]] == [int(user[1]), int(user[2])]
    assert security["seccompProfile"]["type"] == "RuntimeDefault"
    own = CONTAINER["securityContext"]
    assert own["readOnlyRootFilesystem"] is True
    assert own["allowPrivilegeEscalation"] is False
    assert own["capabilities"]["drop"] == ["ALL"]
    assert POD["automountServiceAccountToken"] is False


# Metrics, alerts, runbooks, dashboard


def test_every_metric_is_shown(names: dict[str, set[str]]) -> None:
    """Each entry of the registry is on the page, with its attributes as labels."""
    for metric in METRICS:
        start = metric.name.replace(".", "_")
        shown = [labels for name, labels in names.items() if name.startswith(start)]
        assert any(set(metric.attributes) <= labels for labels in shown), metric.name


@pytest.mark.parametrize("rule", RULES, ids=list(RULE))
def test_alerts_name_what_a_worker_shows(rule: Yaml, names: dict[str, set[str]]) -> None:
    """The expression parses, its metrics and labels exist, and a runbook of its name is there."""
    assert expression_problems(rule["expr"], names) == []
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert re.fullmatch(r"\d+[sm]", rule.get("for", "0m"))
    runbook = RUNBOOKS / f"{rule['alert']}.md"
    assert rule["annotations"]["runbook"] == f"ops/runbooks/{rule['alert']}.md"
    text = runbook.read_text()
    assert text.startswith(f"# {rule['alert']}\n")
    assert rule["annotations"]["summary"] in text
    assert f"Severity: {rule['labels']['severity']}." in text
    assert "## Look" in text
    assert "## Do" in text


def test_every_runbook_has_its_alert_and_names_what_exists(names: dict[str, set[str]]) -> None:
    """No runbook is left over; alerts, settings, metrics and queries that it names exist."""
    assert {p.stem for p in RUNBOOKS.glob("*.md")} == RULE.keys()
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in names} | names.keys()
    for file in RUNBOOKS.glob("*.md"):
        text = file.read_text()
        assert set(re.findall(r"\b(Toktier[A-Z]\w+)", text)) <= RULE.keys(), file
        assert set(re.findall(r"\b(toktier_[a-z_]+)\b", text)) <= families | {"toktier_stream"}, (
            file
        )
        for code in re.findall(r"`([^`]+)`", text):
            if "rate(" in code or "increase(" in code:
                assert expression_problems(code, names) == [], file
        for setting in re.findall(r"`([a-z]+(?:_[a-z]+)+)`", text):
            known = setting in Settings.model_fields or setting in families or setting in LOGGED
            assert known, (file, setting)


# Events of the log that runbooks name.
LOGGED = {
    "verifier_mismatch", "partition_stalled", "worker_failed", "restore_progress", "restore_slow",
    "gpu_lost", "device_damaged_tokens", "store_set_aside",
}  # fmt: skip


def test_events_that_runbooks_name_are_logged() -> None:
    """A name in a runbook is a name in the source."""
    package = Path(__file__).parents[2] / "toktier_stream"
    source = "".join(p.read_text() for p in package.rglob("*.py"))
    assert [name for name in LOGGED if f'"{name}"' not in source] == []


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("sum(rate(toktier_event_total[5m]))", "no metric toktier_event_total"),
        ('toktier_lag{topic="x"}', "toktier_lag has no label topic"),
        ("sum by (code) (toktier_lag)", "has a label code"),
        ("sum(toktier_lag", "sum(toktier_lag"),
        ("rate(toktier_events_total)", "rate(toktier_events_total)"),
    ],
)
def test_an_expression_that_nothing_answers_is_found(
    expression: str, problem: str, names: dict[str, set[str]]
) -> None:
    """A wrong metric, label, bracket or type is told."""
    assert problem in "; ".join(expression_problems(expression, names))


def test_label_values_in_expressions_exist() -> None:
    """A status, verdict, route or state that is compared with is one that is counted."""
    from toktier_stream.pipeline.states import State

    known = {
        "verdict": {v.value for v in Verdict}, "status": {s.value for s in Status},
        "route": {r.value for r in Route}, "state": {s.value for s in State},
    }  # fmt: skip
    text = ALERTS.read_text() + DASHBOARD.read_text().replace('\\"', '"')
    pairs = re.findall(r'\b(verdict|status|route|state)="(\w+)"', text)
    assert pairs
    assert [pair for pair in pairs if pair[1] not in known[pair[0]]] == []


def test_numbers_in_alerts_follow_the_deployment(settings: Settings) -> None:
    """Partitions, memory and the store's room are those of the manifests."""
    unowned = RULE["ToktierPartitionsUnowned"]["expr"]
    assert int(unowned.rpartition("<")[2]) == settings.partitions
    # Without any worker there is no series at all, and no partition is run.
    assert "or vector(0)" in unowned
    limit = quantity(CONTAINER["resources"]["limits"]["memory"])
    memory = float(RULE["ToktierMemoryHigh"]["expr"].rpartition(">")[2])
    assert 0.8 * limit < memory < 0.95 * limit
    fill = float(RULE["ToktierStoreFilling"]["expr"].rpartition(">")[2])
    assert settings.quota_bytes < fill * settings.store_map_bytes


def test_the_dashboard_is_what_grafana_reads(names: dict[str, set[str]]) -> None:
    """Grafana's own types keep every name of it; each expression is answered; panels do not
    overlap."""
    parsed = json.loads(DASHBOARD.read_text())
    read = json.loads(JSONEncoder(sort_keys=True).encode(Dashboard.from_json(parsed)))
    assert lost(parsed, read) == []
    assert len({p["id"] for p in parsed["panels"]}) == len(parsed["panels"])
    seen: set[tuple[int, int]] = set()
    for panel in parsed["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"])
                 for y in range(at["y"], at["y"] + at["h"])}  # fmt: skip
        assert at["x"] + at["w"] <= 24
        assert not cells & seen
        seen |= cells
    for panel in PANELS:
        for target in panel["targets"]:
            expression = target["expr"].replace("$__rate_interval", "5m")
            assert expression_problems(expression, names) == [], panel["title"]


def test_a_name_that_grafana_does_not_know_is_found() -> None:
    """Its types drop it, and that is seen."""
    parsed = json.loads(DASHBOARD.read_text())
    parsed["panels"][1]["griddPos"] = {}
    read = json.loads(JSONEncoder(sort_keys=True).encode(Dashboard.from_json(parsed)))
    assert lost(parsed, read) == [".panels[1].griddPos"]
