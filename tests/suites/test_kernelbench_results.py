"""KernelBench's files: what its own analysis reads of them."""

from __future__ import annotations

import json
import math

import pytest
from tests.suites.made_records import RECORDS, made_suite

from tilewright.suites.figures import COMPILED, EAGER, baseline_times, evaluation

SAMPLE_KEYS = {"sample_id", "compiled", "correctness", "metadata", "runtime", "runtime_stats"}
STATISTICS = {"mean", "std", "min", "max", "num_trials", "hardware", "device"}


def test_the_figures_that_kernelbench_computes_are_the_report_s() -> None:
    """As its analysis does: samples of id 0, a baseline's mean by the problem's file name, the ratio of the two."""
    suite = made_suite()
    results = json.loads(json.dumps(evaluation(suite, RECORDS)))
    baselines = json.loads(json.dumps(baseline_times(suite, RECORDS, EAGER)))["level1"]
    assert sorted(results, key=int) == ["1", "2", "3", "4", "5", "6"]
    assert all([one["sample_id"] for one in samples] == [0] for samples in results.values())
    assert all(set(samples[0]) == SAMPLE_KEYS for samples in results.values())
    right = {number for number, samples in results.items() if samples[0]["correctness"]}
    assert right == {"1", "2", "3", "4"}
    names = {record.id: f"{record.name}.py" for record in RECORDS}
    ratios = [
        baselines[names[number]]["mean"] / results[number][0]["runtime"]
        for number in right
        if names[number] in baselines
    ]
    assert math.prod(ratios) ** (1 / len(ratios)) == pytest.approx(4 ** (1 / 3))


def test_times_are_milliseconds_and_absent_ones_minus_one() -> None:
    results = evaluation(made_suite(), RECORDS)
    (first,), (unmeasured,), (unsupported,) = results["1"], results["4"], results["5"]
    assert first["runtime"] == pytest.approx(0.01)
    assert set(first["runtime_stats"]) == STATISTICS
    assert first["runtime_stats"]["num_trials"] == 2
    assert (unmeasured["correctness"], unmeasured["runtime"], unmeasured["runtime_stats"]) == (True, -1.0, {})
    assert (unsupported["compiled"], unsupported["correctness"], unsupported["runtime"]) == (False, False, -1.0)
    assert "convolution" in unsupported["metadata"]["reason"]


def test_a_baseline_that_was_not_timed_is_left_out() -> None:
    assert set(baseline_times(made_suite(), RECORDS, COMPILED)["level1"]) == {"1_a.py", "2_b.py"}
