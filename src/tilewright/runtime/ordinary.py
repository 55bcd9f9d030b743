"""Whether a call may go straight to a kernel: nothing watches, traces, transforms or differentiates it.

Whatever is not plainly ordinary goes through torch's dispatcher, which knows what to do with it. So the answer errs on
one side only: an ordinary call that is sent through the dispatcher is slower, never wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from tilewright.kernel_file import Op
from tilewright.runtime.errors import CallRefused

PLAIN_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})

# Each answers something false in an ordinary moment. They are read by every quick call, so they are C functions.
dispatch_modes = torch._C._len_torch_dispatch_stack  # fake tensors, make_fx, FlopCounterMode
function_modes = torch._C._len_torch_function_stack  # export, make_fx before dispatch, a default device
tracing = torch._C._get_tracing_state  # torch.jit.trace
_functorch_level = torch._C._functorch.maybe_current_level


def no_torch_modes_active() -> bool:
    """Whether torch does now what its operators do by themselves."""
    return (
        not (dispatch_modes() or function_modes() or tracing() or forward_ad._current_level >= 0)
        and _functorch_level() is None
    )


def are_plain_tensors(tensors: Iterable[Any]) -> bool:
    """Whether each is a tensor in memory and nothing more: no subclass, wrapper, fake or conjugate of one."""
    return all(tensor is None or _is_ordinary(tensor) for tensor in tensors)


def _is_ordinary(tensor: torch.Tensor) -> bool:
    if (
        type(tensor) not in PLAIN_TENSORS
        or tensor.device.type == "meta"
        or torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    ):
        return False
    return not torch._is_functional_tensor(tensor) and not tensor._is_zerotensor()


def refuse_distributed(op: Op, tensors: Sequence[torch.Tensor | None]) -> None:
    """How a kernel file would work on the pieces of a distributed tensor is nowhere said."""
    for name, tensor in zip((one.name for one in op.tensors), tensors, strict=True):
        if tensor is not None and type(tensor).__module__.startswith("torch.distributed"):
            raise CallRefused(
                f"{op.name}: {name} is a {type(tensor).__name__}, and a kernel file says nothing of how it may be "
                f"sharded; pass {name}.to_local(), or {name}.full_tensor()"
            )
