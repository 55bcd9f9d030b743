"""Builds the kernels of an export.

A plan's constants may depend on sizes, and an export has no compiler. So the files are evaluated at sample calls, and
every set of constants that occurs is built for every requested architecture. A call that needs another set is refused.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tilewright.exports.cpp_plan import check_exportable
from tilewright.exports.writing import NotExportable
from tilewright.kernel_file import (
    Arguments,
    Choice,
    Evaluation,
    KernelFile,
    KernelFileError,
    TunedChoices,
    bind,
    evaluate_tuned,
)
from tilewright.kernel_file.tuned import TunedTensor, flattened_tensors
from tilewright.records import (
    TYPICAL,
    Build,
    BuildFailure,
    BuildRequest,
    CompiledKernel,
    ConstantValue,
    DType,
    GpuProfile,
    Launch,
    ParameterKind,
    cc_of,
)
from tilewright.toolchain import build_many
from tilewright.toolchain.translation_unit import includes

MOST_SETS = 16  # of constants per file
MOST_SLOW_SETS = 2  # where a file includes CuTe: half a minute each
PTX_ARCH = "sm_80"  # PTX of an architecture without letters runs on every later GPU
Say = Callable[[str], None]


@dataclass(frozen=True)
class Module:
    """One file built for one set of constants: a cubin per architecture, and PTX for later ones."""

    file: int
    constants: tuple[tuple[str, ConstantValue], ...]
    request: BuildRequest
    builds: tuple[Build, ...]
    ptx: Build | None


@dataclass(frozen=True)
class BuiltKernel:
    """A kernel of a module, with the offsets of its parameters in the argument block."""

    module: int
    launch: int  # which `launch` line of the file
    compiled: CompiledKernel
    offsets: tuple[int, ...]
    block_bytes: int
    key: tuple[int, ...]  # constants, launch, template arguments


@dataclass(frozen=True)
class BuiltWinner:
    """A tuned choice in the export: the GPU and the tensors it was tuned for, as the plan sees them."""

    choice: int  # which of the file's choices
    cc: int
    sms: int  # 0: unknown
    tensors: tuple[TunedTensor | None, ...]  # per tensor of the op; None: absent


@dataclass(frozen=True)
class Variants:
    """All builds, and for each file the choices of its tuned constants."""

    modules: tuple[Module, ...]
    kernels: tuple[BuiltKernel, ...]
    choices: tuple[tuple[Choice, ...], ...]
    tuned: tuple[tuple[BuiltWinner, ...], ...]  # per file, tried before `choices`
    covered: tuple[tuple[int, Evaluation], ...]  # (file, evaluation) of each call that a file takes
    left_out: int  # sets of constants beyond the limit

    @property
    def archs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(build.arch for module in self.modules for build in module.builds))


def find_variants(
    files: Sequence[KernelFile],
    tuned: TunedChoices,
    calls: Sequence[Arguments],
    archs: Sequence[str],
    say: Say = lambda text: None,
    most_sets: int | None = None,
) -> Variants:
    """Evaluate, build and bind. Raises `NotExportable` if no file takes the first call or a build fails."""
    for file in files:
        check_exportable(file)
    if most_sets is None:
        slow = any(header.startswith(("cute/", "cutlass/")) for file in files for header in includes(file.text))
        most_sets = MOST_SLOW_SETS if slow else MOST_SETS
    covered, left_out = _evaluations(files, tuned, calls, [TYPICAL[arch] for arch in archs], most_sets)
    groups: dict[tuple[int, tuple[tuple[str, ConstantValue], ...]], dict[str, None]] = {}
    for number, evaluation in covered:
        kernels = groups.setdefault((number, evaluation.constants), {})
        kernels.update({step.kernel: None for step in evaluation.steps if isinstance(step, Launch)})
    requests = [
        BuildRequest(files[number].text, constants, tuple(kernels), "", files[number].name)
        for (number, constants), kernels in groups.items()
        if kernels
    ]
    say(f"building {len(requests)} set{'s' if len(requests) != 1 else ''} of constants for {', '.join(archs)}")
    used: dict[tuple[int, tuple[tuple[str, ConstantValue], ...]], set[str]] = {}
    for number, evaluation in covered:
        used.setdefault((number, evaluation.constants), set()).add(evaluation.gpu.arch)
    keys = [key for key, kernels in groups.items() if kernels]
    modules = _built(requests, keys, archs, [used[key] for key in keys])
    choices = _choices(files, covered)
    winners = tuple(_winners(file, tuned, own) for file, own in zip(files, choices, strict=True))
    return Variants(modules, _kernels(modules, covered), choices, winners, tuple(covered), left_out)


def _evaluations(
    files: Sequence[KernelFile],
    tuned: TunedChoices,
    calls: Sequence[Arguments],
    gpus: Sequence[GpuProfile],
    most_sets: int,
) -> tuple[list[tuple[int, Evaluation]], int]:
    found: list[tuple[int, Evaluation]] = []
    sets: dict[int, set[object]] = {}
    left_out: set[object] = set()
    for position, (call, gpu) in enumerate(itertools.product(calls, gpus)):
        reasons: list[str] = []
        for number, file in enumerate(files):
            evaluation = _evaluate(file, tuned, call, gpu, reasons)
            if evaluation is None:
                continue
            known = sets.setdefault(number, set())
            if evaluation.constants not in known and len(known) >= most_sets and position >= len(gpus):
                left_out.add((number, evaluation.constants))
                break
            known.add(evaluation.constants)
            found.append((number, evaluation))
            break
        if position == len(gpus) - 1 and not found:
            raise NotExportable(f"no file takes the call the export is made for: {'; '.join(reasons)}")
    return found, len(left_out)


def _evaluate(
    file: KernelFile, tuned: TunedChoices, call: Arguments, gpu: GpuProfile, reasons: list[str]
) -> Evaluation | None:
    try:
        outcome, _ = evaluate_tuned(file, call, gpu, tuned)
    except KernelFileError as error:
        reasons.append(str(error))
        return None
    if isinstance(outcome, Evaluation):
        return outcome
    reasons.append(f"{file.name} on {gpu.name}: {outcome.problem}")
    return None


def _choices(files: Sequence[KernelFile], covered: Sequence[tuple[int, Evaluation]]) -> tuple[tuple[Choice, ...], ...]:
    """The choices of each file's tuned constants, in the order in which the evaluator tries them."""
    result = []
    for number, file in enumerate(files):
        tunes = file.compiled.tunes
        seen = dict.fromkeys(tuple(e.choice.items()) for n, e in covered if n == number)
        places = {tune.name: {value: i for i, value in enumerate(tune.choices)} for tune in tunes}
        result.append(tuple(map(dict, sorted(seen, key=lambda c: [places[name][value] for name, value in c]))))
    return tuple(result)


def _winners(file: KernelFile, tuned: TunedChoices, choices: Sequence[Choice]) -> tuple[BuiltWinner, ...]:
    """The tuned choices of a file that were built, measured before emulated, newest first."""
    found = []
    newest_first = tuned.entries[::-1]
    for entry in sorted(newest_first, key=lambda one: one.emulated):
        identity = entry.identity
        if entry.file == file.identity and identity.cc and dict(entry.choice) in choices:
            tensors = {one.name: one for one in flattened_tensors(file, entry.tensors)}
            own = tuple(tensors.get(one.name) for one in file.plan.op.tensors)
            number = list(choices).index(dict(entry.choice))
            found.append(BuiltWinner(number, identity.cc, identity.sms, own))
    return tuple(found)


def _built(
    requests: Sequence[BuildRequest],
    keys: Sequence[tuple[int, tuple[tuple[str, ConstantValue], ...]]],
    archs: Sequence[str],
    used: Sequence[set[str]],
) -> tuple[Module, ...]:
    targets = list(dict.fromkeys([*archs, PTX_ARCH])) if all(cc_of(arch) >= 80 for arch in archs) else list(archs)
    wanted = [replace(request, arch=arch) for request in requests for arch in targets]
    answers = dict(zip([(i, arch) for i in range(len(requests)) for arch in targets], build_many(wanted), strict=True))
    modules = []
    for i, (request, (number, constants)) in enumerate(zip(requests, keys, strict=True)):
        builds = []
        for arch in archs:
            answer = answers[i, arch]
            if isinstance(answer, Build):
                builds.append(answer)
            elif arch in used[i]:
                raise NotExportable(f"{request.name} does not build for {arch}: {answer}")
        ptx = answers.get((i, PTX_ARCH))
        modules.append(
            Module(number, constants, request, tuple(builds), None if isinstance(ptx, BuildFailure) else ptx)
        )
    return tuple(modules)


def _kernels(modules: Sequence[Module], covered: Sequence[tuple[int, Evaluation]]) -> tuple[BuiltKernel, ...]:
    found: dict[tuple[int, tuple[int, ...]], BuiltKernel] = {}
    for number, evaluation in covered:
        module = next(
            (i for i, m in enumerate(modules) if m.file == number and m.constants == evaluation.constants), None
        )
        if module is None:
            continue  # it launches nothing
        build = next((b for b in modules[module].builds if b.arch == evaluation.gpu.arch), modules[module].builds[0])
        packed = {(one.line, one.kernel): one for one in bind(evaluation, build, evaluation.gpu).launches}
        for launch in evaluation.steps:
            assert isinstance(launch, Launch)
            places = [(step.directive.at.line, step.directive.at.column) for step in evaluation.file.compiled.steps]
            index = places.index((launch.line, launch.column))
            key = (*(constant_key(v) for _, v in evaluation.constants), index, *template_key(launch.kernel))
            bound = packed[launch.line, launch.kernel]
            size = len(bound.block_template)
            offsets = tuple(offset for offset, _ in bound.parameters)
            made = BuiltKernel(module, index, build.kernel(launch.kernel), offsets, size, key)
            found.setdefault((number, key), made)
    return tuple(found.values())


# -- keys, in the format of `Plan::key` in host/plan.hpp --

_DTYPE_NUMBER = {dtype: number for number, dtype in enumerate(DType)}
_DTYPE_OF_CPP = {dtype.cpp: dtype for dtype in DType}


def constant_key(value: ConstantValue) -> int:
    """A constant as the 64 bits of a key."""
    if isinstance(value, DType):
        return _DTYPE_NUMBER[value]
    if isinstance(value, float):
        (bits,) = struct.unpack("<q", struct.pack("<d", value))
        return int(bits)
    return int(value)


def template_key(kernel: str) -> tuple[int, ...]:
    """The template arguments of `k<8, __half, true>` as numbers."""
    _, bracket, inner = kernel.partition("<")
    return tuple(_template_number(text.strip()) for text in inner.removesuffix(">").split(",")) if bracket else ()


def _template_number(text: str) -> int:
    if text in _DTYPE_OF_CPP:
        return _DTYPE_NUMBER[_DTYPE_OF_CPP[text]]
    if text in ("true", "false"):
        return int(text == "true")
    if text.startswith("("):
        return -(2**63)
    return int(text.removesuffix("LL"))


def parameter_codes(kernel: CompiledKernel) -> str:
    """A code per parameter: p for a pointer, m for a tensor map, else a `struct` code."""
    codes = []
    for one in kernel.parameters:
        match one.kind:
            case ParameterKind.POINTER | ParameterKind.CONST_POINTER:
                codes.append("p")
            case ParameterKind.TENSOR_MAP:
                codes.append("m")
            case ParameterKind.BOOL:
                codes.append("?")
            case ParameterKind.SIGNED:
                codes.append({1: "b", 2: "h", 4: "i", 8: "q"}[one.size])
            case ParameterKind.UNSIGNED:
                codes.append({1: "B", 2: "H", 4: "I", 8: "Q"}[one.size])
            case _:
                codes.append({4: "f", 8: "d"}[one.size])
    return "".join(codes)
