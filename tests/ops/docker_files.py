"""Reads the files of ``docker/`` and ``ops/collector/`` and says what does not fit together.

Every check takes a parsed file and returns sentences, none when all is well, so that tests can
hand it a broken one as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml
from check_jsonschema.builtin_schemas import get_builtin_schema
from jsonschema.validators import validator_for

REPOSITORY = Path(__file__).resolve().parents[2]
DOCKER = REPOSITORY / "docker"
COLLECTOR = REPOSITORY / "ops" / "collector" / "collector.yaml"

Yaml = dict[str, Any]

_PINNED = re.compile(r"[a-z0-9./-]+:v?\d+\.\d+(\.\d+)?[a-z0-9.-]*")
_SIZES = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def read_yaml(path: Path) -> Yaml:
    """A YAML file whose top level is a mapping."""
    read = yaml.safe_load(path.read_text())
    if not isinstance(read, dict):
        raise TypeError(f"{path} is not a mapping")
    return read


def size(text: str) -> int:
    """``512m`` in bytes, as compose has it."""
    return int(text[:-1]) * _SIZES[text[-1]]


def seconds(text: str) -> float:
    """``30s`` in seconds, as compose and Dockerfiles have it (one unit)."""
    number, unit = re.fullmatch(r"(\d+)(ms|s|m|h)", text).groups()  # type: ignore[union-attr]
    return int(number) * _SECONDS[unit]


def host_ports(service: Yaml) -> dict[int, int]:
    """Container port to the port published for it on this machine."""
    parts = [str(port).split(":") for port in service.get("ports", [])]
    return {int(p[-1]): int(p[-2]) for p in parts if len(p) >= 2}


def schema_problems(compose: Yaml) -> list[str]:
    """What the Compose Specification's schema refuses."""
    schema = get_builtin_schema("vendor.compose-spec")
    validator = validator_for(schema)(schema)
    return [f"{e.json_path}: {e.message}" for e in validator.iter_errors(compose)]


def reference_problems(compose: Yaml) -> list[str]:
    """Names that lead nowhere: services waited for, volumes, files."""
    services: Mapping[str, Yaml] = compose["services"]
    problems = []
    for name, service in services.items():
        for other, how in service.get("depends_on", {}).items():
            problems += [f"{name}: {p}" for p in _waiting(services, other, how["condition"])]
        for volume in service.get("volumes", []):
            source = volume.get("source")
            if volume["type"] == "bind" and not (DOCKER / source).resolve().exists():
                problems.append(f"{name}: {source} does not exist")
            if volume["type"] == "bind" and REPOSITORY not in (DOCKER / source).resolve().parents:
                problems.append(f"{name}: {source} is outside the repository")
            if volume["type"] == "volume" and source and source not in compose.get("volumes", {}):
                problems.append(f"{name}: no volume {source}")
        problems += [
            f"{name}: no network {network}"
            for network in service.get("networks", [])
            if network not in compose.get("networks", {})
        ]
    used = {v.get("source") for s in services.values() for v in s.get("volumes", [])}
    problems += [f"volume {v} is not used" for v in compose.get("volumes", {}) if v not in used]
    return problems + [f"{name} waits for itself" for name in services if _loops(services, name)]


def _waiting(services: Mapping[str, Yaml], other: str, condition: str) -> Iterator[str]:
    target = services.get(other)
    if target is None:
        yield f"no service {other}"
    elif condition == "service_healthy" and "healthcheck" not in target:
        yield f"{other} has no health check to wait for"
    elif condition == "service_completed_successfully" and target.get("restart") != "no":
        yield f"{other} is restarted when it has ended"


def _loops(services: Mapping[str, Yaml], start: str) -> bool:
    seen: set[str] = set()
    todo = list(services[start].get("depends_on", {}))
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo += services.get(name, {}).get("depends_on", {})
    return start in seen


def habit_problems(compose: Yaml) -> list[str]:
    """Images without a version, ports open to the world or taken twice, work without limits."""
    problems = []
    taken: set[int] = set()
    for name, service in compose["services"].items():
        if "build" not in service and not _PINNED.fullmatch(service["image"]):
            problems.append(f"{name}: image {service['image']} is not pinned")
        problems += [
            f"{name}: port {port} is not on loopback"
            for port in service.get("ports", [])
            if not str(port).startswith("127.0.0.1:")
        ]
        for port in host_ports(service).values():
            if port in taken:
                problems.append(f"{name}: port {port} is taken")
            taken.add(port)
        limits = service.get("deploy", {}).get("resources", {}).get("limits", {})
        problems += [f"{name}: no limit of {what}" for what in ("cpus", "memory") - limits.keys()]
        if "restart" not in service:
            problems.append(f"{name}: not said whether it is restarted")
    return problems


def listener_problems(environment: Mapping[str, str], service: str) -> list[str]:
    """Whether a single Kafka node's listeners fit together and lead to it."""
    listeners = _listeners(environment["KAFKA_LISTENERS"])
    advertised = _listeners(environment["KAFKA_ADVERTISED_LISTENERS"])
    protocols = dict(
        pair.split(":") for pair in environment["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"].split(",")
    )
    controller = environment["KAFKA_CONTROLLER_LISTENER_NAMES"]
    between = environment["KAFKA_INTER_BROKER_LISTENER_NAME"]
    problems = []
    if protocols.keys() != listeners.keys():
        problems.append(f"protocols for {sorted(protocols)}, listeners {sorted(listeners)}")
    if advertised.keys() != listeners.keys() - {controller}:
        problems.append(f"{sorted(advertised)} advertised of {sorted(listeners)}")
    if between not in advertised:
        problems.append(f"brokers meet at {between}, which is not advertised")
    problems += [
        f"{name} listens on {listeners[name][1]} and advertises {port}"
        for name, (_, port) in advertised.items()
        if name in listeners and listeners[name][1] != port
    ]
    hosts = {host for host, _ in advertised.values()}
    if hosts != {"localhost", service}:
        problems.append(f"advertised hosts are {sorted(hosts)}")
    number, _, at = environment["KAFKA_CONTROLLER_QUORUM_VOTERS"].partition("@")
    if number != environment["KAFKA_NODE_ID"]:
        problems.append(f"voter {number} is not this node")
    if int(at.rpartition(":")[2]) != listeners[controller][1]:
        problems.append(f"the voter {at} is not where {controller} listens")
    return problems


def _listeners(text: str) -> dict[str, tuple[str, int]]:
    parts = (re.fullmatch(r"(\w+)://([^:]*):(\d+)", part) for part in text.split(","))
    return {m[1]: (m[2], int(m[3])) for m in parts if m}


def collector_problems(config: Yaml) -> list[str]:
    """Components used and not defined, or defined and not used; processors out of order."""
    problems = []
    service = config["service"]
    used: dict[str, set[str]] = {"extensions": set(service.get("extensions", []))}
    for name, pipeline in service["pipelines"].items():
        if name.split("/")[0] not in ("traces", "metrics", "logs"):
            problems.append(f"no signal {name}")
        for kind in ("receivers", "processors", "exporters"):
            used.setdefault(kind, set()).update(pipeline.get(kind, []))
            if kind != "processors" and not pipeline.get(kind):
                problems.append(f"{name} has no {kind}")
        order = pipeline.get("processors", [])
        if "memory_limiter" not in order[:1]:
            problems.append(f"{name}: memory_limiter is not the first processor")
    for kind, names in used.items():
        defined = config.get(kind, {}).keys()
        problems += [f"{kind}: {name} is not defined" for name in sorted(names - defined)]
        problems += [f"{kind}: {name} is not used" for name in sorted(defined - names)]
    return problems


def is_ignored(path: str, dockerignore: str) -> bool:
    """Whether the build context leaves a path out. The last pattern that fits decides; one that
    fits a folder decides for what is in it."""
    patterns = [line.strip() for line in dockerignore.splitlines()]
    ignored = False
    for pattern in patterns:
        if pattern and not pattern.startswith("#"):
            keep = pattern.startswith("!")
            if _fits(path, pattern.removeprefix("!")):
                ignored = not keep
    return ignored


def _fits(path: str, pattern: str) -> bool:
    parts = path.split("/")
    ahead = ["/".join(parts[: n + 1]) for n in range(len(parts))]
    if pattern.startswith("**/"):
        name = pattern.removeprefix("**/")
        return any(fnmatchcase(part, name) for part in parts)
    depth = pattern.count("/")
    return any(fnmatchcase(p, pattern) for p in ahead if p.count("/") == depth)
