"""Files of the loops beside those of the kinds with schedules, for the operations of a suite file: modelled times.

    python benchmarks/model_loops.py SUITE.toml [--only NAME ...] [--loops-alone] [--out FILE] [--texts FOLDER]
        [--earlier FILE]

SUITE.toml is as `tilewright suite` reads it: tasks that name a function of a Python file beside it. Every file is
compiled for an H200 and modelled from the counts of sampled blocks in the emulator, at the task's own sizes and its
default constants; no GPU is used and nothing is measured. `--earlier` takes the times of loops out of an earlier
result, which are then shown beside those of now.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

from recording import write_result
from tilewright.authors.playbook_author import kernel_text
from tilewright.devices.child_device import EmulatedDevice
from tilewright.kernel_file import parse
from tilewright.measure.emulated_counts import NotCounted, count_plan
from tilewright.measure.performance_model import model_plan
from tilewright.measure.preparation import NotPrepared
from tilewright.playbook.errors import NotSupported
from tilewright.playbook.families import Answer, Structure
from tilewright.playbook.understanding import any_graph, ask_reference, understand
from tilewright.records import PROFILES, Task
from tilewright.reference import Reference
from tilewright.tasks import TaskError, TaskOptions, task_from_source

GPU = "H200"
Row = dict[str, Any]


def task_of(folder: Path, given: dict[str, Any]) -> Task:
    file, _, function = given["request"].partition(":")
    source = (folder / file).read_text()
    return task_from_source(source, function, given["shape"], {}, TaskOptions(gpu=GPU), given.get("fill", {}))


def loops_of(task: Task) -> Answer:
    with Reference(task.reference, task.function) as reference:
        return any_graph(task, partial(ask_reference, reference))


def modelled(step: Structure, task: Task, emulator: EmulatedDevice, text: Path | None = None) -> Row:
    """One file: microseconds, and what bounds it."""
    written = kernel_text(step, task, ())
    if text is not None:
        text.write_text(written)
    try:
        made = model_plan(count_plan(parse(written, f"{task.name}.cu"), task, None, emulator), task, 0.0)
    except (NotCounted, NotPrepared) as problem:
        return {"file": step.id, "problem": str(problem)[:300]}
    found = made.modelled
    return {
        "file": step.id,
        "modelled_us": round(found.time_us, 2),
        "bound": found.bounds[0].name if found.bounds else "launches",
        "launches": found.launches,
        "spill_bytes": found.spill_bytes,
        "least_us": round(found.reachable_us, 2),
    }


def row_of(task: Task, emulator: EmulatedDevice, texts: Path | None, alone: bool) -> Row:
    made: Row = {"name": task.name}
    loops = loops_of(task).draft
    made["loops"] = modelled(loops, task, emulator, texts / f"{task.name}.cu" if texts else None)
    if alone:
        return made
    try:
        answer = understand(task)
    except NotSupported as problem:
        made["schedules"] = {"problem": str(problem)[:300]}
        return made
    if answer.draft.id != loops.id:
        made["schedules"] = modelled((*answer.structures, answer.draft)[0], task, emulator)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", type=Path)
    parser.add_argument("--only", nargs="*", default=(), metavar="NAME")
    parser.add_argument("--loops-alone", action="store_true", help="do not model the kinds with schedules")
    parser.add_argument("--out", type=Path, help="also write the rows to this JSON file")
    parser.add_argument("--texts", type=Path, metavar="FOLDER", help="keep the files of the loops")
    parser.add_argument("--earlier", type=Path, metavar="FILE", help="an earlier result")
    options = parser.parse_args()
    suite = tomllib.loads(options.suite.read_text())
    known = json.loads(options.earlier.read_text())["rows"] if options.earlier else []
    before = {one["name"]: one["loops"] for one in known}
    rows: list[Row] = []
    with EmulatedDevice(PROFILES[GPU]) as emulator:
        for given in suite["task"]:
            if options.only and given["name"] not in options.only:
                continue
            try:
                row = row_of(task_of(options.suite.parent, given), emulator, options.texts, options.loops_alone)
            except (TaskError, NotSupported) as problem:
                row = {"name": given["name"], "problem": str(problem)[:300]}
            if given["name"] in before:
                row["loops_before"] = before[given["name"]]
            rows.append(row)
            print(_shown(row), flush=True)
            if options.out is not None:
                write_result(options.out, {"gpu": GPU, "figures": "modelled, not measured", "rows": rows})
    ratios = [
        one["loops_before"]["modelled_us"] / one["loops"]["modelled_us"]
        for one in rows
        if "modelled_us" in one.get("loops_before", {}) and "modelled_us" in one.get("loops", {})
    ]
    if ratios:
        print(f"loops before / now, geometric mean of {len(ratios)}: {statistics.geometric_mean(ratios):.2f}")


def _shown(row: Row) -> str:
    def one(key: str) -> str:
        found = row.get(key, {})
        return f"{found['modelled_us']:>11.1f}" if "modelled_us" in found else f"{'-':>11}"

    told = row.get("loops", row)
    bound = told.get("bound", told.get("problem", ""))
    columns = "".join(one(key) for key in ("loops_before", "loops", "schedules"))
    return f"{row['name']:<24}{columns}  {told.get('least_us', 0):>9.1f}  {bound[:70]}"


if __name__ == "__main__":
    main()
