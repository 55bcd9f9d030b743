"""A spool of 30 jobs with three bad ones in the middle, and a runner killed under it: do the 27 others come out right?

    python benchmarks/gpu_spool_abuse.py prepare DIR [--arch sm_90a]     where the compiler is; no GPU needed
    python benchmarks/gpu_spool_abuse.py run DIR [--out FILE]            where the GPU is; numpy, torch, cuda-bindings

`prepare` builds the kernels and writes DIR/<id>.job, DIR/<id>.npy (what must come back) and DIR/manifest.json.
`run` puts the jobs on a fresh spool, starts `python -m tilewright.worker` on it, kills the worker's runner with SIGKILL
while one good job is in its hands, and compares. It exits 0 when all 27 are right and each bad job has its reason.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from benchmarks.recording import write_result  # noqa: E402
from benchmarks.spool_cases import (  # noqa: E402
    HALF_TOLERANCE,
    KERNELS,
    REFERENCES,
    TOLERANCE,
    Case,
    all_cases,
    array_of,
    make_job,
    with_shared_memory,
)

from tilewright.child.envelope import EnvelopeKind, record_in, seal, unseal  # noqa: E402
from tilewright.devices.spool_files import SpoolFiles  # noqa: E402
from tilewright.records import TYPICAL, Completed, Data, Execution, Faulted, Job, Limits  # noqa: E402


def prepare(directory: Path, arch: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    gpu = TYPICAL[arch]
    manifest = []
    for case in all_cases():
        limits = Limits(seconds=case.seconds, device_bytes=1 << 30)
        job = make_job(case.id, KERNELS[case.kernel], case.tensors, case.scalars, gpu, limits=limits)
        if case.kernel == "greedy":
            job = with_shared_memory(job, 512 << 10)
        (directory / f"{case.id}.job").write_bytes(seal(EnvelopeKind.JOB, job))
        arrays = {n: array_of(c.content, s) for n, (s, c) in case.tensors.items() if isinstance(c, Data)}
        if case.bad is None and len(arrays) == len(case.tensors):
            np.save(directory / f"{case.id}.npy", REFERENCES[case.kernel](**arrays, **case.scalars))
        manifest.append({"id": case.id, "kernel": case.kernel, "bad": case.bad.value if case.bad else None})
    (directory / "manifest.json").write_text(json.dumps({"arch": arch, "jobs": manifest}, indent=1))
    print(f"{len(manifest)} jobs for {arch} are in {directory}")


# -- running --


def verdict(case: Case, execution: Execution, directory: Path) -> tuple[bool, str]:
    """Whether a job ended as it must, and in what words."""
    if isinstance(execution, Faulted):
        where = f" in {execution.kernel} (line {execution.line})" if execution.kernel else ""
        return (
            case.bad is execution.kind and execution.kernel is not None,
            f"{execution.kind.name}{where}: {execution.message}",
        )
    if case.bad is not None:
        return False, f"completed, and should have been {case.bad.name}"
    returned = {one.name: array_of(one.content, one.spec) for one in execution.outputs}
    stored = directory / f"{case.id}.npy"
    if stored.exists():
        expected = np.load(stored)
    else:
        expected = REFERENCES[case.kernel](**{n: returned[n] for n in case.tensors}, **case.scalars)
    name = "sum" if case.kernel == "columns" else execution.outputs[0].name
    dtype = next(one.spec.dtype for one in execution.outputs if one.name == name)
    found = returned[name].astype(np.float64)
    error = float(np.abs(found - expected).max() / max(1.0, float(np.abs(expected).max())))
    allowed = HALF_TOLERANCE.get(dtype, TOLERANCE.get(case.kernel, 0.0))
    return found.shape == expected.shape and error <= allowed, f"largest error {error:.1e}, allowed {allowed:.1e}"


def children_of(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        found += [int(child) for child in task.read_text().split()]
    return found


def outcome_of(files: SpoolFiles, worker: subprocess.Popen[bytes], job_id: str) -> Execution:
    while (result := files.result(job_id)) is None:
        if worker.poll() is not None:
            raise SystemExit(f"the worker ended with status {worker.poll()} before {job_id}")
        time.sleep(0.05)
    assert isinstance(result.outcome, Execution)
    return result.outcome


def kill_runner_under(files: SpoolFiles, worker: subprocess.Popen[bytes], job_id: str) -> int:
    """Wait until the worker has `job_id` in hand and kill the process that runs it; returns that process."""
    deadline = time.monotonic() + 300.0
    while not any((files.root / "claimed").glob(f"*/{job_id}.job")):
        if files.result(job_id) is not None:
            raise SystemExit(f"{job_id} was over before its runner could be killed; make it slower")
        if worker.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"the worker never came to {job_id} (its exit status: {worker.poll()})")
        time.sleep(0.005)
    time.sleep(0.8)
    (victim,) = children_of(worker.pid)
    os.kill(victim, signal.SIGKILL)
    return victim


def run(directory: Path, out: Path | None, worker_command: Sequence[str]) -> int:
    manifest = json.loads((directory / "manifest.json").read_text())
    cases = {case.id: case for case in all_cases()}
    sealed = [(directory / f"{entry['id']}.job").read_bytes() for entry in manifest["jobs"]]
    jobs: list[Job] = [record_in(unseal(content), EnvelopeKind.JOB, Job) for content in sealed]
    with tempfile.TemporaryDirectory(prefix="spool-abuse-") as spool:
        files = SpoolFiles(spool)
        files.create()
        for job in jobs:
            files.put_job(job.id, seal(EnvelopeKind.JOB, job))
            time.sleep(0.002)  # distinct times, so that the spool's order is this order
        started = time.monotonic()
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        worker = subprocess.Popen([*worker_command, spool], env=environment)
        try:
            victim = kill_runner_under(files, worker, "26-patient")
            executions = [outcome_of(files, worker, job.id) for job in jobs]
            seconds = time.monotonic() - started
            runners = children_of(worker.pid)
        finally:
            worker.send_signal(signal.SIGINT)
            status = worker.wait(60)
        left = [str(p.relative_to(spool)) for f in ("jobs", "claimed", "workers") for p in Path(spool, f).rglob("*.j*")]
    return report(
        cases,
        jobs,
        executions,
        directory,
        out,
        {
            "seconds": seconds,
            "killed_runner": victim,
            "runner_afterwards": runners,
            "worker_status": status,
            "left": left,
        },
    )


def report(
    cases: dict[str, Case],
    jobs: Sequence[Job],
    executions: Sequence[Execution],
    directory: Path,
    out: Path | None,
    facts: dict[str, Any],
) -> int:
    rows = []
    for job, execution in zip(jobs, executions, strict=True):
        right, words = verdict(cases[job.id], execution, directory)
        rows.append(
            {
                "job": job.id,
                "device": execution.device,
                "completed": isinstance(execution, Completed),
                "as_it_must": right,
                "words": words,
            }
        )
        print(f"{'ok ' if right else 'BAD'} {job.id:14} {words}")
    good = sum(row["as_it_must"] for row, job in zip(rows, jobs, strict=True) if cases[job.id].bad is None)
    bad = sum(row["as_it_must"] for row, job in zip(rows, jobs, strict=True) if cases[job.id].bad is not None)
    passed = good == 27 and bad == 3 and facts["worker_status"] == 130 and not facts["left"]
    print(
        f"{good} of 27 right, {bad} of 3 bad jobs with their reason, in {facts['seconds']:.1f} s; "
        f"runner {facts['killed_runner']} was killed; worker ended with {facts['worker_status']}; "
        f"left over: {facts['left'] or 'nothing'}"
    )
    print("PASSED" if passed else "FAILED")
    if out is not None:
        write_result(out, {**facts, "good": good, "bad": bad, "passed": passed, "jobs": rows})
    return 0 if passed else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    phases = parser.add_subparsers(dest="phase", required=True)
    preparing = phases.add_parser("prepare", help="build the jobs")
    preparing.add_argument("directory", type=Path)
    preparing.add_argument("--arch", default="sm_90a", choices=sorted(TYPICAL))
    running = phases.add_parser("run", help="run them on this machine's GPU")
    running.add_argument("directory", type=Path)
    running.add_argument("--out", type=Path, help="write the table as JSON")
    options = parser.parse_args()
    if options.phase == "prepare":
        prepare(options.directory, options.arch)
        return 0
    return run(options.directory, options.out, (sys.executable, "-m", "tilewright.worker"))


if __name__ == "__main__":
    sys.exit(main())
