"""An nn.Module as source text that stands alone: its classes, with the methods and the values that a call uses.

Constructors are not in the text. The attributes that methods read are written with their values: numbers and other
plain values as literals, layers of torch by their constructors, a configuration as the fields that are read. Parameters
have sizes and no data; they become inputs of the kernel. A class of an installed package whose methods cannot stand in
a text, for example because a decorator wraps them, is imported instead.
"""

from __future__ import annotations

import base64
import copy
import enum
import functools
import math
import numbers
import re
import textwrap
import types
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.utils import parametrize

from tilewright.records import NormalValues, Values
from tilewright.tasks.child.module_run import is_structure, values_like
from tilewright.tasks.errors import BadArgument
from tilewright.tasks.lifting.definition_source import LiftedClass, lift_class
from tilewright.tasks.lifting.source_text import SourceBuilder, importable, is_constant, is_own_name, literal
from tilewright.tasks.reading.parameters import print_values

_MODULE_FIELDS = frozenset(vars(torch.nn.Module()))
_READS_SUBMODULES = frozenset(("children", "named_children", "modules", "named_modules", "_modules", "get_submodule"))
_LONGEST_TENSOR = 1 << 20  # bytes of a mask in a text, packed
_WRITTEN_OUT = 64  # elements of a tensor
_DEEPEST = 8  # objects within objects


@dataclass(frozen=True)
class AttributeGuard:
    """A plain value that is a constant in the text of a module: the text is valid while the module has that value."""

    path: tuple[str, ...]
    value: object

    @property
    def name(self) -> str:
        return ".".join(self.path)

    def holds(self, module: object) -> bool:
        found = self._found(module)
        return found is self.value or (type(found) is type(self.value) and bool(found == self.value))

    def _found(self, module: Any) -> Any:
        return functools.reduce(lambda one, name: getattr(one, name, None), self.path, module)


@dataclass(frozen=True)
class SubmoduleGuard(AttributeGuard):
    """The class of a submodule: the text is valid while the submodule has that class and no hooks."""

    def holds(self, module: object) -> bool:
        found = self._found(module)
        return type(found) is self.value and not (found._forward_hooks or found._forward_pre_hooks)


@dataclass(frozen=True)
class ModuleText:
    """A module as text. `build` is the expression that makes the module."""

    source: str
    build: str
    values: dict[str, str]  # how parameters are drawn, by their path
    constants: tuple[AttributeGuard, ...]
    trains_otherwise: bool  # training mode may compute something else


def module_source(module: torch.nn.Module, method: str = "forward") -> ModuleText:
    """The text; raises `BadArgument` for a module that cannot stand in one."""
    try:
        return _Writer(module, method, lifted=True).text()
    except BadArgument as refusal:
        if method != "forward" or is_own_name(type(module).__module__):
            raise
        try:
            return _Writer(module, method, lifted=False).text()
        except BadArgument:
            raise refusal from None


@dataclass
class _Writer:
    """`lifted`: classes are copied into the text; otherwise those of installed packages are imported."""

    module: torch.nn.Module
    method: str
    lifted: bool
    guards: list[AttributeGuard] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.asked_for = type(self.module).__name__
        self.builder = SourceBuilder(self.asked_for)
        self.torch = self.builder.add("torch", torch, "torch", "")
        self.classes: dict[type, LiftedClass] = {}

    def text(self) -> ModuleText:
        _refuse_unusual(self.module, self.method)
        for one in self.module.modules():
            self._class_of(one)
        build, _ = self.builder.name_for(f"make_{self.asked_for.lower()}", self)
        self._write("module", self.module, "")
        self._write_ties()
        body = "\n    ".join([f"with {self.torch}.device('meta'):", *self.lines])
        made = f"def {build}():\n{textwrap.indent(body, '    ')}\n    return module"
        text, values = self.builder.text((made,)), self._values()
        return ModuleText(text, f"{build}().eval()", values, tuple(self.guards), self._trains_otherwise())

    def _trains_otherwise(self) -> bool:
        """Whether a method in the text, or of a layer of torch, reads `training`."""
        if "training" in self.builder.attributes or not self.lifted:
            return True
        return any("training" in type(one).forward.__code__.co_names for one in self.module.modules())

    def _class_of(self, module: torch.nn.Module) -> str:
        """The class of a module as an expression."""
        kind = type(module)
        if _is_torch(kind):
            if getattr(torch.nn, kind.__name__, None) is kind:
                return f"{self.torch}.nn.{kind.__name__}"
            return self.builder.add(kind.__name__, kind, kind.__name__, "")
        if not self.lifted and not is_own_name(kind.__module__):
            return self.builder.add(kind.__name__, kind, kind.__name__, "")
        if kind not in self.classes:
            method = self.method if module is self.module else "forward"
            self.classes[kind] = lift_class(self.builder, kind, method)
        return self.classes[kind].name

    def _is_read(self, module: torch.nn.Module, name: str) -> bool:
        """Whether a method in the text may read an attribute of a module."""
        if type(module) not in self.classes or self.classes[type(module)].inherits:
            return True
        return name in self.builder.attributes or bool(_READS_SUBMODULES & self.builder.attributes)

    def _write(self, target: str, module: torch.nn.Module, path: str) -> None:
        """The lines that make a module and set its attributes, parameters, buffers and submodules."""
        kind = self._class_of(module)
        if (constructed := _constructed(module)) is not None:
            self._line(f"{target} = {self.torch}.nn.{constructed}{self._converted(module)}")
            self._write_structure(target, module)
            public = [name for name in vars(module) if name not in _MODULE_FIELDS and not name.startswith("_")]
            self._guard_fields(module, public, path)
            return
        bare = "bare" if kind != "bare" else "bare_module"
        self.builder.define(bare, _BARE.format(name=bare, torch=self.torch))
        self._line(f"{target} = {bare}({kind})")
        read = [name for name in vars(module) if name not in _MODULE_FIELDS and self._is_read(module, name)]
        for name in read:
            shown = ".".join(filter(None, (path, name)))
            self._line(f"{target}.{name} = {self._expression(vars(module)[name], shown)}")
        self._guard_fields(module, read, path)
        for name, parameter in module._parameters.items():
            made = "None" if parameter is None else f"{self.torch}.nn.Parameter({self._empty(parameter)})"
            self._line(f"{target}.register_parameter({name!r}, {made})")
        self._write_buffers(target, module)
        for name, inner in module._modules.items():
            if inner is None:
                self._line(f"{target}.register_module({name!r}, None)")
            elif self._is_read(module, name):
                self._write_inner(target, name, inner, ".".join(filter(None, (path, name))))

    def _write_inner(self, target: str, name: str, inner: torch.nn.Module, path: str) -> None:
        variable = "_".join(filter(None, (target, name))).replace("module_", "", 1)
        variable = variable if variable.isidentifier() else f"part_{variable}"
        self._write(variable, inner, path)
        if "[" not in path:
            self.guards.append(SubmoduleGuard(tuple(path.split(".")), type(inner)))
        self._line(f"{target}.register_module({name!r}, {variable})")

    def _write_buffers(self, target: str, module: torch.nn.Module) -> None:
        for name, buffer in module._buffers.items():
            kept = name not in module._non_persistent_buffers_set
            shown = f"{target}.{name}"
            made = "None" if buffer is None else self._buffer(buffer, shown)
            self._line(f"{target}.register_buffer({name!r}, {made}{'' if kept else ', persistent=False'})")

    def _write_structure(self, target: str, module: torch.nn.Module) -> None:
        """Masks and counters of a layer of torch, which are no inputs."""
        for name, buffer in module._buffers.items():
            if buffer is not None and is_structure(buffer):
                self._line(f"{target}.{name} = {self._tensor(buffer, f'{target}.{name}')}")

    def _write_ties(self) -> None:
        """Shared parameters are shared in the text too."""
        first: dict[int, str] = {}
        for name, parameter in self.module.named_parameters(remove_duplicate=False):
            path = first.setdefault(id(parameter), name)
            if path != name:
                place, _, own = name.rpartition(".")
                self._line(f"module.get_submodule({place!r}).{own} = module.get_parameter({path!r})")

    def _converted(self, module: torch.nn.Module) -> str:
        kinds = {one.dtype for one in (*module._parameters.values(), *module._buffers.values()) if one is not None}
        floats = [one for one in kinds if one.is_floating_point and one is not torch.float32]
        return f".to({self._expression(floats[0], '')})" if floats else ""

    def _empty(self, tensor: torch.Tensor) -> str:
        dtype = "" if tensor.dtype is torch.float32 else f", dtype={self._expression(tensor.dtype, '')}"
        return f"{self.torch}.empty({tuple(tensor.shape)!r}{dtype})"

    def _buffer(self, buffer: torch.Tensor, shown: str) -> str:
        return self._tensor(buffer, shown) if is_structure(buffer) else self._empty(buffer)

    def _line(self, line: str) -> None:
        self.lines.append(line)

    def _guard_fields(self, module: torch.nn.Module, names: list[str], path: str) -> None:
        for name in names:
            value = vars(module)[name]
            if is_constant(value):  # copied, because a list may change in place
                self._guard(".".join(filter(None, (path, name))), copy.deepcopy(value))

    def _guard(self, shown: str, value: object) -> None:
        if "[" not in shown:  # items of a list or dictionary have no guard
            self.guards.append(AttributeGuard(tuple(shown.split(".")), value))

    def _expression(self, value: Any, shown: str, depth: int = 0) -> str:
        """The value of an attribute as an expression."""
        if isinstance(value, numbers.Number) and type(value).__module__ == "numpy":
            value = value.item()  # type: ignore[attr-defined]
        if is_constant(value):
            return literal(value)
        if depth > _DEEPEST:
            raise self._cannot(shown, value)
        inner = functools.partial(self._expression, depth=depth + 1)
        if isinstance(value, torch.Tensor):
            return self._tensor(value, shown)
        if isinstance(value, (torch.dtype, torch.memory_format, torch.layout)):
            return repr(value).replace("torch", self.torch, 1)
        if isinstance(value, torch.device):
            return f"{self.torch}.device('cpu')"
        if isinstance(value, enum.Enum):
            return f"{self._added(type(value), shown)}.{value.name}"
        if type(value) in (dict, list, tuple, set, torch.Size):
            return self._collection(value, shown, depth)
        if isinstance(value, functools.partial):
            partial = self.builder.add("functools", functools, "functools", "")
            given = [inner(one, shown) for one in (value.func, *value.args)]
            given += [f"{name}={inner(one, shown)}" for name, one in value.keywords.items()]
            return f"{partial}.partial({', '.join(given)})"
        if isinstance(value, (types.FunctionType, types.BuiltinFunctionType, type, types.ModuleType)):
            return self._added(value, shown)
        if isinstance(value, torch.nn.Module) or not hasattr(value, "__dict__"):
            raise self._cannot(shown, value)
        return self._object(value, shown, depth)

    def _collection(self, value: Any, shown: str, depth: int) -> str:
        if isinstance(value, dict):
            pairs = (
                f"{self._expression(key, shown, depth + 1)}: {self._expression(one, f'{shown}[{key!r}]', depth + 1)}"
                for key, one in value.items()
            )
            return f"{{{', '.join(pairs)}}}"
        items = [self._expression(one, f"{shown}[{place}]", depth + 1) for place, one in enumerate(value)]
        if isinstance(value, list):
            return f"[{', '.join(items)}]"
        if isinstance(value, set):
            return f"{{{', '.join(sorted(items))}}}" if items else "set()"
        return f"({', '.join(items)}{',' if len(items) == 1 else ''})"

    def _object(self, value: Any, shown: str, depth: int) -> str:
        """An object such as a configuration: the fields that are read or, where those are not known, all."""
        if self.lifted:
            namespace = self.builder.add("SimpleNamespace", types.SimpleNamespace, "SimpleNamespace", "")
            fields = {
                name: getattr(value, name)
                for name in sorted(self.builder.attributes)
                if not name.startswith("__") and hasattr(value, name) and not callable(getattr(value, name))
            }
            given = [f"{name}={self._expression(one, f'{shown}.{name}', depth + 1)}" for name, one in fields.items()]
            for name, one in fields.items():
                if is_constant(one):
                    self._guard(f"{shown}.{name}", one)
            return f"{namespace}({', '.join(given)})"
        self.builder.define("restored", _RESTORED)
        whole = self._collection({**vars(value)}, shown, depth + 1)
        return f"restored({self._added(type(value), shown)}, {whole})"

    def _added(self, value: Any, shown: str) -> str:
        return self.builder.add(getattr(value, "__name__", "value"), value, shown, "")

    def _tensor(self, tensor: torch.Tensor, shown: str) -> str:
        """A tensor with its data, such as a mask."""
        if tensor.is_meta:
            raise BadArgument(f"{self.asked_for}: {shown} is on the meta device, and its content is needed")
        whole = tensor.detach().cpu().contiguous()
        dtype = self._expression(whole.dtype, "")
        if whole.numel() <= _WRITTEN_OUT and whole.dtype in (torch.int64, torch.int32, torch.bool, torch.float32):
            return f"{self.torch}.tensor({literal(whole.tolist())}, dtype={dtype}, device='cpu')"
        packed = base64.b85encode(zlib.compress(whole.view(-1).view(torch.uint8).numpy().tobytes(), 9)).decode()
        if len(packed) > _LONGEST_TENSOR:
            raise BadArgument(
                f"{self.asked_for}: {shown} is a tensor of {whole.numel()} elements that a source text cannot hold; "
                "make it a parameter or a buffer of floats, or pass it as an argument"
            )
        self.builder.define("unpacked", _UNPACKED.replace("torch", self.torch))
        return f"unpacked({packed!r}, {dtype}, {tuple(whole.shape)!r})"

    def _cannot(self, shown: str, value: object) -> BadArgument:
        return BadArgument(
            f"{self.asked_for}: {shown} is a {type(value).__name__}, which a source text cannot hold; "
            "write a function of what it needs of it"
        )

    def _values(self) -> dict[str, str]:
        """How parameters and buffers are drawn: by their scale alone, so that equal modules are equal tasks."""
        tensors: Mapping[str, torch.Tensor] = {
            **dict(self.module.named_parameters()),
            **{name: one for name, one in self.module.named_buffers() if not is_structure(one)},
        }
        return {name: text for name, one in tensors.items() if (text := drawn_like(one))}


_BARE = """def {name}(kind):
    module = kind.__new__(kind)
    {torch}.nn.Module.__init__(module)
    return module"""

_RESTORED = """def restored(kind, fields):
    made = kind.__new__(kind)
    made.__dict__.update(fields)
    return made"""

_UNPACKED = """def unpacked(text, dtype, shape):
    import base64, zlib
    content = bytearray(zlib.decompress(base64.b85decode(text)))
    return torch.frombuffer(content, dtype=dtype).reshape(shape)"""


def constant_fields(source: str) -> list[str]:
    """The fields of the instance itself that are constants in the text of a module: `["variance_epsilon = 1e-06"]`."""
    return re.findall(r"^ +module\.(\w+ = (?:-?[\d.][\w.+-]*|True|False|'[^']*'))$", source, re.MULTILINE)


def drawn_like(tensor: torch.Tensor) -> str:
    """The distribution to draw in place of a tensor's data; "" where the data suggests none, or is absent."""
    found = None if tensor.is_meta else _scaled(values_like(tensor.detach()))
    return print_values(found) if found is not None else ""


def _scaled(values: Values | None) -> Values | None:
    """A normal distribution whose deviation is rounded to a power of two, since instances differ slightly."""
    if not isinstance(values, NormalValues):
        low, high = getattr(values, "low", 0), getattr(values, "high", 0)
        if values is None or not isinstance(low, float) or low == high:
            return None
        values = NormalValues((low + high) / 2, (high - low) / math.sqrt(12))
    if not values.deviation:
        return values
    deviation = 2.0 ** round(math.log2(values.deviation))
    mean = float(f"{values.mean:.1g}") if abs(values.mean) > deviation else 0.0
    constant = math.isclose(values.deviation, 0.1 * abs(values.mean), rel_tol=0.05)
    return NormalValues(mean, values.deviation if constant else deviation)


def _is_torch(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "torch" and importable(kind) is not None


def _constructed(module: torch.nn.Module) -> str | None:
    """`Linear(64, 128, bias=False)` for a layer of torch, if its `repr` makes an equal one."""
    kind = type(module)
    if getattr(torch.nn, kind.__name__, None) is not kind or module._modules:
        return None
    text = " ".join(repr(module).split())
    try:
        with torch.device("meta"):
            made = eval(text, {**vars(torch.nn)})
    except Exception:  # a repr need not be Python
        return None
    return text if type(made) is kind and _form(made) == _form(module) else None


def _form(module: torch.nn.Module) -> tuple[Any, ...]:
    """Two layers with the same form compute the same from the same parameters."""
    own = ((name, value) for name, value in vars(module).items() if name not in _MODULE_FIELDS)
    plain = {name: repr(value) for name, value in own if not name.startswith("_flat_weight")}  # of an LSTM: its tensors
    tensors = {**module._parameters, **module._buffers}
    return plain, {name: None if one is None else tuple(one.shape) for name, one in tensors.items()}


def _refuse_unusual(module: torch.nn.Module, method: str) -> None:
    """The text has the methods of classes, so what is attached to an instance would be lost."""
    for name, one in module.named_modules():
        shown = f"{type(module).__name__}{f'.{name}' if name else ''}"
        if isinstance(one, torch.jit.ScriptModule):
            raise BadArgument(f"{shown} is a scripted module; give the module it was scripted from")
        if parametrize.is_parametrized(one):
            raise BadArgument(f"{shown} is parametrized; remove that with torch.nn.utils.parametrize first")
        if "forward" in vars(one):
            raise BadArgument(
                f"{shown} has a forward of its own beside its class's; undo the swap, or write a function"
            )
        if one._forward_hooks or one._forward_pre_hooks:
            raise BadArgument(f"{shown} has forward hooks, which a source text cannot hold; remove them first")
    if method == "forward" and type(module).forward is torch.nn.Module.forward:
        raise BadArgument(f"{type(module).__name__} has no forward; write one, or a function that calls it")
