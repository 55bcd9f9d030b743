"""The fallback to an operation's reference: for calls that no kernel file takes, and for gradients."""

from __future__ import annotations

import contextlib
import hashlib
import sys
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from tilewright.kernel_file import NoneApplies, Op, Reason
from tilewright.runtime import torch_library
from tilewright.runtime.errors import CallRefused, GradientNotSupported, NoKernelApplies, ReferenceUsed
from tilewright.runtime.returned import leaves

Reference = Callable[..., Any]


@dataclass(frozen=True)
class TextReference:
    """A reference as source text, which is run in this process on first use; `names` are the op's parameters."""

    text: str
    function: str
    names: tuple[str, ...]

    @property
    def identity(self) -> str:
        return f"{self.function} {hashlib.sha256(self.text.encode()).hexdigest()}"

    def __call__(self, *values: Any) -> Any:
        return _function_in(self.text, self.function)(**dict(zip(self.names, values, strict=True)))


@cache
def _function_in(text: str, name: str) -> Reference:
    namespace: dict[str, Any] = {"__name__": f"tilewright_reference_{name}"}
    exec(compile(text, f"<the reference {name}>", "exec"), namespace)
    function: Reference = namespace[name]
    return function


class NoKernelMatches(Exception):
    """Internal: no file takes this call; the entry point decides whether the reference runs."""

    def __init__(self, none: NoneApplies, values: Sequence[Any]) -> None:
        self.none = none
        self.values = tuple(values)  # normalised
        super().__init__(str(none))


class Fallback:
    """The reference, if any, and the warnings already given about its use."""

    def __init__(self, op: Op, reference: Reference | None, strict: bool) -> None:
        self.op = op
        self.reference = reference
        self.strict = strict
        self._warned: set[Hashable] = set()
        code = getattr(reference, "__code__", None)
        positional = code.co_argcount if code is not None else 0
        keyword_only = code.co_varnames[positional : positional + code.co_kwonlyargcount] if code is not None else ()
        self._keyword_only = frozenset(keyword_only)

    @property
    def may_run(self) -> bool:
        """Whether the reference may run in place of a kernel."""
        return self.reference is not None and not self.strict

    def run(self, none: NoneApplies, values: Sequence[Any]) -> Any:
        """Run the reference for a call that no file takes."""
        self.warn_or_raise(none)
        changed = self._changed(values)
        versions = [_version(value) for _, value in changed]
        returned = self.call(values)
        if changed:
            self._separate(returned, values)
            if None not in versions and versions == [_version(value) for _, value in changed]:
                names = ", ".join(name for name, _ in changed)
                self.warn(("unchanged",), f"the reference left {names} as it was, which the op changes (said once)")
        if isinstance(returned, (list, Mapping)):  # a kernel returns several results as a tuple
            return unwrap_results(self.op, self._separate(returned, values))
        return returned

    def under_transform(self, values: Sequence[Any]) -> Any:
        """Run the reference for a call under `torch.func` or forward-mode differentiation, which see into it."""
        if not self.may_run:
            raise GradientNotSupported(
                f"{self.op.name}: torch.func and forward-mode differentiation (vmap, grad, jvp) see into PyTorch code, "
                "not into a kernel; give the operation a reference, or call it without them"
            )
        self.warn(("transform",), "under torch.func or forward-mode differentiation the reference runs (said once)")
        return unwrap_results(self.op, self.results(values))

    def warn_or_raise(self, none: NoneApplies) -> None:
        """Warn, once per kind of reason, that the reference runs; raise `NoKernelApplies` where it may not."""
        if not self.may_run:
            raise self.error(none)
        kind = tuple((reason.file, reason.problem.code, reason.problem.line) for reason in none.reasons)
        why = dict.fromkeys(_sentence(one) for one in none.reasons)
        self.warn(kind, f"no kernel takes this call, so the PyTorch reference runs (said once): {'; or '.join(why)}")

    def error(self, none: NoneApplies) -> NoKernelApplies:
        remedy = "" if self.reference is not None else "\npass load(..., reference=...) to fall back to it"
        return NoKernelApplies(f"{self.op.name}: no kernel file takes this call:\n{_list(none)}{remedy}", none.reasons)

    def warn(self, kind: Hashable, text: str) -> None:
        """Warn about the use of the reference, once per kind."""
        if kind not in self._warned:
            self._warned.add(kind)
            warnings.warn(f"{self.op.name}: {text}", ReferenceUsed, stacklevel=_frames_to_caller())

    def call(self, values: Sequence[Any]) -> Any:
        """Call the reference, with autocast off as it is for kernels."""
        assert self.reference is not None
        pairs = list(zip(self.op.parameters, values, strict=True))
        named = {one.name: value for one, value in pairs if one.name in self._keyword_only}
        with without_autocast():
            return self.reference(*(value for one, value in pairs if one.name not in self._keyword_only), **named)

    def results(self, values: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        """The op's results by the reference, in order, without the tensors it changed in place."""
        return self._separate(self.call(values), values)

    def _changed(self, values: Sequence[Any]) -> list[tuple[str, torch.Tensor]]:
        """The tensors that the op changes in place, by name."""
        pairs = zip(self.op.parameters, values, strict=True)
        return [(parameter.name, value) for parameter, value in pairs if parameter.in_place and value is not None]

    def _separate(self, returned: Any, values: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        """The results in what the reference returned; the rest must be the tensors it changed in place."""
        changed = self._changed(values)
        numbers = (one for one in leaves(returned) if isinstance(one, (torch.Tensor, int, float)))
        found = [one if isinstance(one, torch.Tensor) else torch.tensor(one) for one in numbers]
        alone = [one for one in found if not any(one is other for _, other in changed)]
        wanted = len(self.op.results)
        if len(alone) == wanted:
            return tuple(alone)
        if len(found) != wanted + len(changed):
            raise CallRefused(
                f"{self.op.name}: the reference returned {len(found)} tensors and the op has {wanted} "
                f"result{'s' if wanted != 1 else ''}; return exactly those"
            )
        for (name, argument), one in zip(changed, found[wanted:], strict=True):
            if not torch_library.share_memory(argument, [one]):
                raise CallRefused(
                    f"{self.op.name}: the reference returned new values of {name}, which the op changes in place; "
                    f"write them into {name}, such as {name}.copy_(...)"
                )
        return tuple(found[:wanted])


def unwrap_results(op: Op, results: tuple[torch.Tensor, ...]) -> Any:
    """Results as a call returns them: a single tensor, a tuple, or None."""
    return results[0] if len(op.results) == 1 else results or None


def _version(tensor: torch.Tensor) -> int | None:
    """The version counter; None for inference tensors, which have none."""
    return None if tensor.is_inference() else tensor._version


@contextlib.contextmanager
def without_autocast() -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for kind in ("cuda", "cpu"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def _frames_to_caller() -> int:
    """The warning's stacklevel: the first frame outside tilewright and torch."""
    package = __name__.partition(".")[0]
    frame, frames = sys._getframe(1), 1
    passed = (package, "torch", "contextlib")
    while frame.f_back is not None and (frame.f_globals.get("__name__") or package).partition(".")[0] in passed:
        frame, frames = frame.f_back, frames + 1
    return frames


def _sentence(reason: Reason) -> str:
    """Why a file does not take a call, for who has the tensors and not the file."""
    remedy = reason.problem.remedy
    return f"{reason.problem.found}{f'; {remedy} to use the kernel' if remedy.startswith('pass ') else ''}"


def _list(none: NoneApplies) -> str:
    return "\n".join(f"  {reason}" for reason in none.reasons)
