"""Values: classes whose objects nobody changes.

A frozen dataclass takes three times as long to make as a plain one, since each field goes by way
of ``object.__setattr__``. An event's way makes a dozen objects with a hundred fields. So the
messages are plain dataclasses with slots, which the type checker holds to be frozen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def value(cls: type[T]) -> type[T]:
    """A dataclass with slots that is compared and hashed by its fields; not to be changed."""
    return dataclass(slots=True, unsafe_hash=True)(cls)
