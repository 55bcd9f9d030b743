"""The quick way into an operation: a function made for the op's parameters that recognises a call seen before.

A call is recognised by what decides how it runs: for each tensor its layout, dtype, device, alignment and
whether it requires grad; for each number its type, and its value if it decides something. The function is generated
as text, as `dataclasses` does it, because a loop over parameters would cost more than the launch it leads to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.autograd import forward_ad

from tilewright.kernel_file import Op, Parameter
from tilewright.records import ScalarType
from tilewright.runtime import ordinary

# tensors, their addresses (0 where absent), numbers: all in the order of the op's parameters
Entry = Callable[[tuple[Any, ...], tuple[int, ...], tuple[Any, ...]], Any]

_NUMBER: dict[ScalarType, type] = {ScalarType.INT: int, ScalarType.FLOAT: float, ScalarType.BOOL: bool}

# What a value of the wrong kind provokes; the slow way then says what is wrong with it.
_NOT_SEEN_BEFORE = (KeyError, AttributeError, TypeError, RuntimeError)


@dataclass(frozen=True)
class KeyForm:
    """What a key is made of: the op's parameters, the numbers that decide, the tensors with strides of any kind."""

    op: Op
    deciding: frozenset[str]
    strided: frozenset[str]


class Recent:
    """Entries by key, at most about `capacity` of them: when full, the half used longest ago goes.

    `entries` is what the generated function looks in; entries used again since the last sweep move back into it.
    """

    def __init__(self, capacity: int = 2048) -> None:
        self.entries: dict[Any, Entry] = {}
        self._older: dict[Any, Entry] = {}
        self._half = max(capacity // 2, 1)

    def find(self, key: Any) -> Entry | None:
        """An entry that was swept out of `entries` but not yet forgotten; it is recent again."""
        entry = self._older.pop(key, None)
        if entry is not None:
            self.add(key, entry)
        return entry

    def add(self, key: Any, entry: Entry) -> None:
        if len(self.entries) >= self._half:
            self._older = dict(self.entries)
            self.entries.clear()
        self.entries[key] = entry

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


def make_key_function(form: KeyForm) -> Callable[..., tuple[Any, ...]]:
    """`key(*values)`: the key that `make_quick_call` looks up."""
    names = _names(form.op)
    text = f"def key({', '.join(names)}):\n    return ({_key_parts(form)})\n"
    return _define(text, "key", form.op, {})


def make_quick_call(
    form: KeyForm, recent: Recent, slow: Callable[..., Any], ordinary_only: bool = True
) -> Callable[..., Any]:
    """`call(*values)`, one value for each parameter: runs the entry of a known key, else `slow(*values)`.

    With `ordinary_only` whatever torch may have a part in is left to `slow`, too.
    """
    names = _names(form.op)
    pairs = list(zip(form.op.parameters, names, strict=True))
    tensors = [name for parameter, name in pairs if parameter.scalar is None]
    absent = [f"        p_{name} = 0" for parameter, name in pairs if parameter.scalar is None and parameter.optional]
    numbers = [_number(parameter, name) for parameter, name in pairs if parameter.scalar is not None]
    # Only of these is it known that an address means memory: a fake tensor would warn, or answer 0.
    plain = [f"(type({name}) in plain or {name} is None)" for name in tensors] or ["True"]
    here = plain
    if ordinary_only:
        here = [*plain, "not (dispatch_modes() or function_modes() or tracing() or forward_ad._current_level >= 0)"]
    # Nor has a tensor without memory an address, such as a wrapper of `torch.func` or a tensor known to be zero.
    there = [f"(p_{name} or {name} is None)" for name in tensors] if ordinary_only else []
    lines = [
        f"def call({', '.join(names)}):",
        f"    if not ({' and '.join(here)}):",
        f"        return slow({', '.join(names)})",
        "    try:",
        *absent,
        f"        entry = entries[({_key_parts(form)})]",
        "    except not_seen_before:",
        "        pass",  # the slow way is outside, so that what it raises does not come with a KeyError's traceback
        "    else:",
        f"        if {' and '.join(there) or 'True'}:",
        f"            return entry({_tuple(tensors)}, {_tuple([f'p_{name}' for name in tensors])}, {_tuple(numbers)})",
        f"    return slow({', '.join(names)})",
    ]
    scope = {
        "entries": recent.entries,
        "slow": slow,
        "plain": ordinary.PLAIN_TENSORS,
        "not_seen_before": _NOT_SEEN_BEFORE,
        "dispatch_modes": ordinary.dispatch_modes,
        "function_modes": ordinary.function_modes,
        "tracing": ordinary.tracing,
        "forward_ad": forward_ad,
    }
    return _define("\n".join(lines), "call", form.op, scope)


def _key_parts(form: KeyForm) -> str:
    pairs = zip(form.op.parameters, _names(form.op), strict=True)
    return "".join(f"{_key_part(parameter, name, form)}, " for parameter, name in pairs)


def _names(op: Op) -> list[str]:
    """Names of our own: a parameter may be called `lambda`."""
    return [f"a{number}" for number in range(len(op.parameters))]


def _key_part(parameter: Parameter, name: str, form: KeyForm) -> str:
    if parameter.scalar is None:
        part = (
            f"{name}.shape, {name}.stride(), {name}.dtype, {name}.device, {name}.requires_grad, "
            f"(p_{name} := {name}.data_ptr()) & 15"
        )
        if parameter.name in form.strided:  # a negated view is one more way of not being contiguous
            part += f", {name}.is_neg()"
        return f"None if {name} is None else ({part})" if parameter.optional else part
    decides = parameter.name in form.deciding
    if parameter.is_list:
        part = f"tuple(map(type, {name}))" + (f", tuple({name})" if decides else "")
        return f"None if {name} is None else ({part},)" if parameter.optional else part
    return f"type({name}), {name}" if decides else f"type({name})"


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
