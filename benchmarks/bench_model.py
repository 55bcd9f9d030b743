"""The performance model beside measured times: every example that can be emulated, at the sizes of bench_examples.

    python benchmarks/bench_model.py [--measured FILE] [--only NAME ...] [--out FILE]

No GPU is needed: the times are those of a result of bench_examples on an H200, the scores are made here, with the
choice that was measured. What counts is the order, so Spearman's rank correlation is shown over all rows, beside the
ratio of score to time. The model's constants were set with these very rows in view: they say how well it can fit, and
the versions of one operation in tests/measure, which were not, whether it ranks.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from bench_examples import SIZES
from examples.cases import EXAMPLES
from recording import ROOT, write_result
from tilewright.devices.emulated_device import EmulatedDevice
from tilewright.kernel_file import KernelFile, parse
from tilewright.measure.emulated_counts import NotCounted, count_plan
from tilewright.measure.performance_model import model_plan
from tilewright.measure.preparation import NotPrepared
from tilewright.records import (
    PROFILES,
    Dimension,
    IntegerValues,
    NormalValues,
    NumberInput,
    ScalarType,
    Task,
    TaskOutput,
    TensorInput,
)
from tilewright.runtime.specs import spec_of

MEASURED = ROOT / "benchmarks" / "results" / "2026-11-15-h200-examples.json"


@dataclass(frozen=True)
class Row:
    case: str
    size: str
    measured_us: float
    modelled_us: float
    terms_us: dict[str, float]
    seconds: float

    @property
    def ratio(self) -> float:
        return self.modelled_us / self.measured_us


def task_of(file: KernelFile, values: Sequence[Any], gpu: str) -> Task:
    """A task with these arguments. Sizes that are equal are one dimension, unless a single tensor has them both."""
    alone = sum(isinstance(value, torch.Tensor) and value.ndim > 1 for value in values) == 1
    inputs: list[TensorInput | NumberInput] = []
    dimensions: dict[str, Dimension] = {}
    for parameter, value in zip(file.plan.op.parameters, values, strict=False):
        if isinstance(value, torch.Tensor):
            spec = spec_of(value)
            names = tuple(
                f"d{size}" + (f"_{axis}" if alone and spec.shape.count(size) > 1 else "")
                for axis, size in enumerate(spec.shape)
            )
            dimensions |= {name: Dimension(name, size) for name, size in zip(names, spec.shape, strict=True)}
            order = tuple(sorted(range(spec.ndim), key=lambda axis: -spec.stride[axis]))
            drawn = NormalValues() if spec.dtype.is_float else IntegerValues(0, 100)
            dense = () if spec.is_contiguous else order
            inputs.append(TensorInput(parameter.name, spec.dtype, names, drawn, dense, parameter.in_place))
        elif value is not None:
            kind = ScalarType.FLOAT if isinstance(value, float) else ScalarType.INT
            inputs.append(NumberInput(parameter.name, kind, value))
    outputs: tuple[TaskOutput, ...] = ()  # the model takes them from the plan
    return Task(file.plan.op.name, "", "f", tuple(inputs), outputs, tuple(dimensions.values()), gpu=gpu)


def modelled(row: dict[str, Any], emulator: EmulatedDevice, gpu: str) -> Row:
    size = next(one for one in SIZES if (one.case, one.label) == (row["case"], row["size"]))
    path = EXAMPLES / row["file"]
    file = parse(path.read_text(), path.name, allow_library=True)
    task = task_of(file, size.make(torch.device("meta")), gpu)
    start = time.perf_counter()
    made = model_plan(count_plan(file, task, row["choice"], emulator), task, row["floor_us"]).modelled
    terms = {term.name: round(term.time_us, 2) for term in made.terms}
    return Row(row["case"], row["size"], row["median_us"]["ours"], made.time_us, terms, time.perf_counter() - start)


def rank_correlation(rows: Sequence[Row]) -> float:
    """Spearman's, of score and time."""
    ranks = [
        [sorted(values).index(value) for value in values]
        for values in ([row.modelled_us for row in rows], [row.measured_us for row in rows])
    ]
    return statistics.correlation(*ranks)


def mean_factor(rows: Sequence[Row]) -> float:
    """By what factor score and time differ, in the geometric mean."""
    return math.exp(statistics.fmean(abs(math.log(row.ratio)) for row in rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measured", type=Path, default=MEASURED, help="a result of bench_examples")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="cases whose name contains one of these")
    parser.add_argument("--out", type=Path, help="also write the numbers to this JSON file")
    options = parser.parse_args()
    measured = json.loads(options.measured.read_text())
    gpu = next(name for name in PROFILES if name in measured["gpu"])
    known = {(one.case, one.label) for one in SIZES}
    rows: list[Row] = []
    left_out: list[str] = []
    with EmulatedDevice(PROFILES[gpu]) as emulator:
        for one in measured["rows"]:
            if (one["case"], one["size"]) not in known or not _is_wanted(one["case"], options.only):
                continue
            try:
                rows.append(modelled(one, emulator, gpu))
            except (NotCounted, NotPrepared) as problem:
                left_out.append(f"{one['case']} {one['size']}: {problem}")
                continue
            row = rows[-1]
            times = f"{row.measured_us:>9.1f} us {row.modelled_us:>9.1f} {row.ratio:>6.2f}"
            print(f"{row.case:<24}{row.size:<22}{times}   {next(iter(row.terms_us))}", flush=True)
    for reason in left_out:
        print(f"LEFT OUT: {reason}")
    if len(rows) < 3:
        raise SystemExit("fewer than three rows: there is nothing to correlate")
    spearman, factor = rank_correlation(rows), mean_factor(rows)
    print(f"{len(rows)} rows: rank correlation {spearman:.3f}, score and time differ by a factor of {factor:.3f}")
    if options.out is not None:
        write_result(
            options.out,
            {
                "gpu": f"{gpu} (modelled), {measured['gpu']} (measured)",
                "measured": options.measured.name,
                "rank_correlation": spearman,
                "mean_factor": factor,
                "rows": [asdict(row) for row in rows],
                "left_out": left_out,
            },
        )


def _is_wanted(case: str, only: list[str] | None) -> bool:
    return only is None or any(part in case for part in only)


if __name__ == "__main__":
    main()
