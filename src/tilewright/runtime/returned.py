"""What a function returns, beyond the tensors: dicts, tuples, dataclasses, None, and arguments returned themselves.

A kernel file has results in order. `Returned` is learnt from one call of the function and puts the results of a kernel
into the same form, with the very objects of the call where the function returned its arguments.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def leaves(value: Any) -> Iterator[Any]:
    """What lies in tuples, lists, mappings and dataclasses, in order; None counts as nothing."""
    if value is None:
        return
    parts = _parts(value)
    if parts is None:
        yield value
        return
    for part in parts:
        yield from leaves(part)


def _parts(value: Any) -> Sequence[Any] | None:
    if isinstance(value, Mapping):
        return tuple(value.values())
    if isinstance(value, (tuple, list)):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return tuple(getattr(value, one.name) for one in dataclasses.fields(value))
    return None
