"""Who judges and who times the kernels of a task, with the processes they need: opened as one, closed as one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path

from tilewright.child.process import uninterrupted
from tilewright.frontends import choices
from tilewright.frontends.choices import ChosenDevice
from tilewright.frontends.gpu_turns import GpuTurns, TurnedDevice, TurnedReference
from tilewright.measure import Stopwatch
from tilewright.records import Settings, Task
from tilewright.reference import AnyReference, Reference, ReferenceLimits
from tilewright.verify import Referee

Say = Callable[[str], None]
Judges = tuple[Referee, Stopwatch]
OpenJudges = Callable[[Task, Settings, ChosenDevice, Say], AbstractContextManager[Judges]]


@contextmanager
def judges(
    task: Task,
    settings: Settings,
    device: ChosenDevice,
    say: Say,
    interrupt: Callable[[], bool] = uninterrupted,
    log: Path | None = None,
) -> Iterator[Judges]:
    """The referee and the stopwatch of a task. Where `interrupt` says yes, what is in hand ends with `Interrupted`.

    Other processes may use the same GPU of this machine, and each waits for its turn; `log` is where those are noted.
    """
    # Inputs too large to carry are drawn where the kernel runs, and judged there.
    limits = ReferenceLimits.on_gpu(device.index) if device.index is not None else None
    with (
        Reference(task.reference, task.function, limits=limits, interrupt=interrupt) as own,
        choices.open_devices(device, interrupt) as (emulator, gpu),
    ):
        reference: AnyReference = own
        turns = None
        if device.index is not None and gpu is not None:
            turns = GpuTurns.of_gpu(device.index, log, say, gpu.profile.memory_bytes)
            reference, gpu = TurnedReference(own, turns), TurnedDevice(gpu, turns)
        far = choices.gpu_reference(device, task, gpu)
        with (
            Referee(task, reference, emulator=emulator, gpu=gpu, gpu_reference=far, say=say) as referee,
            Stopwatch(
                task,
                reference,
                emulator=emulator,
                gpu=gpu,
                gpu_reference=far,
                baselines=settings.baselines,
                against=settings.against,
                say=say,
                turn=turns.turn if turns is not None else nullcontext,
            ) as stopwatch,
        ):
            yield referee, stopwatch


def logged_judges(log: Path) -> OpenJudges:
    """Judges that write down their turns at this machine's GPU."""
    return partial(judges, log=log)
