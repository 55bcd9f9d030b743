"""The performance model beside measured times: kernels that a GPU timed, each modelled from emulated counts.

    python benchmarks/bench_model.py [--measured FILE] [--counts FOLDER] [--out FILE] [--plot FILE] [--all]
    python benchmarks/bench_model.py --measure FILE          on a GPU: time the rows of FILE anew, in place

FILE has kernel texts, tasks without their references, and rows: a kernel, a task, a choice of its `tune` constants, and
the median of cold-cache times in microseconds. A third of the operations, picked by a digest of their names, was held
back from setting the model's constants; figures are of that third unless `--all` is given. `--counts` keeps what was
emulated, so that another model is tried in seconds. Rows whose source is `added` came later: they are
of kinds that the first rows had few tunings of (pooling, reductions, losses, attention over a cache), and
`held_back_at_first` and `all_at_first` leave them out. Few of the new operations among them fell to the first digest,
so a second one, of the name behind the word `added`, picks among those too: it was fixed before anything was looked at,
and the constants were set anew without what it picked. `model_fit.py` sets the constants;
`model_limits.py` has the profiler's figures.

Within an operation's tunings two figures are given: the rank correlation over all of them, however little they differ,
and the pairs that were measured further apart than `APART` and are in order (1: all of them; 0: half, as by chance).
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import pickle
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from model_plot import picture
from recording import ROOT, write_result
from tilewright.devices.child_device import EmulatedDevice
from tilewright.kernel_file import KernelFile, parse
from tilewright.measure.autotune import FEW_CHOICES, PROMISING
from tilewright.measure.emulated_counts import CountedLaunch, CountedPlan, NotCounted, count_plan
from tilewright.measure.performance_model import model_plan
from tilewright.measure.preparation import NotPrepared, prepare
from tilewright.records import MODELLED_NOISE, PROFILES, PackedLaunch, Task, from_json

MEASURED = ROOT / "benchmarks" / "results" / "2026-11-16-h200-model-rows.json"
GPU = "H200"
ADDED, NEW = "added", "added: a new operation"  # sources of rows that came later
HELD_BACK = 3  # one operation in so many
SPREAD = 1.1  # slowest over fastest of an operation's tunings; below, their order is little more than noise
APART = 0.03  # between two tunings, of the faster: more than one measurement of short kernels differs from the next
_RUNS = 9


@dataclass(frozen=True)
class Row:
    """One kernel at one task's sizes with one choice of its constants."""

    op: str
    source: str
    kernel: str
    task: str
    choice: dict[str, int | bool]
    measured_us: float | None = None

    @property
    def is_held_back(self) -> bool:
        name = self.op.split(" ")[0]
        return _picked(name) or (self.source == NEW and _picked(f"{ADDED} {name}"))

    @property
    def digest(self) -> str:
        text = json.dumps([self.kernel, self.task, self.choice], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _picked(text: str) -> bool:
    return int(hashlib.sha256(text.encode()).hexdigest(), 16) % HELD_BACK == 0


@dataclass(frozen=True)
class Data:
    """A file of rows. Kernels and tasks have digests for names."""

    kernels: dict[str, str]
    tasks: dict[str, Any]
    rows: tuple[Row, ...]

    @classmethod
    def read(cls, path: Path) -> Data:
        found = json.loads(path.read_text())
        return cls(found["kernels"], found["tasks"], tuple(Row(**row) for row in found["rows"]))

    def write(self, path: Path) -> None:
        rows = ",\n".join(json.dumps(asdict(row)) for row in self.rows)
        kernels, tasks = json.dumps(self.kernels, indent=0), json.dumps(self.tasks)
        path.write_text(f'{{"kernels": {kernels},\n"tasks": {tasks},\n"rows": [\n{rows}\n]}}\n')

    def of(self, row: Row) -> tuple[KernelFile, Task]:
        return _parsed(self.kernels[row.kernel]), from_json(Task, self.tasks[row.task])


@cache
def _parsed(text: str) -> KernelFile:
    return parse(text, "kernel.cu", allow_library=True)


@dataclass(frozen=True)
class Modelled:
    """A row with its score; `bound` is the longest of the model's terms."""

    row: Row
    measured_us: float
    modelled_us: float
    bound: str
    terms_us: dict[str, float]

    @property
    def ratio(self) -> float:
        return self.modelled_us / self.measured_us


# -- rows modelled --


def counted(data: Data, row: Row, emulator: EmulatedDevice, kept: Path | None) -> CountedPlan:
    """The row's counts, from the folder where they are there. Raises `NotCounted` and `NotPrepared`."""
    file, task = data.of(row)
    path = kept / f"{row.digest}.pkl" if kept is not None else None
    refusal = path.with_suffix(".txt") if path is not None else None
    if refusal is not None and refusal.exists():
        raise NotCounted(refusal.read_text())
    if path is None or not path.exists():
        try:
            made = count_plan(file, task, row.choice, emulator)
        except (NotCounted, NotPrepared) as problem:
            if refusal is not None:
                refusal.write_text(str(problem))
            raise
        if path is not None:
            path.write_bytes(pickle.dumps([(launch.counts, launch.scale) for launch in made.launches]))
        return made
    prepared = prepare(file, task, row.choice)
    assert prepared.build is not None
    launches = [step for step in prepared.plan.steps if isinstance(step, PackedLaunch)]
    return CountedPlan(
        prepared,
        tuple(
            CountedLaunch(launch, prepared.build.kernel(launch.kernel), counts, scale)
            for launch, (counts, scale) in zip(launches, pickle.loads(path.read_bytes()), strict=True)
        ),
        task.sizes,
    )


def modelled(data: Data, kept: Path | None) -> Iterator[Modelled | str]:
    """Every measured row with its score, or why it has none."""
    with EmulatedDevice(PROFILES[GPU]) as emulator:
        for row in data.rows:
            if row.measured_us is None:
                continue
            try:
                made = model_plan(counted(data, row, emulator, kept), data.of(row)[1], 0.0).modelled
            except (NotCounted, NotPrepared) as problem:
                yield f"{row.op} {row.choice}: {str(problem)[:200]}"
                continue
            terms = {term.name: round(term.time_us, 2) for term in made.terms}
            bound = made.bounds[0].name if made.bounds else "launches"
            yield Modelled(row, row.measured_us, made.time_us, bound, terms)


# -- figures --


def ranks(values: Sequence[float]) -> list[float]:
    """Of each value; equal ones share the mean of theirs."""
    ordered = sorted(values)
    first = {value: ordered.index(value) for value in set(values)}
    return [first[value] + (ordered.count(value) - 1) / 2 for value in values]


def spearman(rows: Sequence[Modelled]) -> float:
    pairs = [ranks([row.modelled_us for row in rows]), ranks([row.measured_us for row in rows])]
    return statistics.correlation(*pairs) if all(len(set(one)) > 1 for one in pairs) else 0.0


def median_error(rows: Iterable[Modelled]) -> float:
    return statistics.median(abs(row.ratio - 1.0) for row in rows)


def tunings(rows: Iterable[Modelled]) -> dict[str, list[Modelled]]:
    """The rows of an operation at one size, where they are several and their times differ."""
    groups: dict[str, list[Modelled]] = {}
    for row in rows:
        groups.setdefault(f"{row.row.op} {row.row.task}", []).append(row)
    return {name: found for name, found in groups.items() if len(found) >= 4 and _spread(found) >= SPREAD}


def _spread(rows: Sequence[Modelled]) -> float:
    times = [row.measured_us for row in rows]
    return max(times) / min(times)


def pruned_loss(rows: Sequence[Modelled]) -> float:
    """By what factor the best of the choices that are timed is slower than the best of all, where the model says which:
    as in `sweep_choices.promising`, a quarter of them with the default, which is the first."""
    others = sorted(rows[1:], key=lambda row: row.modelled_us)
    timed = [rows[0], *others[: max(1, int(PROMISING * len(rows)) - 1)]]
    return min(row.measured_us for row in timed) / min(row.measured_us for row in rows)


def right_pairs(groups: Iterable[Sequence[Modelled]], gain: float) -> tuple[int, int]:
    """Of an operation's rows two by two, where the model tells them apart by more than the gain: those that the GPU
    puts in the same order, and all."""
    pairs = [
        (one, other)
        for rows in groups
        for one, other in itertools.permutations(rows, 2)
        if one.modelled_us < other.modelled_us * (1.0 - gain)
    ]
    return sum(one.measured_us < other.measured_us for one, other in pairs), len(pairs)


def measured_apart(rows: Sequence[Modelled]) -> tuple[int, int]:
    """Of an operation's rows two by two, where the GPU tells them apart: those that the model puts in the same order,
    and all."""
    pairs = [
        (one, other)
        for one, other in itertools.permutations(rows, 2)
        if one.measured_us * (1.0 + APART) < other.measured_us
    ]
    return sum(one.modelled_us < other.modelled_us for one, other in pairs), len(pairs)


def figures(rows: Sequence[Modelled]) -> dict[str, Any]:
    memory = [row for row in rows if row.bound == "device memory"]
    groups = tunings(rows)
    within = [spearman(found) for found in groups.values()]
    losses = [pruned_loss(found) for found in groups.values() if len(found) > FEW_CHOICES]
    right, pairs = right_pairs(groups.values(), MODELLED_NOISE)
    apart = [measured_apart(found) for found in groups.values()]
    in_order = [2.0 * ordered / every - 1.0 for ordered, every in apart if every]
    return {
        "rows": len(rows),
        "operations": len({row.row.op for row in rows}),
        "spearman": round(spearman(rows), 4),
        "median_error": round(median_error(rows), 4),
        "memory_bound_rows": len(memory),
        "median_error_memory_bound": round(median_error(memory), 4) if memory else None,
        "geomean_modelled_over_measured": round(statistics.geometric_mean(row.ratio for row in rows), 4),
        "tuned_operations": len(groups),
        "spearman_within_one": {
            "mean": round(statistics.fmean(within), 3) if within else None,
            "median": round(statistics.median(within), 3) if within else None,
        },
        "pairs_measured_apart": {
            "in_order": f"{sum(ordered for ordered, _ in apart)} of {sum(every for _, every in apart)}",
            "mean_over_operations": round(statistics.fmean(in_order), 3) if in_order else None,
        },
        "pairs_beyond_the_models_noise_in_order": f"{right} of {pairs}",
        "pruned_sweeps_within_3_percent": f"{sum(loss <= 1.03 for loss in losses)} of {len(losses)}",
        "worst_pruned_sweep": round(max(losses, default=1.0), 3),
    }


def each_operation(rows: Sequence[Modelled]) -> dict[str, Any]:
    """Those with several tunings, the worst ordered first."""
    found = {}
    for name, group in sorted(tunings(rows).items(), key=lambda pair: spearman(pair[1])):
        ordered, every = measured_apart(group)
        found[name] = {
            "tunings": len(group),
            "spearman": round(spearman(group), 2),
            "pairs_measured_apart_in_order": f"{ordered} of {every}",
            "geomean_modelled_over_measured": round(statistics.geometric_mean(row.ratio for row in group), 3),
            "held_back": group[0].row.is_held_back,
        }
    return found


# -- on a GPU --


def measure(path: Path) -> None:
    """Time every row of the file on this machine's GPU and write the medians back."""
    from tilewright.devices.child_device import CudaDevice
    from tilewright.measure.gpu_timing import GpuFault, time_candidate

    data = Data.read(path)
    rows = []
    with CudaDevice(0) as gpu:
        for row in data.rows:
            file, task = data.of(row)
            try:
                prepared = prepare(file, task, row.choice, gpu=gpu.profile)
                times = time_candidate(prepared, task, gpu, _RUNS, digests=False).run_us
            except (NotPrepared, GpuFault) as problem:
                print(f"LEFT OUT: {row.op} {row.choice}: {problem}")
                continue
            rows.append(replace(row, measured_us=round(statistics.median(times), 3)))
            print(f"{row.op:<40}{rows[-1].measured_us:>12.1f} us  {row.choice}", flush=True)
    replace(data, rows=tuple(rows)).write(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measured", type=Path, default=MEASURED, help="a file of measured rows")
    parser.add_argument("--measure", type=Path, metavar="FILE", help="time the rows of this file on a GPU")
    parser.add_argument("--counts", type=Path, metavar="FOLDER", help="where emulated counts are kept")
    parser.add_argument("--all", action="store_true", help="figures of all rows, the held-back ones among them")
    parser.add_argument("--out", type=Path, help="also write the numbers to this JSON file")
    parser.add_argument("--plot", type=Path, help="and a picture to this SVG file")
    options = parser.parse_args()
    if options.measure is not None:
        return measure(options.measure)
    if options.counts is not None:
        options.counts.mkdir(parents=True, exist_ok=True)
    rows: list[Modelled] = []
    left_out: list[str] = []
    for one in modelled(Data.read(options.measured), options.counts):
        if isinstance(one, str):
            left_out.append(one)
            continue
        rows.append(one)
        mark = "held back" if one.row.is_held_back else ""
        times = f"{one.measured_us:>10.1f} us {one.modelled_us:>10.1f} {one.ratio:>6.2f}"
        print(f"{one.row.op:<44}{times}  {one.bound:<22}{mark:<10} {one.row.choice}", flush=True)
    held_back = [row for row in rows if row.row.is_held_back]
    first = [row for row in rows if row.row.source not in (ADDED, NEW)]
    result = {
        "held_back": figures(held_back),
        "all": figures(rows),
        "held_back_at_first": figures([row for row in first if row.row.is_held_back]),
        "all_at_first": figures(first),
        "each_operation": each_operation(rows),
    }
    print(json.dumps(result["all" if options.all else "held_back"], indent=1), f"{len(left_out)} left out", sep="\n")
    if options.plot is not None:
        options.plot.write_text(picture([(row.measured_us, row.modelled_us, row.bound) for row in rows], GPU))
    if options.out is not None:
        named = [{"op": row.row.op, **asdict(row.row), **asdict(row)} for row in rows]
        for one in named:
            del one["row"], one["kernel"], one["task"]
        write_result(options.out, {"gpu": GPU, **result, "rows": named, "left_out": left_out})
    return None


if __name__ == "__main__":
    main()
