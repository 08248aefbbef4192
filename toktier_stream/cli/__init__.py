"""The command line ``toktier-stream``: one command, few verbs."""

from toktier_stream.cli.app import main

__all__ = ["main"]
