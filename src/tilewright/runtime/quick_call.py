"""The quick way into an operation: a function made for the op's parameters that recognises a call seen before.

A call is recognised by what decides how it runs: for each tensor its type, layout, dtype, device, alignment and
whether it requires grad; for each number its type, and its value if it decides something. The function is generated
as text, as `dataclasses` does it, because a loop over parameters would cost more than the launch it leads to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright.kernel_file import Op, Parameter

# tensors, their addresses (0 where absent), numbers: all in the order of the op's parameters
Entry = Callable[[tuple[Any, ...], tuple[int, ...], tuple[Any, ...]], Any]

# What a value of the wrong kind provokes; the slow way then says what is wrong with it.
_NOT_SEEN_BEFORE = (KeyError, AttributeError, TypeError, RuntimeError)


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


def make_key_function(op: Op, deciding: frozenset[str]) -> Callable[..., tuple[Any, ...]]:
    """`key(*values)`: the key that `make_quick_call` looks up."""
    names = _names(op)
    parts = ", ".join(_key_part(parameter, name, deciding) for parameter, name in zip(op.parameters, names, strict=True))
    return _define(f"def key({', '.join(names)}):\n    return ({parts},)\n" if names else "def key():\n    return ()\n", op)


def make_quick_call(op: Op, deciding: frozenset[str], recent: Recent, slow: Callable[..., Any]) -> Callable[..., Any]:
    """`call(*values)`, one value for each parameter: runs the entry of a known key, else `slow(*values)`."""
    names = _names(op)
    pairs = list(zip(op.parameters, names, strict=True))
    parts = [_key_part(parameter, name, deciding) for parameter, name in pairs]
    tensors = [name for parameter, name in pairs if parameter.scalar is None]
    optional = [f"        p_{name} = 0" for parameter, name in pairs if parameter.scalar is None and parameter.optional]
    numbers = [name for parameter, name in pairs if parameter.scalar is not None]
    text = "\n".join(
        [
            f"def call({', '.join(names)}):",
            "    try:",
            *optional,
            f"        entry = entries[({', '.join(parts)}{',' if parts else ''})]",
            "    except not_seen_before:",
            f"        return slow({', '.join(names)})",
            f"    return entry({_tuple(tensors)}, {_tuple([f'p_{name}' for name in tensors])}, {_tuple(numbers)})",
        ]
    )
    return _define(text, op, entries=recent.entries, slow=slow, not_seen_before=_NOT_SEEN_BEFORE)


def _names(op: Op) -> list[str]:
    """Names of our own: a parameter may be called `lambda`."""
    return [f"a{number}" for number in range(len(op.parameters))]


def _key_part(parameter: Parameter, name: str, deciding: frozenset[str]) -> str:
    if parameter.scalar is None:
        part = (
            f"type({name}), {name}.shape, {name}.stride(), {name}.dtype, {name}.device, {name}.requires_grad, "
            f"(p_{name} := {name}.data_ptr()) & 15"
        )
        return f"None if {name} is None else ({part})" if parameter.optional else part
    decides = parameter.name in deciding
    if parameter.is_list:
        part = f"tuple(map(type, {name}))" + (f", tuple({name})" if decides else "")
        return f"None if {name} is None else ({part},)" if parameter.optional else part
    return f"type({name}), {name}" if decides else f"type({name})"


def _tuple(items: Sequence[str]) -> str:
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


def _define(text: str, op: Op, **values: Any) -> Callable[..., Any]:
    scope: dict[str, Any] = {"__builtins__": {"type": type, "tuple": tuple, "map": map}, **values}
    exec(compile(text, f"<quick call of {op.name}>", "exec"), scope)
    made: Callable[..., Any] = scope["call" if "call" in scope else "key"]
    return made
