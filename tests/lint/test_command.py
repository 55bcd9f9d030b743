"""`tilewright lint` as a person types it, and its section in `tilewright check`."""

from __future__ import annotations

import json
from pathlib import Path

from tests.frontends.in_process import tilewright
from tests.lint.test_rules import examples

from tilewright.records import LintReport, LintRule, Severity, from_json


def written(folder: Path, rule: LintRule, number: int) -> Path:
    path = folder / "kernel.cu"
    firing, silent, _ = examples(rule)
    path.write_text((firing, silent)[number])
    return path


def test_an_error_is_shown_with_its_line_and_ends_with_1(tmp_path: Path) -> None:
    done = tilewright(tmp_path, "lint", written(tmp_path, LintRule.MISSING_BOUNDS, 0))
    assert done.returncode == 1
    assert "error: missing-bounds in doubled" in done.stdout
    assert "7 | y[i] = 2.0f * x[i];" in done.stdout
    assert "do:  compare the index with the size" in done.stdout
    assert "1 error at x = f32[7, 203] (chosen here); other sizes were not looked at" in done.stdout


def test_a_clean_file_ends_with_0(tmp_path: Path) -> None:
    done = tilewright(tmp_path, "lint", written(tmp_path, LintRule.MISSING_BOUNDS, 1), "--shape", "x=999:f32")
    assert done.returncode == 0
    assert done.stdout.rstrip().splitlines()[-1].startswith("clean at x = f32[999]: the first and last block")


def test_sizes_that_nobody_gave_are_named_and_it_does_not_say_clean(tmp_path: Path) -> None:
    done = tilewright(tmp_path, "lint", written(tmp_path, LintRule.MISSING_BOUNDS, 1))
    assert done.returncode == 0
    assert "no findings at x = f32[7, 203] (chosen here)" in done.stdout
    assert "other sizes were not looked at: give --shape and --set" in done.stdout
    assert "clean" not in done.stdout


FLAT = """\
//! op      add(a, b, c!, n: int)
//! need    a.dtype == f32 and b.dtype == f32 and c.dtype == f32
//! launch  add<<<ceil_div(n, 256), 256>>>(a, b, c, n)
__global__ void add(const float* a, const float* b, float* c, int n) {
  int i = blockIdx.x * 256 + threadIdx.x;
  c[i] = a[i] + b[i];
}
"""


def test_a_number_of_elements_is_chosen_as_the_tensors_have_it(tmp_path: Path) -> None:
    (tmp_path / "add.cu").write_text(FLAT)
    done = tilewright(tmp_path, "lint", tmp_path / "add.cu")
    assert done.returncode == 1, done.stdout
    assert "missing-bounds" in done.stdout
    assert "at a = f32[1421], b = f32[1421], c = f32[1421], n = 1421 (chosen here)" in done.stdout
    (tmp_path / "add.cu").write_text(FLAT.replace("  c[i]", "  if (i < n) c[i]"))
    assert tilewright(tmp_path, "lint", tmp_path / "add.cu").returncode == 0
    sizes = [f"--shape={name}=30x100" for name in "abc"]
    assert tilewright(tmp_path, "lint", tmp_path / "add.cu", *sizes, "--set", "n=3000").returncode == 0


def test_json_is_the_record(tmp_path: Path) -> None:
    done = tilewright(tmp_path, "lint", written(tmp_path, LintRule.SERIAL_ATOMIC, 0), "--json", "--shape", "x=999:f32")
    report: LintReport = from_json(LintReport, json.loads(done.stdout))
    (finding,) = report.findings
    assert (done.returncode, finding.rule, finding.severity) == (0, LintRule.SERIAL_ATOMIC, Severity.WARNING)
    assert report.arguments == {"x": "f32[999]"}


def test_sizes_the_plan_refuses_are_one_sentence(tmp_path: Path) -> None:
    done = tilewright(tmp_path, "lint", written(tmp_path, LintRule.MISSING_BOUNDS, 1), "--shape", "x=8:f16")
    assert done.returncode == 2
    assert "`x.dtype == f32` is false" in done.stderr


def test_a_file_that_does_not_compile_ends_with_1(tmp_path: Path) -> None:
    path = written(tmp_path, LintRule.MISSING_BOUNDS, 1)
    path.write_text(path.read_text().replace("2.0f", "two"))
    done = tilewright(tmp_path, "lint", path)
    assert done.returncode == 1
    assert "not built" in done.stdout


def test_check_has_a_short_section(tmp_path: Path) -> None:
    done = tilewright(tmp_path, "check", written(tmp_path, LintRule.SERIAL_ATOMIC, 0), "--schedules", "1")
    assert done.returncode == 0
    assert "total: serial-atomic (warning): all 32 lanes of a warp add to one address" in done.stdout
