"""`torch.library` with types: operator names and schemas, kernel registration, lookup."""

from __future__ import annotations

import hashlib
import keyword
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tilewright.kernel_file import KernelFile, Op, Parameter
from tilewright.records import ScalarType

# -- names and schemas --

NAMESPACE = "tilewright"
DIGITS = 10  # of the digest of the files
REFERENCE_DIGITS = 6

_TYPES = {ScalarType.INT: "SymInt", ScalarType.FLOAT: "float", ScalarType.BOOL: "bool"}


def files_digest(files: Sequence[KernelFile]) -> str:
    """SHA-256 over the files' contents, in order; paths and tuned choices do not count."""
    return hashlib.sha256("\n".join(file.identity for file in files).encode()).hexdigest()


def schema_name(op: Op, files: Sequence[KernelFile], reference: str) -> str:
    """`silu_3f0c9a1b2d`, or `silu_3f0c9a1b2d_77aa01` with a reference: the same in every process."""
    name = f"{op.name}_{files_digest(files)[:DIGITS]}"
    return f"{name}_{reference[:REFERENCE_DIGITS]}" if reference else name


def reference_digest(reference: Any, strict: bool, backward: str = "") -> str:
    """Digest of a reference (its `identity`, else its name and bytecode) and a backward's files; "" without both."""
    if reference is None and not backward:
        return ""
    said = getattr(reference, "identity", None)
    code = getattr(getattr(reference, "__func__", reference), "__code__", None)
    if isinstance(said, str):
        parts: tuple[object, ...] = (strict, backward, said)
    else:
        kind = type(reference)
        names = (
            getattr(reference, "__module__", kind.__module__),
            getattr(reference, "__qualname__", kind.__qualname__),
        )
        parts = (
            strict,
            backward,
            *names,
            *((code.co_code, code.co_names, _constants(code)) if code is not None else ()),
        )
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _constants(code: Any) -> list[str]:
    """A nested code object's repr holds an address, which differs between processes."""
    return [
        f"{one.co_code.hex()} {one.co_names} {_constants(one)}" if hasattr(one, "co_code") else repr(one)
        for one in code.co_consts
    ]


def arguments_text(op: Op) -> str:
    """The schema of the parameters. It has no defaults: torch would omit arguments equal to them."""
    return ", ".join(_argument(parameter, number) for number, parameter in enumerate(op.parameters))


def results_text(op: Op) -> str:
    return "Tensor" if len(op.results) == 1 else f"({', '.join('Tensor' for _ in op.results)})"


def _argument(parameter: Parameter, number: int) -> str:
    name = f"{parameter.name}_" if keyword.iskeyword(parameter.name) else parameter.name
    if parameter.scalar is None:
        kind = f"Tensor(a{number}!)" if parameter.in_place else "Tensor"
    else:
        kind = _TYPES[parameter.scalar] + ("[]" if parameter.is_list else "")
    return f"{kind}{'?' if parameter.optional else ''} {name}"


# -- registration --

_c: Any = torch._C  # mostly untyped
# Kept for the life of the process: destroying it would unregister every operator.
_library: Any = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]

KernelFunction = Callable[..., Any]


def define(name: str, arguments: str, results: str, tags: Sequence[torch.Tag] = ()) -> None:
    _library.define(f"{name}({arguments}) -> {results}", tags=tuple(tags))


def set_kernel(name: str, kernel: KernelFunction) -> None:
    """The kernel for real tensors on any device."""
    _library.impl(name, kernel, "CompositeExplicitAutograd")


def set_fake(name: str, kernel: KernelFunction) -> None:
    """The fake (meta) kernel."""
    torch.library.register_fake(f"{NAMESPACE}::{name}", kernel, lib=_library)


def set_autograd(name: str, kernel: KernelFunction) -> None:
    """`kernel(keyset below autograd, *values)` runs at the Autograd key."""
    _library.impl(
        name, lambda keys, *values: kernel(keys & _c._after_autograd_keyset, *values), "Autograd", with_keyset=True
    )


def overload(name: str) -> Any:
    return getattr(getattr(torch.ops, NAMESPACE), name).default


def run_below_autograd(operator: Any, keys: Any, values: Sequence[Any]) -> Any:
    with _c._AutoDispatchBelowAutograd():
        return operator.redispatch(keys, *values)


def share_memory(one: torch.Tensor, others: Sequence[torch.Tensor]) -> bool:
    """Whether a tensor shares storage with one of the others."""
    return any(_c._is_alias_of(one, other) for other in others)
