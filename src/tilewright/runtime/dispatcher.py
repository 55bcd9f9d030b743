"""Torch's dispatcher as far as it is used here, with types: define an operator, give it kernels, look it up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tilewright.runtime.op_schema import NAMESPACE

_c: Any = torch._C  # half of it has no types
# It lives as long as the process: its end would take every operator with it.
_library: Any = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]

KernelFunction = Callable[..., Any]


def define(name: str, arguments: str, results: str, tags: Sequence[torch.Tag] = ()) -> None:
    _library.define(f"{name}({arguments}) -> {results}", tags=tuple(tags))


def set_kernel(name: str, kernel: KernelFunction) -> None:
    """What runs on tensors with content, of whatever device."""
    _library.impl(name, kernel, "CompositeExplicitAutograd")


def set_fake(name: str, kernel: KernelFunction) -> None:
    """What answers for tensors without content."""
    torch.library.register_fake(f"{NAMESPACE}::{name}", kernel, lib=_library)


def set_autograd(name: str, kernel: KernelFunction) -> None:
    """`kernel(keys below autograd, *values)` runs before the others, where gradients may be recorded."""

    def with_keys(keys: Any, *values: Any) -> Any:
        return kernel(keys & _c._after_autograd_keyset, *values)

    _library.impl(name, with_keys, "Autograd", with_keyset=True)


def set_batching(name: str, kernel: KernelFunction) -> None:
    """What `torch.vmap` does: `kernel(info, in_dims, *values)` answers results and where their batches lie."""
    torch.library.register_vmap(f"{NAMESPACE}::{name}", kernel, lib=_library)


def overload(name: str) -> Any:
    return getattr(getattr(torch.ops, NAMESPACE), name).default


def run_below_autograd(operator: Any, keys: Any, values: Sequence[Any]) -> Any:
    with _c._AutoDispatchBelowAutograd():
        return operator.redispatch(keys, *values)


def share_memory(one: torch.Tensor, others: Sequence[torch.Tensor]) -> bool:
    """Whether a tensor has the storage of one of the others."""
    return any(_c._is_alias_of(one, other) for other in others)
