"""Whole runs through a spool: `tilewright make --spool DIR` in a process that sees no GPU, a worker that has one.

    python benchmarks/spool_on_gpu.py [-o result.json] [--large 4096x8192:f32]

Two requests: one whose inputs travel, and one whose inputs are so large that the worker draws them by seed. The worker
is killed with SIGKILL while it answers a call of the second run's reference, and another is started. It exits 0 when
both runs end with a kernel that was measured beside eager and torch.compile and judged at the task's own sizes.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from benchmarks.recording import write_result  # noqa: E402

from tilewright.records import CaseStatus, Measured, Passed, Run  # noqa: E402
from tilewright.store import Store  # noqa: E402

SMALL = ("LayerNorm over the last dimension, then exact GELU", "x=4096x1024:bf16")
LARGE = ("softmax over the last dimension", "x=4096x8192:f32")
WORKER = (sys.executable, "-m", "tilewright.worker")
BASELINES = frozenset({"eager", "torch.compile"})
_PATIENCE_S = 900.0
_JOB_LINE = re.compile(r"\S+ \S+: (?P<words>.+) \([\d.]+ s\)")


def _search_path() -> str:
    return os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH", ""))))


class Workers:
    """The workers of the spool, one after another, and what they said."""

    def __init__(self, command: Sequence[str], spool: Path, log: Path) -> None:
        self._command = (*command, str(spool), "--verbose", "--poll", "0.05")
        self._log = log
        self._running: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        environment = os.environ | {"PYTHONPATH": _search_path(), "PYTHONUNBUFFERED": "1"}
        with open(self._log, "ab") as log:
            self._running = subprocess.Popen(self._command, stderr=log, env=environment)

    def kill(self) -> None:
        assert self._running is not None
        self._running.kill()
        self._running.wait()

    @property
    def lines(self) -> list[str]:
        return self._log.read_text().splitlines() if self._log.exists() else []

    def did(self) -> dict[str, int]:
        """How many jobs of each kind were run."""
        counts: dict[str, int] = {}
        for line in self.lines:
            found = _JOB_LINE.fullmatch(line)
            if found:
                counts[found["words"]] = counts.get(found["words"], 0) + 1
        return counts


def client(request: str, shape: str, spool: Path, home: Path, options: Sequence[str]) -> subprocess.Popen[bytes]:
    """`tilewright make` in a process to which this machine has no GPU."""
    command = [sys.executable, "-m", "tilewright", "make", request, "--shape", shape, "--author", "playbook"]
    command += ["--yes", "--fresh", "--spool", str(spool), "--enough", "2.0", *options]
    environment = os.environ | {
        "PYTHONPATH": _search_path(),
        "CUDA_VISIBLE_DEVICES": "",
        "TILEWRIGHT_HOME": str(home),
        "COLUMNS": "140",
    }
    return subprocess.Popen(command, env=environment, stdout=sys.stderr)


def kill_during_a_call(spool: Path, run: subprocess.Popen[bytes], workers: Workers) -> str:
    """Wait until a worker has a call of the reference in hand, kill it, start the next; returns the call's id."""
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline and run.poll() is None:
        held = [path for path in (spool / "claimed").glob("*/call-*.job") if not path.name.endswith("~2.job")]
        if held:
            time.sleep(0.2)
            workers.kill()
            workers.start()
            return held[0].stem
        time.sleep(0.01)
    return ""


def row_of(run: Run, seconds: float) -> dict[str, Any]:
    best = run.best
    measured = best.measurement if best is not None else None
    verdict = best.verdict if best is not None else None
    cases = verdict.cases if isinstance(verdict, Passed) else ()
    own = [case for case in cases if case.case.sizes == run.task.sizes and case.status is CaseStatus.RIGHT]
    return {
        "case": run.task.name,
        "size": " ".join(f"{name}={size}" for name, size in run.task.sizes.items()),
        "input_bytes": sum(spec.storage_bytes for spec in run.task.specs().values()),
        "attempts": [
            {"stage": one.stage.value, "summary": one.summary, "passed": one.passed, "time_us": one.time_us}
            for one in run.attempts
        ],
        "measured": isinstance(measured, Measured),
        "time_us": measured.time_us if measured else None,
        "baselines_us": {one.name: one.median_us for one in measured.baselines}
        if isinstance(measured, Measured)
        else {},
        "floor_us": measured.floor_us if measured else None,
        "own_sizes_right_on": sorted({f"{case.case.values} on {case.device}" for case in own}),
        "notes": [*(measured.notes if measured else ()), *(verdict.notes if isinstance(verdict, Passed) else ())],
        "seconds": round(seconds, 1),
    }


def is_whole(row: dict[str, Any]) -> bool:
    return bool(row["measured"] and row["own_sizes_right_on"]) and row["baselines_us"].keys() >= BASELINES


def run_all(
    folder: Path, worker: Sequence[str], requests: Sequence[tuple[str, str]], options: Sequence[str] = ()
) -> dict[str, Any]:
    """Both requests, the worker killed under the last one."""
    spool = folder / "spool"
    workers = Workers(worker, spool, folder / "worker.log")
    workers.start()
    rows, killed = [], ""
    try:
        for number, (request, shape) in enumerate(requests):
            home = folder / f"home-{number}"
            began = time.monotonic()
            run = client(request, shape, spool, home, options)
            if number == len(requests) - 1:
                killed = kill_during_a_call(spool, run, workers)
            run.wait()
            made = Store(home).runs().runs
            rows += [row_of(made[0], time.monotonic() - began)] if made else []
            print(rows[-1] if rows else f"no run was made of {request!r}", flush=True)
    finally:
        workers.kill()
    returned = [line for line in workers.lines if killed and killed in line]
    left = [str(path.relative_to(spool)) for name in ("jobs", "results") for path in (spool / name).iterdir()]
    return {"runs": rows, "killed_under": killed, "said_of_it": returned, "workers_did": workers.did(), "left": left}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--large", default=LARGE[1].partition("=")[2], help="shape of the request drawn by seed")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="spool-on-gpu-") as folder:
        result = run_all(Path(folder), WORKER, (SMALL, (LARGE[0], f"x={given.large}")))
        log = (Path(folder) / "worker.log").read_text()
    print(log)
    passed = len(result["runs"]) == 2 and all(map(is_whole, result["runs"])) and bool(result["killed_under"])
    print({name: value for name, value in result.items() if name != "runs"})
    print("PASSED" if passed else "FAILED")
    if given.output:
        write_result(given.output, {**result, "passed": passed})
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
