"""`@tilewright.kernel`: the function is the specification, the reference and the fallback; only `make` spends anything.

A call that torch compiles, exports or transforms goes through one torch operator for all of the function's kernels.
"""

from __future__ import annotations

import ast
import functools
import inspect
import math
import sys
import types
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import torch
from torch.compiler import is_dynamo_compiling
from torch.utils._python_dispatch import _disable_current_modes as disable_modes

from tilewright.devices.inputs import DTYPE_OF_TORCH, TORCH_DTYPE
from tilewright.frontends.api.make import FunctionReference, Made, backward_of, make, read_arguments, returned_form
from tilewright.kernel_file import Code, KernelFile, KernelFileError, NoneApplies, Problem, Reason, op_of_task, print_op
from tilewright.records import DType, NumberInput, Task, TensorInput
from tilewright.runtime import CallRefused, NoKernelApplies, Operation, OperationError, ReferenceUsed
from tilewright.runtime.backward import Backward
from tilewright.runtime.fallback import Fallback, NoKernelMatches, without_autocast
from tilewright.runtime.fast_path import are_plain_tensors, is_transformed, no_torch_modes_active
from tilewright.runtime.files import read_files, read_tuned
from tilewright.runtime.returned import OutputSpec
from tilewright.runtime.torch_op import operator_of
from tilewright.store import LibraryKernel, Request, Store, StoreError
from tilewright.tasks.errors import BadArgument
from tilewright.tasks.lifting.definition_source import function_text
from tilewright.tasks.lifting.source_text import GlobalGuard

Find = Callable[[dict[str, Any]], Operation | None]  # the operation for a call, by all its arguments


class KernelFamily:
    """The finished kernels of a function that have the same op line, as one torch operator for traced calls."""

    def __init__(
        self,
        files: Sequence[KernelFile],
        tasks: Sequence[Task],
        reference: FunctionReference,
        returned: OutputSpec | None,
        find: Find,
        backward: Backward | None = None,
    ) -> None:
        """`backward` belongs to the first file; its reference takes the calls that it was not made for."""
        self.files = tuple(files)
        self.op = files[0].plan.op
        self.fallback = Fallback(self.op, reference, strict=False)
        self.names = reference.names
        self.others = tuple(reference.others.items())
        self.kinds = tuple(_Kind.of(task) for task in tasks)
        self.returned = returned
        self.backward = backward
        self._find = find
        self.torch_op = operator_of(self, lambda: Operation(self.files)).overload

    def takes(self, bound: Mapping[str, Any]) -> bool:
        """Whether some kernel was made for a call like this one at any size. Dynamo traces this."""
        for name, value in self.others:
            if isinstance(bound[name], torch.Tensor) or bound[name] != value:
                return False
        return any(kind.takes(bound) for kind in self.kinds)

    def call(self, bound: Mapping[str, Any]) -> Any:
        """The call through the operator. Dynamo traces this."""
        result = self.torch_op(*[bound[name] for name in self.names])
        if self.returned is None:
            return result
        results = (result,) if len(self.op.results) == 1 else result or ()
        return self.returned.fill(results, bound)

    def run_values(self, *values: Any) -> Any:
        """The implementation of the operator."""
        bound = {**dict(zip(self.names, values, strict=True)), **dict(self.others)}
        operation = self._find(bound)
        if operation is None:
            raise self._refusal("no kernel was made for these sizes, or something that the function reads", values)
        try:
            return operation.run_values(*values)
        except CallRefused as refusal:
            raise self._refusal(str(refusal), values) from None

    def _refusal(self, found: str, values: Sequence[Any]) -> NoKernelMatches:
        problem = Problem(Code.DOES_NOT_APPLY, 0, 0, found, "make a kernel for this call")
        return NoKernelMatches(NoneApplies((Reason(self.op.name, problem),)), values)


@dataclass(frozen=True, eq=False)
class _Kind:
    """What is the same at every size of a task: dtypes, ranks, numbers."""

    numbers: tuple[tuple[str, Any], ...]
    tensors: tuple[tuple[str, Any, int, bool, bool], ...]  # name, dtype, rank, first dimension leads, optional

    @staticmethod
    def of(task: Task) -> _Kind:
        leading = {name for name, _ in task.leading}
        tensors = tuple(
            (one.name, TORCH_DTYPE[one.dtype], len(one.dimensions), one.name in leading, one.optional)
            for one in task.tensors
        )
        return _Kind(tuple((one.name, one.value) for one in task.numbers), tensors)

    def takes(self, bound: Mapping[str, Any]) -> bool:
        for name, number in self.numbers:
            if bound[name] != number:
                return False
        for name, dtype, dimensions, leads, optional in self.tensors:
            value = bound[name]
            if value is None and optional:
                continue
            if not isinstance(value, torch.Tensor) or value.dtype != dtype:
                return False
            if value.dim() != dimensions and not (leads and value.dim() >= dimensions - 1):
                return False
        return True


_MOST_WARNINGS = 16  # of one function
Call = tuple[tuple[str, object], ...]  # every argument by name: a tensor's dtype and shape, any other value


@overload
def kernel(function: Callable[..., Any]) -> DecoratedKernel: ...


@overload
def kernel(*, strict: bool = False) -> Callable[[Callable[..., Any]], DecoratedKernel]: ...


def kernel(function: Callable[..., Any] | None = None, *, strict: bool = False) -> Any:
    """Decorate a PyTorch function so that it uses its finished kernels. `strict`: a call without one raises."""
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
        self._defaults = {
            n: one.default for n, one in self._signature.parameters.items() if one.default is not one.empty
        }
        self._plain = all(one.kind is one.POSITIONAL_OR_KEYWORD for one in self._signature.parameters.values())
        self._operations: dict[Call, Operation | None] = {}
        self._families: tuple[KernelFamily, ...] | None = None
        self._warned: set[Hashable] = set()
        self._source: str | None = None  # the function's text, valid while all guards hold
        self._guards: tuple[GlobalGuard, ...] = ()
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling() or not no_torch_modes_active():
            return self._traced(args, kwargs)
        bound = self._bound(args, kwargs)
        if not are_plain_tensors(one for one in bound.values() if isinstance(one, torch.Tensor)):
            return self._traced(args, kwargs)
        operation = self._operation(bound)
        if operation is None:
            absent = f"the library has no kernel for {_call_text(bound)}"
            return self._reference(_kind_without_sizes(bound), absent, f"; {self._remedy(bound)}", args, kwargs)
        names = [parameter.name for parameter in operation.op.parameters]
        try:
            return operation.attempt(**{name: bound[name] for name in names})
        except NoKernelMatches as refusal:
            reasons = [str(reason) for reason in refusal.none.reasons]
            strided = any(isinstance(one, torch.Tensor) and not one.is_contiguous() for one in bound.values())
            lines = reasons if strided else [*reasons, self._remedy(bound)]  # no kernel is made for strides
            places = tuple((one.file, one.problem.code, one.problem.line) for one in refusal.none.reasons)
            kind = ("strided" if strided else "refused", *places)
            return self._reference(kind, "no kernel takes this call", "\n  ".join([":", *lines]), args, kwargs)
        except CallRefused as refusal:
            why = str(refusal).removeprefix(f"{self._name}: ")
            return self._reference(type(refusal).__name__, why, "", args, kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """As a method of a class, it gets the instance as its first argument."""
        return self if instance is None else BoundMethod(self, instance)

    def __deepcopy__(self, memo: object = None) -> DecoratedKernel:
        """Itself, as for a function."""
        return self

    __copy__ = __deepcopy__

    def __reduce__(self) -> str | tuple[Any, ...]:
        """By its name if it is found under that, as for a function, else by the undecorated function."""
        found: Any = sys.modules.get(self.function.__module__)
        for part in self.function.__qualname__.split("."):
            found = getattr(found, part, None)
        return self.function.__qualname__ if found is self else (DecoratedKernel, (self.function, self.strict))

    def __prepare_scriptable__(self) -> Callable[..., Any]:
        """`torch.jit.script` reads the source of the undecorated function."""
        return self.function

    def make(self, **arguments: Any) -> Made:
        """Make a kernel for these shapes, given as text or tensors: `f.make(x="4096x1024:bf16")`.

        It takes the options of `tilewright.make` too.
        """
        made = make(self.function, **arguments)
        assert isinstance(made, Made)  # a decorated function has no captured tensors
        self.forget()
        return made

    def explain(self, *args: Any, **kwargs: Any) -> str:
        """Which kernel file takes such a call and with what launches, or why the function itself runs."""
        bound = self._bound(args, kwargs)
        operation = self._operation(bound)
        if operation is None:
            return f"{self._name}: the function itself runs; {self._remedy(bound)}"
        names = [parameter.name for parameter in operation.op.parameters]
        return str(operation.explain(**{name: bound[name] for name in names}))

    def forget(self) -> None:
        """Search the library again at the next call: another process may have made a kernel."""
        self._operations.clear()
        self._families = None

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
        self._check_guards()
        call = tuple((name, _kind_of(value)) for name, value in bound.items())
        try:
            hash(call)
        except TypeError:  # what cannot be a key can be no argument of a kernel either
            return None
        if call not in self._operations:
            self._operations[call] = self._load(bound)
        return self._operations[call]

    def _load(self, bound: dict[str, Any]) -> Operation | None:
        """The finished kernels that were made for such a call, those for the nearest sizes first."""
        distances = ((self._distance(made, bound), made) for made in self._made())
        fitting = [(distance, made) for distance, made in distances if distance is not None]
        ordered = [made for _, made in sorted(fitting, key=lambda one: one[0])]
        if not ordered:
            return None
        try:
            task = ordered[0].task()
            paths = [kernel.path for kernel in ordered]
            names = tuple(one.name for one in task.inputs)
            others = {name: value for name, value in bound.items() if name not in names}
            form = returned_form(self.function, task, others)
            files = read_files(paths, allow_library=True)
            reference = self._function_reference("kernel", names, others)
            backward = backward_of(ordered[0])
            return Operation(files, read_tuned(paths), reference, self.strict, form, backward)
        except (OperationError, KernelFileError, StoreError, OSError):
            return None

    def _function_reference(self, of: str, names: tuple[str, ...], others: dict[str, Any]) -> FunctionReference:
        identity = f"{of} {self._name} {sorted((name, repr(value)) for name, value in others.items())} {self._source}"
        return FunctionReference(self.function, names, others, identity)

    # -- calls that torch traces --

    def _traced(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call through the operator of the kernels made for its kind, else the function, which is traced."""
        if self._plain and not any(name not in self._signature.parameters for name in kwargs):
            bound = {**self._defaults, **dict(zip(self._signature.parameters, args, strict=False)), **kwargs}
            if len(bound) == len(self._signature.parameters):
                self._look_for_families()
                for family in self._families or () if is_dynamo_compiling() or not is_transformed() else ():
                    if family.takes(bound):
                        return family.call(bound)
        self._warn_traced()
        return self.function(*args, **kwargs)

    def _look_for_families(self) -> None:
        """Search the library, once for each trace."""
        self._check_guards()
        if self._families is None:
            with disable_modes():
                self._families = tuple(self._make_families())

    def _make_families(self) -> Iterator[KernelFamily]:
        groups: dict[object, list[tuple[LibraryKernel, Task, dict[str, Any]]]] = {}
        for made in self._made():
            task, request = made.task(), made.request()
            others = None if request is None else self._others(task, request)
            if others is not None:
                key = (print_op(op_of_task(task)), repr(sorted(others.items())))
                groups.setdefault(key, []).append((made, task, others))
        for group in groups.values():
            try:
                files = read_files([made.path for made, _, _ in group], allow_library=True)
            except (OperationError, KernelFileError, OSError):
                continue
            (_, task, others), tasks = group[0], [task for _, task, _ in group]
            reference = self._function_reference("family", tuple(one.name for one in task.inputs), others)
            form = returned_form(self.function, task, others)
            backward = backward_of(group[0][0])
            yield KernelFamily(files, tasks, reference, form, self._operation, backward)

    def _others(self, task: Task, request: Request) -> dict[str, Any] | None:
        """The arguments that are no inputs of the kernel, with the values it was made with; None if unknown."""
        inputs = {one.name for one in task.inputs}
        names = [name for name in self._signature.parameters if name not in inputs]
        given = {name: ast.literal_eval(request.numbers[name]) for name in names if name in request.numbers}
        values = {**self._defaults, **given}
        return {name: values[name] for name in names} if values.keys() >= {*names} else None

    def _warn_traced(self) -> None:
        """Shapes are not known while a call is traced."""
        if self.strict:
            raise NoKernelApplies(f"{self._name}: no kernel was made for a call of this kind; make one first", ())
        if "traced" not in self._warned:
            self._warned.add("traced")
            warnings.warn(
                f"{self._name}: no kernel was made for a call of this kind, so the function itself is traced (said "
                "once)", ReferenceUsed, stacklevel=4,
            )  # fmt: skip

    def _made(self) -> Iterable[LibraryKernel]:
        for made in Store().library.all():
            try:
                request = made.request()
            except StoreError:
                continue
            if request is None or request.backward:
                continue
            if request.function == self._name and request.text == self._source:
                yield made

    def _check_guards(self) -> None:
        """Forget the kernels found so far if the function, or something that it reads or calls, has changed."""
        if self._source is not None and all(one.holds() for one in self._guards):
            return
        try:
            text = function_text(self.function)
            source, self._guards = text.source, text.globals
        except BadArgument:  # `make` will say why
            source, self._guards = "", ()
        if source != self._source:
            self._source = source
            self.forget()

    def _distance(self, made: LibraryKernel, bound: dict[str, Any]) -> int | None:
        """How many sizes of a call differ from those that a kernel was made for; None if it does not take the call."""
        try:
            task, request = made.task(), made.request()
        except StoreError:
            return None
        inputs = {one.name: one for one in task.inputs}
        if not inputs.keys() <= bound.keys() or request is None:
            return None
        if any(not self._has_value(name, bound[name], request) for name in bound.keys() - inputs.keys()):
            return None
        return _size_distance(task, bound)

    def _has_value(self, name: str, value: Any, request: Request) -> bool:
        """Whether an argument that is no input of the kernel has the value that it was made with."""
        if isinstance(value, torch.Tensor):
            return False
        if name in request.numbers:
            return value is not None and read_arguments({name: value})[1].get(name) == request.numbers[name]
        return bool(value == self._signature.parameters[name].default)

    # Dynamo runs these once for each trace, instead of tracing them.
    _look_for_families._dynamo_marked_constant = True  # type: ignore[attr-defined]
    _warn_traced._dynamo_marked_constant = True  # type: ignore[attr-defined]

    def _reference(self, kind: Hashable, why: str, remedy: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the function itself, with one warning for each `kind` of reason, up to a limit."""
        if self.strict:
            raise NoKernelApplies(f"{self._name}: {why}{remedy}", ())
        if kind not in self._warned and len(self._warned) < _MOST_WARNINGS:
            self._warned.add(kind)
            once = "said once" if len(self._warned) < _MOST_WARNINGS else "said once, and of further kinds no more"
            warnings.warn(
                f"{self._name}: {why}, so the function itself runs ({once}){remedy}", ReferenceUsed, stacklevel=3
            )
        with without_autocast():  # a kernel takes tensors as they are, so the function does too
            return self.function(*args, **kwargs)

    def _remedy(self, bound: dict[str, Any]) -> str:
        return f"make one with {self._name}.make({_call_text(bound)})"


class BoundMethod:
    """A decorated function as a method of one object; Dynamo cannot trace the making of a `types.MethodType`."""

    def __init__(self, kernel: DecoratedKernel, instance: Any) -> None:
        self.__self__ = instance
        self.__func__ = kernel

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__func__(self.__self__, *args, **kwargs)

    def __repr__(self) -> str:
        return f"<{self.__func__!r} of {self.__self__!r}>"


def _kind_of(value: object) -> object:
    """What a kernel is chosen by: the dtype and shape of a tensor, never its data."""
    if isinstance(value, torch.Tensor):
        return (value.dtype, tuple(value.shape), value.requires_grad)
    return (type(value), value)


def _kind_without_sizes(bound: dict[str, Any]) -> Hashable:
    """Dtypes, ranks and numbers: calls without a kernel that share them get one warning."""
    return tuple(
        (value.dtype, value.dim())
        if isinstance(value, torch.Tensor)
        else (type(value), value if isinstance(value, (int, float, str)) else None)
        for value in bound.values()
    )


def _call_text(bound: dict[str, Any]) -> str:
    return ", ".join(f"{name}={_value_text(value)}" for name, value in bound.items())


def _value_text(value: object) -> str:
    if isinstance(value, torch.Tensor):
        dtype = DTYPE_OF_TORCH.get(value.dtype)
        return f'"{"x".join(map(str, value.shape))}:{dtype.value if dtype else value.dtype}"'
    return repr(value)


def _size_distance(task: Task, bound: dict[str, Any]) -> int | None:
    """How many dimensions of a call differ in size from the task; None if the task does not cover the call."""
    sizes: dict[str, int] = {}
    leading = {name for name, _ in task.leading}
    for one in task.inputs:
        value = bound[one.name]
        if isinstance(one, NumberInput):
            if value != one.value:
                return None
        elif not _fits(one, value, sizes, one.name in leading):
            return None
    dimensions = {dimension.name: dimension for dimension in task.dimensions}
    if not task.agrees(sizes):
        return None
    changed = [(dimensions[name], size) for name, size in sizes.items() if size != dimensions[name].size]
    return len(changed) if all(dimension.takes(size) for dimension, size in changed) else None


def _fits(one: TensorInput, value: object, sizes: dict[str, int], leads: bool) -> bool:
    """Whether a tensor has the dtype, rank and sizes of an input; a dimension that `leads` stands for any number."""
    if not isinstance(value, torch.Tensor):
        return value is None and one.optional
    dtype: DType | None = DTYPE_OF_TORCH.get(value.dtype)
    rank, shape = len(one.dimensions), tuple(value.shape)
    if leads and len(shape) >= rank - 1:
        more = len(shape) - (rank - 1)
        shape = (math.prod(shape[:more]), *shape[more:])
    if dtype is not one.dtype or len(shape) != rank:
        return False
    return all(sizes.setdefault(name, size) == size for name, size in zip(one.dimensions, shape, strict=True))
