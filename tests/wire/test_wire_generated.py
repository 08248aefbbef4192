"""The generated module is that of the schema, and works on the oldest runtime we admit."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from google.protobuf import descriptor_pb2

from toktier_stream.wire import toktier_pb2 as pb

ROOT = Path(__file__).parents[2]


def test_regenerating_gives_the_same_descriptor(tmp_path: Path) -> None:
    """Whoever changes the schema must run ops/generate-proto.sh."""
    out = tmp_path / "toktier.desc"
    subprocess.run(
        [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            "--proto_path=toktier_stream/wire=schemas",
            f"--descriptor_set_out={out}",
            "toktier_stream/wire/toktier.proto",
        ],
        cwd=ROOT,
        check=True,
    )
    fresh = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file[0]
    committed = descriptor_pb2.FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(committed)
    # The embedded descriptor has no json_name; it follows from the name.
    for message in fresh.message_type:
        for field in message.field:
            field.ClearField("json_name")
    assert committed == fresh


def test_generated_code_covers_the_runtime_range() -> None:
    """Code of protobuf N works on runtimes N and N + 1: ours is of the oldest admitted one."""
    source = (ROOT / "toktier_stream" / "wire" / "toktier_pb2.py").read_text()
    made = re.search(r"# Protobuf Python Version: (\d+)\.(\d+)\.(\d+)", source)
    admitted = re.search(r'"protobuf>=(\d+)\.(\d+),<(\d+)"', (ROOT / "pyproject.toml").read_text())
    assert made
    assert admitted
    assert (made[1], made[2], made[3]) == (admitted[1], admitted[2], "0")
    assert int(admitted[3]) == int(made[1]) + 2


def test_the_script_pins_that_compiler() -> None:
    """The header of the generated module names the version that the script's compiler gives."""
    script = (ROOT / "ops" / "generate-proto.sh").read_text()
    assert "version=1.72." in script  # grpcio-tools 1.72 is protobuf 6.30
