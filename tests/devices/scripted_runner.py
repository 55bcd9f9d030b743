"""A runner child that needs no GPU: it speaks the real protocol, computes with numpy, and misbehaves on command."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scripted_jobs import PROFILE

from tilewright.devices.runner import EngineRefused, JobFinished, Progress, RunStage, serve
from tilewright.records import Completed, Data, Faulted, FaultKind, GpuProfile, Job, ReturnedTensor


class ScriptedEngine:
    """Performs a job's actions in order."""

    def __init__(self, replies: int) -> None:
        self._replies = replies

    @property
    def profile(self) -> GpuProfile:
        return PROFILE

    @property
    def versions(self) -> tuple[tuple[str, str], ...]:
        return (("numpy", np.__version__), ("pid", str(os.getpid())))

    def run(self, job: Job, report: Callable[[Progress], None]) -> JobFinished:
        content = job.inputs[0].content
        assert isinstance(content, Data)
        a = np.frombuffer(content.content, np.float32)
        log = json.loads(job.cubin)["log"]
        self._note(log, f"begin {job.id}")
        for index, step in enumerate(job.plan.steps):
            name = getattr(step, "kernel", "library")
            report(Progress(RunStage.STEP, index, name, step.line))
            fault = self._perform(name, job)
            if fault is not None:
                return fault
        self._note(log, f"end {job.id}")
        y = (a + np.float32(1)).astype(np.float32)
        output = ReturnedTensor("y", job.plan.buffers[0].spec, y.tobytes())
        return JobFinished(Completed(job.id, PROFILE.name, (output,), ()), True)

    @staticmethod
    def _note(log: str | None, line: str) -> None:
        if log is not None:
            with open(log, "a") as file:
                file.write(f"{line} {os.getpid()} {time.monotonic()}\n")

    def _perform(self, action: str, job: Job) -> JobFinished | None:
        word, _, argument = action.partition(" ")
        if word == "sleep":
            time.sleep(float(argument))
        elif word == "hang":
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
            time.sleep(1e6)
        elif word == "exit":
            sys.stderr.write("the last words of a runner\n")
            sys.stderr.flush()
            os._exit(int(argument))
        elif word == "signal":
            os.kill(os.getpid(), signal.Signals[argument])
            time.sleep(60)
        elif word == "signal-once":  # "signal-once PATH": killed from outside the first time, well afterwards
            if not Path(argument).exists():
                Path(argument).touch()
                os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(60)
        elif word == "eat":
            hoard = [np.ones(1 << 22, np.float64) for _ in range(int(argument))]
            time.sleep(60)
            del hoard
        elif word == "babble":
            os.write(self._replies, b"Segmentation fault (not really)\n" * 10)
            time.sleep(60)
        elif word == "print":
            sys.stdout.write("chatter on standard output\n" * 1000)
            sys.stdout.flush()
        elif word == "half":
            os.write(self._replies, b"tilewright 2 message 100000 0 " + b"0" * 64 + b"\n{")
            os._exit(0)
        elif word == "mute":
            os.close(self._replies)
            time.sleep(60)
        elif word == "refused":
            return JobFinished(Faulted(job.id, PROFILE.name, FaultKind.LAUNCH_REFUSED, "too much", action, 10), True)
        elif word == "spoilt":
            return JobFinished(Faulted(job.id, PROFILE.name, FaultKind.ILLEGAL_ACCESS, "wild", action, 10), False)
        elif word == "environment":
            Path(argument).write_text(json.dumps({"environment": dict(os.environ), "folder": os.getcwd()}))
        else:
            assert word == "add", action
        return None


def open_engine(own: list[str]) -> ScriptedEngine:
    index = int(own[own.index("--device") + 1])
    if index == 9:
        raise EngineRefused("there is no cuda:9 here; use cuda:0")
    if index == 8:
        raise RuntimeError("an engine that is broken")
    if index == 7:
        time.sleep(1e6)
    return ScriptedEngine(int(sys.argv[sys.argv.index("--replies") + 1]))


if __name__ == "__main__":
    sys.exit(serve(sys.argv[1:], open_engine))
