#!/usr/bin/env python3
"""A real Apache Kafka broker on loopback, for tests and local trials: one KRaft node.

``python ops/kafka.py start|stop|run|status`` needs a JDK 17 or newer and Maven, which fetches
Kafka once into ``~/.cache/toktier-stream/kafka``. Standard library only. Tests use :func:`start`.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

VERSIONS = ("4.4.0", "4.3.1", "4.2.1", "4.1.1", "4.0.0")
"""Kafka versions, newest first; the first one that Maven is served is taken."""

USER, PASSWORD = "tester", "tester-secret"
"""The account of the SASL listener. It is on loopback and holds nothing but test data."""

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>toktier</groupId><artifactId>kafka</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId>
      <version>{version}</version>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version>
    </dependency>
  </dependencies>
</project>
"""

_PROPERTIES = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners={listeners},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners={listeners}
listener.security.protocol.map={protocols}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={data}
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
broker.heartbeat.interval.ms=500
broker.session.timeout.ms=3000
group.min.session.timeout.ms=500
log.cleaner.dedupe.buffer.size=16777216
num.network.threads=2
num.io.threads=4
"""

_PROTOCOLS = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT,TLS:SSL,SASLTLS:SASL_SSL"

_TLS = """listener.name.{name}.ssl.keystore.type=PEM
listener.name.{name}.ssl.keystore.location={keystore}
listener.name.{name}.ssl.truststore.type=PEM
listener.name.{name}.ssl.truststore.location={truststore}
listener.name.{name}.ssl.client.auth={client}
"""

_SASL_TLS = """listener.name.sasltls.sasl.enabled.mechanisms=SCRAM-SHA-512
listener.name.sasltls.scram-sha-512.sasl.jaas.config={scram} required;
"""

_SASL = """listener.name.sasl.sasl.enabled.mechanisms=SCRAM-SHA-256,SCRAM-SHA-512,PLAIN
listener.name.sasl.scram-sha-256.sasl.jaas.config={scram} required;
listener.name.sasl.scram-sha-512.sasl.jaas.config={scram} required;
listener.name.sasl.plain.sasl.jaas.config={plain} required user_{user}="{password}";
"""

_DEBIAN = ("openjdk-17-jre-headless", "openjdk-21-jre-headless", "default-jre-headless")


class KafkaError(Exception):
    """Kafka cannot be had or does not start; the message says what to do."""


@dataclass(frozen=True)
class Tls:
    """PEM files of a broker: its key (PKCS#8, without a password) followed by its certificates,
    and the authorities that it believes clients by."""

    keystore: Path
    truststore: Path


@dataclass(frozen=True)
class Instance:
    """Where a broker listens and keeps its data; a port of 0: it has no such listener."""

    version: str
    port: int
    controller_port: int
    sasl_port: int
    folder: str
    heap: str
    tls_port: int = 0
    sasl_tls_port: int = 0

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"


def _state(task: Path) -> str:
    """The state letter of a thread; empty if it has just ended."""
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


class Handle:
    """A running broker. It ends with the process that started it, even when that is killed."""

    def __init__(self, instance: Instance, process: subprocess.Popen[bytes]) -> None:
        self.instance = instance
        self._process = process
        self._guard = _guard(process.pid, instance.folder)
        atexit.register(self.stop)

    @property
    def bootstrap(self) -> str:
        """host:port for clients."""
        return self.instance.bootstrap

    @property
    def sasl_bootstrap(self) -> str:
        """host:port of the listener that asks for :data:`USER` and :data:`PASSWORD`."""
        return f"127.0.0.1:{self.instance.sasl_port}"

    @property
    def tls_bootstrap(self) -> str:
        """host:port of the listener that speaks TLS and asks clients for a certificate."""
        return f"127.0.0.1:{self.instance.tls_port}"

    @property
    def sasl_tls_bootstrap(self) -> str:
        """host:port of the listener that speaks TLS and asks for the account (SCRAM-SHA-512)."""
        return f"127.0.0.1:{self.instance.sasl_tls_port}"

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """End the process at once, as a crash would; port and data stay for :meth:`restart`."""
        self._release()
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        """Stop the process without ending it: connections stay open and nobody answers. Returns
        once every thread of it stands still."""
        self._process.send_signal(signal.SIGSTOP)
        tasks = Path(f"/proc/{self._process.pid}/task")
        deadline = time.monotonic() + 10
        while tasks.is_dir() and time.monotonic() < deadline:
            states = [
                (t / "stat").read_text().rpartition(")")[2].split()[0] for t in tasks.iterdir()
            ]
            if set(states) <= {"T", "t"}:
                return
            time.sleep(0.01)

    def unpause(self) -> None:
        """Let a paused process go on."""
        self._process.send_signal(signal.SIGCONT)

    def restart(self, timeout_s: float = 60.0) -> None:
        """Start again on the same port and data; a process that still runs is ended first."""
        self._release()
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()
        self._process = _launch(self.instance)
        self._guard = _guard(self._process.pid, self.instance.folder)
        _wait_until_ready(self.instance, self._process, timeout_s)

    def stop(self) -> None:
        """End the process and remove its data. May be called again."""
        atexit.unregister(self.stop)
        if self._process.poll() is None:
            self.kill()
        self._release()
        shutil.rmtree(self.instance.folder, ignore_errors=True)

    def _release(self) -> None:
        # Before the process ends, so that the guard never meets another one of the same id.
        self._guard.kill()
        self._guard.communicate()


def start(
    *,
    sasl: bool = False,
    tls: Tls | None = None,
    version: str | None = None,
    heap: str = "512m",
    timeout_s: float = 60.0,
) -> Handle:
    """Start a broker with an empty temporary data folder on a free port and wait until it
    answers. ``tls`` (with ``sasl``) adds two listeners. Raises :class:`KafkaError`."""
    instance = _prepare(sasl=sasl, tls=tls, version=version, heap=heap)
    process = _launch(instance)
    handle = Handle(instance, process)
    try:
        _wait_until_ready(instance, process, timeout_s)
    except KafkaError:
        handle.stop()
        raise
    return handle


def cache_folder() -> Path:
    """Where Kafka's jars are kept between runs."""
    return Path.home() / ".cache" / "toktier-stream" / "kafka"


def fetch(version: str | None = None) -> tuple[str, Path]:
    """The version and folder of Kafka's jars: cached ones, else the newest that Maven is served.

    Raises :class:`KafkaError` with Maven's last words when none is."""
    wanted = VERSIONS if version is None else (version,)
    for candidate in wanted:
        if (libraries := cache_folder() / candidate / "libs").is_dir():
            return candidate, libraries
    _require("mvn")
    failure = ""
    for candidate in wanted:
        target = cache_folder() / candidate
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{candidate}-") as work:
            (Path(work) / "pom.xml").write_text(_POM.format(version=candidate))
            done = subprocess.run(
                [
                    "mvn",
                    "--batch-mode",
                    "--quiet",
                    "dependency:copy-dependencies",
                    "-DincludeScope=runtime",
                    f"-DoutputDirectory={work}/libs",
                ],
                cwd=work,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            if done.returncode == 0 and list(Path(work, "libs").glob("kafka_2.13-*.jar")):
                target.mkdir(exist_ok=True)
                try:
                    Path(work, "libs").rename(target / "libs")
                except OSError:
                    # Another process was faster: its folder is as good as ours.
                    if not (target / "libs").is_dir():
                        raise
                return candidate, target / "libs"
            failure = "\n".join(done.stdout.splitlines()[-8:])
    raise KafkaError(f"Maven could not fetch org.apache.kafka:kafka_2.13 {wanted}:\n{failure}")


def install() -> None:
    """Install what is missing with apt. Needs root on a Debian-like system."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise KafkaError("--install needs root and apt-get")
    subprocess.run(["apt-get", "update", "-q"], check=True)
    apt = ["apt-get", "install", "-q", "-y", "--no-install-recommends"]
    if shutil.which("mvn") is None:
        subprocess.run([*apt, "maven"], check=True)
    if shutil.which("java") is None or _java_release() < 17:
        for package in _DEBIAN:
            if subprocess.run([*apt, package], check=False).returncode == 0:
                return
        raise KafkaError(f"apt-get has none of {', '.join(_DEBIAN)}")


def _require(tool: str) -> None:
    if shutil.which(tool) is None:
        raise KafkaError(
            f"{tool} is not installed; on Debian: apt-get install {_DEBIAN[0]} maven"
            " (or run this script as root with --install)"
        )


def _java_release() -> int:
    told = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    version = told.partition('"')[2].partition('"')[0]
    major = version.split(".")[0]
    return int(major) if major.isdigit() else 0


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _java(instance_heap: str, libraries: Path, *arguments: str) -> list[str]:
    return [
        "java",
        f"-Xmx{instance_heap}",
        "-XX:+UseG1GC",
        "-XX:MaxGCPauseMillis=20",
        "-Djava.awt.headless=true",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        "-Dorg.slf4j.simpleLogger.showDateTime=true",
        "-cp",
        f"{libraries}/*",
        *arguments,
    ]


def _prepare(*, sasl: bool, version: str | None, heap: str, tls: Tls | None = None) -> Instance:
    _require("java")
    if _java_release() < 17:
        raise KafkaError(f"Kafka 4 needs JDK 17 or newer; on Debian: apt-get install {_DEBIAN[0]}")
    version, libraries = fetch(version)
    port, controller_port, sasl_port, tls_port, sasl_tls_port = _free_ports(5)
    folder = Path(tempfile.mkdtemp(prefix="toktier-kafka-"))
    instance = Instance(
        version,
        port,
        controller_port,
        sasl_port if sasl else 0,
        str(folder),
        heap,
        tls_port if tls else 0,
        sasl_tls_port if tls else 0,
    )
    listeners = f"PLAINTEXT://127.0.0.1:{port}"
    if sasl:
        listeners += f",SASL://127.0.0.1:{sasl_port}"
    if tls:
        listeners += f",TLS://127.0.0.1:{tls_port},SASLTLS://127.0.0.1:{sasl_tls_port}"
    properties = _PROPERTIES.format(
        controller_port=controller_port,
        listeners=listeners,
        protocols=_PROTOCOLS,
        data=folder / "data",
    )
    format_storage = ["kafka.tools.StorageTool", "format", "--config", f"{folder}/kafka.properties"]
    # The first byte is fixed, since an id that starts with a dash would be read as an option.
    cluster_id = urlsafe_b64encode(b"t" + uuid.uuid4().bytes[1:]).decode()[:22]
    format_storage += ["--cluster-id", cluster_id]
    if sasl:
        security = "org.apache.kafka.common.security"
        properties += _SASL.format(
            scram=f"{security}.scram.ScramLoginModule",
            plain=f"{security}.plain.PlainLoginModule",
            user=USER,
            password=PASSWORD,
        )
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            account = f"{mechanism}=[name={USER},password={PASSWORD}]"
            format_storage += ["--add-scram", account]
    if tls:
        for name, client in (("tls", "required"), ("sasltls", "none")):
            properties += _TLS.format(
                name=name, client=client, keystore=tls.keystore, truststore=tls.truststore
            )
        properties += _SASL_TLS.format(
            scram="org.apache.kafka.common.security.scram.ScramLoginModule"
        )
    (folder / "kafka.properties").write_text(properties)
    done = subprocess.run(
        _java("256m", libraries, *format_storage), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        shutil.rmtree(folder, ignore_errors=True)
        raise KafkaError(f"formatting the storage failed:\n{(done.stdout + done.stderr)[-2000:]}")
    return instance


def _launch(instance: Instance) -> subprocess.Popen[bytes]:
    _, libraries = fetch(instance.version)
    folder = Path(instance.folder)
    command = _java(instance.heap, libraries, "kafka.Kafka", f"{folder}/kafka.properties")
    with (folder / "kafka.out").open("ab") as out:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            # A session of its own, so that Ctrl-C reaches the caller first.
            start_new_session=True,
        )


def _guard(pid: int, folder: str) -> subprocess.Popen[bytes]:
    """A process that ends ``pid`` and removes its data when this one is gone: then its standard
    input closes."""
    return subprocess.Popen(
        ["sh", "-c", f"read _; kill -9 {pid}; rm -rf {folder}"],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )


def _wait_until_ready(
    instance: Instance, process: subprocess.Popen[bytes], timeout_s: float
) -> None:
    limit = time.monotonic() + timeout_s
    while process.poll() is None and time.monotonic() < limit:
        if answers(instance.port):
            return
        time.sleep(0.05)
    if process.poll() is None:
        process.kill()
        process.wait()
    told = (Path(instance.folder) / "kafka.out").read_text(errors="replace")[-3000:]
    raise KafkaError(f"Kafka {instance.version} did not start in {timeout_s:.0f} s:\n{told}")


def answers(port: int, timeout_s: float = 2.0) -> bool:
    """Whether a broker answers a metadata request and names itself as a member of the cluster."""
    # Request header v1 (key 3, version 4, correlation id, no client id), then: no topics wanted,
    # and none to be created.
    request = struct.pack(">hhihiB", 3, 4, 1, -1, 0, 0)
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as connection:
            connection.settimeout(timeout_s)
            connection.sendall(struct.pack(">i", len(request)) + request)
            with connection.makefile("rb") as stream:
                (size,) = struct.unpack(">i", stream.read(4))
                answer = stream.read(size)
    except (OSError, struct.error):
        return False
    # Correlation id, throttle time, then the array of brokers.
    return len(answer) >= 12 and struct.unpack(">iii", answer[:12])[::2] == (1, 1)


def _state_file(name: str) -> Path:
    return cache_folder() / f"running-{name}.json"


def _read_state(name: str) -> tuple[Instance, int] | None:
    try:
        state = json.loads(_state_file(name).read_text())
    except FileNotFoundError:
        return None
    pid = state.pop("pid")
    return Instance(**state), pid


def _is_ours(pid: int, instance: Instance) -> bool:
    """Whether this process id is still the broker that was started in this folder."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return instance.folder.encode() in command


def _report(instance: Instance, pid: int, *, as_json: bool) -> None:
    if as_json:
        told = {"pid": pid, "port": instance.port, "dir": instance.folder}
        told |= {"bootstrap": instance.bootstrap, "version": instance.version}
        if instance.sasl_port:
            told |= {"sasl_port": instance.sasl_port, "user": USER, "password": PASSWORD}
        print(json.dumps(told), flush=True)
        return
    print(instance.bootstrap, flush=True)
    if instance.sasl_port:
        print(f"SASL: 127.0.0.1:{instance.sasl_port} {USER} {PASSWORD}", file=sys.stderr)


def _command_start(options: argparse.Namespace) -> int:
    running = _read_state(options.name)
    if running is not None and _is_ours(running[1], running[0]):
        print("already running; stop it first, or give another --name", file=sys.stderr)
        _report(*running, as_json=options.json)
        return 1
    instance = _prepare(sasl=options.sasl, version=options.version, heap=options.heap)
    process = _launch(instance)
    try:
        _wait_until_ready(instance, process, options.timeout)
    except KafkaError:
        shutil.rmtree(instance.folder, ignore_errors=True)
        raise
    _state_file(options.name).write_text(json.dumps(asdict(instance) | {"pid": process.pid}))
    _report(instance, process.pid, as_json=options.json)
    return 0


def _command_run(options: argparse.Namespace) -> int:
    handle = start(
        sasl=options.sasl, version=options.version, heap=options.heap, timeout_s=options.timeout
    )
    try:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        _report(handle.instance, handle.pid, as_json=options.json)
        return handle._process.wait()
    except KeyboardInterrupt:
        return 0
    finally:
        handle.stop()


def _command_stop(options: argparse.Namespace) -> int:
    running = _read_state(options.name)
    if running is None:
        print("not running", file=sys.stderr)
        return 1
    instance, pid = running
    if _is_ours(pid, instance):
        os.kill(pid, signal.SIGTERM)
        limit = time.monotonic() + 10
        while _is_ours(pid, instance) and time.monotonic() < limit:
            time.sleep(0.05)
        if _is_ours(pid, instance):
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(instance.folder, ignore_errors=True)
    _state_file(options.name).unlink(missing_ok=True)
    return 0


def _command_status(options: argparse.Namespace) -> int:
    running = _read_state(options.name)
    if running is None or not _is_ours(running[1], running[0]):
        print("not running", file=sys.stderr)
        return 1
    _report(*running, as_json=options.json)
    return 0 if answers(running[0].port) else 2


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    commands = {
        "start": (_command_start, "start in the background and print host:port"),
        "stop": (_command_stop, "end it and remove its data"),
        "run": (_command_run, "start in the foreground, until Ctrl-C"),
        "status": (_command_status, "print host:port; status 1: not running, 2: no answer"),
    }
    parser.add_argument(
        "command", choices=commands, help="; ".join(f"{k}: {v[1]}" for k, v in commands.items())
    )
    parser.add_argument("--json", action="store_true", help="print pid, port and dir as JSON")
    parser.add_argument("--name", default="default", help="to have several, started in background")
    parser.add_argument("--sasl", action="store_true", help="a second listener with SASL")
    parser.add_argument("--heap", default="512m", help="the JVM's heap limit (default 512m)")
    parser.add_argument("--version", help=f"a Kafka version (default: newest of {VERSIONS})")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds to wait for it")
    parser.add_argument("--install", action="store_true", help="apt-get what is missing first")
    options = parser.parse_args(arguments)
    try:
        if options.install:
            install()
        return commands[options.command][0](options)
    except KafkaError as error:
        print(f"kafka.py: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"kafka.py: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
