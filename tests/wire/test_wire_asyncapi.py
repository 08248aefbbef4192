"""The AsyncAPI document says what the code does: topics, headers, fields and enumerations."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from toktier_stream.config import Settings
from toktier_stream.errors import EXPLANATIONS, Code
from toktier_stream.wire import headers
from toktier_stream.wire import toktier_pb2 as pb
from toktier_stream.wire.answers import encode_check, encode_reject, encode_update
from toktier_stream.wire.codec import Encoded, encode_event
from toktier_stream.wire.messages import (
    AppendEvent,
    CheckRecord,
    Close,
    Reject,
    Route,
    Status,
    TokenUpdate,
    Verdict,
)
from toktier_stream.wire.refusal import ANSWERED, UNREADABLE

ROOT = Path(__file__).parents[2]
DOCUMENT: dict[str, Any] = yaml.safe_load((ROOT / "schemas" / "asyncapi.yaml").read_text())
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]
MESSAGES: dict[str, Any] = DOCUMENT["components"]["messages"]


def references(node: object) -> list[str]:
    """Every $ref under a node."""
    if isinstance(node, dict):
        own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
        return own + [ref for value in node.values() for ref in references(value)]
    if isinstance(node, list):
        return [ref for value in node for ref in references(value)]
    return []


def resolve(reference: str) -> Any:
    """What a local reference names."""
    node: Any = DOCUMENT
    for step in reference.removeprefix("#/").split("/"):
        node = node[step]
    return node


def test_every_reference_leads_somewhere_and_every_component_is_used() -> None:
    """No dangling reference, no forgotten schema."""
    found = set(references(DOCUMENT))
    for reference in found:
        if reference.startswith("#/"):
            assert resolve(reference)
        else:
            assert (ROOT / "schemas" / reference).is_file()
    for kind in ("messages", "messageBindings", "schemas"):
        for name in DOCUMENT["components"][kind]:
            assert f"#/components/{kind}/{name}" in found, name


def test_topics_are_the_settings_defaults() -> None:
    """Same five topics under the same names."""
    topics = {
        name.removeprefix("topic_"): field.default
        for name, field in Settings.model_fields.items()
        if name.startswith("topic_")
    }
    assert {name: channel["address"] for name, channel in DOCUMENT["channels"].items()} == topics


def test_each_channel_has_an_operation() -> None:
    """Nothing is documented that nobody sends or receives."""
    used = {op["channel"]["$ref"] for op in DOCUMENT["operations"].values()}
    assert used == {f"#/channels/{name}" for name in DOCUMENT["channels"]}
    assert {op["action"] for op in DOCUMENT["operations"].values()} == {"send", "receive"}


def test_only_the_changelog_is_compacted() -> None:
    """Compacting any other topic would lose events or answers."""
    compacted = {
        name
        for name, channel in DOCUMENT["channels"].items()
        if "compact" in str(channel.get("bindings", ""))
    }
    assert compacted == {"sessions"}


@pytest.mark.parametrize(
    "name", ["AppendEvent", "Reset", "Edit", "Close", "TokenUpdate", "Evidence", "Timings",
             "CheckRecord"],
)  # fmt: skip
def test_fields_are_those_of_the_proto(name: str) -> None:
    """Same fields in the same order, with fitting types and references."""
    schema, descriptor = SCHEMAS[name], getattr(pb, name).DESCRIPTOR
    assert schema["title"] == descriptor.full_name
    assert list(schema["properties"]) == [field.name for field in descriptor.fields]
    kinds = {"int64": "integer", "int32": "integer", "fixed64": "integer"}
    kinds |= {"bool": "boolean", "string": "string", "bytes": "string"}
    proto = (ROOT / "schemas" / "toktier.proto").read_text()
    body = proto.split(f"message {name} {{")[1].split("\n}")[0]
    for field in descriptor.fields:
        declared = re.search(rf"(\w+) {field.name} = {field.number};", body)
        assert declared
        described = schema["properties"][field.name]
        if declared[1] in kinds:
            if field.name == "code":
                assert len(described["oneOf"]) == 1 + len(ANSWERED)
                continue
            assert described["type"] == kinds[declared[1]], field.name
            assert (described.get("format") == "binary") == (declared[1] == "bytes")
        else:
            assert described["$ref"] == f"#/components/schemas/{declared[1]}"


def test_enumerations_are_those_of_the_code() -> None:
    """Statuses, routes and verdicts, and the error codes by the status they come with."""
    none = {"STATUS_UNSPECIFIED", "VERDICT_UNSPECIFIED"}
    for name, proto, ours in (
        ("Status", pb.Status, Status),
        ("Route", pb.Route, Route),
        ("Verdict", pb.Verdict, Verdict),
    ):
        assert SCHEMAS[name]["enum"] == [v for v in proto.keys() if v not in none]  # noqa: SIM118
        assert len(SCHEMAS[name]["enum"]) == len(ours)
    for schema, codes in (
        ("UnreadableCode", UNREADABLE),
        ("RejectedCode", ANSWERED[Status.REJECTED]),
        ("NeedResetCode", ANSWERED[Status.NEED_RESET]),
        ("ConflictCode", ANSWERED[Status.CONFLICT]),
    ):
        assert sorted(SCHEMAS[schema]["enum"]) == sorted(codes)


def test_every_refusal_of_a_session_has_a_documented_code() -> None:
    """The codes that the session room answers with, read from its source."""
    source = (ROOT / "toktier_stream" / "session" / "machine.py").read_text()
    used = {Code(name) for name in re.findall(r"Code\.([A-Z_]+)", source)}
    # Caught where it arises: a damaged record is a state miss.
    used.discard(Code.STORE_CORRUPT)
    assert len(used) > 10
    assert used <= frozenset().union(*ANSWERED.values())


def test_error_groups_do_not_overlap() -> None:
    """A code says by itself whether it is answered, and with which status."""
    groups = [UNREADABLE, *ANSWERED.values()]
    assert sum(map(len, groups)) == len(frozenset().union(*groups))
    assert all(code in EXPLANATIONS for group in groups for code in group)


RECORDS = {
    "AppendEvent": encode_event(AppendEvent("s", 1, Close())),
    "AppendEventJson": encode_event(AppendEvent("s", 1, Close()), content_type=headers.JSON),
    "TokenUpdate": encode_update(TokenUpdate("s", 1, Status.OK)),
    "CheckRecord": encode_check(
        CheckRecord("s", 1, "t", Verdict.MATCH, Route.SPLICE, "0" * 64, 0, 0, 0)
    ),
    "Reject": encode_reject(Reject(Code.NULL_VALUE, "m", "t", 0, 7, b"s", None)),
}


@pytest.mark.parametrize("name", sorted(RECORDS))
def test_records_carry_the_documented_headers(name: str) -> None:
    """What the code sends is valid under the document, and all that is listed is sent."""
    record: Encoded = RECORDS[name]
    schema = resolve(MESSAGES[name]["headers"]["$ref"])
    sent = {key: value.decode() for key, value in record.headers}
    jsonschema.validate(sent, {**schema, "components": DOCUMENT["components"]})
    assert set(sent) == set(schema["properties"]) - {headers.TRACEPARENT, headers.TRACESTATE}
    if name != "Reject":
        assert sent[headers.CONTENT_TYPE] == MESSAGES[name]["contentType"]
    broken = {**sent, headers.SCHEMA_VERSION: "2", headers.ERROR_CODE: "OTHER"}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, {**schema, "components": DOCUMENT["components"]})


def test_the_default_content_type_is_the_codes() -> None:
    """What a record without the header is taken for."""
    assert DOCUMENT["defaultContentType"].encode() == headers.PROTOBUF
