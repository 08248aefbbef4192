"""The worker's configuration: environment (``TOKTIER_…``), a TOML file, and safe defaults.

Precedence: keyword arguments, environment, TOML, defaults. Unknown fields are refused.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from toktier_stream.errors import Code, ToktierError

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


class Settings(BaseSettings):
    """Everything a worker can be told. ``toktier-stream check-config`` prints the result."""

    model_config = SettingsConfigDict(
        env_prefix="TOKTIER_", env_nested_delimiter="__", extra="forbid", frozen=True
    )

    broker: str = Field("local:", description="kafka://host:port[,host:port…], or local:")
    group: str = Field("toktier-workers", description="consumer group of the workers")
    instance_id: str = Field("", description="static group membership: a stable name per worker")
    topic_appends: str = "toktier.appends"
    topic_tokens: str = "toktier.tokens"
    topic_checks: str = "toktier.checks"
    topic_rejects: str = "toktier.rejects"
    topic_sessions: str = "toktier.sessions"
    delivery: Literal["exactly_once", "at_least_once"] = Field(
        "exactly_once",
        description="at_least_once: sooner, and after a failure answers may come again, marked",
    )
    standby_replicas: int = Field(
        0, ge=0, description="copies of each partition's state on other workers, kept up to date"
    )
    standby_bytes_per_s: int = Field(
        32 * MIB, ge=KIB, description="changelog that one standby copy reads per second, at most"
    )
    create_topics: bool = Field(False, description="create missing topics at start")
    partitions: int = Field(4, ge=1, description="partitions of topics that are created")

    compression: Literal["zstd", "snappy", "lz4", "gzip", "none"] = Field(
        "zstd", description="of what is published; snappy: less CPU time, three tenths more bytes"
    )
    security_protocol: str = Field("PLAINTEXT", pattern="^(PLAINTEXT|SSL|SASL_PLAINTEXT|SASL_SSL)$")
    sasl_mechanism: str = "SCRAM-SHA-512"
    sasl_username: str = ""
    sasl_password: SecretStr = SecretStr("")
    ssl_cafile: Path | None = None
    ssl_certfile: Path | None = None
    ssl_keyfile: Path | None = None

    tokenizers: dict[str, Path] = Field(
        default_factory=dict, description="alias = path of a tokenizer.json or its folder"
    )
    default_tokenizer: str = Field("", description="alias for events that name none")

    state_dir: Path = Field(Path("state"), description="LMDB stores, one folder per partition")
    store_map_bytes: int = Field(64 * GIB, ge=MIB, description="sparse map of one partition")
    store_sync: bool = Field(
        default=False,
        description="commits wait for the disk; if not, a crash of the machine (not of the worker) "
        "costs a restore from the changelog",
    )
    hot_bytes: int = Field(256 * MIB, ge=0, description="decoded sessions kept in memory, each")
    session_ttl_s: float = Field(86_400, gt=0, description="removed this long after last touch")
    quota_bytes: int = Field(0, ge=0, description="stored bytes per partition; 0: no quota")
    restore_deadline_s: float = Field(
        600, gt=0, description="a replay that takes longer is an error that is told, and goes on"
    )

    max_event_bytes: int = Field(MIB, ge=KIB, description="largest record on the input topic")
    max_session_bytes: int = Field(64 * MIB, ge=KIB, description="largest text of one session")
    part_bytes: int = Field(512 * KIB, ge=KIB, description="payload of one part of an answer")
    parts_memory_bytes: int = Field(256 * MIB, ge=KIB, description="unfinished parts, in all")
    parts_deadline_s: float = Field(60, gt=0, description="a revision's parts must arrive within")

    batch_records: int = Field(256, ge=1, description="events in one transaction, at most")
    batch_bytes: int = Field(8 * MIB, ge=KIB, description="text in one transaction, about")
    miss_bytes: int = Field(
        16 * KIB, ge=0, description="full texts from this size on are encoded in the slow lane"
    )
    turn_threads: int = Field(
        0,
        ge=0,
        description="partitions that compute at a time; 0: one, which is fastest, or all cores for "
        "tokenizers without an engine",
    )
    miss_threads: int = Field(0, ge=0, description="of the slow lane; 0: cores less one")
    miss_queue_bytes: int = Field(512 * MIB, ge=KIB, description="memory of the slow lane, about")
    miss_linger_ms: float = Field(1, ge=0, description="a device's launch waits for more texts")
    inflight_bytes: int = Field(64 * MIB, ge=KIB, description="per partition, then it pauses")
    gpu: Literal["auto", "off", "required"] = Field(
        "auto", description="full texts on a GPU: where one is there and wins, never, or no start"
    )
    gpu_device: int = Field(0, ge=0, description="number of the CUDA device")
    gpu_min_bytes: int = Field(
        0, ge=0, description="text of a launch from which the GPU is used; 0: measured at start"
    )
    gpu_batch_bytes: int = Field(
        16 * MIB, ge=64 * KIB, le=GIB,
        description="text of a launch, at most; 30 times as much GPU memory per tokenizer",
    )  # fmt: skip
    session_timeout_s: float = Field(45, ge=6, description="silent for so long, a worker is dead")
    shutdown_deadline_s: float = Field(20, gt=0)
    transaction_timeout_s: float = Field(60, gt=0)

    health_listen: str = Field(
        "",
        description="host:port of /livez, /readyz and /metrics; empty: off; port 0: any free one",
    )
    heartbeat_limit_s: float = Field(15, gt=0, description="an event loop silent so long is dead")
    stall_limit_s: float = Field(
        300, gt=0, description="a partition that has work and makes no step for so long is stalled"
    )
    reject_ratio_limit: float = Field(
        0, ge=0, lt=1, description="the worker stops when more of the records are rejected; 0: off"
    )
    reject_window_s: float = Field(60, gt=0, description="the ratio is taken over so long")
    reject_min_records: int = Field(100, ge=1, description="and over at least so many records")

    verify_rate: float = Field(0.05, ge=0, le=1, description="share of answers re-encoded")
    verify_seed: int = 0
    verify_load: float = Field(
        0.2, gt=0, le=1, description="share of one core for that, over time; the rest is dropped"
    )
    verify_queue: int = Field(64, ge=1, description="samples waiting; beyond, they are dropped")
    verify_queue_bytes: int = Field(256 * MIB, ge=KIB)
    evidence_dir: Path | None = Field(None, description="mismatches are written here, mode 0600")
    evidence_text: bool = Field(False, description="write the text into the evidence file too")

    log_level: str = Field("info", pattern="^(debug|info|warning|error)$")
    log_json: bool = True
    otlp_endpoint: str = Field("", description="OTLP/HTTP collector; empty: telemetry is off")
    trace_ratio: float = Field(0.1, ge=0, le=1, description="traces started here; parents decide")
    metrics_interval_s: float = Field(15, gt=0)

    @field_validator("broker")
    @classmethod
    def _known_broker(cls, value: str) -> str:
        if value != "local:" and not value.startswith("kafka://"):
            raise ValueError("must be local: or kafka://host:port")
        return value

    @field_validator("health_listen")
    @classmethod
    def _host_and_port(cls, value: str) -> str:
        host, colon, port = value.rpartition(":")
        if value and not (host and colon and port.isdecimal() and int(port) < 1 << 16):
            raise ValueError("must be host:port, or empty")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Settings:
        if self.stall_limit_s <= self.transaction_timeout_s:
            raise ValueError(
                "stall_limit_s must exceed transaction_timeout_s, which one step takes"
            )
        if self.default_tokenizer and self.default_tokenizer not in self.tokenizers:
            raise ValueError(f"default_tokenizer {self.default_tokenizer!r} is not in tokenizers")
        if self.part_bytes + 4 * KIB > self.max_event_bytes:
            raise ValueError("part_bytes must leave 4 KiB below max_event_bytes for the envelope")
        if self.store_map_bytes < 16 * self.max_session_bytes:
            raise ValueError("store_map_bytes must be at least 16 times max_session_bytes")
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, _TomlSource(settings_cls)


class _TomlSource(PydanticBaseSettingsSource):
    """Values of the TOML file that :func:`load` was given."""

    values: ClassVar[dict[str, Any]] = {}

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        return self.values.get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        return dict(self.values)


# Variables with our prefix that are no settings: the package's cache, and the tests' own.
_OTHER_VARIABLES = ("TOKTIER_CACHE", "TOKTIER_TEST_")


def _misspelt() -> list[str]:
    """Environment variables with our prefix that name no setting: a typo must not pass."""
    return [
        name
        for name in sorted(os.environ)
        if name.startswith("TOKTIER_")
        and not name.startswith(_OTHER_VARIABLES)
        and name.removeprefix("TOKTIER_").partition("__")[0].lower() not in Settings.model_fields
    ]


def load(file: Path | None = None, **overrides: Any) -> Settings:
    """Settings from overrides, environment and a TOML file. Raises ``CONFIG_INVALID``."""
    unknown = _misspelt()
    if unknown:
        raise ToktierError(Code.CONFIG_INVALID, f"{', '.join(unknown)}: no such setting")
    values: dict[str, Any] = {}
    if file is not None:
        try:
            values = tomllib.loads(file.read_text())
        except OSError as error:
            raise ToktierError(Code.CONFIG_INVALID, f"{file}: {error.strerror}") from error
        except tomllib.TOMLDecodeError as error:
            raise ToktierError(Code.CONFIG_INVALID, f"{file}: {error}") from error
    _TomlSource.values = values
    try:
        return Settings(**{k: v for k, v in overrides.items() if v is not None})
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, e['loc'])) or 'settings'}: {e['msg']}" for e in error.errors()
        )
        raise ToktierError(Code.CONFIG_INVALID, problems) from error
    except SettingsError as error:
        raise ToktierError(Code.CONFIG_INVALID, str(error)) from error
    finally:
        _TomlSource.values = {}
