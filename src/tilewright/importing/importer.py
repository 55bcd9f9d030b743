"""Imports a launcher of a CUDA source: records calls, fits the plan, copies the device code, builds the kernel file."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from tilewright.importing.calls import (
    CallArgument,
    CallArguments,
    CallSpec,
    Relation,
    Specified,
    guesses,
    is_block,
    variations,
    with_shared_sizes,
)
from tilewright.importing.device_text import DeviceText, device_text
from tilewright.importing.host_program import host_program
from tilewright.importing.launch_sites import TYPES, LaunchSite, isolate_launch, launch_sites
from tilewright.importing.plan_fitting import PlanFitter, PlanText, edges
from tilewright.importing.recording import HostChild, Launched, Pointer, Recording, Run
from tilewright.importing.shapes import (
    OutOfBounds,
    extents,
    numbers_from_shapes,
    ordered_sizes,
    shapes_conflict,
    with_pointer_lengths,
)
from tilewright.importing.signatures import plan_names
from tilewright.importing.sources import TENSOR_WORDS, ConflictingArguments, ImportProblem, Item, Kind, Source
from tilewright.kernel_file import KernelFileError, autofix, parse
from tilewright.kernel_file.calls import CallError
from tilewright.kernel_file.evaluate import Evaluation, evaluate
from tilewright.records import Build, BuildFailure, GpuProfile, ParameterKind
from tilewright.toolchain import build

_BINDING = re.compile(
    r"\bm\s*\.\s*(?:def|impl)\s*\(\s*(?:\"([^\"(]+)[^\"]*\"|\w+)\s*,[^&;]*?&?\s*([A-Za-z_]\w*(?:::\w+)*)\s*[,)]"
)
_CHECK = re.compile(r"the check `\(*\s*(\w+)\s*\*\s*(\w+)\s*==\s*(\w+)\s*\)*` failed")
_DISPATCH = re.compile(r"[A-Z]+_DISPATCH_(?!CASE|INDEX)\w+")
_KNOWS_RANK = frozenset(("size", "dim", "ndimension", "stride", "strides", "accessor", "packed_accessor32", "view"))
_FEW = 2
_MOST_THREADS = 1024  # of a block


@dataclass(frozen=True)
class Imported:
    """A kernel file made from a launcher."""

    function: str
    text: str
    arguments: tuple[CallArgument, ...]  # of the call it was made from
    notes: tuple[str, ...]  # what was left out, and what was rewritten
    pinned: bool  # valid only at the sizes of that call
    guessed_lengths: tuple[str, ...] = ()  # pointers whose lengths were guessed


def launchers(source: Source) -> list[str]:
    """The functions to import: those bound to Python, else those that launch kernels and are called by no other."""
    hosts = {item.name: item for item in source.of_kind(Kind.HOST) if item.body is not None and item.name}
    if not any(item.tokens and any(t.text == "<<<" for t in item.tokens) for item in source.items):
        return []
    bound = [name.rpartition("::")[2] for _, name in _BINDING.findall(source.text)]
    found = [name for name in dict.fromkeys(bound) if name in hosts and _launches(source, hosts[name])]
    if found:
        return found
    plain = {n: i for n, i in hosts.items() if n not in ("main", "PYBIND11_MODULE") and i.tokens[0].text != "template"}
    able = [name for name, item in plain.items() if _launches(source, item)]
    if any(plain[name].mentions & TENSOR_WORDS for name in able):  # the entry points take tensors
        called = {m for n in able for m in hosts[n].mentions if m != n}
        return [name for name in able if name not in called] or able
    # Of functions that take pointers, import the innermost: their callers only choose among them.
    return [name for name in able if not any(other in hosts[name].mentions for other in able if other != name)]


def launched_elsewhere(source: Source) -> list[str]:
    """Kernels that are launched here but defined in another file."""
    kernels = source.of_kind(Kind.KERNEL)
    declared = {item.name for item in kernels} - {item.name for item in kernels if item.body is not None}
    hosts = [item for item in source.of_kind(Kind.HOST, Kind.MACRO) if any(t.text == "<<<" for t in item.tokens)]
    return sorted(name for name in declared if any(name in item.mentions for item in hosts))


def other_launching_functions(source: Source, found: Sequence[str]) -> list[str]:
    """Other host functions, such as `main`, that launch kernels which the given launchers do not launch."""
    usable = [one for one in source.items if one.kind in (Kind.HOST, Kind.MACRO)]
    reached = source.reachable(found, usable) if found else set()
    launched = {name for one in reached if any(t.text == "<<<" for t in one.tokens) for name in one.mentions}
    sites = [site for site in launch_sites(source) if site.kernel.name not in launched]
    return list(dict.fromkeys(site.host.name for site in sites))


def _launches(source: Source, item: Item) -> bool:
    usable = [one for one in source.items if one.kind in (Kind.HOST, Kind.MACRO)]
    reached = source.reachable([item.name], usable)
    return any(token.text == "<<<" for one in reached for token in one.tokens)


def import_function(
    source: Source,
    function: str,
    specified: Specified | CallArguments,
    child: HostChild,
    gpu: GpuProfile,
    out_of_bounds: OutOfBounds | None = None,
) -> tuple[list[Imported], list[str]]:
    """The kernel file of a launcher, and what could not be imported.

    If its host code cannot be run, or is `main`, each launch becomes a kernel file of its own.
    """
    try:
        if function != "main":
            return [import_launcher(source, function, specified, child, gpu, "", out_of_bounds)], []
        why = "it is a whole program"
    except ConflictingArguments as problem:
        return [], [str(problem)]
    except ImportProblem as problem:
        why = str(problem)
    made: list[Imported] = []
    problems: list[str] = []
    hosts = source.reachable([function], source.of_kind(Kind.HOST, Kind.MACRO))
    for site in (one for one in launch_sites(source) if one.host in hosts):
        given = specified if isinstance(specified, Mapping) else {}
        try:
            one = _import_site(source, site, given, child, gpu, out_of_bounds)
            note = f"only the launch at {source.at(site.line)}, without the rest of {function}: {why}"
            made.append(replace(one, function=site.name, notes=(note, *one.notes)))
        except ImportProblem as problem:
            plain = function == "main" or isinstance(problem, ConflictingArguments)
            problems.append(f"{problem}" if plain else f"{why}; and of its launch alone: {problem}")
    return made, problems if problems or made else [why]


def _import_site(
    source: Source,
    site: LaunchSite,
    specified: Specified,
    child: HostChild,
    gpu: GpuProfile,
    out_of_bounds: OutOfBounds | None,
) -> Imported:
    """One launch alone. Template types that nothing chooses are tried in order until the device code builds."""
    problems: list[ImportProblem] = []
    for type_ in TYPES:
        cut, entry = isolate_launch(source, site, type_)
        try:
            return import_launcher(cut, entry, specified, child, gpu, site.name, out_of_bounds)
        except ImportProblem as problem:
            problems.append(problem)
            if "does not build" not in str(problem):
                break
    raise problems[0]


def import_launcher(
    source: Source,
    function: str,
    specified: Specified | CallArguments,
    child: HostChild,
    gpu: GpuProfile,
    name: str = "",
    out_of_bounds: OutOfBounds | None = None,
) -> Imported:
    """The kernel file of one launcher. Raises `ImportProblem`.

    `out_of_bounds` runs the kernels to find the extents of plain pointers. If shapes were specified for pointers, the
    launcher's numbers are derived from them.
    """
    made, pointers = _import_once(source, function, specified, child, gpu, name, out_of_bounds)
    if not isinstance(specified, Mapping):
        return made
    numbers = numbers_from_shapes(specified, pointers.shapes)
    if numbers.keys() <= specified.keys():
        return made
    # At the specified sizes the launcher may choose another kernel; its pointers have the same shapes.
    sized = {**specified, **{one: CallArgument(one, "int", value=value) for one, value in numbers.items()}}
    try:
        made, pointers = _import_once(source, function, sized, child, gpu, name, out_of_bounds, pointers)
    except ImportProblem as problem:
        sizes = ", ".join(f"{one} = {value}" for one, value in numbers.items())
        raise ConflictingArguments(f"--shape: at the sizes given ({sizes}) it cannot be called: {problem}") from None
    numbers_from_shapes(sized, pointers.shapes)
    return made


@dataclass(frozen=True)
class _PointerShapes:
    """The shapes of tensors behind pointers, found from accesses, and the pointers without any."""

    shapes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    unknown: frozenset[str] = frozenset()


def _import_once(
    source: Source,
    function: str,
    specified: Specified | CallArguments,
    child: HostChild,
    gpu: GpuProfile,
    name: str,
    out_of_bounds: OutOfBounds | None,
    known: _PointerShapes | None = None,
) -> tuple[Imported, _PointerShapes]:
    """The kernel file and the shapes behind its pointers; `known` is used where accesses show none."""
    program = host_program(source, function)
    first = _first_call(source, function, program, specified, child)
    plan = _recorded_plan(source, function, name or function, program, first, child)
    fitted = plan.fit()
    device = device_text(source, {launch.kernel for launch in plan.first.launches}, plan.wrappers)
    text, pinned = _finished(source, fitted, device, first, gpu), plan.pinned
    given = specified if isinstance(specified, Mapping) else {}
    pointers = known or _PointerShapes()
    if out_of_bounds is not None and not pinned:
        with suppress(ImportProblem):  # then they stay plain pointers
            flat = fitted.with_pointers([] if isinstance(specified, Mapping) else [one.name for one in specified])
            flat_text = _finished(source, flat, device, replace(first, arguments=tuple(flat.parameters)), gpu)
            found, unknown = extents(
                parse(flat_text, source.name), flat.parameters, gpu, out_of_bounds, first.relations
            )
            shapes = {one: ordered_sizes(extent, one, device.text, plan.aliases) for one, extent in found.items()}
            pointers = _PointerShapes(shapes, unknown) if shapes else pointers
            if pointers.shapes:
                is_flat = pointers.unknown or shapes_conflict(given, pointers.shapes)
                made = flat.with_lengths(pointers.shapes) if is_flat else flat.with_shapes(pointers.shapes)
                call = replace(first, arguments=tuple(made.parameters))
                text, first, fitted = _finished(source, made, device, call, gpu), call, made
                told = ", ".join(f"{one}[{', '.join(shape)}]" for one, shape in pointers.shapes.items())
                fitted.notes.append(f"shapes behind pointers, found from accesses: {told}")
    arguments, guessed = with_pointer_lengths(first.arguments, given, pointers.shapes)
    left_out = _unsupported_variants(source, function, arguments, given)
    notes = [
        *left_out,
        *fitted.notes,
        *_undetermined(arguments, given, pointers),
        *(f"rewritten: {edit}" for edit in device.edits),
    ]
    return Imported(function, text, arguments, tuple(dict.fromkeys(notes)), pinned, guessed), pointers


def _recorded_plan(
    source: Source, function: str, name: str, program: str, first: CallSpec, child: HostChild
) -> PlanFitter:
    """Run the first call and its variations, and start fitting a plan to them."""
    calls = variations(first, edges(source, function))
    runs = child.record(program, [call.line for call in calls]).runs
    if not runs or runs[0].error:
        raise ImportProblem(f"{function}: {runs[0].error if runs else 'its call did not finish'}")
    if not runs[0].launches:
        raise ImportProblem(f"{function} launches no kernel at these sizes")
    return PlanFitter(name, source, function, calls, runs)


def _undetermined(call: CallArguments, specified: Specified, pointers: _PointerShapes) -> list[str]:
    """A note if shapes were specified and do not determine all numbers of the launcher."""
    if not any(one.is_pointer and one.name in specified and one.name not in pointers.shapes for one in call):
        return []
    numbers = [one for one in call if one.kind == "int" and one.name not in specified and not is_block(one.name)]
    guessed = ", ".join(f"{one.name} = {one.value}" for one in numbers)
    return [f"the shapes given do not determine {guessed}, which was guessed; give it with --set"] if numbers else []


def _unsupported_variants(source: Source, function: str, call: CallArguments, specified: Specified) -> list[str]:
    """A note on dtypes and ranks that the source takes but the imported file does not."""
    tensors = [one for one in call if one.has_shape and one.name not in specified]
    hosts = source.reachable([function], source.of_kind(Kind.HOST))
    words = {word for item in hosts for word in item.mentions}
    dtypes = ["dtypes"] if any(_DISPATCH.match(word) for word in words) else []
    ranks = ["numbers of dimensions"] if "numel" in words and not words & _KNOWS_RANK else []
    if not tensors or not (dtypes or ranks):
        return []
    examples = []
    for one in tensors:
        shape = (math.prod(one.shape),) if ranks else one.shape
        dtype = "f16" if dtypes and one.dtype == "f32" else one.dtype
        examples.append(f"--shape {one.name}={'x'.join(map(str, shape))}:{dtype}")
    tried = ", ".join(dict.fromkeys(f"{one.dtype} of {len(one.shape)} dimensions" for one in tensors))
    return [
        f"takes {tried}, as it was tried; the source takes other {' and '.join([*dtypes, *ranks])} too: import each "
        f"into a file of its own, such as with {' '.join(examples)}"
    ]


def _first_call(
    source: Source,
    function: str,
    program: str,
    specified: Specified | CallArguments,
    child: HostChild,
) -> CallSpec:
    if not isinstance(specified, Mapping):
        return with_shared_sizes(list(specified))
    item = next(i for i in source.of_kind(Kind.HOST) if i.name == function and i.body is not None)
    names = plan_names(item)
    kinds = child.record(program, []).parameters
    for name, kind in zip(names, kinds, strict=True):
        if kind == "other":
            raise ImportProblem(f"{source.at(item.line)}: {function} takes {name}, whose type cannot be passed")
    relations: tuple[Relation, ...] = ()
    for _ in range(2):  # the second time with numbers that satisfy a failed check
        recording: Recording = child.record(program, [CallSpec(one).line for one in guesses(names, kinds, specified)])
        for one, run in zip(guesses(names, kinds, specified), recording.runs, strict=False):
            if not run.error and run.launches and all(map(_is_valid, run.launches)):
                return with_shared_sizes(
                    _with_kernel_dtypes(one, run, dict(zip(names, kinds, strict=True)), specified), relations
                )
        errors = [run.error for run in recording.runs if run.error]
        reason = max(set(errors), key=errors.count) if errors else "it launches nothing"
        asked = relation_from_check(source, reason, [n for n, k in zip(names, kinds, strict=True) if k == "int"])
        few = _related_numbers(asked, specified) if asked is not None else {}
        if asked is None or not few:
            break
        relations = (asked,)
        specified = {**specified, **{name: CallArgument(name, "int", value=value) for name, value in few.items()}}
    raise ImportProblem(f"{function} accepted none of the sizes tried ({reason}); give --shape NAME=ROWSxCOLS:DTYPE")


def _related_numbers(asked: Relation, specified: Specified) -> dict[str, int]:
    """Values for the two numbers of a check, of which one may be specified; {} if there are none."""
    one, other = (specified[name].value if name in specified else None for name in (asked.name, asked.other))
    if other is None:
        other = _FEW if one is None else int(one) // asked.times if isinstance(one, int) else None
    made = {asked.other: int(other), asked.name: int(other) * asked.times} if isinstance(other, int) else {}
    return made if one in (None, made.get(asked.name)) else {}


def _is_valid(launch: Launched) -> bool:
    return min(*launch.grid, *launch.block) > 0 and math.prod(launch.block) <= _MOST_THREADS


def relation_from_check(source: Source, reason: str, numbers: Sequence[str]) -> Relation | None:
    """The relation in "the check `(H*64 == C)` failed"."""
    found = _CHECK.search(reason)
    if found is None:
        return None
    one, two, whole = found.groups()
    for other, times in ((one, two), (two, one)):
        value = _constant(source, times)
        if whole in numbers and other in numbers and value:
            return Relation(whole, value, other)
    return None


def _constant(source: Source, word: str, depth: int = 3) -> int:
    """The value of a literal, or of a constant that the source defines; 0 if unknown."""
    if word.isdigit() or not depth:
        return int(word) if word.isdigit() else 0
    found = re.search(rf"(?:#\s*define\s+{word}\s+|\b{word}\s*=\s*)(\w+)", source.text)
    return _constant(source, found[1], depth - 1) if found else 0


def _with_kernel_dtypes(
    arguments: CallArguments, run: Run, kinds: Mapping[str, str], specified: Specified
) -> list[CallArgument]:
    """The arguments, with `void` pointers given the dtype of the kernel parameter."""
    taken = {a.tensor: a.dtype for one in run.launches for a in one.arguments if isinstance(a, Pointer)}
    made, number = [], 0
    for one in arguments:
        if one.is_pointer and kinds[one.name] == "pointer ":
            if not taken.get(number, "f32"):
                raise ImportProblem(f"{run.launches[0].kernel} takes {one.name}, a pointer to a type that is no dtype")
            one = replace(one, dtype=taken.get(number, one.dtype))
        number += one.is_tensor and one.value is not None
        if one.is_pointer and one.name in specified and specified[one.name].dtype not in ("", one.dtype):
            raise ConflictingArguments(
                f"--shape {one.name}=...:{specified[one.name].dtype}: the kernel takes {one.name} as {one.dtype}"
            )
        made.append(one)
    return made


def _finished(source: Source, plan: PlanText, device: DeviceText, first: CallSpec, gpu: GpuProfile) -> str:
    """The complete file. The compiled code shows which tensors are written."""
    text = f"{plan.text()}\n{device.text}"
    evaluation = _evaluation(source, text, device, first, gpu)
    request = evaluation.build_request()
    if request is None:
        raise ImportProblem(f"{plan.name} launches nothing at these sizes: a grid of it is 0")
    built = build(request)
    if isinstance(built, BuildFailure):
        first_error = next((one for one in built.diagnostics if one.severity.value == "error"), None)
        plan_lines = plan.text().count("\n") + 1
        line = device.line(first_error.line - plan_lines) if first_error else 0
        message = first_error.message if first_error else built.reason.value
        raise ImportProblem(f"{source.at(line)}: the device code does not build: {message}")
    written = _written(evaluation, built)
    text = f"{plan.text(written)}\n{device.text}"
    _evaluation(source, text, device, first, gpu)
    return autofix(text).text


def _evaluation(source: Source, text: str, device: DeviceText, first: CallSpec, gpu: GpuProfile) -> Evaluation:
    plan_lines = text.count("\n") - device.text.count("\n")
    try:
        file = parse(autofix(text).text, source.name)
        arguments = {one.name: one.argument() for one in first.arguments if one.is_passed}
        return evaluate(file, arguments, gpu)
    except KernelFileError as error:
        problem = error.problems[0]
        line = device.line(problem.line - plan_lines) if problem.line > plan_lines else 0
        place = (
            source.at(line)
            if line
            else f"{source.name}: the plan's line `{text.splitlines()[max(problem.line - 1, 0)].strip()}`"
        )
        raise ImportProblem(f"{place}: {problem.found}; {problem.remedy}") from None
    except (ValueError, CallError) as error:
        raise ImportProblem(f"{source.name}: {error}") from None


def _written(evaluation: Evaluation, built: Build) -> frozenset[str]:
    written = set()
    for step in evaluation.steps:
        kernel = built.kernel(step.kernel)  # type: ignore[union-attr]
        for argument, parameter in zip(step.arguments, kernel.parameters, strict=False):
            name = getattr(argument, "name", None)
            if name and parameter.kind is ParameterKind.POINTER and not parameter.only_read:
                written.add(name)
    return frozenset(written)
