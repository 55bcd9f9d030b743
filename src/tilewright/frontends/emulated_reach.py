"""Which tensors a kernel file accesses outside of, in the emulator; `import` asks it of tensors too small."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tilewright.devices.protocol import Device, DeviceError
from tilewright.frontends.check import usual_content
from tilewright.importing.shapes import Outside
from tilewright.kernel_file import ArgumentValue, DoesNotApply, KernelFile
from tilewright.records import BuildFailure, Completed, Emulation, FindingKind, InputTensor, Limits, TensorSpec
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
        found = [_TENSOR.search(one.where) for one in run.findings if one.kind is FindingKind.OUT_OF_BOUNDS_GLOBAL]
        if None in found:  # nobody knows outside of what
            return None
        return frozenset(one[1] or one[2] for one in found if one is not None)

    return outside
