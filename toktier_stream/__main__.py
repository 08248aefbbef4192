"""``python -m toktier_stream``: the command line."""

from toktier_stream.cli import main

main()
