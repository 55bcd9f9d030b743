"""An nn.Module as a source text of its own: its classes with the methods a call reaches, and what they read.

Constructors are not in the text. What the methods read of an instance is written down as it stands: numbers and other
plain values as literals, torch's own layers by their constructors, a configuration as the fields that are read.
Parameters have sizes and no content; they become inputs of the kernel. A class of an installed package whose methods
cannot stand in a text (a decorator has wrapped them, say) is imported instead.
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
from tilewright.tasks.lifting.source_text import Gathered, importable, is_constant, is_own_name, literal
from tilewright.tasks.reading.parameters import print_values

_MODULE_FIELDS = frozenset(vars(torch.nn.Module()))
_READ_BY_OTHERS = frozenset(("children", "named_children", "modules", "named_modules", "_modules", "get_submodule"))
_LONGEST_TENSOR = 1 << 20  # bytes of a mask in a text, packed
_WRITTEN_OUT = 64  # elements of a tensor
_DEEPEST = 8  # objects within objects


@dataclass(frozen=True)
class HeldValue:
    """A plain value of a module that stands in its text, by its path: the text holds while the module has it."""

    path: tuple[str, ...]
    value: object

    @property
    def name(self) -> str:
        return ".".join(self.path)

    def is_held_by(self, module: object) -> bool:
        found = module
        for name in self.path:
            found = getattr(found, name, None)
        return found is self.value or (type(found) is type(self.value) and bool(found == self.value))


@dataclass(frozen=True)
class HeldModule(HeldValue):
    """A module within it, by its class, that nobody listens to: the text holds while no other stands there."""

    def is_held_by(self, module: object) -> bool:
        found: Any = module
        for name in self.path:
            found = getattr(found, name, None)
        return type(found) is self.value and not (found._forward_hooks or found._forward_pre_hooks)


@dataclass(frozen=True)
class ModuleText:
    """A module as text. `build` is the expression in it that makes the module, `values` what its parameters hold."""

    source: str
    build: str
    values: dict[str, str]  # by their path
    held: tuple[HeldValue, ...]
    trains_otherwise: bool  # it may compute something else in training mode


def module_source(module: torch.nn.Module, method: str = "forward") -> ModuleText:
    """The text; raises `BadArgument` for what cannot be carried."""
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
    """One module on its way. `lifted`: classes stand in the text, else those of installed packages are imported."""

    module: torch.nn.Module
    method: str
    lifted: bool
    held: list[HeldValue] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.asked_for = type(self.module).__name__
        self.gathered = Gathered(self.asked_for)
        self.torch = self.gathered.take("torch", torch, "torch", "")
        self.classes: dict[type, LiftedClass] = {}

    def text(self) -> ModuleText:
        _refuse_unusual(self.module, self.method)
        for one in self.module.modules():
            self._class_of(one)
        build, _ = self.gathered.claim(f"make_{self.asked_for.lower()}", self)
        self._write("module", self.module, "")
        self._write_ties()
        body = "\n    ".join([f"with {self.torch}.device('meta'):", *self.lines])
        made = f"def {build}():\n{textwrap.indent(body, '    ')}\n    return module"
        text, values = self.gathered.text((made,)), self._values()
        return ModuleText(text, f"{build}().eval()", values, tuple(self.held), self._trains_otherwise())

    def _trains_otherwise(self) -> bool:
        """Whether a method reads `training`: of the text, or of a layer of torch's own."""
        if "training" in self.gathered.attributes or not self.lifted:
            return True
        return any("training" in type(one).forward.__code__.co_names for one in self.module.modules())

    # -- classes --

    def _class_of(self, module: torch.nn.Module) -> str:
        """How the text says the class of a module."""
        kind = type(module)
        if _is_torch(kind):
            if getattr(torch.nn, kind.__name__, None) is kind:
                return f"{self.torch}.nn.{kind.__name__}"
            return self.gathered.take(kind.__name__, kind, kind.__name__, "")
        if not self.lifted and not is_own_name(kind.__module__):
            return self.gathered.take(kind.__name__, kind, kind.__name__, "")
        if kind not in self.classes:
            method = self.method if module is self.module else "forward"
            self.classes[kind] = lift_class(self.gathered, kind, method)
        return self.classes[kind].name

    def _is_read(self, module: torch.nn.Module, name: str) -> bool:
        """Whether a method that stands in the text may read an attribute of a module."""
        if type(module) not in self.classes or self.classes[type(module)].inherits:
            return True
        return name in self.gathered.attributes or bool(_READ_BY_OTHERS & self.gathered.attributes)

    # -- instances --

    def _write(self, target: str, module: torch.nn.Module, path: str) -> None:
        """The lines that make a module and give it what it holds."""
        kind = self._class_of(module)
        if (constructed := _constructed(module)) is not None:
            self._say(f"{target} = {self.torch}.nn.{constructed}{self._converted(module)}")
            self._write_structure(target, module)
            public = [name for name in vars(module) if name not in _MODULE_FIELDS and not name.startswith("_")]
            self._hold_fields(module, public, path)
            return
        bare = "bare" if kind != "bare" else "bare_module"
        self.gathered.define(bare, _BARE.format(name=bare, torch=self.torch))
        self._say(f"{target} = {bare}({kind})")
        read = [name for name in vars(module) if name not in _MODULE_FIELDS and self._is_read(module, name)]
        for name in read:
            said = ".".join(filter(None, (path, name)))
            self._say(f"{target}.{name} = {self._carried(vars(module)[name], said)}")
        self._hold_fields(module, read, path)
        for name, parameter in module._parameters.items():
            made = "None" if parameter is None else f"{self.torch}.nn.Parameter({self._empty(parameter)})"
            self._say(f"{target}.register_parameter({name!r}, {made})")
        self._write_buffers(target, module)
        for name, inner in module._modules.items():
            if inner is None:
                self._say(f"{target}.register_module({name!r}, None)")
            elif self._is_read(module, name):
                self._write_inner(target, name, inner, ".".join(filter(None, (path, name))))

    def _write_inner(self, target: str, name: str, inner: torch.nn.Module, path: str) -> None:
        variable = "_".join(filter(None, (target, name))).replace("module_", "", 1)
        variable = variable if variable.isidentifier() else f"part_{variable}"
        self._write(variable, inner, path)
        if "[" not in path:
            self.held.append(HeldModule(tuple(path.split(".")), type(inner)))
        self._say(f"{target}.register_module({name!r}, {variable})")

    def _write_buffers(self, target: str, module: torch.nn.Module) -> None:
        for name, buffer in module._buffers.items():
            kept = name not in module._non_persistent_buffers_set
            said = f"{target}.{name}"
            made = "None" if buffer is None else self._buffer(buffer, said)
            self._say(f"{target}.register_buffer({name!r}, {made}{'' if kept else ', persistent=False'})")

    def _write_structure(self, target: str, module: torch.nn.Module) -> None:
        """Masks and counters of a layer of torch's own, which are no inputs."""
        for name, buffer in module._buffers.items():
            if buffer is not None and is_structure(buffer):
                self._say(f"{target}.{name} = {self._tensor(buffer, f'{target}.{name}')}")

    def _write_ties(self) -> None:
        """Parameters that stand in several places are one in the text too."""
        first: dict[int, str] = {}
        for name, parameter in self.module.named_parameters(remove_duplicate=False):
            path = first.setdefault(id(parameter), name)
            if path != name:
                place, _, own = name.rpartition(".")
                self._say(f"module.get_submodule({place!r}).{own} = module.get_parameter({path!r})")

    def _converted(self, module: torch.nn.Module) -> str:
        kinds = {one.dtype for one in (*module._parameters.values(), *module._buffers.values()) if one is not None}
        floats = [one for one in kinds if one.is_floating_point and one is not torch.float32]
        return f".to({self._carried(floats[0], '')})" if floats else ""

    def _empty(self, tensor: torch.Tensor) -> str:
        dtype = "" if tensor.dtype is torch.float32 else f", dtype={self._carried(tensor.dtype, '')}"
        return f"{self.torch}.empty({tuple(tensor.shape)!r}{dtype})"

    def _buffer(self, buffer: torch.Tensor, said: str) -> str:
        return self._tensor(buffer, said) if is_structure(buffer) else self._empty(buffer)

    def _say(self, line: str) -> None:
        self.lines.append(line)

    # -- values --

    def _hold_fields(self, module: torch.nn.Module, names: list[str], path: str) -> None:
        for name in names:
            value = vars(module)[name]
            if is_constant(value):  # a list may become another in its place
                self._hold(".".join(filter(None, (path, name))), copy.deepcopy(value))

    def _hold(self, said: str, value: object) -> None:
        if "[" not in said:  # what lies in a list or a dictionary is not looked at again
            self.held.append(HeldValue(tuple(said.split(".")), value))

    def _carried(self, value: Any, said: str, depth: int = 0) -> str:
        """A value of an instance as an expression."""
        if isinstance(value, numbers.Number) and type(value).__module__ == "numpy":
            value = value.item()  # type: ignore[attr-defined]
        if is_constant(value):
            return literal(value)
        if depth > _DEEPEST:
            raise self._cannot(said, value)
        inner = functools.partial(self._carried, depth=depth + 1)
        if isinstance(value, torch.Tensor):
            return self._tensor(value, said)
        if isinstance(value, (torch.dtype, torch.memory_format, torch.layout)):
            return repr(value).replace("torch", self.torch, 1)
        if isinstance(value, torch.device):
            return f"{self.torch}.device('cpu')"
        if isinstance(value, enum.Enum):
            return f"{self._taken(type(value), said)}.{value.name}"
        if type(value) in (dict, list, tuple, set, torch.Size):
            return self._collection(value, said, depth)
        if isinstance(value, functools.partial):
            partial = self.gathered.take("functools", functools, "functools", "")
            given = [inner(one, said) for one in (value.func, *value.args)]
            given += [f"{name}={inner(one, said)}" for name, one in value.keywords.items()]
            return f"{partial}.partial({', '.join(given)})"
        if isinstance(value, (types.FunctionType, types.BuiltinFunctionType, type, types.ModuleType)):
            return self._taken(value, said)
        if isinstance(value, torch.nn.Module) or not hasattr(value, "__dict__"):
            raise self._cannot(said, value)
        return self._object(value, said, depth)

    def _collection(self, value: Any, said: str, depth: int) -> str:
        if isinstance(value, dict):
            pairs = (f"{self._carried(key, said, depth + 1)}: {self._carried(one, f'{said}[{key!r}]', depth + 1)}"
                     for key, one in value.items())  # fmt: skip
            return f"{{{', '.join(pairs)}}}"
        items = [self._carried(one, f"{said}[{place}]", depth + 1) for place, one in enumerate(value)]
        if isinstance(value, list):
            return f"[{', '.join(items)}]"
        if isinstance(value, set):
            return f"{{{', '.join(sorted(items))}}}" if items else "set()"
        return f"({', '.join(items)}{',' if len(items) == 1 else ''})"

    def _object(self, value: Any, said: str, depth: int) -> str:
        """A configuration, say: the fields that are read or, where nobody knows which, the whole."""
        if self.lifted:
            namespace = self.gathered.take("SimpleNamespace", types.SimpleNamespace, "SimpleNamespace", "")
            fields = {
                name: getattr(value, name)
                for name in sorted(self.gathered.attributes)
                if not name.startswith("__") and hasattr(value, name) and not callable(getattr(value, name))
            }
            given = [f"{name}={self._carried(one, f'{said}.{name}', depth + 1)}" for name, one in fields.items()]
            for name, one in fields.items():
                if is_constant(one):
                    self._hold(f"{said}.{name}", one)
            return f"{namespace}({', '.join(given)})"
        self.gathered.define("restored", _RESTORED)
        whole = self._collection({**vars(value)}, said, depth + 1)
        return f"restored({self._taken(type(value), said)}, {whole})"

    def _taken(self, value: Any, said: str) -> str:
        return self.gathered.take(getattr(value, "__name__", "value"), value, said, "")

    def _tensor(self, tensor: torch.Tensor, said: str) -> str:
        """A tensor with its content, which a reference must have: a mask."""
        if tensor.is_meta:
            raise BadArgument(f"{self.asked_for}: {said} is on the meta device, and its content is needed")
        whole = tensor.detach().cpu().contiguous()
        dtype = self._carried(whole.dtype, "")
        if whole.numel() <= _WRITTEN_OUT and whole.dtype in (torch.int64, torch.int32, torch.bool, torch.float32):
            return f"{self.torch}.tensor({literal(whole.tolist())}, dtype={dtype}, device='cpu')"
        packed = base64.b85encode(zlib.compress(whole.view(-1).view(torch.uint8).numpy().tobytes(), 9)).decode()
        if len(packed) > _LONGEST_TENSOR:
            raise BadArgument(
                f"{self.asked_for}: {said} is a tensor of {whole.numel()} elements that a source text cannot hold; "
                "make it a parameter or a buffer of floats, or pass it as an argument"
            )
        self.gathered.define("unpacked", _UNPACKED.replace("torch", self.torch))
        return f"unpacked({packed!r}, {dtype}, {tuple(whole.shape)!r})"

    def _cannot(self, said: str, value: object) -> BadArgument:
        return BadArgument(
            f"{self.asked_for}: {said} is a {type(value).__name__}, which a source text cannot hold; "
            "write a function of what it needs of it"
        )

    def _values(self) -> dict[str, str]:
        """What parameters and buffers are drawn like: by their scale alone, so that equal modules are equal tasks."""
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


def held_fields(source: str) -> list[str]:
    """What the text of a module holds of the instance itself: `["variance_epsilon = 1e-06"]`."""
    return re.findall(r"^ +module\.(\w+ = (?:-?[\d.][\w.+-]*|True|False|'[^']*'))$", source, re.MULTILINE)


def drawn_like(tensor: torch.Tensor) -> str:
    """What to draw in the place of a tensor; "" where its content says nothing, or is not there."""
    found = None if tensor.is_meta else _scaled(values_like(tensor.detach()))
    return print_values(found) if found is not None else ""


def _scaled(values: Values | None) -> Values | None:
    """A normal distribution of that scale, a power of two: two instances seldom have the same deviation."""
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
    """`Linear(64, 128, bias=False)` for a layer of torch's own, where its `repr` makes an equal one."""
    kind = type(module)
    if getattr(torch.nn, kind.__name__, None) is not kind or module._modules:
        return None
    text = " ".join(repr(module).split())
    try:
        with torch.device("meta"):
            made = eval(text, {**vars(torch.nn)})
    except Exception:  # a repr is written for people
        return None
    return text if type(made) is kind and _form(made) == _form(module) else None


def _form(module: torch.nn.Module) -> tuple[Any, ...]:
    """What two layers must share to compute the same from the same parameters."""
    own = ((name, value) for name, value in vars(module).items() if name not in _MODULE_FIELDS)
    plain = {name: repr(value) for name, value in own if not name.startswith("_flat_weight")}  # of an LSTM: its tensors
    tensors = {**module._parameters, **module._buffers}
    return plain, {name: None if one is None else tuple(one.shape) for name, one in tensors.items()}


def _refuse_unusual(module: torch.nn.Module, method: str) -> None:
    """A text calls methods of classes: what was attached to an instance would be lost."""
    for name, one in module.named_modules():
        said = f"{type(module).__name__}{f'.{name}' if name else ''}"
        if isinstance(one, torch.jit.ScriptModule):
            raise BadArgument(f"{said} is a scripted module; give the module it was scripted from")
        if parametrize.is_parametrized(one):
            raise BadArgument(f"{said} is parametrized; remove that with torch.nn.utils.parametrize first")
        if "forward" in vars(one):
            raise BadArgument(f"{said} has a forward of its own beside its class's; undo the swap, or write a function")
        if one._forward_hooks or one._forward_pre_hooks:
            raise BadArgument(f"{said} has forward hooks, which a source text cannot hold; remove them first")
    if method == "forward" and type(module).forward is torch.nn.Module.forward:
        raise BadArgument(f"{type(module).__name__} has no forward; write one, or a function that calls it")
