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
from tilewright.devices.child_device import CudaDevice, EmulatedDevice
from tilewright.measure import Stopwatch
from tilewright.records import Measured, Passed, Run, to_json
from tilewright.reference import Reference, ReferenceLimits
from tilewright.store import RunFolder
from tilewright.verify import Referee, read_kernel

# Contenders as `plot_examples.py` calls them.
NAMES = {"eager": "eager", "torch.compile": "compiled", "against": "library"}
# The vendor's library, where the reference computes more exactly than anybody would in practice, or in two kernels.
AGAINST = {name: f"gallery.requests.vendor:{name}" for name in ("linear_gelu", "linear_silu", "matmul")}


def row_of(folder: RunFolder, run: Run, gpu: CudaDevice) -> dict[str, Any]:
    """The run's best kernel, judged and measured."""
    began = time.monotonic()
    task, best = run.task, run.best
    if best is None:
        raise ValueError("no kernel passed")
    kernel = read_kernel(folder.attempt(best.number).text("kernel.cu"), task)
    choice = dict(best.tune.choice) if best.tune else None
    with (
        Reference(task.reference, task.function, limits=ReferenceLimits.on_gpu()) as reference,
        EmulatedDevice(task.profile) as emulator,
        Referee(task, reference, emulator=emulator, gpu=gpu) as referee,
        Stopwatch(task, reference, emulator=emulator, gpu=gpu, against=AGAINST.get(task.name, "")) as stopwatch,
    ):
        made = stopwatch.measure(kernel, choice)
        assert isinstance(made, Measured), to_json(made)
        print(f"{task.name}: {made.time_us:.1f} us", *(f"{one.name} {one.median_us:.1f}" for one in made.baselines))
        verdict = referee.judge(kernel, choice)
    assert isinstance(verdict, Passed), to_json(verdict)
    return {
        "case": task.name,
        "size": " ".join(f"{name}={size}" for name, size in task.sizes.items()),
        "run": folder.path.name,
        "attempts": len(run.attempts),
        "best": best.number,
        "modelled_us": best.time_us,
        "median_us": {"ours": made.time_us, **{NAMES[one.name]: one.median_us for one in made.baselines}},
        "floor_us": made.floor_us,
        "cases": len(verdict.cases),
        "error_ratio": verdict.error_ratio,
        "notes": made.notes,
        "seconds": round(time.monotonic() - began, 1),
    }


def _gain(median_us: dict[str, float]) -> float:
    return min(time_us for name, time_us in median_us.items() if name != "ours") / median_us["ours"]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("runs", nargs="*", type=Path)
    arguments.add_argument("-o", "--output", type=Path)
    given = arguments.parse_args()
    paths = given.runs or sorted(path.parent for path in (ROOT / "gallery").glob("*/run.json"))
    rows: list[dict[str, Any]] = []
    troubles: dict[str, str] = {}
    with CudaDevice(0) as gpu:
        print(f"on {gpu.profile.name}", flush=True)
        for path in paths:
            folder = RunFolder(path)
            try:
                rows.append(row_of(folder, folder.load(), gpu))
                print(rows[-1], flush=True)
            except Exception as error:  # one kernel's trouble is not the others'
                troubles[path.name] = f"{type(error).__name__}: {error}"
                print(path.name, troubles[path.name], flush=True)
        result = {"gpu": gpu.profile.name, "measurements": rows, "troubles": troubles}
        if rows:
            result["geomean_over_best_baseline"] = statistics.geometric_mean(_gain(row["median_us"]) for row in rows)
    if given.output:
        write_result(given.output, result)


if __name__ == "__main__":
    main()
