"""`--to torch`: an importable package with compiled host code that depends only on torch."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tilewright import __version__
from tilewright.exports.native import PLACE, BackwardKernel, build_extension, native_sources
from tilewright.exports.python_op import arguments_text, call_text, python_name, schema, signature, small_call
from tilewright.exports.source import Source
from tilewright.exports.variants import Variants
from tilewright.exports.verification import measurement_text, sizes_text, verification_text
from tilewright.exports.writing import Folder, render_template
from tilewright.kernel_file import KernelFile, print_op, syntax
from tilewright.kernel_file.compiled_plan import DefinitionLine
from tilewright.kernel_file.expression_analysis import Analysed
from tilewright.kernel_file.syntax import Expr, Let
from tilewright.records import DType, cc_of, to_json
from tilewright.records.gpu import reached

# -- the `out` lines of a plan as Python --

_HELPED = {"/": "divide", "//": "divide", "%": "remainder"}


def local(name: str) -> str:
    """A Python identifier for a name of the plan, which may be a keyword."""
    return f"v_{name}"


def outs_function(file: KernelFile) -> str:
    """`def outs(v_x, ...)`, which returns shape, strides (None: contiguous) and dtype of every result."""
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
    """The definitions that the `out` lines use."""
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


@dataclass(frozen=True)
class PackageNames:
    """The names of a package: its folder, its function, and the namespace of its operator."""

    package: str
    function: str  # of the operator: the op's name
    namespace: str
    layers_module: str = ""  # of a Hub package: `layers`, `attention`

    @property
    def public(self) -> str:
        return python_name(self.function)


def write_torch(
    source: Source, variants: Variants, name: str, folder: Folder, backward: BackwardKernel | None = None
) -> list[str]:
    """Fill the folder; returns notes."""
    names = PackageNames(name, source.op.name, f"tilewright_{name}")
    notes = add_package(source, variants, names, folder, name, backward)
    packages = [name]
    if backward is not None:
        packages.append(f"{name}/{PLACE}")
        inner = PackageNames(f"{name}.{PLACE}", backward.source.op.name, f"tilewright_{name}_{PLACE}")
        add_package(backward.source, backward.variants, inner, folder, packages[-1])
    values = package_values(source, variants, names, backward)
    folder.add("setup.py", render_template("package/setup.py", packages=packages))
    description = json.dumps(print_op(source.op).removeprefix("op").strip())
    folder.add(
        "pyproject.toml",
        render_template(
            "package/pyproject.toml",
            distribution=name.replace("_", "-"),
            packages=[one.replace("/", ".") for one in packages],
            package_version="0.1.0",
            description=description,
            licence=source.licence,
        ),
    )
    folder.add("README.md", render_template("package/README.md", **values))
    if source.reference is not None:
        folder.add(f"tests/test_{name}.py", render_template("package/test_op.py", **values))
    return notes


def add_package(
    source: Source,
    variants: Variants,
    names: PackageNames,
    folder: Folder,
    place: str,
    backward: BackwardKernel | None = None,
) -> list[str]:
    """Add the package under `place`; returns notes."""
    add_python(source, variants, names, folder, place, backward)
    folder.add(f"{place}/_ops.py", render_template("package/_ops.py", namespace=names.namespace))
    for path, content in _image_files(variants).items():
        folder.add(f"{place}/modules/{path}", content)
    return _add_native(source, variants, folder, place)


def add_python(
    source: Source,
    variants: Variants,
    names: PackageNames,
    folder: Folder,
    place: str,
    backward: BackwardKernel | None = None,
) -> None:
    """Add what all backends share: Python, the reference, the kernel files."""
    values = package_values(source, variants, names, backward)
    for template in ("__init__.py", "_op.py"):
        folder.add(f"{place}/{template}", render_template(f"package/{template}", **values))
    words = render_template("package/_plan_words.py")
    helpers = "from ._plan_words import *  # noqa: F403"
    folder.add(f"{place}/_plan_words.py", words)
    head = '"""Shapes, strides and dtypes of the results, from the `out` lines of the plan."""\n\nimport torch\n'
    folder.add(f"{place}/_outs.py", f"{head}\n{helpers}\n\n\n{outs_function(source.files[0])}")
    if source.reference is not None:
        folder.add(f"{place}/reference.py", source.reference.source)
    for file in source.files:
        folder.add(f"{place}/kernels/{safe_file_name(file.name)}", file.text)
    if source.provenance is not None:
        folder.add(f"{place}/provenance.json", json.dumps(to_json(source.provenance), indent=2) + "\n")


def _add_native(source: Source, variants: Variants, folder: Folder, place: str) -> list[str]:
    """Add the host code: sources, and the compiled extension."""
    sources = native_sources(source.files, variants)
    for file_name, text in sources.items():
        folder.add(f"{place}/native/{file_name}", text)
    built = build_extension(sources)
    if built is None:
        return ["no C++ compiler was found here, so the package must be built where it is used: pip install ."]
    folder.add(f"{place}/_native.abi3.so", built)
    return []


def safe_file_name(name: str) -> str:
    """The last part of a kernel file's name, with unsafe characters replaced."""
    last = name.replace("\\", "/").rsplit("/", 1)[-1]
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in last).lstrip(".")
    return kept or "kernel.cu"


def package_values(
    source: Source, variants: Variants, names: PackageNames, backward: BackwardKernel | None = None
) -> dict[str, Any]:
    """The values for a package's templates."""
    op = source.op
    derives = source.task is not None and source.task.derivative is not None  # its reference uses autograd
    tensors = [one for one in op.tensors if not one.optional]
    changed = tuple(position for position, one in enumerate(op.parameters) if one.in_place)
    results = {0: "None", 1: "made[0]"}.get(len(op.results), "tuple(made)")
    covered = [dict(source_call) for source_call in covered_calls(source, variants)]
    return {
        "package": names.package,
        "function": names.function,
        "public": names.public,
        "namespace": names.namespace,
        "version": __version__,
        "doc": print_op(op).removeprefix("op").strip(),
        "schema": schema(op),
        "signature": signature(op),
        "arguments": arguments_text(op),
        "named_arguments": _named_arguments(source),
        "first_tensor": python_name(tensors[0].name),
        "results_of_made": results,
        "changed": repr(changed),
        "has_reference": source.reference is not None,
        "reference_function": source.reference.function if source.reference is not None else "",
        "differentiable": source.reference is not None and not changed and bool(op.results) and not derives,
        "backward": backward,
        "derives": derives,
        "dtype_names": repr(tuple(one.torch_name for one in DType)),
        "images": _images_text(variants),
        "layers_module": names.layers_module,
        "exported": ", ".join(json.dumps(name) for name in (names.public, names.layers_module) if name),
        "archs": ", ".join(variants.archs),
        "has_ptx": any(module.ptx is not None for module in variants.modules),
        "sets": len(variants.modules),
        "left_out": variants.left_out,
        "standing": source.standing.words,
        "judged": verification_text(source),
        "sizes_taken": sizes_text(source),
        "measured": measurement_text(source),
        "licence": source.licence,
        "test_arguments": call_text(source, small_call(covered)),
        "own_arguments": call_text(source, covered[0]),
        "files": [safe_file_name(file.name) for file in source.files],
    }


def _named_arguments(source: Source) -> str:
    """The reference's arguments, `x, alpha=alpha`, if it has keyword-only parameters; else ""."""
    if source.reference is None:
        return ""
    nodes = ast.walk(ast.parse(source.reference.source))
    functions = [one for one in nodes if isinstance(one, ast.FunctionDef) and one.name == source.reference.function]
    names = {argument.arg for one in functions[-1:] for argument in one.args.kwonlyargs}
    given = [(one.name, python_name(one.name)) for one in source.op.parameters]
    passed = [f"{name}={called}" if name in names else called for name, called in given]
    return ", ".join(passed) if names else ""


def covered_calls(source: Source, variants: Variants) -> list[Any]:
    """The calls that some file takes."""
    taken = {evaluation.tensors for _, evaluation in variants.covered}
    return [call for call in source.calls if source.tensors(call) in taken] or list(source.calls[:1])


# -- modules --


def _image_files(variants: Variants) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for number, module in enumerate(variants.modules):
        files.update({f"{number}.{build.arch}.cubin": build.cubin for build in module.builds})
        if module.ptx is not None:
            files[f"{number}.{module.ptx.arch}.ptx"] = module.ptx.ptx.encode()
    return files


def _images_text(variants: Variants) -> str:
    """The table `_IMAGES` of `_op.py`."""
    rows = []
    for number, module in enumerate(variants.modules):
        cubins = {
            build.arch: (f"{number}.{build.arch}.cubin", hashlib.sha256(build.cubin).hexdigest())
            for build in module.builds
        }
        ptx = None
        if module.ptx is not None:
            digest = hashlib.sha256(module.ptx.ptx.encode()).hexdigest()
            ptx = (f"{number}.{module.ptx.arch}.ptx", digest, cc_of(module.ptx.arch))
        rows.append(f"    {{'cubins': {cubins!r}, 'ptx': {ptx!r}}},")
    return "[\n" + "\n".join(rows) + "\n]"
