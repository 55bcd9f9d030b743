"""One launcher of a CUDA source to one kernel file: record its calls, fit the plan, keep the device code, build it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from tilewright.importing.calls import CallSpec, Given, Relation, guesses, is_block, tied, variations
from tilewright.importing.device_text import DeviceText, device_text
from tilewright.importing.host_program import host_program
from tilewright.importing.launch_sites import TYPES, Site, cut_out, launch_sites
from tilewright.importing.models import ExtensionCall
from tilewright.importing.plan_fitting import PlanFitter, PlanText, edges
from tilewright.importing.recording import HostChild, Launched, Pointer, Recording, Run
from tilewright.importing.records import Contradiction, ImportProblem
from tilewright.importing.shapes import Outside, extents, in_order, lies_otherwise, sized_pointers, told_numbers
from tilewright.importing.signatures import plan_names
from tilewright.importing.sources import TENSOR_WORDS, Item, Kind, Source
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
    arguments: tuple[Given, ...]  # of the call it was made from
    notes: tuple[str, ...]  # what it does not carry, and what was spelled otherwise
    pinned: bool  # holds only at the sizes of that call
    guessed_lengths: tuple[str, ...] = ()  # pointers behind which nobody says how much there is


def launchers(source: Source) -> list[str]:
    """The functions to import: those bound to Python, else those that launch and that no other of them calls."""
    hosts = {item.name: item for item in source.of_kind(Kind.HOST) if item.body is not None and item.name}
    if not any(item.tokens and any(t.text == "<<<" for t in item.tokens) for item in source.items):
        return []
    bound = [name.rpartition("::")[2] for _, name in _BINDING.findall(source.text)]
    found = [name for name in dict.fromkeys(bound) if name in hosts and _launches(source, hosts[name])]
    if found:
        return found
    plain = {n: i for n, i in hosts.items() if n not in ("main", "PYBIND11_MODULE") and i.tokens[0].text != "template"}
    able = [name for name, item in plain.items() if _launches(source, item)]
    if any(plain[name].mentions & TENSOR_WORDS for name in able):  # what launches for tensors is called
        called = {m for n in able for m in hosts[n].mentions if m != n}
        return [name for name in able if name not in called] or able
    # Of functions of pointers the innermost: what calls them chooses among them.
    return [name for name in able if not any(other in hosts[name].mentions for other in able if other != name)]


def launched_elsewhere(source: Source) -> list[str]:
    """Kernels that host functions launch and that are only declared here."""
    kernels = source.of_kind(Kind.KERNEL)
    declared = {item.name for item in kernels} - {item.name for item in kernels if item.body is not None}
    hosts = [item for item in source.of_kind(Kind.HOST, Kind.MACRO) if any(t.text == "<<<" for t in item.tokens)]
    return sorted(name for name in declared if any(name in item.mentions for item in hosts))


def programs(source: Source, found: Sequence[str]) -> list[str]:
    """Other host functions with launches of kernels that the launchers found do not launch: `main`, templates."""
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
    said: Mapping[str, Given] | Sequence[Given],
    child: HostChild,
    gpu: GpuProfile,
    outside: Outside | None = None,
) -> tuple[list[Imported], list[str]]:
    """The kernel file of a launcher, or, where its host code cannot be run or is `main`, those of its launches alone;
    and what could not be carried."""
    try:
        if function != "main":
            return [import_launcher(source, function, said, child, gpu, "", outside)], []
        why = "it is a whole program"
    except Contradiction as problem:
        return [], [str(problem)]
    except ImportProblem as problem:
        why = str(problem)
    made: list[Imported] = []
    problems: list[str] = []
    hosts = source.reachable([function], source.of_kind(Kind.HOST, Kind.MACRO))
    for site in (one for one in launch_sites(source) if one.host in hosts):
        given = said if isinstance(said, Mapping) else {}
        try:
            one = _import_site(source, site, given, child, gpu, outside)
            note = f"only the launch at {source.at(site.line)}, without the rest of {function}: {why}"
            made.append(replace(one, function=site.name, notes=(note, *one.notes)))
        except ImportProblem as problem:
            plain = function == "main" or isinstance(problem, Contradiction)
            problems.append(f"{problem}" if plain else f"{why}; and of its launch alone: {problem}")
    return made, problems if problems or made else [why]


def _import_site(
    source: Source, site: Site, said: Mapping[str, Given], child: HostChild, gpu: GpuProfile, outside: Outside | None
) -> Imported:
    """One launch alone, with the first type for what nothing chooses that its device code takes."""
    problems: list[ImportProblem] = []
    for type_ in TYPES:
        cut, entry = cut_out(source, site, type_)
        try:
            return import_launcher(cut, entry, said, child, gpu, site.name, outside)
        except ImportProblem as problem:
            problems.append(problem)
            if "does not build" not in str(problem):
                break
    raise problems[0]


def import_launcher(
    source: Source,
    function: str,
    said: Mapping[str, Given] | Sequence[Given],
    child: HostChild,
    gpu: GpuProfile,
    name: str = "",
    outside: Outside | None = None,
) -> Imported:
    """The kernel file of one launcher; `outside` runs it, to see how much lies behind plain pointers. Where shapes of
    those are said, the launcher's numbers follow from them. Raises `ImportProblem`, which names what could not be
    carried."""
    made, behind = _import_once(source, function, said, child, gpu, name, outside)
    if not isinstance(said, Mapping):
        return made
    numbers = told_numbers(said, behind.shapes)
    if numbers.keys() <= said.keys():
        return made
    # At its own sizes a launcher may choose another kernel, which takes its pointers alike.
    sized = {**said, **{one: Given(one, "int", value=value) for one, value in numbers.items()}}
    try:
        made, behind = _import_once(source, function, sized, child, gpu, name, outside, behind)
    except ImportProblem as problem:
        sizes = ", ".join(f"{one} = {value}" for one, value in numbers.items())
        raise Contradiction(f"--shape: at the sizes given ({sizes}) it cannot be called: {problem}") from None
    told_numbers(sized, behind.shapes)
    return made


@dataclass(frozen=True)
class _Behind:
    """What accesses tell of the tensors behind pointers, and of which they tell nothing."""

    shapes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    unknown: frozenset[str] = frozenset()


def _import_once(
    source: Source,
    function: str,
    said: Mapping[str, Given] | Sequence[Given],
    child: HostChild,
    gpu: GpuProfile,
    name: str,
    outside: Outside | None,
    known: _Behind | None = None,
) -> tuple[Imported, _Behind]:
    """The kernel file, and what lies behind its pointers: as is `known`, where its accesses do not tell."""
    program = host_program(source, function)
    first = _first_call(source, function, program, said, child)
    plan = _recorded_plan(source, function, name or function, program, first, child)
    fitted = plan.fit()
    device = device_text(source, {launch.kernel for launch in plan.first.launches}, plan.entries)
    text, pinned = _finished(source, fitted, device, first, gpu), plan.pinned
    given = said if isinstance(said, Mapping) else {}
    behind = known or _Behind()
    if outside is not None and not pinned:
        with suppress(ImportProblem):  # then pointers stay what they are
            bare = fitted.with_bare([] if isinstance(said, Mapping) else [one.name for one in said])
            flat = _finished(source, bare, device, replace(first, arguments=tuple(bare.parameters)), gpu)
            found, unknown = extents(parse(flat, source.name), bare.parameters, gpu, outside, first.relations)
            shapes = {one: in_order(extent, one, device.text, plan.aliases) for one, extent in found.items()}
            behind = _Behind(shapes, unknown) if shapes else behind
            if behind.shapes:
                is_flat = behind.unknown or lies_otherwise(given, behind.shapes)
                made = bare.with_lengths(behind.shapes) if is_flat else bare.with_shapes(behind.shapes)
                call = replace(first, arguments=tuple(made.parameters))
                text, first, fitted = _finished(source, made, device, call, gpu), call, made
                told = ", ".join(f"{one}[{', '.join(shape)}]" for one, shape in behind.shapes.items())
                fitted.notes.append(f"behind pointers lies, as accesses tell: {told}")
    arguments, guessed = sized_pointers(first.arguments, given, behind.shapes)
    left_out = _left_out(source, function, arguments, given)
    notes = [
        *left_out,
        *fitted.notes,
        *_loose(arguments, given, behind),
        *(f"rewritten: {edit}" for edit in device.edits),
    ]
    return Imported(function, text, arguments, tuple(dict.fromkeys(notes)), pinned, guessed), behind


def _recorded_plan(
    source: Source, function: str, name: str, program: str, first: CallSpec, child: HostChild
) -> PlanFitter:
    """The launcher called as in the first call and at other sizes."""
    calls = variations(first, edges(source, function))
    runs = child.record(program, [call.line for call in calls]).runs
    if not runs or runs[0].error:
        raise ImportProblem(f"{function}: {runs[0].error if runs else 'its call did not come to an end'}")
    if not runs[0].launches:
        raise ImportProblem(f"{function} launches no kernel at these sizes")
    return PlanFitter(name, source, function, calls, runs)


def _loose(call: Sequence[Given], said: Mapping[str, Given], behind: _Behind) -> list[str]:
    """A shape was said, and numbers that the launcher is called with do not follow from it."""
    if not any(one.is_bare and one.name in said and one.name not in behind.shapes for one in call):
        return []
    numbers = [one for one in call if one.kind == "int" and one.name not in said and not is_block(one.name)]
    guessed = ", ".join(f"{one.name} = {one.value}" for one in numbers)
    return [f"the shapes given do not tell {guessed}, which was guessed: say it with --set"] if numbers else []


def _left_out(source: Source, function: str, call: Sequence[Given], said: Mapping[str, Given]) -> list[str]:
    """Dtypes and numbers of dimensions that the source takes, and a file of the one call that was tried does not."""
    tensors = [one for one in call if one.has_shape and one.name not in said]
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
    source: Source, function: str, program: str, said: Mapping[str, Given] | Sequence[Given], child: HostChild
) -> CallSpec:
    if not isinstance(said, Mapping):
        return tied(list(said))
    item = next(i for i in source.of_kind(Kind.HOST) if i.name == function and i.body is not None)
    names = plan_names(item)
    kinds = child.record(program, []).parameters
    for name, kind in zip(names, kinds, strict=True):
        if kind == "other":
            raise ImportProblem(f"{source.at(item.line)}: {function} takes {name} of a type that cannot be given")
    relations: tuple[Relation, ...] = ()
    for _ in range(2):  # with what a check that failed asks for, once more
        recording: Recording = child.record(program, [CallSpec(one).line for one in guesses(names, kinds, said)])
        for one, run in zip(guesses(names, kinds, said), recording.runs, strict=False):
            if not run.error and run.launches and all(map(_can_be, run.launches)):
                return tied(_as_taken(one, run, dict(zip(names, kinds, strict=True)), said), relations)
        errors = [run.error for run in recording.runs if run.error]
        reason = max(set(errors), key=errors.count) if errors else "it launches nothing"
        asked = asked_relation(source, reason, [n for n, k in zip(names, kinds, strict=True) if k == "int"])
        few = _related_numbers(asked, said) if asked is not None else {}
        if asked is None or not few:
            break
        relations = (asked,)
        said = {**said, **{name: Given(name, "int", value=value) for name, value in few.items()}}
    raise ImportProblem(f"{function}: no sizes that were tried suit it ({reason}); give --shape NAME=ROWSxCOLS:DTYPE")


def _related_numbers(asked: Relation, said: Mapping[str, Given]) -> dict[str, int]:
    """Two numbers as a check asks for them, one of which may be said; none where that cannot be."""
    one, other = (said[name].value if name in said else None for name in (asked.name, asked.other))
    if other is None:
        other = _FEW if one is None else int(one) // asked.times if isinstance(one, int) else None
    made = {asked.other: int(other), asked.name: int(other) * asked.times} if isinstance(other, int) else {}
    return made if one in (None, made.get(asked.name)) else {}


def _can_be(launch: Launched) -> bool:
    return min(*launch.grid, *launch.block) > 0 and math.prod(launch.block) <= _MOST_THREADS


def asked_relation(source: Source, reason: str, numbers: Sequence[str]) -> Relation | None:
    """What a check of products asks for: "the check `(H*64 == C)` failed"."""
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
    """A number, or a name that the source gives one; 0 where it does not."""
    if word.isdigit() or not depth:
        return int(word) if word.isdigit() else 0
    found = re.search(rf"(?:#\s*define\s+{word}\s+|\b{word}\s*=\s*)(\w+)", source.text)
    return _constant(source, found[1], depth - 1) if found else 0


def _as_taken(arguments: Sequence[Given], run: Run, kinds: Mapping[str, str], said: Mapping[str, Given]) -> list[Given]:
    """Pointers whose type the launcher does not say have the one that the kernel takes."""
    taken = {a.tensor: a.dtype for one in run.launches for a in one.arguments if isinstance(a, Pointer)}
    made, number = [], 0
    for one in arguments:
        if one.is_bare and kinds[one.name] == "pointer ":
            if not taken.get(number, "f32"):
                raise ImportProblem(f"{run.launches[0].kernel} takes {one.name}, a pointer to a type of its own")
            one = replace(one, dtype=taken.get(number, one.dtype))
        number += one.is_tensor and one.value is not None
        if one.is_bare and one.name in said and said[one.name].dtype not in ("", one.dtype):
            raise Contradiction(
                f"--shape {one.name}=...:{said[one.name].dtype}: the kernel takes {one.name} as {one.dtype}"
            )
        made.append(one)
    return made


def _finished(source: Source, plan: PlanText, device: DeviceText, first: CallSpec, gpu: GpuProfile) -> str:
    """Which tensors are written is seen in the compiled code; then the file is whole."""
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


def given_of(call: ExtensionCall) -> list[Given]:
    """The arguments of a recorded call."""
    made = []
    for name, kind, word in zip(call.names, call.kinds, call.words, strict=True):
        if word == "none":
            made.append(Given(name, kind, value=None))
        elif kind == "tensor":
            dtype, _, sizes = word.partition(":")
            made.append(Given(name, kind, dtype, tuple(int(n) for n in sizes.split(",") if n)))
        elif kind == "ints":
            made.append(Given(name, kind, value=tuple(int(n) for n in word[1:].split(",") if n)))
        else:
            number = float(word) if kind == "float" else int(word)
            made.append(Given(name, kind, value=bool(number) if kind == "bool" else number))
    return made
