"""The gallery's kernels on this machine's GPU: judged by the referee and timed beside eager and torch.compile.

    python benchmarks/gallery_on_gpu.py [-o result.json] [RUN...]      runs of gallery/ unless others are named

Needs neither a model nor the command line's packages, so it runs on a bare GPU box.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

from recording import ROOT, write_result
from tilewright.devices.cuda_device import CudaDevice
from tilewright.devices.emulated import EmulatedDevice
from tilewright.measure import Stopwatch
from tilewright.records import Measured, Passed, Run, to_json
from tilewright.reference import Reference, ReferenceLimits
from tilewright.store import RunFolder
from tilewright.verify import Referee, read_kernel

# Rivals in the vendor's library, where the reference itself computes more exactly than anybody would in practice.
AGAINST = {"linear_silu": "gallery.requests.vendor:linear_silu", "matmul": "gallery.requests.vendor:matmul"}


def row_of(folder: RunFolder, run: Run, gpu: CudaDevice) -> dict[str, Any]:
    """The run's best kernel, judged and measured."""
    began = time.monotonic()
    task, best = run.task, run.best
    if best is None:
        return {"run": folder.path.name, "op": task.name, "verdict": "no kernel passed"}
    kernel = read_kernel(folder.attempt(best.number).text("kernel.cu"), task)
    choice = dict(best.tune.choice) if best.tune else None
    with (
        Reference(task.reference, task.function, limits=ReferenceLimits.on_gpu()) as reference,
        EmulatedDevice(task.profile) as emulator,
        Referee(task, reference, emulator=emulator, gpu=gpu) as referee,
        Stopwatch(task, reference, emulator=emulator, gpu=gpu, against=AGAINST.get(task.name, "")) as stopwatch,
    ):
        verdict = referee.judge(kernel, choice)
        made = stopwatch.measure(kernel, choice)
    row: dict[str, Any] = {
        "run": folder.path.name,
        "op": task.name,
        "sizes": task.sizes,
        "attempts": len(run.attempts),
        "best": best.number,
        "modelled_us": best.time_us,
        "verdict": "passed" if isinstance(verdict, Passed) else to_json(verdict),
        "seconds": round(time.monotonic() - began, 1),
    }
    if isinstance(verdict, Passed):
        row["error_ratio"] = verdict.error_ratio
        row["cases"] = len(verdict.cases)
    if isinstance(made, Measured):
        row["kernel_us"] = made.time_us
        row["floor_us"] = made.floor_us
        row["fraction"] = made.fraction
        row["baselines_us"] = {one.name: one.median_us for one in made.baselines}
        row["speedup"] = {one.name: one.median_us / made.time_us for one in made.baselines}
        row["notes"] = made.notes
    return row


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("runs", nargs="*", type=Path)
    arguments.add_argument("-o", "--output", type=Path)
    given = arguments.parse_args()
    paths = given.runs or sorted(path.parent for path in (ROOT / "gallery").glob("*/run.json"))
    rows = []
    with CudaDevice(0) as gpu:
        print(f"on {gpu.profile.name}", flush=True)
        for path in paths:
            folder = RunFolder(path)
            try:
                row = row_of(folder, folder.load(), gpu)
            except Exception as error:  # one kernel's trouble is not the others'
                row = {"run": path.name, "trouble": f"{type(error).__name__}: {error}"}
            rows.append(row)
            print(row, flush=True)
        speedups = [min(row["speedup"].values()) for row in rows if row.get("speedup")]
        result: dict[str, Any] = {"gpu": gpu.profile.name, "rows": rows}
        if speedups:
            result["geomean_speedup_over_the_better_baseline"] = statistics.geometric_mean(speedups)
    if given.output:
        write_result(given.output, result)


if __name__ == "__main__":
    main()
