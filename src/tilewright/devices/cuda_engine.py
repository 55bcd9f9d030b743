"""Runs jobs on a GPU of this process; used inside the runner child. See `job_run` for the steps of a job."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

import torch
from cuda.bindings import __version__ as bindings_version
from cuda.bindings import driver as cu

from tilewright.devices.cuda.driver import DriverError, driver_version
from tilewright.devices.cuda.executor import Executor
from tilewright.devices.cuda.ipc_memory import IpcMemory
from tilewright.devices.cuda.prepared import read_gpu_conditions
from tilewright.devices.job_run import JobRun, Report
from tilewright.devices.runner import JobFault, JobFinished
from tilewright.records import Execution, GpuConditions, GpuProfile, Job

WARM_UP_SECONDS = 0.15
STILL_WARM_SECONDS = 1.0  # after the last timing, a short warm-up is enough
_SHORT_WARM_UP_SECONDS = 0.03
HEAD_START_CYCLES = 400_000  # some 200 us


class CudaStream:
    """torch's current stream of a device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._last_timed = -STILL_WARM_SECONDS

    def wait(self) -> None:
        self._wait(torch.cuda.current_stream(self._device))

    def warm_up(self) -> None:
        """Keep the GPU busy until its clocks have risen: an idle GPU is several times slower at first."""
        is_warm = time.monotonic() < self._last_timed + STILL_WARM_SECONDS
        end = time.monotonic() + (_SHORT_WARM_UP_SECONDS if is_warm else WARM_UP_SECONDS)
        while time.monotonic() < end:
            torch.cuda._sleep(HEAD_START_CYCLES)  # type: ignore[no-untyped-call]
            self.wait()

    def elapsed_us(self, work: Callable[[], object]) -> float:
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        # The GPU sleeps while the launches are queued, so that it then runs them without gaps.
        torch.cuda._sleep(HEAD_START_CYCLES)  # type: ignore[no-untyped-call]
        start.record()
        work()
        stop.record()
        self.wait()
        self._last_timed = time.monotonic()
        return 1000.0 * float(start.elapsed_time(stop))

    def conditions(self) -> GpuConditions | None:
        return read_gpu_conditions(self._device.index)

    def at_once(self, calls: Sequence[Callable[[], object]]) -> None:
        streams = [torch.cuda.Stream(self._device) for _ in calls]  # type: ignore[no-untyped-call]
        for stream, call in zip(streams, calls, strict=True):
            with torch.cuda.stream(stream):
                torch.cuda._sleep(HEAD_START_CYCLES)  # type: ignore[no-untyped-call]
                call()
        for stream in streams:
            self._wait(stream)

    def _wait(self, stream: torch.cuda.Stream) -> None:
        # By the driver, whose error code says more than torch's exception.
        result = cu.cuStreamSynchronize(stream.cuda_stream)[0]
        if result != cu.CUresult.CUDA_SUCCESS:
            raise DriverError(result.name, int(result), "wait for the device")


class CudaEngine:
    """GPU `index`, one job at a time."""

    def __init__(self, index: int) -> None:
        self._executor = Executor(index)
        self._device = torch.device("cuda", index)
        self._stream = CudaStream(self._device)
        torch.cuda.set_device(self._device)
        self._ipc = IpcMemory(index)
        torch.zeros(1, device=self._device)  # makes the context current on this thread, or raises

    @property
    def profile(self) -> GpuProfile:
        return self._executor.profile

    @property
    def versions(self) -> tuple[tuple[str, str], ...]:
        driver = "{}.{}".format(*driver_version())
        python = "{}.{}.{}".format(*sys.version_info[:3])
        return (
            ("python", python),
            ("torch", torch.__version__),
            ("cuda-bindings", bindings_version),
            ("driver CUDA", driver),
        )

    def run(self, job: Job, report: Report) -> JobFinished:
        """Run one job; faults are returned. Exported memory stays valid until the next job."""
        execution: Execution
        try:
            self._ipc.release()
            # No variable for the JobRun: it holds the job's memory, which must be freed before the clean-up below.
            execution = JobRun(job, self._executor, self._stream, self._device, report, self._ipc).outcome()
        except JobFault as fault:
            execution = fault.execution(job, self.profile.name)
        return JobFinished(execution, self._clean_up())

    def run_under_tool(self, job: Job, on_addresses: Callable[[dict[str, int]], object]) -> None:
        """Run one job's plan between cuProfilerStart and cuProfilerStop. Raises `JobFault`.

        `on_addresses` gets the address of every tensor before anything runs.
        """

        def profiled(call: Callable[[], None]) -> None:
            cu.cuProfilerStart()
            call()
            cu.cuProfilerStop()

        run = JobRun(job, self._executor, self._stream, self._device, lambda progress: None)
        run.run_under_tool(on_addresses, profiled)

    def _clean_up(self) -> bool:
        """Free the job's modules and memory; False when the context is lost, as after any error of a kernel."""
        try:
            torch.cuda.synchronize(self._device)
            self._executor.close()  # unloads the modules
            torch.cuda.empty_cache()
            return bool(torch.ones(1, device=self._device).item() == 1)
        except RuntimeError:  # torch's errors and the driver's
            return False
