#!/usr/bin/env bash
# Generates toktier_stream/wire/toktier_pb2.py and .pyi from schemas/toktier.proto.
#
# The compiler is pinned to the one of protobuf 6.30: generated code works with its own major
# version of the runtime and the next one, so this is what covers protobuf >=6.30,<8.
set -euo pipefail

version=1.72.2
cd "$(dirname "$0")/.."

tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
"${PYTHON:-python3}" -m venv "$tools"
"$tools/bin/python" -m pip install --quiet "grpcio-tools==$version"

# The virtual path gives the descriptor a name that no other package registers, and puts the
# module where it is imported from.
"$tools/bin/python" -m grpc_tools.protoc \
  --proto_path=toktier_stream/wire=schemas \
  --python_out=. --pyi_out=. \
  toktier_stream/wire/toktier.proto

echo "generated toktier_stream/wire/toktier_pb2.py with grpcio-tools $version"
