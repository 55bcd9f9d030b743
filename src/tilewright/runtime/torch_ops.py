"""The namespace `torch.ops.tilewright`: registered ops, and a clear error for missing ones.

An exported program may name the op of an operation with a reference. Where only the files are loaded, the op is created
without the reference: calls that no file takes then raise.
"""

from __future__ import annotations

import re
import threading
import types
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import _OpNamespace

from tilewright.runtime.backward import Backward
from tilewright.runtime.errors import LoadError
from tilewright.runtime.fallback import Reference
from tilewright.runtime.torch_library import (
    DIGITS,
    NAMESPACE,
    REFERENCE_DIGITS,
    files_digest,
    reference_digest,
    schema_name,
)
from tilewright.runtime.torch_op import Host, TorchOp

_OURS = re.compile(rf"(?P<op>\w+)_(?P<files>[0-9a-f]{{{DIGITS}}})(_[0-9a-f]{{{REFERENCE_DIGITS}}}(_\d+)?)?")
_lock = threading.RLock()
_operators: dict[str, TorchOp] = {}
_making: set[str] = set()  # torch looks an op up before it defines it
_loaded: dict[tuple[str, str], Callable[[], Host]] = {}  # (op, digest) -> the operation without its reference


def operator_of(host: Host, without_reference: Callable[[], Host]) -> TorchOp:
    """The op of an operation: the registered one for the same files and reference, or a new one."""
    last = host.fallback
    digest = reference_digest(last.reference, last.strict, _backward_identity(host.backward))
    base = name = schema_name(host.op, host.files, digest)
    with _lock:
        _loaded[host.op.name, files_digest(host.files)[:DIGITS]] = without_reference
        number = 1
        while name in _operators and not (
            _is_same(_operators[name].fallback.reference, last.reference)
            and _same_backward(_operators[name].host.backward, host.backward)
        ):
            number += 1
            name = f"{base}_{number}"
        known = _operators.get(name)
        if known is None:
            known = _made(name, host)
        known.host = host
        return known


def _made(name: str, host: Host) -> TorchOp:
    _making.add(name)
    try:
        _operators[name] = TorchOp(name, host)
    finally:
        _making.discard(name)
    return _operators[name]


def _is_same(one: Reference | None, other: Reference | None) -> bool:
    """Whether two references with equal digests are interchangeable: by `identity`, or as stateless functions."""
    if one is other or one == other or isinstance(getattr(one, "identity", None), str):
        return True
    if not (isinstance(one, types.FunctionType) and isinstance(other, types.FunctionType)):
        return False  # methods and other callables may have state
    if one.__closure__ is not None or other.__closure__ is not None:
        return False
    return (one.__defaults__, one.__kwdefaults__) == (other.__defaults__, other.__kwdefaults__)


def _same_backward(one: Backward | None, other: Backward | None) -> bool:
    if one is None or other is None:
        return one is other
    return _is_same(one.operation.fallback.reference, other.operation.fallback.reference)


def _backward_identity(backward: Backward | None) -> str:
    """The part of a backward operation in the op's digest: files, gradient mapping, reference."""
    if backward is None:
        return ""
    last = backward.operation.fallback
    pairs = (sorted(backward.gradients.items()), backward.by)
    return f"{files_digest(backward.operation.files)} {pairs} {reference_digest(last.reference, last.strict)}"


class _Operators(_OpNamespace):
    """Torch's namespace, which also creates ops of loaded files on demand."""

    __module__ = _OpNamespace.__module__  # exported programs record the module of the namespace

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            ours = _OURS.fullmatch(name)
            if ours is None or name in _making:
                raise
        with _lock:
            self._make(name, ours)
        return super().__getattr__(name)

    def _make(self, name: str, ours: re.Match[str]) -> None:
        without_reference = _loaded.get((ours["op"], ours["files"]))
        if without_reference is None:
            # Not an AttributeError: torch would swallow it and fail with a less helpful one.
            raise LoadError(
                f"torch.ops.{NAMESPACE}.{name} is the operator of a kernel file that is not loaded in this process: "
                f"load the file of op {ours['op']} whose digest begins with {ours['files']} first, "
                f"tilewright.load('{ours['op']}.cu'); if that file has changed since, export again"
            )
        _made(name, without_reference())


def install() -> None:
    """Register our namespace before torch creates its own."""
    if not isinstance(torch.ops.__dict__.get(NAMESPACE), _Operators):
        setattr(torch.ops, NAMESPACE, _Operators(NAMESPACE))


install()
