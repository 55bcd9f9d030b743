"""Who judges and who times the kernels of a task, with the processes they need: opened as one, closed as one."""

from __future__ import annotations

import fcntl
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from tilewright.child.process import uninterrupted
from tilewright.devices.cuda import device_uuid
from tilewright.devices.protocol import Closing, Device, DeviceError
from tilewright.devices.spool import SpoolDevice
from tilewright.frontends.api import choices
from tilewright.frontends.api.choices import ChosenDevice
from tilewright.measure import Stopwatch
from tilewright.records import PROFILES, Execution, GpuProfile, Job, Precision, Settings, Task, Watch
from tilewright.reference import AnyReference, Reference, ReferenceLimits, ReferenceProblem, start_ahead
from tilewright.reference.convolution_questions import MEASURE, WARM, ConvolutionRequest, PrecisionAnswer
from tilewright.reference.spooled import SpoolReference
from tilewright.tasks.default_precision import ResolvePrecision, likely_f32, precision_from_channels
from tilewright.verify import Referee
from tilewright.verify.judging_records import JudgeRequest

# -- several processes of this machine, one GPU: --

_BETWEEN_GOES = 300.0  # seconds
_MUCH_MEMORY = 40 << 30
_SHARE_OF_MEMORY = 32  # judging a call that is worked out whole takes some ten times its tensors
_MOST_BESIDE = 3  # larger jobs at a time
LOCKS = Path("/tmp")  # and not TMPDIR, which a batch system may set anew for every job

T = TypeVar("T")


@dataclass(frozen=True)
class GpuUse:
    """How long anybody had a turn at the GPU, and how long nobody had between two turns."""

    busy_s: float
    idle_s: float
    turns: int


def gpu_use(log: Path) -> GpuUse:
    """What was written down of turns. A long time without any lies between two goes, and is neither."""
    lines = log.read_text().splitlines() if log.exists() else []
    turns = sorted((float(began), float(ended)) for began, ended, *_ in map(str.split, lines))
    busy = idle = 0.0
    reached = turns[0][0] if turns else 0.0
    for began, ended in turns:
        idle += began - reached if 0.0 < began - reached < _BETWEEN_GOES else 0.0
        busy += max(0.0, ended - max(began, reached))
        reached = max(reached, ended)
    return GpuUse(busy, idle, len(turns))


def _unheard(text: str) -> None: ...


class GpuTurns:
    """Turns at the GPU that a lock file stands for. Within a turn of this object further ones are part of it.

    `log`: where each gets a line, with the machine's clock. `say` is told when a turn has to be waited for.
    `memory_bytes` is the GPU's; nothing is known of it where that is 0.
    """

    def __init__(
        self, path: Path, log: Path | None = None, say: Callable[[str], None] = _unheard, memory_bytes: int = 0
    ) -> None:
        self.most_beside_bytes = memory_bytes // _SHARE_OF_MEMORY if memory_bytes >= _MUCH_MEMORY else 0
        self._path = path
        self._entrance = path.with_suffix(".next")  # held by whoever is next: nobody comes in before it
        self._log = log
        self._say = say
        self._lock = threading.RLock()
        self._depth = 0

    @classmethod
    def of_gpu(
        cls, index: int, log: Path | None = None, say: Callable[[str], None] = _unheard, memory_bytes: int = 0
    ) -> GpuTurns:
        """Turns at a GPU of this machine, for all processes of this user whatever number they know it by."""
        folder = LOCKS / f"tilewright-{os.getuid()}"
        path = folder / f"gpu-{device_uuid(index)}.lock"
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            path.open("ab").close()
        except OSError as error:
            say(f"others of your processes are not waited for at the GPU: {error}")
            path = Path(tempfile.mkdtemp(prefix="tilewright-")) / path.name
        return cls(path, log, say, memory_bytes)

    @contextmanager
    def turn(self, *, shared: bool = False, large: bool = False) -> Iterator[None]:
        """Alone at the GPU, or beside others that share it, few of which may be large."""
        with self._lock:
            if self._depth:
                yield
                return
            with self._place() if shared and large else nullcontext(), open(self._path, "ab") as held:
                with open(self._entrance, "ab") as entrance:
                    self._take(entrance, fcntl.LOCK_EX)
                    self._take(held, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
                self._depth, began = 1, time.time()
                try:
                    yield
                finally:
                    self._depth = 0
                    self._write_down(began, "shared" if shared else "alone")

    @contextmanager
    def _place(self) -> Iterator[None]:
        """One of the places for large jobs; where all are taken, that which this process always waits for."""
        places = [self._path.with_suffix(f".{number}") for number in range(_MOST_BESIDE)]
        own = os.getpid() % _MOST_BESIDE
        for path in (*places[own:], *places[:own]):
            with open(path, "ab") as place:
                try:
                    fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                yield
                return
        with open(places[own], "ab") as place:
            self._take(place, fcntl.LOCK_EX)
            yield

    def _take(self, file: BinaryIO, how: int) -> None:
        try:
            fcntl.flock(file, how | fcntl.LOCK_NB)
        except BlockingIOError:
            self._say("waiting for the GPU, which another process uses")
            fcntl.flock(file, how)

    def _write_down(self, began: float, how: str) -> None:
        if self._log is not None:
            with open(self._log, "a") as log:
                log.write(f"{began:.3f} {time.time():.3f} {how} {os.getpid()}\n")


def turn_at(index: int | None, say: Callable[[str], None] = _unheard) -> AbstractContextManager[None]:
    """Alone at a GPU of this machine; None: it is another's, whose worker has one job at a time."""
    return nullcontext() if index is None else GpuTurns.of_gpu(index, say=say).turn()


class _Size(Enum):
    """How a job of a size uses the GPU. Its bytes are those of all its tensors."""

    TINY = (1 << 19) - 1  # whatever its elements are, they are judged on the CPU
    SMALL = 64 << 20  # judging it takes a few GB at most
    LARGE = 1 << 62  # alone, but where it is little of the GPU's memory

    @classmethod
    def of(cls, size: int) -> _Size:
        return next(one for one in cls if size <= one.value)


def _bytes_of(job: Job) -> int:
    specs = (*(one.spec for one in job.inputs), *(one.spec for one in job.plan.buffers))
    return sum(one.storage_bytes for one in specs)


def _untimed(turns: GpuTurns, size: int) -> AbstractContextManager[None]:
    """The turn of something that nobody times, and that has tensors of so many bytes."""
    large = _Size.of(size) is _Size.LARGE
    return turns.turn(shared=not large or size <= turns.most_beside_bytes, large=large)


class TurnedDevice(Closing):
    """A GPU whose every job takes a turn, but for those under a sanitizer: of the seconds that takes, a few
    milliseconds are the GPU's."""

    def __init__(self, device: Device, turns: GpuTurns) -> None:
        self._device = device
        self.turns = turns
        self.index: int = getattr(device, "index", 0)

    @property
    def profile(self) -> GpuProfile:
        return self._device.profile

    def execute(self, job: Job) -> Execution:
        if job.watch is Watch.FAULTS:
            return self._device.execute(job)
        alone = job.timed_runs or job.watch is Watch.COUNTERS
        with self.turns.turn() if alone else _untimed(self.turns, _bytes_of(job)):
            return self._device.execute(job)

    def close(self) -> None:
        self._device.close()


class TurnedReference:
    """A reference beside that GPU. It works there only where it judges, and then in the turn of the job it judges."""

    def __init__(self, reference: AnyReference, turns: GpuTurns) -> None:
        self._reference = reference
        self._turns = turns

    @property
    def sees_gpu(self) -> bool:
        return self._reference.sees_gpu

    def call(self, handler: str, request: Any, answer: type[T] | Any, seconds: float = 60.0) -> T:
        outputs = request.outputs if isinstance(request, JudgeRequest) else ()
        with self._judging(sum(len(one.content) for one in outputs)) if outputs else nullcontext():
            made: T = self._reference.call(handler, request, answer, seconds)
            return made

    def call_on_run(
        self, device: Device, job: Job, handler: str, request: Any, answer: type[T] | Any, seconds: float = 60.0
    ) -> tuple[Execution, T | None]:
        with self._judging(_bytes_of(job)) if isinstance(device, TurnedDevice) else nullcontext():
            return self._reference.call_on_run(device, job, handler, request, answer, seconds)

    def _judging(self, size: int) -> AbstractContextManager[None]:
        return nullcontext() if _Size.of(size) is _Size.TINY else _untimed(self._turns, size)

    def close(self) -> None:
        self._reference.close()


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


# -- in what PyTorch computes the f32 convolutions of a task on the GPU at hand: --


def settling_on(device: ChosenDevice) -> ResolvePrecision:
    """Who finds out the precision of a task for which nobody said one: the GPU, or without one the rule."""
    return precision_from_channels if device.is_emulated else partial(_settled, device)


def _settled(device: ChosenDevice, task: Task, reference: AnyReference) -> Task:
    if likely_f32(task, reference) == ():
        return task
    is_f32 = _measured(device, task)
    if is_f32 is None:
        return precision_from_channels(task, reference)
    return replace(task, precision=Precision.DEFAULT_F32) if is_f32 else task


def _measured(device: ChosenDevice, task: Task) -> bool | None:
    """None where the GPU cannot say, or an older worker is not able to ask it."""
    with _reference_on(device, task) as reference:
        try:
            answer: PrecisionAnswer = reference.call(MEASURE, ConvolutionRequest(task), PrecisionAnswer)
        except DeviceError:
            raise
        except (ReferenceProblem, RuntimeError):
            return None
        return answer.f32


@contextmanager
def _reference_on(device: ChosenDevice, task: Task) -> Iterator[AnyReference]:
    """The task's reference where the GPU is, which is its own for so long where that is this machine."""
    if device.index is None:
        gpu = SpoolDevice(device.spool, arch=PROFILES[device.gpu].arch)
        yield SpoolReference(device.spool, task.reference, task.function, gpu=gpu.profile)
        return
    limits = ReferenceLimits.on_gpu(device.index)
    with Reference(task.reference, task.function, limits=limits) as reference:
        start_ahead(limits)  # for the judges, who come next
        with suppress(ReferenceProblem, RuntimeError):  # the next call says it again
            reference.call(WARM, ConvolutionRequest(task), PrecisionAnswer)
        with turn_at(device.index):
            yield reference
