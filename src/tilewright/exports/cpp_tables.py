"""Generates the host code of an export: the call struct, one function per kernel file, and tables of the builds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.exports.cpp_expressions import cpp_integer, cpp_string
from tilewright.exports.cpp_plan import call_struct, file_function
from tilewright.exports.variants import BuiltKernel, BuiltWinner, Variants, constant_key, parameter_codes
from tilewright.kernel_file import KernelFile
from tilewright.kernel_file.compiled_plan import BufferLine, DefinitionLine, TuneLine
from tilewright.kernel_file.syntax import Const, Op, Tune


def host_source(files: Sequence[KernelFile], variants: Variants) -> str:
    """The generated header, included after `plan.hpp` and `maps.hpp`."""
    op = files[0].plan.op
    tensors = len(op.tensors)
    buffers = max(sum(isinstance(line, BufferLine) for line in file.compiled.lines) for file in files)
    parts = [
        "// Generated from kernel files by `tilewright export`; changes here are lost with the next export.",
        "namespace {",
        "namespace generated {",
        "using namespace plan;",
        "",
        f"constexpr int parameter_count = {len(op.parameters)}, tensor_count = {tensors};",
        f"constexpr int slot_count = {tensors + buffers};",
        f"constexpr int result_count = {len(op.results)};",
        f"constexpr int module_count = {len(variants.modules)};",
        _tensor_tables(op),
        "",
        call_struct(op),
        *(file_function(file, number) for number, file in enumerate(files)),
        _kernel_table(variants.kernels),
        *(_file_tables(file, number, variants) for number, file in enumerate(files)),
        f"const File<Call> files[] = {{{', '.join(_file_entry(f, i, variants) for i, f in enumerate(files))}}};",
        f"constexpr int file_count = {len(files)};",
        _results(files),
        "",
        "} // namespace generated",
        "} // namespace",
        "",
    ]
    return "\n".join(parts)


def _results(files: Sequence[KernelFile]) -> str:
    """For each file, the buffer of each result: `out` lines may be in another order."""
    results = files[0].plan.op.results
    rows = []
    for file in files:
        names = [line.directive.name for line in file.compiled.lines if isinstance(line, BufferLine)]
        rows.append("{" + (", ".join(str(names.index(name)) for name in results) or "0") + "}")
    return f"const int result_buffers[][{max(len(results), 1)}] = {{{', '.join(rows)}}};"


def _tensor_tables(op: Op) -> str:
    tensors = [(position, one) for position, one in enumerate(op.parameters) if one.scalar is None]
    positions = ", ".join(str(position) for position, _ in tensors)
    changed = ", ".join("true" if one.in_place else "false" for _, one in tensors)
    return (
        f"constexpr int tensor_positions[] = {{{positions or '0'}}};\n"
        f"constexpr bool is_in_place[] = {{{changed or 'false'}}};"
    )


def _kernel_table(kernels: Sequence[BuiltKernel]) -> str:
    lines = []
    entries = []
    for number, one in enumerate(kernels):
        codes = parameter_codes(one.compiled)
        cells = ", ".join(f"{{'{code}', {offset}}}" for code, offset in zip(codes, one.offsets, strict=True))
        if cells:
            lines.append(f"const Parameter parameters_{number}[] = {{{cells}}};")
        cluster = one.compiled.cluster or (0, 0, 0)
        entries.append(
            f"    {{{cpp_string(one.compiled.expression)}, {cpp_string(one.compiled.symbol)}, {one.module}, "
            f"{f'parameters_{number}' if cells else 'nullptr'}, {len(codes)}, {one.block_bytes}, "
            f"{one.compiled.max_threads or 0}, {one.compiled.resources.static_smem_bytes}, "
            f"{{{', '.join(map(str, cluster))}}}}},"
        )
    table = ["const Kernel kernels[] = {", *entries, "};"] if entries else ["const Kernel *const kernels = nullptr;"]
    most = max((len(one.offsets) for one in kernels), default=0)
    return "\n".join([*lines, *table, f"constexpr int most_parameters = {max(most, 1)};", ""])


def _file_tables(file: KernelFile, number: int, variants: Variants) -> str:
    choices = variants.choices[number]
    flat = [cpp_integer(int(choice[tune.name])) for choice in choices for tune in file.compiled.tunes]
    lines = [f"const int64_t choices_{number}[] = {{{', '.join(flat) or '0'}}};"]
    winners = []
    for index, winner in enumerate(variants.tuned[number]):
        lines.append(f"const int64_t winner_{number}_{index}[] = {{{', '.join(_tensor_numbers(winner)) or '-1'}}};")
        winners.append(f"{{{winner.choice}, {winner.cc}, {winner.sms}, winner_{number}_{index}}}")
    lines.append(f"const Winner winners_{number}[] = {{{', '.join(winners) or '{0, 0, 0, nullptr}'}}};")
    lead = dict(file.compiled.lead.ranks) if file.compiled.lead is not None else {}
    ranks = ", ".join(str(lead.get(one.name, 0)) for one in file.plan.op.tensors)
    lines.append(f"const int plan_ranks_{number}[] = {{{ranks or '0'}}};")
    rows = []
    for index, kernel in enumerate(variants.kernels):
        if variants.modules[kernel.module].file == number:
            lines.append(f"const int64_t key_{index}[] = {{{', '.join(map(cpp_integer, kernel.key))}}};")
            rows.append(f"{{key_{index}, {len(kernel.key)}, {index}}}")
    lines.append(f"const Row rows_{number}[] = {{{', '.join(rows) or '{nullptr, 0, 0}'}}};")
    # `tune` and `const` names in written order, which is the order of a key
    named = [line.directive for line in file.compiled.lines if isinstance(line, (TuneLine, DefinitionLine))]
    names = ", ".join(cpp_string(one.name) for one in named if isinstance(one, (Tune, Const)))
    lines.append(f"const char *const constants_{number}[] = {{{names or 'nullptr'}}};")
    return "\n".join([*lines, ""])


def _tensor_numbers(winner: BuiltWinner) -> Iterator[str]:
    """The tensors of a winner, in the layout of `Winner` in host/plan.hpp."""
    for one in winner.tensors:
        if one is None:
            yield "-1"
        else:
            yield from map(str, (len(one.shape), constant_key(one.dtype), *one.shape))


def _file_entry(file: KernelFile, number: int, variants: Variants) -> str:
    rows = sum(variants.modules[kernel.module].file == number for kernel in variants.kernels)
    return (
        f"{{{cpp_string(file.name)}, file_{number}, choices_{number}, {len(variants.choices[number])}, "
        f"{len(file.compiled.tunes)}, winners_{number}, {len(variants.tuned[number])}, plan_ranks_{number}, "
        f"rows_{number}, {rows}, constants_{number}}}"
    )
