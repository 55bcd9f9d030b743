"""The `out` lines of a plan as Python text: shapes, strides and dtypes of results, symbolic sizes included.

This is what the fake kernel of an exported operation runs, so it uses nothing but Python's own arithmetic, in which
torch's symbolic sizes take part. The needs of the plan are not asked: what a call may be is found out when it runs.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.kernel_file import KernelFile, syntax
from tilewright.kernel_file.compiled_plan import DefinitionLine
from tilewright.kernel_file.expression_analysis import Analysed
from tilewright.kernel_file.syntax import Expr, Let
from tilewright.records import DType
from tilewright.records.reaching import reached

_HELPED = {"/": "divide", "//": "divide", "%": "remainder"}


def local(name: str) -> str:
    """A Python identifier for a name of the plan, which may be a word of Python's."""
    return f"v_{name}"


def outs_function(file: KernelFile) -> str:
    """`def outs(v_x, ...)`: for every result its shape, its strides (None: contiguous) and its dtype."""
    parameters = ", ".join(local(one.name) for one in file.plan.op.parameters)
    lines = [f"def outs({parameters}):", '    """Shape, strides (None: contiguous) and dtype of every result."""']
    lead = file.compiled.lead
    if lead is not None:
        named = [local(name) for name, _ in lead.ranks]
        ranks = ", ".join(str(rank) for _, rank in lead.ranks)
        lines.append(f"    leading, ({', '.join(named)},) = taken_as_one(({', '.join(named)},), ({ranks},))")
    lines += [f"    {text}" for text in _lets(file)]
    by_name = {line.directive.name: line for line in file.compiled.outs}
    lines.append("    return (")
    for name in file.plan.op.results:
        out = by_name[name]
        stride = "None" if out.stride is None else f"joined({', '.join(_text(one.expression) for one in out.stride)})"
        sizes = f"joined({', '.join(_text(one.expression) for one in out.sizes)})"
        if lead is not None:
            sizes, stride = f"with_leading(leading, {sizes})", f"steps_with_leading(leading, {stride})"
        lines.append(f"        ({sizes}, {stride}, {_text(out.dtype.expression)}),")
    return "\n".join([*lines, "    )", ""])


def _lets(file: KernelFile) -> Iterator[str]:
    """The definitions that the `out` lines read, directly or through others."""
    definitions = {line.directive.name: line for line in file.compiled.lines if isinstance(line, DefinitionLine)}
    parts: list[Analysed] = []
    for out in file.compiled.outs:
        parts += [out.dtype, *out.sizes, *(out.stride or ())]
    names = (name for part in parts for name in part.names)
    wanted = reached(names, lambda name: definitions[name].value.names if name in definitions else ())
    for name, line in definitions.items():
        if name in wanted and isinstance(line.directive, Let):
            yield f"{local(name)} = {_text(line.value.expression)}"


def _text(node: Expr) -> str:
    match node:
        case syntax.Literal(value=value):
            return f"torch.{value.torch_name}" if isinstance(value, DType) else repr(value)
        case syntax.Name(id=name):
            return local(name)
        case syntax.Attribute(base=base, name=name):
            return _attribute(_text(base), name)
        case syntax.Index(base=base, position=position):
            return f"{_text(base)}[{_text(position)}]"
        case syntax.Slice(base=base, low=low, high=high):
            return f"{_text(base)}[{':'.join('' if end is None else _text(end) for end in (low, high))}]"
        case syntax.ListOf(items=items):
            return f"joined({', '.join(map(_text, items))})"
        case syntax.Call(function="has", arguments=(argument,)):
            return f"({_text(argument)} is not None)"
        case syntax.Call(function=function, arguments=arguments):
            name = function if function in ("min", "max", "len") else f"plan_{function}"
            return f"{name}({', '.join(map(_text, arguments))})"
        case syntax.Unary(operator=operator, operand=operand):
            return f"({'not ' if operator == 'not' else '-'}{_text(operand)})"
        case syntax.Binary(operator=operator, left=left, right=right) if operator in _HELPED:
            return f"plan_{_HELPED[operator]}({_text(left)}, {_text(right)})"
        case syntax.Conditional(condition=condition, then=then, otherwise=otherwise):
            return f"({_text(then)} if {_text(condition)} else {_text(otherwise)})"
        case syntax.Binary() | syntax.Compare() | syntax.Logical():
            return f"({_text(node.left)} {node.operator} {_text(node.right)})"
    raise AssertionError(f"no Python for {node!r}")


def _attribute(tensor: str, name: str) -> str:
    match name:
        case "shape":
            return f"tuple({tensor}.shape)"
        case "stride" | "numel":
            return f"{tensor}.{name}()"
        case "ndim":
            return f"{tensor}.dim()"
        case "itemsize":
            return f"{tensor}.element_size()"
    return f"{tensor}.{name}"
