"""The fast path of a call: a function generated for the op's parameters that looks up a cached entry.

The cache key holds each tensor's layout, dtype, device, alignment and requires_grad, and each number's type (and its
value, if the selection depends on it). Before making a key, the call is compared with the last one by torch's tensor
guards, which is faster. The functions are generated as source text, as `dataclasses` does, because a loop over the
parameters would cost more than the launch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import forward_ad

from tilewright.kernel_file import Op, Parameter
from tilewright.records import ScalarType
from tilewright.runtime.errors import CallRefused

# -- whether torch takes part in a call: a plain call sent through its dispatcher is slower, never wrong --

PLAIN_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})

# Falsy while no mode is active. C functions, because every call on the fast path reads them.
dispatch_modes = torch._C._len_torch_dispatch_stack  # fake tensors, make_fx, FlopCounterMode
function_modes = torch._C._len_torch_function_stack  # export, make_fx before dispatch, a default device
tracing = torch._C._get_tracing_state  # torch.jit.trace
_functorch_level = torch._C._functorch.maybe_current_level


def is_transformed() -> bool:
    """Whether a transform of `torch.func` or forward-mode differentiation is active."""
    return forward_ad._current_level >= 0 or _functorch_level() is not None


def no_torch_modes_active() -> bool:
    """Whether no mode, tracer or transform of torch is active."""
    return not (dispatch_modes() or function_modes() or tracing() or is_transformed())


def are_plain_tensors(tensors: Iterable[Any]) -> bool:
    """Whether each is a real tensor: no subclass, functorch wrapper, fake tensor or zero tensor."""
    return all(
        tensor is None
        or (
            type(tensor) in PLAIN_TENSORS
            and tensor.device.type != "meta"
            and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
            and not torch._is_functional_tensor(tensor)
            and not tensor._is_zerotensor()
        )
        for tensor in tensors
    )


def refuse_distributed(op: Op, tensors: Sequence[torch.Tensor | None]) -> None:
    """Raise for distributed tensors: a kernel file does not define how it may be sharded."""
    for name, tensor in zip((one.name for one in op.tensors), tensors, strict=True):
        if tensor is not None and type(tensor).__module__.startswith("torch.distributed"):
            raise CallRefused(
                f"{op.name}: {name} is a {type(tensor).__name__}, and a kernel file says nothing of how it may be "
                f"sharded; pass {name}.to_local(), or {name}.full_tensor()"
            )


# -- guards --

Guard = Callable[..., bool]  # takes as many tensors as it was made from


def never_matches(*tensors: Any) -> bool:
    return False


def tensor_guard(tensors: Sequence[torch.Tensor | None]) -> Guard:
    """A guard that accepts tensors with the metadata of these; `never_matches` where torch has no reliable one."""
    if not tensors or any(one is None for one in tensors) or not _is_trusted():
        return never_matches
    return _torch_guard(*tensors)


def _torch_guard(*tensors: Any) -> Guard:
    guards: Any = torch._C._dynamo.guards
    check: Guard = guards.TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
    return check


@functools.cache
def _is_trusted() -> bool:
    """Whether this torch has tensor guards that accept equal metadata and reject everything else."""
    try:
        return _guards_work()
    except Exception:  # a private API: another version of torch may raise anything
        return False


def _guards_work() -> bool:
    one = torch.zeros(1)
    matrix = torch.zeros(2, 2)
    is_one, is_matrix = _torch_guard(one), _torch_guard(matrix, matrix)
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


# tensors, their addresses (0 where absent), numbers: all in the order of the op's parameters
Entry = Callable[[tuple[Any, ...], tuple[int, ...], tuple[Any, ...]], Any]

_NUMBER: dict[ScalarType, type] = {ScalarType.INT: int, ScalarType.FLOAT: float, ScalarType.BOOL: bool}

# Raised for unknown keys and for values of a wrong type, which the slow path reports.
_CACHE_MISS = (KeyError, AttributeError, TypeError, RuntimeError)


@dataclass(frozen=True)
class CallLayout:
    """The parts of a cache key: the op's parameters, and the numbers whose values count."""

    op: Op
    deciding: frozenset[str]

    @property
    def names(self) -> list[str]:
        """Generated names: a parameter may be called `lambda`."""
        return [f"a{number}" for number in range(len(self.op.parameters))]

    @property
    def tensors(self) -> list[str]:
        return [name for parameter, name in self.pairs if parameter.scalar is None]

    @property
    def numbers(self) -> list[tuple[Parameter, str]]:
        return [(parameter, name) for parameter, name in self.pairs if parameter.scalar is not None]

    @property
    def pairs(self) -> list[tuple[Parameter, str]]:
        return list(zip(self.op.parameters, self.names, strict=True))


# Lookups of a key before later calls are compared with its last call first: where two keys alternate, updating the last
# call every time would cost more than it saves.
_LOOKUPS_BEFORE_GUARD = 8


class CachedEntry:
    """An entry, its lookup count, and the guard for its last call."""

    __slots__ = ("entry", "last_call", "lookups")

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.lookups = 0
        self.last_call: LastCall | None = None


LastCall = tuple[Guard, tuple[Any, ...], Entry]  # the guard on its tensors, the rest of its key, its entry


class EntryCache:
    """Entries by key, at most about `capacity`; when full, the least recently used half is dropped.

    The generated functions read `entries`; older entries move back into it when used. `last_call` is a list of one.
    """

    def __init__(self, capacity: int = 2048) -> None:
        self.entries: dict[Any, CachedEntry] = {}
        self.last_call: list[LastCall] = [(never_matches, (), never_matches)]
        self._older: dict[Any, CachedEntry] = {}
        self._half = max(capacity // 2, 1)

    def find(self, key: Any) -> Entry | None:
        """An older entry, moved back into `entries`; None where there is none."""
        known = self._older.pop(key, None)
        if known is None:
            return None
        self.add(key, known.entry)
        return known.entry

    def add(self, key: Any, entry: Entry) -> None:
        if len(self.entries) >= self._half:
            self._older = dict(self.entries)
            self.entries.clear()
        self.entries[key] = CachedEntry(entry)

    def set_last_call(self, known: CachedEntry, tensors: tuple[Any, ...], rest: tuple[Any, ...]) -> None:
        """Compare the next calls with this one first.

        Where it already was the last call, its guard failed on torch's changed global state, so it is made anew.
        """
        known.lookups = 0
        if known.last_call is None or known.last_call is self.last_call[0]:
            known.last_call = tensor_guard(tensors), rest, known.entry
        self.last_call[0] = known.last_call

    def __len__(self) -> int:
        return len(self.entries) + len(self._older)


def is_plain(op: Op, values: Sequence[Any]) -> bool:
    """Whether the cache key is exact for these values: plain tensors, and numbers of the declared types."""
    return all(_is_plain(parameter, value) for parameter, value in zip(op.parameters, values, strict=True))


def _is_plain(parameter: Parameter, value: Any) -> bool:
    if value is None:
        return parameter.optional
    if parameter.scalar is None:
        return type(value) in PLAIN_TENSORS
    if parameter.is_list:
        return type(value) in (list, tuple) and all(type(item) is _NUMBER[parameter.scalar] for item in value)
    # An int is accepted for a float, as in Python.
    return type(value) is _NUMBER[parameter.scalar] or (parameter.scalar is ScalarType.FLOAT and type(value) is int)


def make_key_function(form: CallLayout) -> Callable[..., tuple[Any, ...]]:
    """`key(*values)`: the key that `make_fast_path` looks up."""
    text = f"def key({', '.join(form.names)}):\n    return ({_key_parts(form)})\n"
    return _define(text, "key", form.op, {})


def make_fast_path(
    form: CallLayout, recent: EntryCache, slow: Callable[..., Any], check_modes: bool = True
) -> Callable[..., Any]:
    """`call(*values)`, one value per parameter: runs the cached entry, else `slow(*values)`.

    With `check_modes`, calls under a mode or transform of torch also go to `slow`.
    """
    look_up = _make_look_up(form, recent, slow, check_modes)
    if not check_modes or not form.tensors:
        return look_up
    tensors = form.tensors
    addresses = [f"p_{name}" for name in tensors]
    lines = [
        f"def call({', '.join(form.names)}):",
        "    try:",
        "        guard, rest, entry = last_call[0]",
        f"        known = guard({', '.join(tensors)}) and rest == ({_unguarded_parts(form)}) and {_NO_MODES}",
        "    except cache_miss:",
        "        known = False",
        f"    if known and {' and '.join(addresses)}:",  # a tensor without memory has address 0
        f"        return entry({_tuple(tensors)}, {_tuple(addresses)}, {_numbers(form)})",
        f"    return look_up({', '.join(form.names)})",
    ]
    return _define("\n".join(lines), "call", form.op, {"last_call": recent.last_call, "look_up": look_up, **_SCOPE})


def _make_look_up(
    form: CallLayout, recent: EntryCache, slow: Callable[..., Any], check_modes: bool
) -> Callable[..., Any]:
    """The lookup by cache key, without the guard on the last call."""
    names, tensors = form.names, form.tensors
    addresses = [f"p_{name}" for name in tensors]
    absent = [
        f"        p_{name} = 0" for parameter, name in form.pairs if parameter.scalar is None and parameter.optional
    ]
    # `data_ptr` is meaningful for these types only: a fake tensor would warn or return 0.
    here = [f"(type({name}) in plain or {name} is None)" for name in tensors] or ["True"]
    if check_modes:
        here = [*here, _NO_MODES]
    # Functorch wrappers and zero tensors have no memory: address 0.
    there = [f"(p_{name} or {name} is None)" for name in tensors] if check_modes else []
    notice = [
        "            known.lookups += 1",
        f"            if known.lookups >= {_LOOKUPS_BEFORE_GUARD}:",
        f"                set_last_call(known, {_tuple(tensors)}, ({_unguarded_parts(form, known_addresses=True)}))",
    ]
    lines = [
        f"def look_up({', '.join(names)}):",
        f"    if not ({' and '.join(here)}):",
        f"        return slow({', '.join(names)})",
        "    try:",
        *absent,
        f"        known = entries[({_key_parts(form)})]",
        "    except cache_miss:",
        "        pass",  # the slow path is outside, so that its errors are not chained to a KeyError
        "    else:",
        f"        if {' and '.join(there) or 'True'}:",
        *(notice if check_modes and tensors else ()),
        f"            return known.entry({_tuple(tensors)}, {_tuple(addresses)}, {_numbers(form)})",
        f"    return slow({', '.join(names)})",
    ]
    scope = {
        "entries": recent.entries,
        "set_last_call": recent.set_last_call,
        "slow": slow,
        **_SCOPE,
    }
    return _define("\n".join(lines), "look_up", form.op, scope)


_NO_MODES = "not (dispatch_modes() or function_modes() or tracing() or forward_ad._current_level >= 0)"

_SCOPE = {
    "plain": PLAIN_TENSORS,
    "cache_miss": _CACHE_MISS,
    "dispatch_modes": dispatch_modes,
    "function_modes": function_modes,
    "tracing": tracing,
    "forward_ad": forward_ad,
}


def _key_parts(form: CallLayout) -> str:
    return "".join(f"{_key_part(parameter, name, form)}, " for parameter, name in form.pairs)


def _unguarded_parts(form: CallLayout, known_addresses: bool = False) -> str:
    """The parts of the key that tensor guards do not cover."""
    tensors = "".join(f"p_{name} & 15, " if known_addresses else f"{_alignment(name)}, " for name in form.tensors)
    return tensors + "".join(f"{_number_part(parameter, name, form)}, " for parameter, name in form.numbers)


def _key_part(parameter: Parameter, name: str, form: CallLayout) -> str:
    if parameter.scalar is not None:
        return _number_part(parameter, name, form)
    part = (
        f"{name}.shape, {name}.stride(), {name}.dtype, {name}.device, {name}.requires_grad, {name}.is_neg(), "
        f"{_alignment(name)}"
    )
    return f"None if {name} is None else ({part})" if parameter.optional else part


def _alignment(name: str) -> str:
    return f"(p_{name} := {name}.data_ptr()) & 15"


def _number_part(parameter: Parameter, name: str, form: CallLayout) -> str:
    decides = parameter.name in form.deciding
    if parameter.is_list:
        part = f"tuple(map(type, {name}))" + (f", tuple({name})" if decides else "")
        return f"None if {name} is None else ({part},)" if parameter.optional else part
    return f"type({name}), {name}" if decides else f"type({name})"


def _numbers(form: CallLayout) -> str:
    def number(parameter: Parameter, name: str) -> str:
        if not parameter.is_list:
            return name
        return f"None if {name} is None else tuple({name})" if parameter.optional else f"tuple({name})"

    return _tuple([number(parameter, name) for parameter, name in form.numbers])


def _tuple(items: Sequence[str]) -> str:
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


def _define(text: str, name: str, op: Op, values: Mapping[str, Any]) -> Callable[..., Any]:
    scope: dict[str, Any] = {"__name__": __name__, "__builtins__": {"type": type, "tuple": tuple, "map": map}, **values}
    exec(compile(text, f"<fast path of {op.name}>", "exec"), scope)
    made: Callable[..., Any] = scope[name]
    return made
