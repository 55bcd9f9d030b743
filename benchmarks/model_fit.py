"""Sets the performance model's constants by measured rows, without the third of the operations that is held back.

    python benchmarks/model_fit.py [--counts FOLDER] [--without-each] [--out FILE]

One constant after the other is moved by a quarter, a twelfth or 3 % while that makes the misses smaller: the mean of
|log(modelled / measured)|, the bias, and pairs of one operation's tunings that are out of order. What is printed goes
into performance_model.py by hand, rounded: of several starts, what ranks an operation's tunings best and misses hardly
more than the best. `--without-each` leaves a tenth of all operations out at a time, sets the
constants by the rest, and gives the figures of those left out, all together: no row then had a part in its own time.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tilewright.measure.performance_model as model
from bench_model import GPU, MEASURED, Data, Modelled, Row, counted, figures, tunings
from recording import write_result
from tilewright.devices.child_device import EmulatedDevice
from tilewright.measure.emulated_counts import NotCounted
from tilewright.measure.performance_model import LaunchInputs, model_launch, model_plan
from tilewright.measure.preparation import NotPrepared
from tilewright.records import PROFILES

CONSTANTS = (
    *("L2_BYTES_PER_CYCLE", "SHORT_LOOKUP_BYTES", "PART_LOOKUP_BYTES"),
    *("MEMORY_LATENCY_US", "L2_LATENCY_US", "DELAYED"),
    *("BLOCK_LATENCY_US", "BLOCK_START_US", "FEW_WAVES"),
    *("SIDE_ORDER", "TURNS_ORDER", "KINDS_ORDER", "LATENCY_ORDER", "OUT_OF_STEP"),
)
STEPS = (0.8, 0.92, 0.97, 1.03, 1.08, 1.25)
FOLDS = 10
_FAR = 0.7  # a miss counts no more than this, of a logarithm
_TELLS = 0.03  # a pair's modelled times, apart by this, count as told apart
_MOST = 0.15  # and a pair counts by how far apart it was measured, up to this
_BIAS, _ORDER = 0.3, 0.25  # weights beside that of a miss

Constants = dict[str, float]


@dataclass(frozen=True)
class Plan:
    """A row as far as no constant has a part in it."""

    row: Row
    facts: tuple[LaunchInputs, ...]
    beside_us: float  # launches and library steps

    def modelled(self) -> Modelled:
        launches = [model_launch(one, PROFILES[GPU]) for one in self.facts]
        terms: dict[str, float] = {}
        for term in (term for launch in launches for term in launch.terms):
            terms[term.name] = terms.get(term.name, 0.0) + term.time_us
        time_us = math.fsum(launch.time_us for launch in launches) + self.beside_us
        assert self.row.measured_us is not None
        return Modelled(self.row, self.row.measured_us, time_us, max(terms, key=terms.__getitem__, default=""), terms)


def modelled(plans: Sequence[Plan], constants: Constants) -> list[Modelled]:
    for name, value in constants.items():
        setattr(model, name, value)
    return [plan.modelled() for plan in plans]


def misses(rows: Sequence[Modelled]) -> float:
    logs = [math.log(row.ratio) for row in rows]
    near = statistics.fmean(min(abs(one), _FAR) for one in logs)
    return near + _BIAS * abs(statistics.fmean(logs)) + _ORDER * (1.0 - order(rows))


def order(rows: Sequence[Modelled]) -> float:
    """1 where all pairs of an operation's tunings are in order, 0 where as many are as not."""
    found = []
    for group in tunings(rows).values():
        right = weights = 0.0
        for one, other in itertools.combinations(group, 2):
            apart = math.log(one.measured_us / other.measured_us)
            weight = min(abs(apart), _MOST)
            told = math.log(one.modelled_us / other.modelled_us) * math.copysign(1.0, apart)
            right += weight * math.tanh(told / _TELLS)
            weights += weight
        found.append(right / weights)
    return statistics.fmean(found) if found else 1.0


def fit(plans: Sequence[Plan], start: Constants, rounds: int = 2) -> Constants:
    best, constants = misses(modelled(plans, start)), start
    for _, name, step in itertools.product(range(rounds), start, STEPS):
        tried = {**constants, name: constants[name] * step}
        found = misses(modelled(plans, tried))
        if found < best:
            best, constants = found, tried
    return constants


def without_each(plans: Sequence[Plan], start: Constants) -> list[Modelled]:
    """Every row by constants that no row of its operation had a part in."""

    def fold(plan: Plan) -> int:
        return int(hashlib.sha256(plan.row.op.split(" ")[0].encode()).hexdigest(), 16) // 3 % FOLDS

    found = []
    for number in range(FOLDS):
        constants = fit([plan for plan in plans if fold(plan) != number], start, rounds=1)
        found += modelled([plan for plan in plans if fold(plan) == number], constants)
    return found


def read(counts: Path | None) -> list[Plan]:
    data, plans = Data.read(MEASURED), []
    with EmulatedDevice(PROFILES[GPU]) as emulator:
        for row in data.rows:
            try:
                made = model_plan(counted(data, row, emulator, counts), data.of(row)[1], 0.0)
            except (NotCounted, NotPrepared) as problem:
                print(f"LEFT OUT: {row.op} {row.choice}: {str(problem)[:100]}")
                continue
            beside_us = made.modelled.time_us - math.fsum(launch.time_us for launch in made.launches)
            plans.append(Plan(row, tuple(launch.facts for launch in made.launches), beside_us))
    return plans


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", type=Path, metavar="FOLDER", help="where emulated counts are kept")
    parser.add_argument("--without-each", action="store_true", help="also leave out each operation in turn")
    parser.add_argument("--out", type=Path, help="also write the numbers to this JSON file")
    options = parser.parse_args()
    plans = read(options.counts)
    start = {name: float(getattr(model, name)) for name in CONSTANTS}
    constants = fit([plan for plan in plans if not plan.row.is_held_back], start)
    held_back = [plan for plan in plans if plan.row.is_held_back]
    result: dict[str, Any] = {"constants": constants, "held_back": figures(modelled(held_back, constants))}
    if options.without_each:
        result["without_each"] = figures(without_each(plans, start))
    print(json.dumps(result, indent=1))
    if options.out is not None:
        write_result(options.out, {"gpu": GPU, **result})


if __name__ == "__main__":
    main()
