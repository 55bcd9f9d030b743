"""What runs on a Ray cluster's nodes: one task in a process of its own, and for each GPU an actor with a worker.

Nodes need not share a disk. A task comes with the files it is made of and goes back with its record, its run and its
kernel. Where the cluster has GPUs, a task's kernels go through a spool on its own node, which is carried job by job to
the actor of a GPU; that actor has a spool too, with an ordinary worker. Nothing here imports Ray.
"""

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
from dataclasses import dataclass, replace
from pathlib import Path

from tilewright.child.family import pid_space, process_start
from tilewright.devices.spool_files import Announcement, SpoolFiles, SpoolResult
from tilewright.store import durable
from tilewright.store.home import HOME_VARIABLE
from tilewright.suites.collecting import is_task_folder
from tilewright.suites.local_pool import end_process, ending_words, hear, start_task
from tilewright.suites.suite_folder import KERNELS, SuiteFolder
from tilewright.suites.suite_records import Suite, SuiteTask, TaskRecord

WORKER = (sys.executable, "-m", "tilewright.worker")
_POLL_S, _BEAT_S = 0.05, 2.0
_WORKER_START_S = 180.0
_KEPT = ("runs", "library")  # of a home


@dataclass(frozen=True)
class Parcel:
    """A task and what it is made of: `files` lie in a folder of their own, and the request is below it."""

    suite: Suite  # with this task alone
    files: dict[str, bytes]
    program: tuple[str, ...]  # without the interpreter, which is the node's own


@dataclass(frozen=True)
class Returned:
    """What came of it. `lost` says how its process ended where there is no record."""

    record: TaskRecord | None
    archive: bytes  # of what is kept
    lost: str = ""
    gpu_lost: bool = False  # it was the GPU's worker that is gone
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
            words = hear(process, lambda line: None)
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
    """Put what came back where it belongs: kernels and runs into the suite's folder, library entries into the home."""
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
        for name, target in ((KERNELS, folder.path), ("runs", folder.path), ("library", home)):
            members = [one for one in archive.getmembers() if one.name.partition("/")[0] == name]
            durable.make_folder(target)
            archive.extractall(target, members=members, filter="data")


# -- a spool on a task's node, carried to a GPU --


class Carrier:
    """A spool that looks like a worker's own, while its jobs are carried elsewhere by a thread of this process."""

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
        """Carry jobs while the block goes on; `give_up` is called where the other end is gone."""
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
    """A worker of this node's GPU behind a spool of its own; Ray makes an actor of it, which holds the GPU."""

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
