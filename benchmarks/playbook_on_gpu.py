"""Whole runs of the built-in author on this machine's GPU, each step verified and measured there.

python benchmarks/playbook_on_gpu.py [-o result.json] [--everyday] [how many of the requests]

`--everyday` makes what people ask for in a few words, at the sizes that are assumed then, several at a time and with
one attempt each; `--after REQUEST` those of them that follow.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from recording import write_result

REQUESTS = (
    ("LayerNorm over the last dimension, then exact GELU", {"x": "4096x1024:bf16"}),
    ("softmax over the last dimension", {"x": "4096x16384:f32"}),
    ("add residual, then rmsnorm, then silu", {"x": "8192x4096:bf16"}),
    ("attention", {"query": "4x32x4096x128:bf16", "key": "4x32x4096x128:bf16"}),
    ("causal attention", {"query": "4x32x4096x128:bf16", "key": "4x32x4096x128:bf16"}),
    ("attention", {"query": "4x32x2048x128:f32", "key": "4x32x2048x128:f32"}),
    ("grouped-query attention", {"query": "8x32x1x128:bf16", "key": "8x8x8192x128:bf16"}),
)
EVERYDAY = (Path(__file__).resolve().parent / "requests" / "everyday.txt").read_text().splitlines()
NAMES = {"eager": "eager", "torch.compile": "compiled"}


def row_of(request: str, shapes: dict[str, str], **options: Any) -> dict[str, Any]:
    import tilewright
    from tilewright.records import Measured, Passed

    began = time.monotonic()
    made = tilewright.make(request, author="playbook", yes=True, fresh=True, enough=2.0, shapes=shapes, **options)
    run = made.run
    assert run is not None
    assert run.best is not None
    assert isinstance(run.best.verdict, Passed)
    measured = run.best.measurement
    assert isinstance(measured, Measured)
    return {
        "request": request,
        "case": run.task.name,
        "verdict": "provisional" if run.best.verdict.is_provisional else "verified",
        "size": " ".join(f"{name}={size}" for name, size in run.task.sizes.items()),
        "attempts": [
            {"stage": one.stage.value, "summary": one.summary, "passed": one.passed, "time_us": one.time_us}
            for one in run.attempts
        ],
        "median_us": {"ours": measured.time_us, **{NAMES[one.name]: one.median_us for one in measured.baselines}},
        "floor_us": measured.floor_us,
        "notes": measured.notes,
        "seconds": round(time.monotonic() - began, 1),
    }


def everyday(requests: Sequence[str]) -> Iterator[dict[str, Any]]:
    with ProcessPoolExecutor(min(14, os.cpu_count() or 1), get_context("spawn")) as pool:
        asked = {pool.submit(row_of, request, {}, attempts=1): request for request in requests}
        for one in as_completed(asked):
            problem = one.exception()
            yield {"request": asked[one], "problem": str(problem)} if problem else one.result()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("count", nargs="?", type=int, default=len(EVERYDAY))
    arguments.add_argument("--everyday", action="store_true")
    arguments.add_argument("--after", choices=EVERYDAY, metavar="REQUEST")
    arguments.add_argument("-o", "--output", type=Path)
    given = arguments.parse_args()
    import torch

    gpu, rows = torch.cuda.get_device_name(), []
    with tempfile.TemporaryDirectory() as home:
        os.environ["TILEWRIGHT_HOME"] = home
        begin = EVERYDAY.index(given.after) + 1 if given.after else 0
        asked = (
            everyday(EVERYDAY[begin:][: given.count])
            if given.everyday
            else (row_of(*one) for one in REQUESTS[: given.count])
        )
        for row in asked:
            rows.append(row)
            print(rows[-1], flush=True)
            if given.output:
                write_result(given.output, {"gpu": gpu, "measurements": rows})


if __name__ == "__main__":
    main()
