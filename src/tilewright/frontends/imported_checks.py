"""An imported kernel file in the emulator: at sizes that kernels are written for, then at odd ones.

It is compared with the source's own reference where there is one.
"""

from __future__ import annotations

import ast
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tilewright.frontends.check import CheckOptions, CheckOutcome, CheckReport, check_file
from tilewright.frontends.kernel_arguments import BadArgument
from tilewright.importing.calls import Given
from tilewright.importing.models import ExtensionCall
from tilewright.importing.sizes import ODD, small_arguments
from tilewright.kernel_file import ArgumentValue, KernelFile, KernelFileError
from tilewright.records import PROFILES, Emulation

OriginalReference = tuple[str, str, Path]  # text, function, the folder it lies in
GPU = PROFILES["H200"]
ADAPTED = "imported_reference"
_CHECK_SECONDS = 60.0


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
    call: Sequence[Given],
    usual: Mapping[str, ArgumentValue] | None,
    reference: OriginalReference | None,
) -> list[str]:
    """What the kernel counts on without saying so."""
    odd = small_arguments(file, call, GPU, ODD)
    if odd is None or odd == usual:
        return []
    outcome, reason, _ = checked(file, odd, reference)
    if outcome == CheckOutcome.CLEAN.value:
        return []
    sizes = ", ".join(f"{name} = {value}" for name, value in odd.items())
    return [f"at odd sizes ({sizes}) it is not right: {outcome}: {reason}"]


# -- references --


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
    named = {origin: n for n, origin in zip(call.names, call.origins, strict=True) if origin}
    given = [named.get(one, "None") if one.startswith("input:") else one for one in inputs]
    first = next(n for origin, n in named.items() if origin.startswith("input:"))
    weights = {
        origin.partition(":")[2]: n
        for n, origin in zip(call.names, call.origins, strict=True)
        if origin.startswith("parameter:")
    }
    mapping = ", ".join(f"{key!r}: {value}" for key, value in weights.items())
    return f"""

def {ADAPTED}({", ".join(call.names)}):
    import torch as _torch
    _model = {name}(*(get_init_inputs() if "get_init_inputs" in globals() else ())).to({first}.dtype)
    return _torch.func.functional_call(_model, {{{mapping}}}, ({", ".join(given)},))
"""
