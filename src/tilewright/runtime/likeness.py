"""Whether the tensors of a call are like those of an earlier one, asked of torch in one go.

A key of a call reads six things of each tensor, each by a call into torch. The check that compiled code makes of its
inputs compares class, dtype, device, sizes, strides, whether gradients are wanted, and what torch does around operators
at the moment, in a single call. It is no public part of torch, so it is tried out before it is used, and done without
where it is missing or does not tell apart what must be told apart.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

Alike = Callable[..., bool]  # one tensor for each of those it was made of


def nothing_alike(*tensors: Any) -> bool:
    """The check of a call that no other is like."""
    return False


def likeness(tensors: Sequence[torch.Tensor | None]) -> Alike:
    """What tells whether other tensors are as these are now; where that cannot be told, nothing is like them."""
    if not tensors or any(one is None for one in tensors) or not _is_trusted():
        return nothing_alike
    return _check_of(*tensors)


def _check_of(*tensors: Any) -> Alike:
    guards: Any = torch._C._dynamo.guards
    check: Alike = guards.TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
    return check


@functools.cache
def _is_trusted() -> bool:
    """Whether torch's check exists, takes another tensor of the same kind, and no tensor of another kind."""
    try:
        return _tells_apart()
    except Exception:  # of another torch, in which it may be anything
        return False


def _tells_apart() -> bool:
    one = torch.zeros(1)
    matrix = torch.zeros(2, 2)
    is_one, is_matrix = _check_of(one), _check_of(matrix, matrix)
    others = (
        torch.zeros(1, dtype=torch.int32),
        torch.zeros(1, device="meta"),
        torch.zeros(1, requires_grad=True),
        torch.zeros(2),
        torch.zeros(()),
        torch.nn.Parameter(one, requires_grad=False),
        torch._neg_view(one),
        torch._efficientzerotensor((1,)),
        None,
        1.0,
    )
    return (
        is_one(torch.ones(1))
        and not any(is_one(other) for other in others)
        and is_matrix(torch.ones(2, 2), matrix)
        and not is_matrix(matrix, matrix.t())
        and not is_matrix(matrix.t(), matrix)
    )
