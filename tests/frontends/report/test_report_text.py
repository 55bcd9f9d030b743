"""The report of a suite as people and programs read it."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tests.suites.made_records import RECORDS, made_suite

from tilewright.frontends.report.suite import SuiteReport, closing_words, write_report
from tilewright.records import Measured, Precision, from_json
from tilewright.suites import SuiteFolder, TaskRecord


def reported(
    path: Path, records: Sequence[TaskRecord] = RECORDS, **changes: object
) -> tuple[SuiteReport, dict[str, str]]:
    folder = SuiteFolder(path / "suite")
    folder.begin(replace(made_suite(), **changes))  # type: ignore[arg-type]
    for record in records:
        folder.record(record)
    report, files = write_report(folder)
    return report, {file.name: file.read_text() for file in files}


def test_every_form_of_the_report_has_the_same_figures(tmp_path: Path) -> None:
    report, files = reported(tmp_path)
    assert from_json(SuiteReport, json.loads(files["report.json"])) == report
    text = files["report.md"]
    assert "4 of 8 have a kernel, 3 of them verified at the task's own size" in text
    assert "| over eager | 50.0% | 25.0% | 25.0% | 12.5% | 1.59x | 2.17x | 3 | 1 |" in text
    assert "Of the roofline: median 50%, geometric mean 43%." in text
    times = "10.0 us | 40.0 us | 10.0 us | 4.00x | 1.00x | 1.00x | 80%"
    assert f"| [1_a](kernels/1_a.cu) | verified | {times} | 3 | 10 | a \\| b |" in text
    assert "- **5_e**: unsupported: the playbook does not support the operation convolution" in text
    assert json.loads(files["eval_results.json"])["1"][0]["correctness"] is True
    assert set(json.loads(files["baseline_time_torch.json"])["level1"]) == {"1_a.py", "2_b.py", "3_c.py"}
    assert "over eager: geometric mean 1.59x, arithmetic 2.17x; fast_0 50.0%" in closing_words(report)[1]


def test_the_precision_that_tasks_were_held_to_is_said(tmp_path: Path) -> None:
    first, second, *others = RECORDS
    assert isinstance(first.measurement, Measured)
    assert isinstance(second.measurement, Measured)
    exact = replace(first, measurement=replace(first.measurement, precision=Precision.DEFAULT_F32))
    usual = replace(second, measurement=replace(second.measurement, precision=Precision.DTYPE))
    _, files = reported(tmp_path, (exact, usual, *others))
    assert f"\n1 task: {Precision.DEFAULT_F32.words}." in files["report.md"]
    assert f"\n1 task: {Precision.DTYPE.words}." in files["report.md"]


def test_pictures_are_whole_and_name_every_measured_kernel(tmp_path: Path) -> None:
    _, files = reported(tmp_path)
    for name in ("speedups.svg", "fast_p.svg"):
        ElementTree.fromstring(files[name])
    assert [f"{one}:" in files["speedups.svg"] for one in ("1_a", "2_b", "3_c", "4_d")] == [True, True, True, False]
    assert "4.00x eager, 1.00x torch.compile" in files["speedups.svg"]


def test_a_folder_s_suite_has_no_files_of_kernelbench(tmp_path: Path) -> None:
    _, files = reported(tmp_path, level=None)
    assert not {"eval_results.json", "baseline_time_torch.json"} & files.keys()
