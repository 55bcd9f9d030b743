"""The referee and the stopwatch of a task, and the lock file by which processes of one user share a GPU."""

from __future__ import annotations

import fcntl
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
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
from tilewright.measure.floor import FlopRequest
from tilewright.records import PROFILES, REACHED_BANDWIDTH, Execution, GpuProfile, Job, Precision, Settings, Task, Watch
from tilewright.reference import AnyReference, Reference, ReferenceLimits, ReferenceProblem, start_ahead
from tilewright.reference.protocol import MEASURE, WARM, ConvolutionRequest, PrecisionAnswer
from tilewright.reference.spooled import SpoolReference
from tilewright.tasks.default_precision import ResolvePrecision, likely_f32, precision_from_channels
from tilewright.verify import Referee
from tilewright.verify.judging_records import JudgeRequest

Say = Callable[[str], None]
Judges = tuple[Referee, Stopwatch]
OpenJudges = Callable[[Task, Settings, ChosenDevice, Say], AbstractContextManager[Judges]]
T = TypeVar("T")


@contextmanager
def judges(
    task: Task,
    settings: Settings,
    device: ChosenDevice,
    say: Say,
    interrupt: Callable[[], bool] = uninterrupted,
    log: Path | None = None,
) -> Iterator[Judges]:
    """The referee and the stopwatch of a task. `log` gets a line for each turn at the GPU of this machine."""
    # Inputs too large to send are drawn where the kernel runs, and judged there.
    limits = ReferenceLimits.on_gpu(device.index) if device.index is not None else None
    with (
        Reference(task.reference, task.function, limits=limits, interrupt=interrupt) as own,
        choices.open_devices(device, interrupt) as (emulator, gpu),
    ):
        reference: AnyReference = own
        lock = None
        if device.index is not None and gpu is not None:
            lock = GpuLock.of_gpu(device.index, log, say, gpu.profile.memory_bytes)
            reference, gpu = LockedReference(own, lock), LockedDevice(gpu, lock)
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
                turn=lock.turn if lock is not None else nullcontext,
                model_eager=eager_model,
            ) as stopwatch,
        ):
            yield referee, stopwatch


# -- the lock of a GPU --

_PAUSE_S = 300.0  # without a turn: the time between two invocations of a suite
_MUCH_MEMORY = 40 << 30
_SHARE_OF_MEMORY = 32  # judging a call whose values are computed whole takes some ten times its tensors
_MOST_LARGE = 3  # large jobs that share a GPU
LOCKS = Path("/tmp")  # and not TMPDIR, which a batch system may set anew for every job


@dataclass(frozen=True)
class GpuUse:
    """For how long the GPU was in use, and for how long it was idle between two turns."""

    busy_s: float
    idle_s: float
    turns: int


def gpu_use(log: Path) -> GpuUse:
    """Reads a log of turns. A long pause lies between two invocations, and does not count as idle."""
    lines = log.read_text().splitlines() if log.exists() else []
    turns = sorted((float(began), float(ended)) for began, ended, *_ in map(str.split, lines))
    busy = idle = 0.0
    reached = turns[0][0] if turns else 0.0
    for began, ended in turns:
        idle += began - reached if 0.0 < began - reached < _PAUSE_S else 0.0
        busy += max(0.0, ended - max(began, reached))
        reached = max(reached, ended)
    return GpuUse(busy, idle, len(turns))


class GpuLock:
    """A lock file for a GPU, reentrant within this object. `memory_bytes` is the memory of the GPU, 0 if unknown."""

    def __init__(self, path: Path, log: Path | None = None, say: Say = lambda _: None, memory_bytes: int = 0) -> None:
        self.most_shared_bytes = memory_bytes // _SHARE_OF_MEMORY if memory_bytes >= _MUCH_MEMORY else 0
        self._path = path
        self._next = path.with_suffix(".next")  # held by the process that is next, so that none overtakes it
        self._log = log
        self._say = say
        self._lock = threading.RLock()
        self._depth = 0

    @classmethod
    def of_gpu(cls, index: int, log: Path | None = None, say: Say = lambda _: None, memory_bytes: int = 0) -> GpuLock:
        """The lock that all processes of this user share, whatever number they know the GPU by."""
        folder = LOCKS / f"tilewright-{os.getuid()}"
        path = folder / f"gpu-{device_uuid(index)}.lock"
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            path.open("ab").close()
        except OSError as error:
            say(f"this process does not wait for your other processes that use the GPU: {error}")
            path = Path(tempfile.mkdtemp(prefix="tilewright-")) / path.name
        return cls(path, log, say, memory_bytes)

    @contextmanager
    def turn(self, *, shared: bool = False, large: bool = False) -> Iterator[None]:
        """The GPU alone or, if `shared`, with other processes, few of which may run something `large`."""
        with self._lock:
            if self._depth:
                yield
                return
            with self._large_slot() if shared and large else nullcontext(), open(self._path, "ab") as held:
                with open(self._next, "ab") as entrance:
                    self._take(entrance, fcntl.LOCK_EX)
                    self._take(held, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
                self._depth, began = 1, time.time()
                try:
                    yield
                finally:
                    self._depth = 0
                    self._write_log(began, "shared" if shared else "alone")

    def untimed(self, size: int) -> AbstractContextManager[None]:
        """The turn of a job that is not timed and has tensors of `size` bytes."""
        large = size > _SMALL_BYTES
        return self.turn(shared=not large or size <= self.most_shared_bytes, large=large)

    @contextmanager
    def _large_slot(self) -> Iterator[None]:
        """A slot for a large job; where all are taken, this process always waits for the same one."""
        slots = [self._path.with_suffix(f".{number}") for number in range(_MOST_LARGE)]
        own = os.getpid() % _MOST_LARGE
        for path in (*slots[own:], *slots[:own]):
            with open(path, "ab") as slot:
                try:
                    fcntl.flock(slot, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                yield
                return
        with open(slots[own], "ab") as slot:
            self._take(slot, fcntl.LOCK_EX)
            yield

    def _take(self, file: BinaryIO, how: int) -> None:
        try:
            fcntl.flock(file, how | fcntl.LOCK_NB)
        except BlockingIOError:
            self._say("waiting for the GPU, which another process uses")
            fcntl.flock(file, how)

    def _write_log(self, began: float, how: str) -> None:
        if self._log is not None:
            with open(self._log, "a") as log:
                log.write(f"{began:.3f} {time.time():.3f} {how} {os.getpid()}\n")


def locked_gpu(index: int | None, say: Say = lambda _: None) -> AbstractContextManager[None]:
    """A GPU of this machine alone. None is a GPU behind a spool, whose worker runs one job at a time."""
    return nullcontext() if index is None else GpuLock.of_gpu(index, say=say).turn()


_TINY_BYTES = (1 << 19) - 1  # of all tensors of a job: up to here they are judged on the CPU
_SMALL_BYTES = 64 << 20  # judging takes a few GB at most


def _bytes_of(job: Job) -> int:
    specs = (*(one.spec for one in job.inputs), *(one.spec for one in job.plan.buffers))
    return sum(one.storage_bytes for one in specs)


class LockedDevice(Closing):
    """A GPU that is locked for every job but those under a sanitizer, which use the GPU for milliseconds of seconds."""

    def __init__(self, device: Device, lock: GpuLock) -> None:
        self._device = device
        self._lock = lock
        self.index: int = getattr(device, "index", 0)

    @property
    def profile(self) -> GpuProfile:
        return self._device.profile

    def execute(self, job: Job) -> Execution:
        if job.watch is Watch.FAULTS:
            return self._device.execute(job)
        alone = job.timed_runs or job.watch is Watch.COUNTERS
        with self._lock.turn() if alone else self._lock.untimed(_bytes_of(job)):
            return self._device.execute(job)

    def close(self) -> None:
        self._device.close()


class LockedReference:
    """A reference that shares the GPU. It works there only while it judges, in the turn of the job that it judges."""

    def __init__(self, reference: AnyReference, lock: GpuLock) -> None:
        self._reference = reference
        self._lock = lock

    @property
    def sees_gpu(self) -> bool:
        return self._reference.sees_gpu

    def call(self, handler: str, request: Any, answer: type[T] | Any, seconds: float = 60.0) -> T:
        outputs = request.outputs if isinstance(request, JudgeRequest) else ()
        with self._judging(sum(len(one.content) for one in outputs)):
            made: T = self._reference.call(handler, request, answer, seconds)
            return made

    def call_on_run(
        self, device: Device, job: Job, handler: str, request: Any, answer: type[T] | Any, seconds: float = 60.0
    ) -> tuple[Execution, T | None]:
        with self._judging(_bytes_of(job)) if isinstance(device, LockedDevice) else nullcontext():
            return self._reference.call_on_run(device, job, handler, request, answer, seconds)

    def _judging(self, size: int) -> AbstractContextManager[None]:
        return nullcontext() if size <= _TINY_BYTES else self._lock.untimed(size)

    def close(self) -> None:
        self._reference.close()


# -- the precision in which PyTorch computes f32 convolutions on the GPU at hand --


def precision_settler(device: ChosenDevice) -> ResolvePrecision:
    """Finds the precision of a task where none was given: the GPU is asked or, without one, a rule is applied."""
    return precision_from_channels if device.is_emulated else partial(_settled_on, device)


def _settled_on(device: ChosenDevice, task: Task, reference: AnyReference) -> Task:
    if likely_f32(task, reference) == ():
        return task
    is_f32: bool | None = None  # where the GPU cannot tell, or an older worker has no such question
    with _reference_on(device, task) as there:
        try:
            answer: PrecisionAnswer = there.call(MEASURE, ConvolutionRequest(task), PrecisionAnswer)
            is_f32 = answer.f32
        except DeviceError:
            raise
        except (ReferenceProblem, RuntimeError):
            pass
    if is_f32 is None:
        return precision_from_channels(task, reference)
    return replace(task, precision=Precision.DEFAULT_F32) if is_f32 else task


@contextmanager
def _reference_on(device: ChosenDevice, task: Task) -> Iterator[AnyReference]:
    """The task's reference where the GPU is; a GPU of this machine is locked meanwhile."""
    if device.index is None:
        gpu = SpoolDevice(device.spool, arch=PROFILES[device.gpu].arch)
        yield SpoolReference(device.spool, task.reference, task.function, gpu=gpu.profile)
        return
    limits = ReferenceLimits.on_gpu(device.index)
    with Reference(task.reference, task.function, limits=limits) as reference:
        start_ahead(limits)  # for the judges, who come next
        with suppress(ReferenceProblem, RuntimeError):  # the next call raises it again
            reference.call(WARM, ConvolutionRequest(task), PrecisionAnswer)
        with locked_gpu(device.index):
            yield reference


# -- the time of eager PyTorch where no GPU can tell it --


def eager_model(task: Task, reference: AnyReference) -> tuple[float, int]:
    """A lower bound of the reference's time in eager PyTorch, and its kernels. Raises what `AnyReference.call` does."""
    return reference.call(f"{__name__}:model_eager", FlopRequest(task), tuple[float, int])


def model_eager(function: Callable[..., Any], request: FlopRequest) -> tuple[float, int]:
    """In a child process: the function's operations on the meta device, each at the speed of a copy."""
    import torch

    from tilewright.frontends.finding.costs import modelled_us
    from tilewright.frontends.finding.recording import record_function
    from tilewright.measure.work import least_traffic
    from tilewright.reference.torch_calls import own_arguments

    gpu = request.task.profile
    arguments = own_arguments(request.task, "meta")
    with torch.device("meta"):
        operations = record_function(lambda: function(**arguments))
    times = [modelled_us(one, gpu) for one in operations]
    evicted = least_traffic(request.task, gpu).evicted_bytes
    evicted_us = evicted / (gpu.bandwidth_gbs * 1e3) if gpu.bandwidth_gbs else 0.0
    return (sum(times) + evicted_us) / REACHED_BANDWIDTH, sum(time > 0 for time in times)
