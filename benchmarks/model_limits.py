"""The limit that the model says binds a launch, beside the profiler's figures.

    python benchmarks/model_limits.py [--counts FOLDER] [--out FILE]

For the longest launch of each profiled plan both sides are asked the same: which resource takes most of the time, or,
where none takes half of it, latency. The profiler says it in parts of the peak, the model as the time that a resource
alone would need, of the time it gives the launch and `LAUNCH_US`, both of the mean multiprocessor. The profiler starts
with a clean cache and leaves `KEPT_BYTES` of what is written there, so the model is asked about that too. A limit is
also counted as near if it is within `NEAR` of the profiler's highest, and latency if its highest is that near to half
of the peak.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench_model import GPU, MEASURED, Data, Row, counted
from recording import ROOT, write_result
from tilewright.devices.child_device import EmulatedDevice
from tilewright.measure.emulated_counts import NotCounted
from tilewright.measure.performance_model import LaunchModel, model_launch, model_plan
from tilewright.measure.preparation import NotPrepared
from tilewright.records import LAUNCH_US, PROFILES

COUNTERS = ROOT / "benchmarks" / "results" / "2026-11-16-h200-model-counters.json"
KEPT_BYTES = 24e6
NEAR = 0.1
LATENCY = "latency"
_SIDES = {  # of the model's terms; the profiler's figures have these names
    "device memory": "memory",
    "L2 cache": "memory",
    "L1 and shared memory": "L1",
    "issue slots": "work",
    "tensor cores": "work",
}
_ON_CHIP = ("L1 and shared memory", "issue slots", "tensor cores")  # the model's figures are of the busiest


def modelled_limit(launch: LaunchModel) -> str:
    """In the profiler's conditions."""
    traffic = launch.facts.traffic
    written = max(min(traffic.written_bytes, 1e6), traffic.written_bytes - KEPT_BYTES)
    clean = replace(launch.facts, traffic=replace(traffic, evicted_bytes=0.0, written_bytes=written))
    there = model_launch(clean, PROFILES[GPU])
    blocks, sms = max(launch.facts.counted.grid_blocks, 1), PROFILES[GPU].sms
    mean = blocks / (sms * math.ceil(blocks / sms))  # the profiler's figures are of the mean multiprocessor
    times = {term.name: term.time_us * (mean if term.name in _ON_CHIP else 1.0) for term in there.terms}
    longest = max((name for name in times if name in _SIDES), key=times.__getitem__)
    return _SIDES[longest] if 2 * times[longest] >= there.time_us + LAUNCH_US else LATENCY


def profiled_limits(shares: dict[str, float]) -> tuple[str, set[str]]:
    """The one, and those near it."""
    highest = max(shares.values())
    near = {name for name, share in shares.items() if share >= highest - NEAR and share >= 0.5 - NEAR}
    limit = next(name for name, share in shares.items() if share == highest) if highest >= 0.5 else LATENCY
    return limit, near | ({LATENCY} if highest < 0.5 + NEAR else set())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", type=Path, metavar="FOLDER", help="where emulated counts are kept")
    parser.add_argument("--out", type=Path, help="also write the numbers to this JSON file")
    options = parser.parse_args()
    data, found, left_out = Data.read(MEASURED), list[dict[str, Any]](), list[str]()
    with EmulatedDevice(PROFILES[GPU]) as emulator:
        for plan in json.loads(COUNTERS.read_text())["plans"]:
            row = Row(plan["op"], "", plan["kernel"], plan["task"], plan["choice"])
            try:
                model = model_plan(counted(data, row, emulator, options.counts), data.of(row)[1], 0.0)
            except (KeyError, NotCounted, NotPrepared) as problem:
                left_out.append(f"{row.op} {row.choice}: {str(problem)[:100]}")
                continue
            longest = max(range(len(plan["launches"])), key=lambda number: plan["launches"][number]["us"])
            limit, near = profiled_limits(plan["launches"][longest]["shares"])
            said = modelled_limit(model.launches[longest])
            found.append({"op": row.op, "modelled": said, "profiled": limit, "near": sorted(near | {limit})})
            print(f"{row.op:<44}{said:<10}{limit:<10}{'' if said == limit else 'near' if said in near else 'OTHER'}")
    result = {
        "launches": len(found),
        "right": sum(one["modelled"] == one["profiled"] for one in found),
        "right_or_near": sum(one["modelled"] in one["near"] for one in found),
        "left_out": left_out,
    }
    print(json.dumps(result, indent=1))
    if options.out is not None:
        write_result(options.out, {"gpu": GPU, **result, "each": found})


if __name__ == "__main__":
    main()
