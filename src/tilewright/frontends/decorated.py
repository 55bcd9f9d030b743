"""`@tilewright.kernel`: the function is the specification, the oracle and the fallback.

A call uses the library's finished kernel for these shapes, or runs the function itself and says so once. It never
spends anything and starts no process; `make` does, when it is asked to.
"""

from __future__ import annotations

import functools
import inspect
import types
import warnings
from collections.abc import Callable, Iterable
from typing import Any, overload

import torch

from tilewright.devices.cuda.torch_dtypes import DTYPE_OF_TORCH
from tilewright.frontends.api import Made, make, read_arguments
from tilewright.frontends.function_source import Global, source_and_globals
from tilewright.frontends.kernel_arguments import BadArgument
from tilewright.kernel_file import KernelFileError
from tilewright.records import DType, NumberInput, Task, TensorInput
from tilewright.runtime import CallRefused, NoKernelApplies, Operation, OperationError, ReferenceUsed, load
from tilewright.store import LibraryKernel, Request, Store, StoreError

Call = tuple[tuple[str, object], ...]  # every argument by name: a tensor's dtype and shape, any other value


@overload
def kernel(function: Callable[..., Any]) -> DecoratedKernel: ...


@overload
def kernel(*, strict: bool = False) -> Callable[[Callable[..., Any]], DecoratedKernel]: ...


def kernel(function: Callable[..., Any] | None = None, *, strict: bool = False) -> Any:
    """Have a PyTorch function use its finished kernels. `strict`: a call for which there is none raises."""
    if function is None:
        return functools.partial(DecoratedKernel, strict=strict)
    return DecoratedKernel(function, strict)


class DecoratedKernel:
    """A PyTorch function and the kernels made for it."""

    def __init__(self, function: Callable[..., Any], strict: bool = False) -> None:
        if not isinstance(inspect.unwrap(function), types.FunctionType):
            name = getattr(function, "__name__", type(function).__name__)
            raise BadArgument(f"{name} is no plain Python function; write one with `def`")
        self.function = function
        self.strict = strict
        self._signature = inspect.signature(function)
        self._operations: dict[Call, Operation | None] = {}
        self._said: set[str] = set()
        self._source: str | None = None  # the function's text as it was looked at last, and what that was made from
        self._globals: tuple[Global, ...] = ()
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        bound = self._bound(args, kwargs)
        operation = self._operation(bound)
        if operation is None:
            absent = f"the library has no kernel for {_call_text(bound)}"
            return self._reference("absent", absent, f"; {self._remedy(bound)}", args, kwargs)
        names = [parameter.name for parameter in operation.op.parameters]
        try:
            return operation(**{name: bound[name] for name in names})
        except NoKernelApplies as refusal:
            reasons = [str(reason) for reason in refusal.reasons]
            strided = any(isinstance(one, torch.Tensor) and not one.is_contiguous() for one in bound.values())
            ways = reasons if strided else [*reasons, self._remedy(bound)]  # a kernel made anew wants no strides either
            kind = "strided" if strided else "refused"
            return self._reference(kind, "no kernel takes this call", "\n  ".join([":", *ways]), args, kwargs)
        except CallRefused as refusal:
            why = str(refusal).removeprefix(f"{self._name}: ")
            return self._reference(type(refusal).__name__, why, "", args, kwargs)

    def make(self, **arguments: Any) -> Made:
        """Make a kernel for these shapes: `f.make(x="4096x1024:bf16")`, or tensors; takes the options of `make` too."""
        made = make(self.function, **arguments)
        assert isinstance(made, Made)  # a decorated function has no tensors of its own
        self._operations.clear()
        return made

    def explain(self, *args: Any, **kwargs: Any) -> str:
        """Which kernel file takes such a call and with what launches, or that the function itself runs and why."""
        bound = self._bound(args, kwargs)
        operation = self._operation(bound)
        if operation is None:
            return f"{self._name}: the function itself runs; {self._remedy(bound)}"
        names = [parameter.name for parameter in operation.op.parameters]
        return str(operation.explain(**{name: bound[name] for name in names}))

    def forget(self) -> None:
        """Look into the library again at the next call: another process may have made a kernel."""
        self._operations.clear()

    def __repr__(self) -> str:
        return f"<kernel {self._name}{self._signature}>"

    @property
    def _name(self) -> str:
        return self.function.__name__

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.arguments

    def _operation(self, bound: dict[str, Any]) -> Operation | None:
        self._look_around()
        call = tuple((name, _kind_of(value)) for name, value in bound.items())
        try:
            hash(call)
        except TypeError:  # what cannot be a key can be no argument of a kernel either
            return None
        if call not in self._operations:
            self._operations[call] = self._load(bound)
        return self._operations[call]

    def _load(self, bound: dict[str, Any]) -> Operation | None:
        """The finished kernels that were made for such a call, the one for these very sizes first."""
        distances = ((self._distance(made, bound), made) for made in self._made())
        taking = [(distance, made) for distance, made in distances if distance is not None]
        ordered = [kernel for _, kernel in sorted(taking, key=lambda one: one[0])]
        if not ordered:
            return None
        try:
            return load([kernel.path for kernel in ordered], strict=True, allow_library=True)
        except (OperationError, KernelFileError, OSError):
            return None

    def _made(self) -> Iterable[LibraryKernel]:
        for made in Store().library.all():
            try:
                request = made.request()
            except StoreError:
                continue
            if request is not None and request.function == self._name and request.text == self._source:
                yield made

    def _look_around(self) -> None:
        """Forget the kernels found so far where something that the function reads, or one it calls, has changed."""
        if self._source is not None and all(one.is_as_it_was for one in self._globals):
            return
        try:
            source, self._globals = source_and_globals(self.function)
        except BadArgument:  # `make` will say why
            source, self._globals = "", ()
        if source != self._source:
            self._source = source
            self._operations.clear()

    def _distance(self, made: LibraryKernel, bound: dict[str, Any]) -> int | None:
        """How many sizes of a call are not those that a kernel was made for; None where it does not take the call."""
        try:
            task, request = made.task(), made.request()
        except StoreError:
            return None
        inputs = {one.name: one for one in task.inputs}
        if not inputs.keys() <= bound.keys() or request is None:
            return None
        if any(not self._stands(name, bound[name], request) for name in bound.keys() - inputs.keys()):
            return None
        return _size_distance(task, bound)

    def _stands(self, name: str, value: Any, request: Request) -> bool:
        """Whether an argument that is none of the kernel's has the value that it was made with."""
        if isinstance(value, torch.Tensor):
            return False
        if name in request.numbers:
            return value is not None and read_arguments({name: value})[1].get(name) == request.numbers[name]
        return bool(value == self._signature.parameters[name].default)

    def _reference(self, kind: str, why: str, remedy: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the function itself, and say why, then what would help: once for each kind of reason."""
        if self.strict:
            raise NoKernelApplies(f"{self._name}: {why}{remedy}", ())
        if kind not in self._said:
            self._said.add(kind)
            warnings.warn(
                f"{self._name}: {why}, so the function itself runs (said once){remedy}", ReferenceUsed, stacklevel=3
            )
        return self.function(*args, **kwargs)

    def _remedy(self, bound: dict[str, Any]) -> str:
        return f"make one with {self._name}.make({_call_text(bound)})"


def _kind_of(value: object) -> object:
    """What a kernel is chosen by: a tensor's layout, never its content."""
    if isinstance(value, torch.Tensor):
        return (value.dtype, tuple(value.shape), value.requires_grad)
    return (type(value), value)


def _call_text(bound: dict[str, Any]) -> str:
    return ", ".join(f"{name}={_value_text(value)}" for name, value in bound.items())


def _value_text(value: object) -> str:
    if isinstance(value, torch.Tensor):
        dtype = DTYPE_OF_TORCH.get(value.dtype)
        return f'"{"x".join(map(str, value.shape))}:{dtype.value if dtype else value.dtype}"'
    return repr(value)


def _size_distance(task: Task, bound: dict[str, Any]) -> int | None:
    """How many dimensions of a call have another size than the task; None where the task does not cover the call."""
    sizes: dict[str, int] = {}
    for one in task.inputs:
        value = bound[one.name]
        if isinstance(one, NumberInput):
            if value != one.value:
                return None
        elif not _fits(one, value, sizes):
            return None
    dimensions = {dimension.name: dimension for dimension in task.dimensions}
    if not task.agrees(sizes):
        return None
    for name, size in sizes.items():
        known = dimensions[name]
        if size != known.size and not known.takes(size):
            return None
    return sum(size != dimensions[name].size for name, size in sizes.items())


def _fits(one: TensorInput, value: object, sizes: dict[str, int]) -> bool:
    """Whether a tensor has the dtype and rank of an input, and sizes that agree with those before it."""
    if not isinstance(value, torch.Tensor):
        return value is None and one.optional
    dtype: DType | None = DTYPE_OF_TORCH.get(value.dtype)
    if dtype is not one.dtype or value.dim() != len(one.dimensions):
        return False
    return all(sizes.setdefault(name, size) == size for name, size in zip(one.dimensions, value.shape, strict=True))
