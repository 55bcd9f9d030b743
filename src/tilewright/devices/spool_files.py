"""The directory protocol of a spool: its files, and the renames that make each change atomic.

    jobs/<id>.job                 waiting, a job or a call; <id>~2.job after one worker died with it
    claimed/<worker>/<id>.job     being run by that worker
    results/<id>.result           done, kept until discarded
    workers/<worker>.json         a worker of this spool; its modification time is the heartbeat
    broken/<name>                 job files that could not be read, kept for inspection
    writing/                      incomplete files, renamed into place when complete

Everything moves by rename within one file system, which is atomic on local disks and on NFS. A worker is alive while
its heartbeat changes, and, on the same machine, while its process exists. Staleness is measured on the observer's own
clock, so machines with different clocks can share a spool.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import stat
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.child.envelope import EnvelopeError, EnvelopeKind, header_of, record_in, seal, unseal
from tilewright.child.family import pid_space, process_start
from tilewright.devices.protocol import DeviceError
from tilewright.records import Execution, GpuProfile, Job, RecordError, from_json, to_json

ATTEMPTS = 2  # workers that may die with a job
_FOLDERS = ("jobs", "claimed", "results", "workers", "broken", "writing")
_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@=+-]{0,119}")
_JOB_FILE = re.compile(r"(?P<id>[A-Za-z0-9_][A-Za-z0-9_.@=+-]{0,119})(?:~(?P<attempt>[1-9][0-9]{0,3}))?\.job")
_HEADER_BYTES = 256


@dataclass(frozen=True)
class JobName:
    """The name of a job file: the job's id and the number of the attempt."""

    id: str
    attempt: int = 1

    @classmethod
    def parse(cls, file_name: str) -> JobName | None:
        match = _JOB_FILE.fullmatch(file_name)
        return cls(match["id"], int(match["attempt"] or 1)) if match else None

    @property
    def file_name(self) -> str:
        return f"{self.id}.job" if self.attempt == 1 else f"{self.id}~{self.attempt}.job"


@dataclass(frozen=True)
class Announcement:
    """A worker, with what others on its machine need to see whether its process is dead."""

    worker: str
    profile: GpuProfile
    versions: tuple[tuple[str, str], ...]
    host: str
    pid: int
    process_start: str  # in clock ticks, from /proc
    pid_space: str  # boot id and pid namespace of `pid`


@dataclass(frozen=True)
class JobFileHeader:
    """A job file without its byte strings."""

    record: Any
    gpu: str  # the GPU it requires by name; "": any of its architecture


@dataclass(frozen=True)
class SpoolCall:
    """A call of `function` in Python `source`, to run on the worker's machine.

    `handler` is the worker's code that makes the call, as "tilewright.part.module:name". Request and reply are opaque
    bytes. A `job`, if given, runs first, and the handler gets its outputs, which do not leave the worker's machine.
    """

    id: str
    arch: str
    source: str
    function: str
    handler: str
    seconds: float
    request: bytes
    job: Job | None = None

    def __post_init__(self) -> None:
        if not 0 < self.seconds < math.inf:
            raise ValueError(f"{self.seconds} seconds are no limit; give a positive number")

    @property
    def words(self) -> str:
        """A description for the worker's log."""
        run = "job and " if self.job is not None else ""
        return f"{run}reference call: {self.handler.rpartition(':')[2]}"


@dataclass(frozen=True)
class Replied:
    """A call's reply. Errors inside the function are part of the content."""

    job: str  # the call's id
    device: str
    content: bytes  # empty where the call's job failed
    execution: Execution | None = None  # of the call's job


@dataclass(frozen=True)
class SpoolResult:
    """The outcome of a job or a call."""

    outcome: Execution | Replied
    worker: str
    attempt: int


def checked_id(job_id: str) -> str:
    """The id if it is safe as a file name; raises `DeviceError` otherwise."""
    if _ID.fullmatch(job_id):
        return job_id
    raise DeviceError(
        f"{job_id!r} cannot name a job on a spool: use 1 to 120 letters, digits and any of _ . @ = + -, "
        "starting with a letter, digit or _"
    )


class SpoolFiles:
    """The files of one spool."""

    def __init__(self, directory: Path | str) -> None:
        self.root = Path(directory).absolute()

    def create(self) -> None:
        """Create missing folders."""
        try:
            for folder in _FOLDERS:
                (self.root / folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DeviceError(
                f"{self.root} cannot be used as a spool: {error.strerror}: {error.filename}; "
                "name a directory this user may write to"
            ) from error

    def _put(self, content: bytes, target: Path) -> None:
        """Write a file atomically."""
        temporary = self.root / "writing" / f"{target.name}.{uuid.uuid4().hex}"
        try:
            with open(temporary, "xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    # -- jobs --

    def put_job(self, job_id: str, content: bytes) -> None:
        self._put(content, self.root / "jobs" / JobName(checked_id(job_id)).file_name)

    def waiting(self) -> tuple[JobName, ...]:
        """Waiting jobs, oldest first."""
        found: list[tuple[int, str, JobName]] = []
        with os.scandir(self.root / "jobs") as entries:
            for entry in entries:
                name = JobName.parse(entry.name)
                if name is None:
                    continue
                try:
                    status = entry.stat()
                except FileNotFoundError:
                    continue  # claimed meanwhile
                if stat.S_ISREG(status.st_mode):  # reading a pipe would block
                    found.append((status.st_mtime_ns, entry.name, name))
        return tuple(name for _, _, name in sorted(found, key=lambda item: item[:2]))

    def waiting_named(self, job_id: str) -> tuple[JobName, ...]:
        """The waiting files of one job, without listing the folder."""
        names = (JobName(job_id, attempt) for attempt in range(1, ATTEMPTS + 1))
        return tuple(name for name in names if self.waiting_path(name).exists())

    def waiting_path(self, name: JobName) -> Path:
        return self.root / "jobs" / name.file_name

    def withdraw_job(self, name: JobName) -> None:
        self.waiting_path(name).unlink(missing_ok=True)

    # -- claims --

    def claim_path(self, worker: str, name: JobName) -> Path:
        return self.root / "claimed" / worker / name.file_name

    def claim(self, worker: str, name: JobName) -> bool:
        """Claim a waiting job for `worker`; False when another worker was faster."""
        target = self.claim_path(worker, name)
        try:
            target.parent.mkdir(exist_ok=True)
            os.rename(self.waiting_path(name), target)
        except FileNotFoundError:
            # A retried request on NFS can report failure for a rename that succeeded: check where the file is.
            return target.exists()
        return True

    def give_back(self, worker: str, name: JobName, attempt: int) -> bool:
        """Return a claimed job to the queue; False when it is no longer there."""
        target = self.waiting_path(JobName(name.id, attempt))
        try:
            os.rename(self.claim_path(worker, name), target)
        except FileNotFoundError:
            return False
        return True

    def drop_claim(self, worker: str, name: JobName) -> None:
        self.claim_path(worker, name).unlink(missing_ok=True)

    def set_aside(self, worker: str, name: JobName) -> None:
        """Keep an unreadable job file for inspection."""
        with contextlib.suppress(FileNotFoundError):
            os.replace(self.claim_path(worker, name), self.root / "broken" / name.file_name)

    def claims(self) -> Iterator[tuple[str, JobName]]:
        """Every claimed job with its worker."""
        for worker in sorted(os.listdir(self.root / "claimed")):
            for file_name in _listed(self.root / "claimed" / worker):
                name = JobName.parse(file_name)
                if name is not None:
                    yield worker, name

    def remove_claims_folder(self, worker: str) -> None:
        with contextlib.suppress(OSError):  # not empty, or already removed
            (self.root / "claimed" / worker).rmdir()

    # -- results --

    def put_result(self, result: SpoolResult) -> None:
        self._put(seal(EnvelopeKind.RESULT, result), self._result_path(result.outcome.job))

    def _result_path(self, job_id: str) -> Path:
        return self.root / "results" / f"{job_id}.result"

    def result_ids(self) -> frozenset[str]:
        # By listing: on NFS a lookup by name may be answered from a stale cache.
        suffix = ".result"
        return frozenset(n[: -len(suffix)] for n in os.listdir(self.root / "results") if n.endswith(suffix))

    def result(self, job_id: str) -> SpoolResult | None:
        """The result of a job, or None; raises `DeviceError` when the file is damaged."""
        try:
            content = self._result_path(job_id).read_bytes()
        except FileNotFoundError:
            return None
        try:
            made: SpoolResult = record_in(unseal(content), EnvelopeKind.RESULT, SpoolResult)
        except EnvelopeError as error:
            raise DeviceError(
                f"{self._result_path(job_id)} cannot be used: {error}; delete it and submit the job again"
            ) from error
        return made

    def discard_result(self, job_id: str) -> None:
        self._result_path(checked_id(job_id)).unlink(missing_ok=True)

    # -- workers --

    def announce(self, announcement: Announcement) -> None:
        content = json.dumps(to_json(announcement), indent=2).encode("ascii") + b"\n"
        self._put(content, self._announcement_path(announcement.worker))

    def _announcement_path(self, worker: str) -> Path:
        return self.root / "workers" / f"{worker}.json"

    def beat(self, worker: str) -> bool:
        """Update a worker's heartbeat; False when its announcement has been removed."""
        try:
            os.utime(self._announcement_path(worker))
        except FileNotFoundError:
            return False
        return True

    def withdraw(self, worker: str) -> None:
        self._announcement_path(worker).unlink(missing_ok=True)

    def announced(self) -> dict[str, tuple[Announcement, int]]:
        """Workers by name, each with its last heartbeat in nanoseconds of the file system's clock."""
        found = {}
        for file_name in sorted(_listed(self.root / "workers")):
            path = self.root / "workers" / file_name
            try:
                beat_ns = path.stat().st_mtime_ns
                announcement: Announcement = from_json(Announcement, json.loads(path.read_bytes()))
            except (OSError, ValueError, RecursionError, RecordError):
                continue  # removed meanwhile, or written by another release
            found[announcement.worker] = (announcement, beat_ns)
        return found

    # -- clean-up --

    def sweep(self, older_than_s: float) -> None:
        """Remove old results and abandoned temporary files, by the file system's clock."""
        probe = self.root / "writing" / f"clock.{uuid.uuid4().hex}"
        probe.touch()
        now = probe.stat().st_mtime
        probe.unlink(missing_ok=True)
        for folder in ("results", "writing"):
            for file_name in _listed(self.root / folder):
                path = self.root / folder / file_name
                try:
                    if now - path.stat().st_mtime > older_than_s:
                        path.unlink()
                except FileNotFoundError:
                    continue


def peek(path: Path) -> JobFileHeader:
    """A job file without its byte strings.

    Raises `EnvelopeError` when it cannot be read and `FileNotFoundError` when it has gone.
    """
    with open(path, "rb") as file:
        start = file.read(_HEADER_BYTES)
        header = header_of(start)
        file.seek(start.index(b"\n") + 1)
        text = file.read(header.record_bytes)
    try:
        outer = json.loads(text)
        gpu = outer.get("gpu", "")
        return JobFileHeader(outer["record"], gpu if isinstance(gpu, str) else "")
    except (AttributeError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise EnvelopeError(f"its record cannot be read: {error}") from None


def _listed(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


# -- heartbeats --


class Heartbeats:
    """Observes the workers of a spool. A worker seen for the first time counts as alive for the whole stale time."""

    def __init__(self, files: SpoolFiles, stale_s: float) -> None:
        self._files = files
        self._stale_s = stale_s
        self._seen: dict[str, tuple[int | None, float]] = {}  # last heartbeat (None: no announcement), when first seen

    def living(self) -> dict[str, Announcement]:
        """Announced workers that are not known to be dead."""
        return {
            worker: announcement
            for worker, (announcement, beat_ns) in self._files.announced().items()
            if not known_dead(announcement) and self._fresh(worker, beat_ns)
        }

    def dead(self, claimants: frozenset[str]) -> frozenset[str]:
        """Announced workers and holders of claims that are dead."""
        announced = self._files.announced()
        dead = set()
        for worker in claimants | announced.keys():
            announcement, beat_ns = announced.get(worker, (None, None))
            fresh = self._fresh(worker, beat_ns)
            if not fresh or (announcement is not None and known_dead(announcement)):
                dead.add(worker)
        return frozenset(dead)

    def forget(self, worker: str) -> None:
        self._seen.pop(worker, None)

    def _fresh(self, worker: str, beat_ns: int | None) -> bool:
        now = time.monotonic()
        last_beat_ns, since = self._seen.get(worker, (None, now))
        if worker not in self._seen or last_beat_ns != beat_ns:
            since = now
        self._seen[worker] = (beat_ns, since)
        return now - since <= self._stale_s


def known_dead(announcement: Announcement) -> bool:
    """Whether the worker ran on this machine and its process no longer exists."""
    return announcement.pid_space == pid_space() and process_start(announcement.pid) != announcement.process_start
