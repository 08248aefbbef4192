"""What both teams import: the producer of appends and the consumer of token updates."""
