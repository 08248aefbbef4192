"""``check-config``: what a worker would be told, and what would stop it, before it is started."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import trustme
from typer.testing import CliRunner

from toktier_stream.cli.app import app
from toktier_stream.config import Settings, load
from toktier_stream.errors import Code, ToktierError
from toktier_stream.pipeline.open import kafka_options

SECRET = "a-password-nobody-may-see"


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting from outside."""
    for name in [name for name in os.environ if name.startswith("TOKTIER_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def papers(tmp_path: Path) -> dict[str, str]:
    """TLS files of a client, as settings."""
    authority = trustme.CA()
    client = authority.issue_cert("worker@example.com")
    files = {f"ssl_{n}": str(tmp_path / n) for n in ("cafile", "certfile", "keyfile")}
    authority.cert_pem.write_to_path(files["ssl_cafile"])
    client.cert_chain_pems[0].write_to_path(files["ssl_certfile"])
    client.private_key_pem.write_to_path(files["ssl_keyfile"])
    return files


def checked(**settings: Any) -> Any:
    """The command's result with these settings in the environment."""
    environment = {f"TOKTIER_{name.upper()}": str(value) for name, value in settings.items()}
    return CliRunner().invoke(app, ["check-config"], env=environment)


def test_every_effective_value_is_shown_and_no_secret(papers: dict[str, str]) -> None:
    """Defaults and what was given, each field by name; the password is a mask."""
    result = checked(
        broker="kafka://one:9093", security_protocol="SASL_SSL", sasl_username="u",
        sasl_password=SECRET, health_listen="0.0.0.0:9464", **papers,
    )  # fmt: skip
    assert result.exit_code == 0, result.exception
    shown = json.loads(result.stdout)
    assert shown.keys() == Settings.model_fields.keys()
    assert shown["health_listen"] == "0.0.0.0:9464"
    assert shown["ssl_cafile"] == papers["ssl_cafile"]
    assert shown["session_timeout_s"] == Settings.model_fields["session_timeout_s"].default
    assert set(shown["sasl_password"]) == {"*"}
    assert SECRET not in result.output


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"security_protocol": "SASL_SSL", "sasl_username": "u"}, "sasl_password"),
        ({"security_protocol": "SSL", "ssl_cafile": "/nowhere/ca.pem"}, "TLS files"),
        ({"security_protocol": "TLS"}, "security_protocol"),
        ({"health_listen": "9464"}, "health_listen"),
        ({"health_listen": "0.0.0.0:94640"}, "health_listen"),
        ({"health_listen": ":9464"}, "health_listen"),
        ({"stall_limit_s": "60"}, "stall_limit_s"),
        ({"reject_ratio_limit": "1"}, "reject_ratio_limit"),
        ({"heartbeat_limit_s": "0"}, "heartbeat_limit_s"),
    ],
)
def test_what_would_stop_a_worker_is_told_by_name(settings: dict[str, str], told: str) -> None:
    """Found without asking the broker."""
    result = checked(broker="kafka://nowhere:9092", **settings)
    assert isinstance(result.exception, ToktierError)
    assert result.exception.code is Code.CONFIG_INVALID
    assert told in result.exception.detail


def test_all_of_the_connection_is_passed_on(papers: dict[str, str]) -> None:
    """Each setting of TLS and SASL reaches the broker's options under its own name."""
    settings = load(
        broker="kafka://one:9093,two:9093", security_protocol="SASL_SSL", instance_id="w-3",
        sasl_mechanism="PLAIN", sasl_username="u", sasl_password=SECRET, **papers,
    )  # fmt: skip
    options = kafka_options(settings)
    assert options.bootstrap_servers == "one:9093,two:9093"
    assert options.client_id == "w-3"
    assert options.sasl_password == SECRET
    for name in ("security_protocol", "sasl_mechanism", "sasl_username", *papers):
        assert str(getattr(options, name)) == str(getattr(settings, name)), name
    assert SECRET not in repr(settings) + repr(options)
    context = options.ssl_context()
    assert context is not None
    assert context.check_hostname
