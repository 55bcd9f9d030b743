"""The quick way into an operation: a function made for the op's parameters that recognises a call seen before.

A call is recognised by what decides how it runs: for each tensor its layout, dtype, device, alignment and
whether it requires grad; for each number its type, and its value if it decides something. It is first
compared with the latest kind of call, which is quicker than to make a key of it. The functions are generated as text,
as `dataclasses` does it, because a loop over parameters would cost more than the launch it leads to.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import forward_ad

from tilewright.kernel_file import Op, Parameter
from tilewright.records import ScalarType
from tilewright.runtime import ordinary

# -- comparing a call with an earlier one --

Alike = Callable[..., bool]  # one tensor for each of those it was made of


def nothing_alike(*tensors: Any) -> bool:
    """The check of a call that no other is like."""
    return False


def likeness(tensors: Sequence[torch.Tensor | None]) -> Alike:
    """What tells whether other tensors are as these are now; where that cannot be told, nothing is like them."""
    if not tensors or any(one is None for one in tensors) or not _is_trusted():
        return nothing_alike
    return _check_of(*tensors)


def _check_of(*tensors: Any) -> Alike:
    guards: Any = torch._C._dynamo.guards
    check: Alike = guards.TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
    return check


@functools.cache
def _is_trusted() -> bool:
    """Whether torch's check exists, takes another tensor of the same kind, and no tensor of another kind."""
    try:
        return _tells_apart()
    except Exception:  # of another torch, in which it may be anything
        return False


def _tells_apart() -> bool:
    one = torch.zeros(1)
    matrix = torch.zeros(2, 2)
    is_one, is_matrix = _check_of(one), _check_of(matrix, matrix)
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

# What a value of the wrong kind provokes; the slow way then says what is wrong with it.
_NOT_SEEN_BEFORE = (KeyError, AttributeError, TypeError, RuntimeError)


@dataclass(frozen=True)
class CallLayout:
    """What a key is made of: the op's parameters, and the numbers that decide."""

    op: Op
    deciding: frozenset[str]

    @property
    def names(self) -> list[str]:
        """Names of our own for the parameters: one may be called `lambda`."""
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


# Calls of a kind are looked up so many times before the next ones are compared with them: where two kinds alternate,
# it would cost more to remember the latest each time than it saves.
_OFTEN = 8


class CachedEntry:
    """An entry, how often it was looked up lately, and what tells that a call is like the one it was looked up for."""

    __slots__ = ("entry", "latest", "times")

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.times = 0
        self.latest: Latest | None = None


# Whether tensors are like those of the call, what else of it decides, its entry.
Latest = tuple[Alike, tuple[Any, ...], Entry]


def _no_entry(*_: Any) -> Any:
    raise AssertionError("nothing is like a call that never was")


class EntryCache:
    """Entries by key, at most about `capacity` of them: when full, the half used longest ago goes.

    `entries` is what the generated functions look in; entries used again since the last sweep move back into it.
    `latest` has one item: a call that was looked up often of late.
    """

    def __init__(self, capacity: int = 2048) -> None:
        self.entries: dict[Any, CachedEntry] = {}
        self.latest: list[Latest] = [(nothing_alike, (), _no_entry)]
        self._older: dict[Any, CachedEntry] = {}
        self._half = max(capacity // 2, 1)

    def find(self, key: Any) -> Entry | None:
        """An entry that was swept out of `entries` but not yet forgotten; it is recent again."""
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

    def notice(self, known: CachedEntry, tensors: tuple[Any, ...], same: tuple[Any, ...]) -> None:
        """The call that was looked up now: the next ones are compared with it first.

        Where it was the latest already, torch is in another state than it was, so it is looked at anew.
        """
        known.times = 0
        if known.latest is None or known.latest is self.latest[0]:
            known.latest = likeness(tensors), same, known.entry
        self.latest[0] = known.latest

    def __len__(self) -> int:
        return len(self.entries) + len(self._older)


def is_plain(op: Op, values: Sequence[Any]) -> bool:
    """Whether a key tells calls like this one from all others: plain tensors, and numbers of the declared type."""
    return all(_is_plain(parameter, value) for parameter, value in zip(op.parameters, values, strict=True))


def _is_plain(parameter: Parameter, value: Any) -> bool:
    if value is None:
        return parameter.optional
    if parameter.scalar is None:
        return type(value) in ordinary.PLAIN_TENSORS
    if parameter.is_list:
        return type(value) in (list, tuple) and all(type(item) is _NUMBER[parameter.scalar] for item in value)
    # An int stands for the float of the same value, here as in Python.
    return type(value) is _NUMBER[parameter.scalar] or (parameter.scalar is ScalarType.FLOAT and type(value) is int)


def make_key_function(form: CallLayout) -> Callable[..., tuple[Any, ...]]:
    """`key(*values)`: the key that `make_fast_path` looks up."""
    text = f"def key({', '.join(form.names)}):\n    return ({_key_parts(form)})\n"
    return _define(text, "key", form.op, {})


def make_fast_path(
    form: CallLayout, recent: EntryCache, slow: Callable[..., Any], check_modes: bool = True
) -> Callable[..., Any]:
    """`call(*values)`, one value for each parameter: runs the entry of a known key, else `slow(*values)`.

    With `check_modes` whatever torch may have a part in is left to `slow`, too.
    """
    look_up = _make_look_up(form, recent, slow, check_modes)
    if not check_modes or not form.tensors:
        return look_up
    tensors = form.tensors
    addresses = [f"p_{name}" for name in tensors]
    lines = [
        f"def call({', '.join(form.names)}):",
        "    try:",
        "        alike, same, entry = latest[0]",
        f"        known = alike({', '.join(tensors)}) and same == ({_same_parts(form)}) and {_ORDINARY}",
        "    except not_seen_before:",
        "        known = False",
        f"    if known and {' and '.join(addresses)}:",  # what has no memory has no address
        f"        return entry({_tuple(tensors)}, {_tuple(addresses)}, {_numbers(form)})",
        f"    return look_up({', '.join(form.names)})",
    ]
    return _define("\n".join(lines), "call", form.op, {"latest": recent.latest, "look_up": look_up, **_SCOPE})


def _make_look_up(
    form: CallLayout, recent: EntryCache, slow: Callable[..., Any], check_modes: bool
) -> Callable[..., Any]:
    """The same by a key alone."""
    names, tensors = form.names, form.tensors
    addresses = [f"p_{name}" for name in tensors]
    absent = [
        f"        p_{name} = 0" for parameter, name in form.pairs if parameter.scalar is None and parameter.optional
    ]
    # Only of these is it known that an address means memory: a fake tensor would warn, or answer 0.
    here = [f"(type({name}) in plain or {name} is None)" for name in tensors] or ["True"]
    if check_modes:
        here = [*here, _ORDINARY]
    # Nor has a tensor without memory an address, such as a wrapper of `torch.func` or a tensor known to be zero.
    there = [f"(p_{name} or {name} is None)" for name in tensors] if check_modes else []
    notice = [
        "            known.times += 1",
        "            if known.times >= often:",
        f"                notice(known, {_tuple(tensors)}, ({_same_parts(form, known_addresses=True)}))",
    ]
    lines = [
        f"def look_up({', '.join(names)}):",
        f"    if not ({' and '.join(here)}):",
        f"        return slow({', '.join(names)})",
        "    try:",
        *absent,
        f"        known = entries[({_key_parts(form)})]",
        "    except not_seen_before:",
        "        pass",  # the slow way is outside, so that what it raises does not come with a KeyError's traceback
        "    else:",
        f"        if {' and '.join(there) or 'True'}:",
        *(notice if check_modes and tensors else ()),
        f"            return known.entry({_tuple(tensors)}, {_tuple(addresses)}, {_numbers(form)})",
        f"    return slow({', '.join(names)})",
    ]
    scope = {"entries": recent.entries, "notice": recent.notice, "often": _OFTEN, "slow": slow, **_SCOPE}
    return _define("\n".join(lines), "look_up", form.op, scope)


_ORDINARY = "not (dispatch_modes() or function_modes() or tracing() or forward_ad._current_level >= 0)"

_SCOPE = {
    "plain": ordinary.PLAIN_TENSORS,
    "not_seen_before": _NOT_SEEN_BEFORE,
    "dispatch_modes": ordinary.dispatch_modes,
    "function_modes": ordinary.function_modes,
    "tracing": ordinary.tracing,
    "forward_ad": forward_ad,
}


def _key_parts(form: CallLayout) -> str:
    return "".join(f"{_key_part(parameter, name, form)}, " for parameter, name in form.pairs)


def _same_parts(form: CallLayout, known_addresses: bool = False) -> str:
    """What of a key is not told by the likeness of tensors, none of which is absent."""
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
    return _tuple([_number(parameter, name) for parameter, name in form.numbers])


def _number(parameter: Parameter, name: str) -> str:
    if not parameter.is_list:
        return name
    return f"None if {name} is None else tuple({name})" if parameter.optional else f"tuple({name})"


def _tuple(items: Sequence[str]) -> str:
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


def _define(text: str, name: str, op: Op, values: Mapping[str, Any]) -> Callable[..., Any]:
    scope: dict[str, Any] = {"__name__": __name__, "__builtins__": {"type": type, "tuple": tuple, "map": map}, **values}
    exec(compile(text, f"<quick call of {op.name}>", "exec"), scope)
    made: Callable[..., Any] = scope[name]
    return made
