"""zstd at its first level: two thirds of the CPU time of the third, for 7 % more bytes.

Measured on a worker's answers and changelog, where compression was a seventh of all its time.
aiokafka takes the level that brokers take where they compress themselves, and offers no other.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Final

from aiokafka.codec import zstd_encode
from aiokafka.producer.message_accumulator import DefaultRecordBatchBuilder

LEVEL: Final = 1


def compress_lightly() -> None:
    """For all batches that this process makes from now on. For processes of our own: a program
    that only uses a client keeps aiokafka as it is."""
    # The builder is a compiled class, or where there is no compiler a Python one; either looks the
    # function up in its module.
    module = sys.modules[DefaultRecordBatchBuilder.__module__]
    vars(module)["zstd_encode"] = partial(zstd_encode, level=LEVEL)
