"""In the reference's process: f64 tensors that say the dtype they would have outside of it.

A reference writes `y.to(x.dtype)` as often as `y.to(torch.bfloat16)`. In f64 the first is no cast, though it is one for
whoever calls the function with 16 bits, and a kernel that repeats it is right.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_DTYPE = torch.Tensor.dtype.__get__  # type: ignore[attr-defined]
_CASTS = {"float": torch.float32, "half": torch.float16, "bfloat16": torch.bfloat16, "double": torch.float64}


class OwnDtypes(TorchFunctionMode):
    """While active, these tensors and all that is computed from them have the dtypes of a call that is not in f64."""

    def __init__(self, tensors: dict[str, torch.Tensor], dtypes: dict[str, torch.dtype]) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            tensor._own_dtype = dtypes[name]  # type: ignore[attr-defined]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        results = func(*args, **kwargs)
        if func == _DTYPE:
            return _own(args[0]) or results
        for one in results if isinstance(results, (tuple, list)) else (results,):
            if isinstance(one, torch.Tensor) and _DTYPE(one) == torch.float64:
                one._own_dtype = _made(func, args, kwargs)  # type: ignore[attr-defined]
        return results


def _own(tensor: torch.Tensor) -> torch.dtype | None:
    return getattr(tensor, "_own_dtype", None)


def _made(func: Any, args: Any, kwargs: Any) -> torch.dtype | None:
    """The dtype of what was computed: the one that was asked for, else what PyTorch makes of the operands'."""
    given = (*args, *kwargs.values())
    asked = next((one for one in given if isinstance(one, torch.dtype)), _CASTS.get(getattr(func, "__name__", "")))
    if asked is not None:
        return asked
    listed = [one for some in given for one in (some if isinstance(some, (tuple, list)) else (some,))]
    tensors = [one for one in listed if isinstance(one, torch.Tensor) and _DTYPE(one) == torch.float64]
    known = [own for one in tensors if one.ndim and (own := _own(one)) is not None]
    known = known or [own for one in tensors if (own := _own(one)) is not None]
    return reduce(torch.promote_types, known) if known else None
