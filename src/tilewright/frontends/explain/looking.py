"""What the emulator saw of one kernel at the task's sizes: counts, and who touches what in its first block.

Nothing of this is on record, so it is made when a lesson is written, of any run, wherever that was made.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from tilewright.frontends.explain.pictures import MOST_WRITTEN
from tilewright.frontends.view.counting import Counted, NotCountable, count_lines
from tilewright.records import Attempt, Run, TensorSpec, TouchRecord, WrittenPart

_MOST_ELEMENTS = 32 << 20  # of all inputs: drawing as many takes a second
_SECONDS = 60.0


@dataclass(frozen=True)
class LaunchShape:
    """One launch of a plan at the task's sizes."""

    kernel: str
    line: int
    blocks: int
    threads: int  # of a block
    shared_bytes: int  # of a block
    registers: int  # of a thread
    constants: tuple[tuple[str, str], ...] = ()  # those tuned, and those in its line


@dataclass(frozen=True)
class Look:
    """`written` is what the first block of each launch wrote; empty where all blocks had to run."""

    launches: tuple[LaunchShape, ...]
    specs: dict[str, TensorSpec]  # inputs and outputs, at the sizes that were run
    touches: tuple[TouchRecord, ...]
    written: tuple[WrittenPart, ...]
    counted: Counted | None
    problem: str = ""  # why there are no counts, or nothing at all
    sizes: str = ""  # that were run, where they are not the task's
    blocks: int = 0  # of the last launch at those sizes


def look_at(run: Run, attempt: Attempt, text: str) -> Look:
    """Some seconds of emulation; a kernel that cannot be emulated gives a `Look` with a `problem`."""
    from tilewright.devices.emulated_device import EmulatedDevice
    from tilewright.devices.protocol import DeviceError
    from tilewright.kernel_file import KernelFileError, parse
    from tilewright.measure.emulated_counts import affordable_sizes
    from tilewright.measure.preparation import NotPrepared, job_inputs, prepare
    from tilewright.records import Check, Emulation, Limits
    from tilewright.toolchain import ToolchainError

    counted, problem = None, ""
    try:
        counted = count_lines(run, attempt, text)
    except NotCountable as reason:
        problem = str(reason)
    choice = dict(attempt.tune.choice) if attempt.tune else None
    try:
        file, task = parse(text, "kernel.cu"), run.task
        real = prepare(file, task, choice)
        sizes = affordable_sizes(task, _MOST_ELEMENTS)
        built = real if sizes == task.sizes else prepare(file, task, real.evaluation.choice, sizes)
        alone = not any(step.cooperative for step in built.plan.launches)
        emulation = Emulation(
            (Check.TOUCHES,), sampled_blocks=1 if alone else None, written_elements=MOST_WRITTEN if alone else 0
        )
        job = built.job("look", job_inputs(task, sizes), limits=Limits(seconds=_SECONDS), emulation=emulation)
        with EmulatedDevice(task.profile) as emulator:
            emulated = getattr(emulator.execute(job), "emulated", None)
    except (KernelFileError, NotPrepared, DeviceError, ToolchainError) as error:
        return Look((), {}, (), (), counted, problem or str(error))
    launches = tuple(
        LaunchShape(
            step.kernel,
            step.line,
            math.prod(step.grid),
            math.prod(step.block),
            real.build.kernel(step.kernel).resources.static_smem_bytes + step.dynamic_smem_bytes if real.build else 0,
            real.build.kernel(step.kernel).resources.registers if real.build else 0,
            tuple(
                (name, str(value).lower())
                for name, value in real.evaluation.constants
                if name in real.evaluation.choice or re.search(rf"\b{name}\b", text.splitlines()[step.line - 1])
            ),
        )
        for step in real.plan.launches
    )
    specs = {**task.specs(sizes), **task.output_specs(sizes)}
    touches, written = (emulated.touches, emulated.written) if emulated else ((), ())
    smaller = "" if sizes == task.sizes else ", ".join(f"{name} = {size}" for name, size in sizes.items())
    blocks = math.prod(built.plan.launches[-1].grid) if built.plan.launches else 0
    return Look(launches, specs, touches, written, counted, problem, smaller, blocks)
