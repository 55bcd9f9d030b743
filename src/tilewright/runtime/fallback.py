"""The reference of an operation: what runs where no kernel file takes a call, and what gradients come from."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import torch

from tilewright.kernel_file import NoneApplies, Op
from tilewright.runtime import torch_library
from tilewright.runtime.errors import CallRefused, NoKernelApplies, ReferenceUsed
from tilewright.runtime.returned import leaves

Reference = Callable[..., Any]


class NoKernelMatches(Exception):
    """Inside the runtime: no file takes this call. Whoever began the call knows what a last resort may return."""

    def __init__(self, none: NoneApplies, values: Sequence[Any]) -> None:
        self.none = none
        self.values = tuple(values)  # regular
        super().__init__(str(none))


class Fallback:
    """A reference, if there is one, and what was said of its use so far."""

    def __init__(self, op: Op, reference: Reference | None, strict: bool) -> None:
        self.op = op
        self.reference = reference
        self.strict = strict
        self._said: set[Hashable] = set()
        self._by_name = _only_by_name(reference)

    @property
    def may_run(self) -> bool:
        """Whether a call that no file takes is answered at all."""
        return self.reference is not None and not self.strict

    def take(self, none: NoneApplies, values: Sequence[Any]) -> Any:
        """What the reference returns for a call that no file takes."""
        self.accept(none)
        changed = self._changed(values)
        versions = [_version(value) for _, value in changed]
        returned = self.call(values)
        if changed:
            self._alone(returned, values)
            if None not in versions and versions == [_version(value) for _, value in changed]:
                names = ", ".join(name for name, _ in changed)
                self.say(("unchanged",), f"the reference left {names} as it was, which the op changes (said once)")
        if isinstance(returned, (list, Mapping)):  # a kernel answers several results as a tuple
            return answer(self.op, self._alone(returned, values))
        return returned

    def accept(self, none: NoneApplies) -> None:
        """Say, once for each kind of reason, that the reference runs; raise the refusal where it may not."""
        if not self.may_run:
            raise self.refusal(none)
        kind = tuple((reason.file, reason.problem.code, reason.problem.line) for reason in none.reasons)
        self.say(kind, f"no kernel file takes this call, so the reference runs (said once):\n{_list(none)}")

    def refusal(self, none: NoneApplies) -> NoKernelApplies:
        remedy = "" if self.reference is not None else "\npass load(..., reference=...) to have a last resort"
        return NoKernelApplies(f"{self.op.name}: no kernel file takes this call:\n{_list(none)}{remedy}", none.reasons)

    def say(self, kind: Hashable, text: str) -> None:
        """Warn of the reference's use, once for each kind."""
        if kind not in self._said:
            self._said.add(kind)
            warnings.warn(f"{self.op.name}: {text}", ReferenceUsed, stacklevel=_frames_to_caller())

    def call(self, values: Sequence[Any]) -> Any:
        """The reference itself. Autocast is off, as it is for a kernel: an op takes tensors as they are."""
        assert self.reference is not None
        pairs = list(zip(self.op.parameters, values, strict=True))
        named = {one.name: value for one, value in pairs if one.name in self._by_name}
        with without_autocast():
            return self.reference(*(value for one, value in pairs if one.name not in self._by_name), **named)

    def results(self, values: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        """The op's results by the reference, in order; what it changed in place is not among them."""
        return self._alone(self.call(values), values)

    def _changed(self, values: Sequence[Any]) -> list[tuple[str, torch.Tensor]]:
        """What the op changes of a call, by name."""
        pairs = zip(self.op.parameters, values, strict=True)
        return [(parameter.name, value) for parameter, value in pairs if parameter.in_place and value is not None]

    def _alone(self, returned: Any, values: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        """The results among what the reference returned; the rest must be what it changed in place."""
        changed = self._changed(values)
        found = [_tensor(one) for one in leaves(returned) if isinstance(one, (torch.Tensor, int, float))]
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


def _only_by_name(reference: Reference | None) -> frozenset[str]:
    """The parameters of a function that follow its `*`."""
    code = getattr(reference, "__code__", None)
    if code is None:
        return frozenset()
    return frozenset(code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount])


def answer(op: Op, results: tuple[torch.Tensor, ...]) -> Any:
    """Results as a call returns them: the only one, a tuple of several, or None."""
    return results[0] if len(op.results) == 1 else results or None


def _version(tensor: torch.Tensor) -> int | None:
    """How often a tensor was changed; None where torch does not count."""
    return None if tensor.is_inference() else tensor._version


def _tensor(value: Any) -> torch.Tensor:
    return value if isinstance(value, torch.Tensor) else torch.tensor(value)


@contextlib.contextmanager
def without_autocast() -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for kind in ("cuda", "cpu"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def _frames_to_caller() -> int:
    """How far up a warning must point to reach whoever called the operation: past every frame of tilewright."""
    package = __name__.partition(".")[0]
    frame, frames = sys._getframe(1), 1
    passed = (package, "torch", "contextlib")
    while frame.f_back is not None and (frame.f_globals.get("__name__") or package).partition(".")[0] in passed:
        frame, frames = frame.f_back, frames + 1
    return frames


def _list(none: NoneApplies) -> str:
    return "\n".join(f"  {reason}" for reason in none.reasons)
