"""`--to cuda`: CUDA sources with one C function, a CMake project and a test program, without torch or Python."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from tilewright import __version__
from tilewright.exports.cpp_expressions import cpp_comment, cpp_string
from tilewright.exports.cpp_plan import SCALARS
from tilewright.exports.cpp_tables import host_source
from tilewright.exports.hub_project import write_hub
from tilewright.exports.native import HEADERS, HOST, BackwardKernel
from tilewright.exports.python_op import small_call
from tilewright.exports.source import CPP_WORDS, Source, check_metadata, checked_name
from tilewright.exports.torch_package import covered_calls, safe_file_name, write_torch
from tilewright.exports.variants import Module, Say, Variants, find_variants
from tilewright.exports.verification import measurement_text, sizes_text, verification_text
from tilewright.exports.writing import Folder, NotExportable, check_target, render_template
from tilewright.kernel_file import Arguments, Op, Parameter, print_op
from tilewright.records import PROFILES, DType, TensorSpec, to_json
from tilewright.toolchain.translation_unit import constant_line, needed_headers

_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<([^>\n]+)>.*$", re.MULTILINE)
_C_LINKAGE = re.compile(r'extern\s+"C"\s+(?=__global__|__launch_bounds__|void)')
_DTYPES = list(DType)


def write_cuda(source: Source, variants: Variants, name: str, folder: Folder) -> list[str]:
    """Fill the folder; returns notes."""
    for header in (*HEADERS, "runtime.hpp"):
        folder.add(header, (HOST / header).read_text("utf-8"))
    folder.add("generated.hpp", host_source(source.files, variants))
    for number, module in enumerate(variants.modules):
        folder.add(f"{name}_kernels_{number}.cu", kernel_unit(variants, module, number, name))
    for file in source.files:
        folder.add(f"kernels/{safe_file_name(file.name)}", file.text)
    values = _values(source, variants, name)
    for template, path in (
        ("op.h", f"{name}.h"),
        ("op.cpp", f"{name}.cpp"),
        ("test_op.cpp", f"test_{name}.cpp"),
        ("CMakeLists.txt", "CMakeLists.txt"),
        ("README.md", "README.md"),
    ):
        folder.add(path, render_template(f"cuda/{template}", **values))
    if source.provenance is not None:
        folder.add("provenance.json", json.dumps(to_json(source.provenance), indent=2) + "\n")
    return []


def kernel_unit(variants: Variants, module: Module, number: int, name: str) -> str:
    """The source for one set of constants: the kernel file in its own namespace, and its kernels' addresses."""
    text = module.request.source
    included = list(dict.fromkeys([*needed_headers(module.request), *_INCLUDE.findall(text)]))
    space = f"tilewright_{name}_{number}"
    kernels = [one.compiled.expression for one in variants.kernels if one.module == number]
    body = _C_LINKAGE.sub("", _INCLUDE.sub("", text))
    lines = [
        cpp_comment(f"{module.request.name} with " + ", ".join(f"{key} = {value}" for key, value in module.constants)),
        *(f"#include <{header}>" for header in ("cfloat", "climits", "cmath", "cstdint", "cuda.h", *included)),
        "",
        f"namespace {space} {{",
        *(constant_line(key, value) for key, value in module.constants),
        f"#line 1 {cpp_string(module.request.name)}",
        body,
        "",
        f"}} // namespace {space}",
        "",
        f"extern const void *const {name}_functions_{number}[];",
        f"const void *const {name}_functions_{number}[] = {{",
        *(f"    reinterpret_cast<const void *>(&{space}::{kernel})," for kernel in kernels),
        "};",
        "",
    ]
    return "\n".join(lines)


# -- the C function --


# Names that the generated sources use.
_OWN_TEXT = (
    "addresses after arena before bytes call check content fill functions generated guarded main message milliseconds "
    "must_have_written out_arguments plan read_list read_tensor run runtime scratch select stdout stderr succeed "
    "take_result workspace_bytes errno assert Memory NULL INFINITY NAN dim3"
)
_OWN_WORDS = frozenset(_OWN_TEXT.split())


def c_name(name: str) -> str:
    """A name of the op in C; reserved names get an underscore."""
    return f"{name}_" if name in CPP_WORDS or name in _OWN_WORDS or name.startswith("cuda") else name


def c_parameter(one: Parameter) -> str:
    name = c_name(one.name)
    if one.scalar is None:
        return f"{'' if one.in_place else 'const '}tilewright_tensor *{name}"
    kind = SCALARS[one.scalar]
    if one.is_list:
        return f"const {kind} *{name}, size_t {name}_count"
    return f"const {kind} *{name}" if one.optional else f"{kind} {name}"


def c_reads(op: Op) -> list[str]:
    """The lines that fill a `Call` from the C function's parameters."""
    lines = []
    slot = 0
    for one in op.parameters:
        name, shown = c_name(one.name), cpp_string(one.name)
        optional = "true" if one.optional else "false"
        if one.scalar is None:
            lines.append(f"read_tensor({name}, {shown}, {optional}, call.tensors[{slot}], {slot}, addresses);")
            slot += 1
        elif one.is_list:
            length = -1 if one.length is None else one.length
            lines.append(f"read_list({name}, {name}_count, {shown}, {optional}, {length}, call.v_{one.name});")
        elif one.optional:
            lines.append(f"if ({name} != nullptr) call.v_{one.name} = *{name};")
        else:
            lines.append(f"call.v_{one.name} = {name};")
    return lines


def _values(source: Source, variants: Variants, name: str) -> dict[str, object]:
    op = source.op
    covered = covered_calls(source, variants)
    small, own = small_call(covered), covered[0]
    archs = ";".join(arch.removeprefix("sm_") for arch in variants.archs)
    return {
        "name": name,
        "guard": f"{name.upper()}_H",
        "doc": print_op(op).removeprefix("op").strip(),
        "version": __version__,
        "inputs": [c_parameter(one) for one in op.parameters],
        "outs": [f"const tilewright_tensor *{c_name(result)}" for result in op.results],
        "reads": c_reads(op),
        "out_names": [c_name(result) for result in op.results],
        "dtypes": [f"TILEWRIGHT_{dtype.value.upper()}" for dtype in _DTYPES],
        "modules": len(variants.modules),
        "kernel_places": _kernel_places(variants),
        "archs": archs,
        "arch_words": ", ".join(variants.archs),
        "needs_cutlass": any("cute/" in file.text or "cutlass/" in file.text for file in source.files),
        "files": [safe_file_name(file.name) for file in source.files],
        "sets": len(variants.modules),
        "left_out": variants.left_out,
        "judged": verification_text(source),
        "sizes_taken": sizes_text(source),
        "measured": measurement_text(source),
        "licence": source.licence,
        "null_arguments": [_nothing(one) for one in op.parameters],
        "tests": [_test_call(source, variants, call) for call in ([small] if small is own else [small, own])],
    }


def _nothing(one: Parameter) -> str:
    if one.scalar is not None and one.is_list:
        return "nullptr, 0"
    return "nullptr" if one.scalar is None or one.optional else "0"


def _test_call(source: Source, variants: Variants, call: Arguments) -> dict[str, object]:
    """A call of the test program: tensors as C initialisers, and arguments."""
    op = source.op
    specs = [(name, spec) for name, spec in call.items() if isinstance(spec, TensorSpec)]
    given = source.tensors(call)
    evaluation = next(evaluation for _, evaluation in variants.covered if evaluation.tensors == given)
    # Below the smallest size, so that any integer of a test may be an index.
    smallest = max(min((size for _, spec in specs for size in spec.shape), default=2), 1)
    by_name = {buffer.name: buffer.spec for buffer in evaluation.buffers}
    return {
        "tensors": [{**_c_tensor(name, spec), "whole": smallest} for name, spec in specs],
        "passed": [_c_argument(one, call.get(one.name)) for one in op.parameters],
        "outs": [_c_tensor(result, by_name[result]) for result in op.results],
        "out_arguments": [f"&{c_name(result)}.tensor" for result in op.results],
        "shown": ", ".join(f"{name} {'x'.join(map(str, spec.shape))}:{spec.dtype}" for name, spec in specs),
    }


def _c_argument(one: Parameter, value: object) -> str:
    if one.scalar is None:
        return f"&{c_name(one.name)}.tensor" if isinstance(value, TensorSpec) else "nullptr"
    if one.is_list:
        items = value if isinstance(value, tuple) else ()
        return f"std::vector<{SCALARS[one.scalar]}>{{{', '.join(map(_c_number, items))}}}.data(), {len(items)}"
    return "nullptr" if one.optional else _c_number(value)


def _c_tensor(name: str, spec: TensorSpec) -> dict[str, object]:
    return {
        "name": c_name(name),
        "dtype": _DTYPES.index(spec.dtype),
        "rank": spec.ndim,
        "shape": _c_list(spec.shape),
        "stride": _c_list(spec.stride),
        "bytes": spec.storage_bytes,
    }


def _c_list(values: Sequence[int]) -> str:
    return "{" + (", ".join(map(str, values)) or "0") + "}"


def _c_number(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value)


def _kernel_places(variants: Variants) -> list[tuple[int, int]]:
    """For each kernel of the table, its module and its position there."""
    seen: dict[int, int] = {}
    places = []
    for one in variants.kernels:
        places.append((one.module, seen.get(one.module, 0)))
        seen[one.module] = seen.get(one.module, 0) + 1
    return places


# -- `export` --


class Target(str, Enum):
    TORCH = "torch"
    HUB = "hub"
    CUDA = "cuda"


@dataclass(frozen=True)
class Exported:
    """A written export, with notes."""

    target: Target
    folder: str
    name: str
    standing: str
    archs: tuple[str, ...]
    sets: int  # of constants that were built
    files: int
    bytes: int
    notes: tuple[str, ...]


def export(
    source: Source,
    target: Target,
    output: Path,
    name: str = "",
    archs: Sequence[str] = (),
    say: Say = lambda text: None,
    layer: str = "",
    repository: str = "",
) -> Exported:
    """Write `source` to the folder `output`; raises `NotExportable`, or what building raises.

    `layer` and `repository` are for the Hub: which layer the op is, and where the card says it is published.
    """
    name = checked_name(name or source.op.name)
    check_target(output)
    check_metadata(source)
    if not any(not one.optional for one in source.op.tensors):
        raise NotExportable(f"{name} takes no tensor, and a tensor selects the GPU to run on")
    if not source.calls:
        raise NotExportable("no shapes to build for are known; give --shape for every tensor")
    variants = find_variants(source.files, source.tuned, source.calls, archs or (PROFILES[source.gpu].arch,), say)
    folder = Folder()
    say("writing the export")
    match target:
        case Target.TORCH:
            backward = _built_backward(source, archs, say)
            notes = write_torch(source, variants, name, folder, backward)
        case Target.CUDA:
            notes = write_cuda(source, variants, name, folder)
        case Target.HUB:
            notes = write_hub(source, variants, name, folder, layer, repository)
    if source.backward is not None:
        notes.append(_backward_note(source.backward, target))
    if source.standing.value != "verified":
        notes.insert(0, f"it is {source.standing.words}")
    if source.guessed:
        shown = ", ".join(f"{key} {value}" for key, value in source.calls[0].items() if isinstance(value, TensorSpec))
        notes.append(f"the shapes were guessed: {shown}; give --shape for every tensor")
    if variants.left_out:
        notes.append(f"{variants.left_out} further sets of constants were not built; select them with --shape")
    folder.write(output, _record(source, target, name, variants))
    size = sum(map(len, folder.files.values()))
    sets, files = len(variants.modules), len(folder.files)
    standing = source.standing.value
    return Exported(target, str(output), name, standing, variants.archs, sets, files, size, tuple(notes))


def _built_backward(source: Source, archs: Sequence[str], say: Say) -> BackwardKernel | None:
    """The backward kernel, built for the same architectures."""
    if source.backward is None:
        return None
    found = source.backward
    variants = find_variants(found.files, found.tuned, found.calls, archs or (PROFILES[source.gpu].arch,), say)
    return BackwardKernel.of(source, found, variants)


def _backward_note(backward: Source, target: Target) -> str:
    name = backward.op.name
    run = backward.provenance.run if backward.provenance is not None else name
    match target:
        case Target.TORCH:
            return f"gradients are computed by {name}, which is {backward.standing.words}"
        case Target.HUB:
            return f"{name}, the kernel for its gradients, is not exported: gradients are the reference's"
        case Target.CUDA:
            return f"{name}, the kernel for its gradients, is a separate export: tilewright export {run} --to cuda"


def _record(source: Source, target: Target, name: str, variants: Variants) -> dict[str, Any]:
    return {
        "to": target.value,
        "name": name,
        "op": source.op.name,
        "standing": source.standing.value,
        "kernels": {file.name: file.identity for file in source.files},
        "archs": list(variants.archs),
        "licence": source.licence,
        "tilewright": __version__,
        "provenance": to_json(source.provenance) if source.provenance is not None else None,
    }
