"""Tasks on a Ray cluster: each a Ray task, and an actor for each GPU. A node that is lost costs its tasks one retry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from tilewright.devices.spool_files import Announcement, SpoolResult
from tilewright.records import GpuProfile
from tilewright.store import Store
from tilewright.suites import ray_node
from tilewright.suites.ray_node import GpuHost, Parcel, Returned
from tilewright.suites.scheduling import Lost
from tilewright.suites.suite_folder import SuiteFolder
from tilewright.suites.suite_records import SuiteTask, TaskRecord

_START_SECONDS = 240.0

Doing = Callable[[str, str], None]


class NoRay(RuntimeError):
    """Ray is not installed, or the cluster is not to be reached; the message says what to do."""


class RayCluster:
    """A connection to a cluster, and the actors of its GPUs; `worker` is the program of a GPU's worker."""

    def __init__(self, address: str, worker: Sequence[str] = ray_node.WORKER) -> None:
        self.ray = _ray()
        try:
            self.ray.init(address=address, log_to_driver=False, ignore_reinit_error=True, logging_level="error")
        except (ConnectionError, ValueError, RuntimeError) as error:
            said = str(error).strip().splitlines()
            raise NoRay(
                f"--ray {address}: no cluster answers ({said[0] if said else error}); start one with `ray start --head`"
            ) from None
        self._worker = tuple(worker)
        self._gpus: dict[Any, Announcement] = {}
        self._turn = 0

    def open_gpus(self) -> tuple[GpuProfile, ...]:
        """Start a worker on every GPU of the cluster; the GPUs, none where it has none."""
        count = int(self.ray.cluster_resources().get("GPU", 0))
        host = self.ray.remote(GpuHost)
        actors = [host.options(num_gpus=1, num_cpus=0).remote(self._worker) for _ in range(count)]
        told = [actor.announcement.remote() for actor in actors]
        try:
            announced = self.ray.get(told, timeout=_START_SECONDS)
        except (self.ray.exceptions.RayError, self.ray.exceptions.GetTimeoutError) as error:
            raise NoRay(f"a GPU of the cluster cannot be used: {str(error).strip().splitlines()[-1]}") from None
        self._gpus = dict(zip(actors, announced, strict=True))
        return tuple(one.profile for one in announced)

    def next_gpu(self, gpu: str) -> tuple[Any, Announcement] | None:
        """Of the GPUs of that name, each in turn; None where the cluster has none."""
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
    """Tasks of a suite on a cluster, `size` at a time: as many as it has processors, where nothing is said."""

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
        parcel = ray_node.packed(self._folder.suite(), task, self._program)
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
        """From what a node sent back, or its silence, to the task's record."""
        self._running.pop(task.id, None)
        try:
            returned = done.result()
            if returned.gpu_lost:
                self._cluster.lose_gpu(actor)
            if returned.record is None:
                raise Lost(f"{returned.lost} on {returned.host}")
            ray_node.unpack(returned.archive, self._folder, Store().home)
            made.set_result(returned.record)
        except Lost as lost:
            made.set_exception(lost)
        except self._cluster.ray.exceptions.RayError as error:
            made.set_exception(Lost(_first_line(error)))
        except BaseException as error:
            made.set_exception(error)


def _on_node(parcel: Parcel, actor: Any, announcement: Announcement | None) -> Returned:
    """In a process of Ray's, on whichever node has room."""
    import ray

    def relay(job_id: str, content: bytes) -> SpoolResult:
        result: SpoolResult = ray.get(actor.run.remote(job_id, content))
        return result

    return ray_node.run_parcel(parcel, announcement, relay)


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
