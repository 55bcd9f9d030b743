"""Tasks on a Ray cluster: each is a Ray task, and each GPU has an actor with a worker. A lost node costs one retry.

Nodes need not share a disk. A task is sent with its files and comes back with its record, its run and its kernel. Where
the cluster has GPUs, a task's kernels go through a spool on its own node, whose jobs are sent to the actor of a GPU;
that actor has a spool too, with an ordinary worker."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tilewright.child.family import pid_space, process_start
from tilewright.devices.spool_files import Announcement, SpoolFiles, SpoolResult
from tilewright.records import GpuProfile
from tilewright.store import Store, durable
from tilewright.store.home import HOME_VARIABLE
from tilewright.suites.collecting import is_task_folder
from tilewright.suites.pools import Doing, Lost, end_process, ending_words, start_task, wait_for
from tilewright.suites.suite_folder import KERNELS, Suite, SuiteFolder, SuiteTask, TaskRecord

WORKER = (sys.executable, "-m", "tilewright.worker")
_POLL_S, _BEAT_S = 0.05, 2.0
_WORKER_START_S = 180.0
_KEPT = ("runs", "library")  # of a home


@dataclass(frozen=True)
class Parcel:
    """A task and its files, which get a folder of their own on the node."""

    suite: Suite  # with this task alone
    files: dict[str, bytes]
    program: tuple[str, ...]  # without the interpreter, which is the node's own


@dataclass(frozen=True)
class Returned:
    """The result of a task. `lost` says how its process ended if there is no record."""

    record: TaskRecord | None
    archive: bytes  # of what is kept
    lost: str = ""
    gpu_lost: bool = False  # the GPU's worker is gone
    host: str = ""


Relay = Callable[[str, bytes], SpoolResult]  # a job's id and content to what became of it


# -- packing, where the suite is --


def packed(suite: Suite, task: SuiteTask, program: Sequence[str]) -> Parcel:
    """A task with its files: the file that the request names, or all of its task folder."""
    path, mark, rest = task.request.text.partition(".py")
    place = Path(f"{path}{mark}")
    files: dict[str, bytes] = {}
    text = task.request.text
    if mark and place.is_file():
        files[place.name], text = place.read_bytes(), f"{place.name}{rest}"
    elif is_task_folder(place):
        found = [one for one in place.iterdir() if one.suffix in (".py", ".toml")]
        files = {f"{place.name}/{one.name}": one.read_bytes() for one in found}
        text = place.name
    own = replace(task, request=replace(task.request, text=text))
    return Parcel(replace(suite, tasks=(own,)), files, tuple(program[1:]))


# -- on a node --


def run_parcel(parcel: Parcel, announcement: Announcement | None, relay: Relay) -> Returned:
    """One task, in a process of its own with a home of its own; `announcement`: of the worker that `relay` leads to."""
    place = Path(tempfile.mkdtemp(prefix="tilewright-suite-"))
    try:
        suite, folder = _unpacked(parcel, place), SuiteFolder(place / "suite")
        carrier = Carrier(place / "spool", announcement, relay) if announcement is not None else None
        if carrier is not None:
            suite = replace(suite, settings=replace(suite.settings, spool=str(carrier.spool)))
        folder.begin(suite)
        environment = {**os.environ, HOME_VARIABLE: str(place / "home")}
        process = start_task((sys.executable, *parcel.program), folder, suite.tasks[0], environment)
        with contextlib.ExitStack() as stack:
            stack.callback(end_process, process)
            if carrier is not None:
                stack.enter_context(carrier.carrying(lambda: end_process(process)))
            words = wait_for(process, lambda line: None)
        record = folder.find(suite.tasks[0].id)
        trouble = carrier.trouble if carrier is not None and record is None else ""
        lost = "" if record is not None else trouble or ending_words(process.returncode, words)
        return Returned(record, _archive(place), lost, bool(trouble), socket.gethostname())
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _unpacked(parcel: Parcel, place: Path) -> Suite:
    """The parcel's files below `place`, and its suite with a request that names them there."""
    files = place / "files"
    for name, content in parcel.files.items():
        (files / name).parent.mkdir(parents=True, exist_ok=True)
        (files / name).write_bytes(content)
    (task,) = parcel.suite.tasks
    text = str(files / task.request.text) if parcel.files else task.request.text
    return replace(parcel.suite, tasks=(replace(task, request=replace(task.request, text=text)),))


def _archive(place: Path) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name in _KEPT:
            if (place / "home" / name).is_dir():
                archive.add(place / "home" / name, name)
        if (place / "suite" / KERNELS).is_dir():
            archive.add(place / "suite" / KERNELS, KERNELS)
    return content.getvalue()


def unpack(content: bytes, folder: SuiteFolder, home: Path) -> None:
    """Unpack a result: kernels and runs into the suite's folder, library entries into the home."""
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
        for name, target in ((KERNELS, folder.path), ("runs", folder.path), ("library", home)):
            members = [one for one in archive.getmembers() if one.name.partition("/")[0] == name]
            durable.make_folder(target)
            archive.extractall(target, members=members, filter="data")


# -- a spool on a task's node, carried to a GPU --


class Carrier:
    """A spool that acts as a worker's, while a thread of this process sends its jobs to another machine."""

    def __init__(self, spool: Path, announcement: Announcement, relay: Relay) -> None:
        here = os.getpid()
        self.spool = spool
        self.trouble = ""  # why nothing is carried any more
        self._relay = relay
        self._files = SpoolFiles(spool)
        self._files.create()
        self._own = replace(
            announcement,
            worker=f"carrier-{here}",
            host=socket.gethostname(),
            pid=here,
            process_start=process_start(here) or "",
            pid_space=pid_space(),
        )
        self._over = threading.Event()

    @contextlib.contextmanager
    def carrying(self, give_up: Callable[[], None]) -> Iterator[None]:
        """Carry jobs while the block runs; `give_up` is called if the other machine is gone."""
        self._files.announce(self._own)
        for work in (self._beat, lambda: self._carry(give_up)):
            threading.Thread(target=work, daemon=True).start()
        try:
            yield
        finally:
            self._over.set()

    def _beat(self) -> None:
        while not self._over.wait(_BEAT_S):
            self._files.beat(self._own.worker)

    def _carry(self, give_up: Callable[[], None]) -> None:
        files, worker = self._files, self._own.worker
        while not self._over.wait(_POLL_S):
            for name in files.waiting():
                if not files.claim(worker, name):
                    continue
                try:
                    files.put_result(self._relay(name.id, files.claim_path(worker, name).read_bytes()))
                except Exception as error:  # whatever Ray raises for an actor that is gone
                    self.trouble = f"the GPU's worker is gone ({type(error).__name__})"
                    give_up()
                    return
                files.drop_claim(worker, name)


# -- where a GPU is --


class GpuHost:
    """A worker for a GPU of this node, with a spool of its own. Ray makes it an actor, which holds the GPU."""

    def __init__(self, worker: Sequence[str] = WORKER) -> None:
        self._spool = Path(tempfile.mkdtemp(prefix="tilewright-gpu-"))
        self._files = SpoolFiles(self._spool)
        self._files.create()
        self._process = subprocess.Popen([*worker, str(self._spool)], stdin=subprocess.DEVNULL, stdout=sys.stderr)

    def announcement(self) -> Announcement:
        """Of the worker, once it serves."""
        end = time.monotonic() + _WORKER_START_S
        while time.monotonic() < end:
            self._check()
            for announcement, _ in self._files.announced().values():
                return announcement
            time.sleep(_POLL_S)
        raise RuntimeError(f"no worker served a GPU of {socket.gethostname()} within {_WORKER_START_S:g} s")

    def run(self, job_id: str, content: bytes) -> SpoolResult:
        """One job or call to its end."""
        self._files.put_job(job_id, content)
        while (result := self._files.result(job_id)) is None:
            self._check()
            time.sleep(_POLL_S)
        self._files.discard_result(job_id)
        return result

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()
        shutil.rmtree(self._spool, ignore_errors=True)

    def _check(self) -> None:
        if self._process.poll() is not None:
            raise RuntimeError(f"the worker of {socket.gethostname()} ended with status {self._process.returncode}")


_START_SECONDS = 240.0


class NoRay(RuntimeError):
    """Ray is not installed, or the cluster is not to be reached; the message says what to do."""


class RayCluster:
    """A connection to a cluster, and the actors of its GPUs; `worker` is the program of a GPU's worker."""

    def __init__(self, address: str, worker: Sequence[str] = WORKER) -> None:
        self.ray = _ray()
        try:
            self.ray.init(address=address, log_to_driver=False, ignore_reinit_error=True, logging_level="error")
        except (ConnectionError, ValueError, RuntimeError) as error:
            lines = str(error).strip().splitlines()
            raise NoRay(
                f"--ray {address}: no cluster answers ({lines[0] if lines else error}); start one: `ray start --head`"
            ) from None
        self._worker = tuple(worker)
        self._gpus: dict[Any, Announcement] = {}
        self._turn = 0

    def open_gpus(self) -> tuple[GpuProfile, ...]:
        """Start a worker on every GPU of the cluster; the GPUs, none where it has none."""
        count = int(self.ray.cluster_resources().get("GPU", 0))
        host = self.ray.remote(GpuHost)
        actors = [host.options(num_gpus=1, num_cpus=0).remote(self._worker) for _ in range(count)]
        pending = [actor.announcement.remote() for actor in actors]
        try:
            announced = self.ray.get(pending, timeout=_START_SECONDS)
        except (self.ray.exceptions.RayError, self.ray.exceptions.GetTimeoutError) as error:
            raise NoRay(f"a GPU of the cluster cannot be used: {str(error).strip().splitlines()[-1]}") from None
        self._gpus = dict(zip(actors, announced, strict=True))
        return tuple(one.profile for one in announced)

    def next_gpu(self, gpu: str) -> tuple[Any, Announcement] | None:
        """The next GPU of that name, round robin; None if the cluster has none."""
        suited = [(actor, one) for actor, one in self._gpus.items() if one.profile.name == gpu]
        self._turn += 1
        return suited[self._turn % len(suited)] if suited else None

    def lose_gpu(self, actor: Any) -> None:
        self._gpus.pop(actor, None)

    @property
    def processors(self) -> int:
        return max(1, int(self.ray.cluster_resources().get("CPU", 1)))

    def close(self) -> None:
        for actor in self._gpus:
            self.ray.kill(actor)
        self.ray.shutdown()


class RayPool:
    """Tasks of a suite on a cluster, `size` at a time; by default as many as it has processors."""

    def __init__(
        self,
        folder: SuiteFolder,
        program: Sequence[str],
        cluster: RayCluster,
        *,
        gpu: str = "",
        size: int | None = None,
        doing: Doing = lambda id, what: None,
    ) -> None:
        self._folder = folder
        self._program = tuple(program)
        self._cluster = cluster
        self._gpu = gpu  # as its driver names it; "" where kernels are emulated
        self._wanted_size = size
        self._doing = doing
        self._running: dict[str, Any] = {}
        self._task = cluster.ray.remote(_on_node).options(num_cpus=1, max_retries=0)

    @property
    def size(self) -> int:
        return self._wanted_size or self._cluster.processors

    def submit(self, task: SuiteTask) -> Future[TaskRecord]:
        made: Future[TaskRecord] = Future()
        parcel = packed(self._folder.suite(), task, self._program)
        actor, announcement = None, None
        if self._gpu:
            chosen = self._cluster.next_gpu(self._gpu)
            if chosen is None:
                made.set_exception(Lost(f"the cluster has no {self._gpu} any more"))
                return made
            actor, announcement = chosen
        running = self._task.remote(parcel, actor, announcement)
        self._running[task.id] = running
        self._doing(task.id, "on the cluster")
        running.future().add_done_callback(lambda done: self._settle(task, actor, done, made))
        return made

    def close(self) -> None:
        for running in self._running.values():
            self._cluster.ray.cancel(running, force=True)

    def _settle(self, task: SuiteTask, actor: Any, done: Future[Returned], made: Future[TaskRecord]) -> None:
        """Turns what a node returned, or its loss, into the task's record."""
        self._running.pop(task.id, None)
        try:
            returned = done.result()
            if returned.gpu_lost:
                self._cluster.lose_gpu(actor)
            if returned.record is None:
                raise Lost(f"{returned.lost} on {returned.host}")
            unpack(returned.archive, self._folder, Store().home)
            made.set_result(returned.record)
        except Lost as lost:
            made.set_exception(lost)
        except self._cluster.ray.exceptions.RayError as error:
            made.set_exception(Lost(_first_line(error)))
        except BaseException as error:
            made.set_exception(error)


def _on_node(parcel: Parcel, actor: Any, announcement: Announcement | None) -> Returned:
    """Runs in a Ray process, on any node with room."""
    import ray

    def relay(job_id: str, content: bytes) -> SpoolResult:
        result: SpoolResult = ray.get(actor.run.remote(job_id, content))
        return result

    return run_parcel(parcel, announcement, relay)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"[:300]


def _ray() -> Any:
    try:
        import ray
        import ray.exceptions
    except ImportError:
        raise NoRay("--ray needs Ray: pip install 'tilewright[ray]'") from None
    return ray
