"""Which tensors a kernel file accesses outside of, in the emulator; `import` asks it of tensors too small."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tilewright.devices.protocol import Device, DeviceError
from tilewright.frontends.check import usual_content
from tilewright.importing.shapes import Outside
from tilewright.kernel_file import ArgumentValue, DoesNotApply, KernelFile
from tilewright.records import (
    BuildFailure,
    Completed,
    Emulation,
    FindingKind,
    FindingRecord,
    InputTensor,
    Limits,
    TensorSpec,
)
from tilewright.toolchain import build_plan

_SECONDS = 10.0
_INSTRUCTIONS = 100_000_000
# "8 bytes after the end of x", or, where a wide access begins inside, "x[12]".
_TENSOR = re.compile(r"\bof (\w+)$|^(\w+)(?:\[|$)")


def reach(emulator: Device) -> Outside:
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
