"""An imported kernel file in the emulator: at sizes that kernels are written for, then at odd ones.

It is compared with the source's own reference where there is one.
"""

from __future__ import annotations

import ast
import re
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from tilewright.devices.protocol import Device, DeviceError
from tilewright.frontends.cli.check import CheckOptions, check_file, usual_content
from tilewright.frontends.report.checks import CheckOutcome, CheckReport
from tilewright.importing.calls import CallArgument, is_block
from tilewright.importing.models import ExtensionCall
from tilewright.importing.shapes import OutOfBounds
from tilewright.importing.sizes import ODD_SIZES, small_arguments
from tilewright.kernel_file import ArgumentValue, DoesNotApply, KernelFile, KernelFileError, Op, Parameter
from tilewright.records import (
    PROFILES,
    BuildFailure,
    Completed,
    Emulation,
    FindingKind,
    FindingRecord,
    InputTensor,
    Limits,
    ScalarType,
    TensorSpec,
)
from tilewright.tasks.errors import BadArgument
from tilewright.tasks.reading import python_source
from tilewright.toolchain import build_plan

OriginalReference = tuple[str, str, Path]  # text, function, the folder it lies in
GPU = PROFILES["H200"]
ADAPTED = "imported_reference"
_CHECK_SECONDS = 60.0
_SIZE = re.compile(r"\b(\w+) = (\w+\.shape\[\d+\])")  # of a plan's `let`; Python spells it alike


def checked(
    file: KernelFile, arguments: Mapping[str, ArgumentValue], reference: OriginalReference | None
) -> tuple[str, str, bool]:
    """What `check` says, whether it compared, and against what it could not."""
    emulation = Emulation(schedules=1)
    if reference is None:
        return _said_by(check_file(file, arguments, True, CheckOptions(GPU, emulation, seconds=_CHECK_SECONDS), _quiet))
    text, function, _ = reference
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "reference.py")
        path.write_text(text, "utf-8")
        options = CheckOptions(GPU, emulation, (path, function), seconds=_CHECK_SECONDS)
        try:
            return _said_by(check_file(file, arguments, True, options, _quiet))
        except (BadArgument, KernelFileError) as error:
            why = str(error).replace(str(path), "the reference")
    outcome, reason, _ = checked(file, arguments, None)
    return outcome, f"{reason}; not compared: {why}".lstrip("; "), False


def _said_by(report: CheckReport) -> tuple[str, str, bool]:
    reason = report.reason or "; ".join(str(one) for one in report.findings[:2])
    return report.outcome.value, reason, report.compared


def _quiet(text: str) -> None:
    """Progress is told here, not by the check."""


def at_odd_sizes(
    file: KernelFile,
    call: Sequence[CallArgument],
    usual: Mapping[str, ArgumentValue] | None,
    reference: OriginalReference | None,
) -> list[str]:
    """What the kernel counts on without saying so."""
    odd = small_arguments(file, call, GPU, ODD_SIZES)
    if odd is None or odd == usual:
        return []
    outcome, reason, _ = checked(file, odd, reference)
    if outcome == CheckOutcome.CLEAN.value:
        return []
    sizes = ", ".join(f"{name} = {value}" for name, value in odd.items())
    return [f"at odd sizes ({sizes}) it is not right: {outcome}: {reason}"]


def without_extension(text: str) -> str:
    """The module without the statements that build its extension, so that it needs neither compiler nor stand-ins."""

    def builds(node: ast.AST) -> bool:
        called = node.func if isinstance(node, ast.Call) else None
        name = getattr(called, "attr", getattr(called, "id", ""))
        return name in ("load_inline", "load")

    tree = ast.parse(text)
    definitions = (ast.FunctionDef, ast.ClassDef)
    body = [one for one in tree.body if isinstance(one, definitions) or not any(map(builds, ast.walk(one)))]
    return ast.unparse(ast.Module(body, []))


def with_stand_ins(text: str, path: Path) -> str:
    """The file with the stand-ins in front: they must be there before it loads its extension."""
    return stand_ins(path) + text


def stand_ins(path: Path) -> str:
    folder = str(path.parent.resolve())
    return f"import tilewright.importing.models as _stand_ins; _stand_ins.install({folder!r})\n"


def adapter(name: str, call: ExtensionCall, inputs: Sequence[str]) -> str:
    """Python that calls the model with the arguments of the extension's function."""
    names = [one.name for one in call.arguments]
    named = {origin: n for n, origin in zip(names, call.origins, strict=True) if origin}
    given = [named.get(one, "None") if one.startswith("input:") else one for one in inputs]
    first = next(n for origin, n in named.items() if origin.startswith("input:"))
    weights = {
        origin.partition(":")[2]: n
        for n, origin in zip(names, call.origins, strict=True)
        if origin.startswith("parameter:")
    }
    mapping = ", ".join(f"{key!r}: {value}" for key, value in weights.items())
    return f"""

def {ADAPTED}({", ".join(names)}):
    import torch as _torch
    _model = {name}(*(get_init_inputs() if "get_init_inputs" in globals() else ())).to({first}.dtype)
    return _torch.func.functional_call(_model, {{{mapping}}}, ({", ".join(given)},))
"""


def for_op(file: KernelFile, reference: OriginalReference, guessed_lengths: Collection[str] = ()) -> OriginalReference:
    """A function of some of a launcher's parameters as one of the op's: sizes are read off tensors, and what it returns
    is put where the kernel writes. Raises `BadArgument` where it takes something else, or a tensor of unknown shape."""
    text, function, folder = reference
    taken = _taken(reference)
    if taken is None:
        return reference
    op, names = file.plan.op, [one.name for one in taken]
    given = {**{one.name: one.name for one in op.parameters}, **size_names(file)}
    foreign = [one.name for one in taken if one.name not in given and one.default is None]
    lacks = [one.name for one in op.parameters if one.name not in names and not _may_lack(one)]
    if foreign or lacks:
        what = f"takes {', '.join(foreign)}" if foreign else f"does not take {', '.join(lacks)}"
        raise BadArgument(f"--reference: {function} {what}; the kernel's arguments are called {', '.join(given)}")
    shapeless = [name for name in names if name in guessed_lengths]
    if shapeless and lacks_numbers(file, reference):
        raise BadArgument(f"--reference: say the shapes that {function} takes: --shape {shapeless[0]}=ROWSxCOLS")
    if {one.name for one in op.parameters} == {*names} and not any(one.in_place for one in op.parameters):
        return reference
    known = [one for one in taken if one.name in given]
    passed = ", ".join(given[one.name] if one.positional_only else f"{one.name}={given[one.name]}" for one in known)
    text, imports = python_source.with_neighbours(text, "", folder)
    beside = "    _ = sys  # whose path finds the files beside it\n" if imports else ""
    return text + _in_place(op, f"{function}({passed})", {*names}, beside), ADAPTED, folder


def lacks_numbers(file: KernelFile, reference: OriginalReference) -> bool:
    """Whether it takes its sizes from tensors, where the op has them as numbers: the two must not change apart."""
    taken = _taken(reference)
    names = {one.name for one in taken or ()}
    numbers = [one.name for one in file.plan.op.parameters if one.scalar is ScalarType.INT and not is_block(one.name)]
    return taken is not None and any(name not in names for name in numbers)


def _taken(reference: OriginalReference) -> tuple[python_source.SourceParameter, ...] | None:
    """The parameters of a function; None for what is none, or is one of an op already."""
    text, function, folder = reference
    try:
        node = python_source.find_function(ast.parse(text), function, "the reference")
        python_source.with_neighbours(text, "", folder)
        return None if function == ADAPTED else python_source.parameters_of(node, "the reference")
    except (SyntaxError, ValueError):
        return None  # who runs it says what it is


def size_names(file: KernelFile) -> dict[str, str]:
    """Numbers of the launcher that the plan reads off tensors."""
    lets = [line for line in file.text.splitlines() if line.startswith("//! let ")]
    return dict(found for line in lets for found in _SIZE.findall(line))


def _may_lack(parameter: Parameter) -> bool:
    """What is written can be returned instead; numbers may be none of the function's business."""
    return parameter.in_place or parameter.optional or parameter.scalar is not None


def _in_place(op: Op, call: str, names: set[str], first: str) -> str:
    """Python of the op's parameters that leaves what a call returns, beside the op's results, in what is written."""
    written = [one.name for one in op.parameters if one.in_place]
    missing = [name for name in written if name not in names]
    taken = ", ".join(
        one.name + (f": {one.scalar.value}" if one.scalar else "") + ("=None" if one.optional else "")
        for one in sorted(op.parameters, key=lambda one: one.optional)
    )
    return f"""

def {ADAPTED}({taken}):
{first}    _all = ({"".join(f"{name}, " for name in written)})
    _made = {call}
    _made = () if _made is None else tuple(_made) if isinstance(_made, (tuple, list)) else (_made,)
    _made = tuple(one for one in _made if not any(one is other for other in _all))
    _results, _left = _made[:{len(op.results)}], _made[{len(op.results)}:]
    _places = ({"".join(f"{name}, " for name in missing)}) if len(_left) == {len(missing)} else _all
    if len(_left) != len(_places):
        raise ValueError(f"it returned {{len(_made)}} tensors; {op.name} makes {len(op.results) + len(written)}")
    for _place, _one in zip(_places, _left):  # which may be longer than what is written
        _place = _place if _one.numel() == _place.numel() else _place.view(-1)[: _one.numel()]
        _place.copy_(_one.reshape(_place.shape))
    return _results[0] if len(_results) == 1 else _results or None
"""


_SECONDS = 10.0
_INSTRUCTIONS = 100_000_000
# "8 bytes after the end of x", or, where a wide access begins inside, "x[12]".
_TENSOR = re.compile(r"\bof (\w+)$|^(\w+)(?:\[|$)")


def reach(emulator: Device) -> OutOfBounds:
    """The tensors whose ends an access goes past; None where the run does not come to its end."""

    def outside(file: KernelFile, arguments: Mapping[str, ArgumentValue], below: int) -> frozenset[str] | None:
        try:
            built = build_plan(file, arguments, emulator.profile)
            if isinstance(built, BuildFailure):
                return None
            specs = {name: one for name, one in arguments.items() if isinstance(one, TensorSpec)}
            inputs = tuple(InputTensor(name, one, usual_content(one.dtype, 0, below)) for name, one in specs.items())
            how = Emulation((), instruction_budget=_INSTRUCTIONS)
            run = emulator.execute(built.job("reach", inputs, limits=Limits(seconds=_SECONDS), emulation=how))
        except (DoesNotApply, DeviceError):
            return None
        if not isinstance(run, Completed):
            return None
        found = [past_tensor(one) for one in run.findings if one.kind is FindingKind.OUT_OF_BOUNDS_GLOBAL]
        return None if "" in found else frozenset(found)  # "": nobody knows outside of what

    return outside


def past_tensor(finding: FindingRecord) -> str:
    """The tensor that an access goes past; "" for any other finding, and where that is not told."""
    found = _TENSOR.search(finding.where) if finding.kind is FindingKind.OUT_OF_BOUNDS_GLOBAL else None
    return (found[1] or found[2]) if found is not None else ""
