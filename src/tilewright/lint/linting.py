"""`lint_plan`: every rule on a built plan, without running it: on the build, and on first and last blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from tilewright.kernel_file import ArgumentValue, DoesNotApply, KernelFile, KernelFileError
from tilewright.lint import build_rules, flow_rules, memory_rules, number_rules
from tilewright.lint.kernel_reading import KernelReading, read_kernel
from tilewright.ptx.parser import parse_ptx
from tilewright.ptx.syntax import Module, PtxError
from tilewright.records import (
    Build,
    BuildFailure,
    GpuProfile,
    LintFinding,
    LintRule,
    PackedLaunch,
    Severity,
    TensorSpec,
)
from tilewright.toolchain import BuiltPlan, build_plan

_ORDER = tuple(Severity)
_MOST_LINES = 3  # of one rule in one kernel, shown in full
_MOST_SINGLE = 1  # sizes made smaller one at a time
_MOST_INSTRUCTIONS = 60_000  # CuTe's largest are below; the rules take seconds beyond

Rule = Callable[[KernelReading], Iterator[LintFinding]]
# Faults show where sizes do not divide; what only costs time is judged at the sizes asked for.
_FAULTS: tuple[Rule, ...] = (
    flow_rules.barriers,
    memory_rules.bounds,
    memory_rules.overflow,
    memory_rules.alignment,
)
_COSTS: tuple[Rule, ...] = (
    flow_rules.copies,
    memory_rules.coalescing,
    memory_rules.banks,
    memory_rules.atomics,
    memory_rules.narrow_loads,
    flow_rules.tensor_cores,
    flow_rules.restrict,
    number_rules.swallowed_nans,
)


def lint_plan(
    built: BuiltPlan, arguments: Mapping[str, ArgumentValue], *, other_sizes: bool = True
) -> tuple[tuple[LintFinding, ...], tuple[str, ...]]:
    """Findings, the gravest first, and what could not be looked at, a sentence each.

    With `other_sizes` the plan is built at sizes that divide less well, too, and searched for faults there.
    """
    findings: list[LintFinding] = []
    unread: list[str] = []
    modules: dict[str, Module] = {}
    for number, plan in enumerate((built, *(_other_sizes(built, arguments) if other_sizes else ()))):
        if plan.build is None:
            continue
        try:
            module = modules.setdefault(plan.build.key, modules.get(plan.build.key) or parse_ptx(plan.build.ptx))
        except PtxError as error:
            unread.append(f"the compiled code cannot be read: {error}")
            continue
        for launch in {launch.symbol: launch for launch in plan.plan.launches}.values():
            findings += _launch(plan, plan.build, module, launch, unread, faults_only=number > 0)
    return _ordered(findings), tuple(dict.fromkeys(unread))


def _launch(
    plan: BuiltPlan, build: Build, module: Module, launch: PackedLaunch, unread: list[str], *, faults_only: bool
) -> Iterator[LintFinding]:
    function = module.functions.get(launch.symbol)
    if function is None:
        return
    if not faults_only:
        yield from build_rules.spills(build, launch)
        yield from build_rules.local_arrays(build, function, launch, plan.evaluation.file.text)
        yield from build_rules.occupancy_cliffs(build, function, launch, plan.evaluation.gpu)
    if len(function.body) > _MOST_INSTRUCTIONS:
        unread.append(f"{launch.kernel} has {len(function.body):,} instructions; its accesses were not looked at")
        return
    tensors = dict(plan.evaluation.tensors) | {buffer.name: buffer.spec for buffer in plan.plan.buffers}
    last = (launch.grid[0] - 1, launch.grid[1] - 1, launch.grid[2] - 1)
    for index in dict.fromkeys((last,) if faults_only else ((0, 0, 0), last)):
        reading = read_kernel(module, launch, tensors, index)
        if reading is None:
            unread.append(f"{launch.kernel} takes its parameters in a way that is not known here")
            return
        for rule in (*_FAULTS, *(() if faults_only or index != (0, 0, 0) else _COSTS)):
            yield from rule(reading)
        if not faults_only and index == (0, 0, 0):
            yield from number_rules.doubles(reading, plan.evaluation.file.text)


def _other_sizes(built: BuiltPlan, arguments: Mapping[str, ArgumentValue]) -> Iterator[BuiltPlan]:
    """The plan where sizes are smaller by one, in all tensors and numbers alike: what it refuses is left out."""
    file, gpu = built.evaluation.file, built.evaluation.gpu
    specs = {name: value for name, value in arguments.items() if isinstance(value, TensorSpec)}
    sizes = sorted({size for spec in specs.values() for size in spec.shape if size > 2}, reverse=True)
    for smaller in (tuple(sizes), *((size,) for size in sizes[:_MOST_SINGLE] if len(sizes) > 1)):
        changed: dict[str, ArgumentValue] = {name: _resized(spec, smaller) for name, spec in specs.items()}
        # A size that is told as a number too goes with it: a launcher of pointers is told all of them so.
        told = {name: n - 1 for name, n in arguments.items() if isinstance(n, int) and n in smaller}
        other = _built(file, {**arguments, **changed, **told}, gpu)
        if other is not None:
            yield other


def _resized(spec: TensorSpec, smaller: tuple[int, ...]) -> TensorSpec:
    shape = tuple(extent - 1 if extent in smaller else extent for extent in spec.shape)
    return spec if shape == spec.shape or not spec.is_contiguous else TensorSpec.contiguous(spec.dtype, shape)


def _built(file: KernelFile, arguments: Mapping[str, ArgumentValue], gpu: GpuProfile) -> BuiltPlan | None:
    try:
        built = build_plan(file, arguments, gpu)
    except (DoesNotApply, KernelFileError):
        return None
    return None if isinstance(built, BuildFailure) else built


def _ordered(findings: Sequence[LintFinding]) -> tuple[LintFinding, ...]:
    """One finding of a rule for each line, of a kernel the first few lines; the gravest first, then by line."""
    lines: dict[tuple[LintRule, str], dict[int | None, LintFinding]] = {}
    for finding in sorted(findings, key=lambda one: one.line or 0):
        lines.setdefault((finding.rule, finding.kernel), {}).setdefault(finding.line, finding)
    kept: list[LintFinding] = []
    for group in lines.values():
        shown = list(group.values())[:_MOST_LINES]
        left = [str(line) for line in group if line is not None][_MOST_LINES:]
        if left:
            shown[-1] = replace(shown[-1], evidence=f"{shown[-1].evidence}; so do lines {', '.join(left)}")
        kept += shown
    return tuple(sorted(kept, key=lambda one: (_ORDER.index(one.severity), one.line or 0, one.rule.value)))
