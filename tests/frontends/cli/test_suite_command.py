"""`tilewright suite` as it is typed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tilewright.frontends.cli.main import app
from tilewright.frontends.cli.suite import _budget_words
from tilewright.records import Budget, Settings
from tilewright.store import Store

SOURCE = """
import torch
def double(x):
    return 2.0 * x
def product(x, w):
    return torch.nn.functional.conv1d(x, w)
"""
LISTING = """
[[task]]
request = "ops.py:double"
shape = { x = "6x40:f32" }
[[task]]
request = "ops.py:product"
shape = { x = "2x3x8:f32", w = "3x3x3:f32" }
[[task]]
request = "ops.py:absent"
"""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["kernelbench", "."], "no KernelBench/level1 and no level1 is in it"),
        (["folder", "."], "name functions and their shapes in a suite.toml"),
        (["folder", "absent"], "there is no such folder"),
        (["folder", ".", "--ids", "1"], "--ids are numbers of KernelBench's problems"),
        (["report", "."], "holds no suite"),
        (["folder", "listed", "--out", "listed"], "is not empty and holds no suite"),
        (["folder", "listed", "--ray", "auto", "--spool", "."], "drop one"),
    ],
)
def test_bad_input_is_one_sentence(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "listed").mkdir()
    (tmp_path / "listed" / "suite.toml").write_text('[[task]]\nrequest = "relu"\n')
    done = CliRunner().invoke(app, ["suite", *arguments, "--author", "playbook"])
    assert said in str(done.exception)


def test_what_a_model_may_cost_is_said_for_all_tasks() -> None:
    paid = Settings("anthropic:claude-sonnet-5", Budget(attempts=3, dollars=0.5))
    assert "$0.50: $32.00 for 64 tasks" in _budget_words(paid, 64)
    assert _budget_words(Settings("playbook", Budget(attempts=3)), 64) == "at most 3 attempts a task"


@pytest.mark.slow
def test_a_suite_that_is_killed_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """Killed with SIGKILL when a run has an attempt on record; what was done is not done again."""
    (tmp_path / "ops.py").write_text(SOURCE)
    (tmp_path / "suite.toml").write_text(LISTING)
    out, home = tmp_path / "out", tmp_path / "home"
    command = [sys.executable, "-m", "tilewright", "suite", "folder", str(tmp_path), "--author", "playbook"]
    command += ["--workers", "2", "--attempts", "3", "--out", str(out)]
    environment = {**os.environ, "TILEWRIGHT_HOME": str(home)}
    first = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 900.0
    while not list(home.glob("runs/double-*/attempts/0001/attempt.json")):
        assert time.monotonic() < deadline
        assert first.poll() is None, "it was to be killed before its end"
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    first.wait()
    (run,) = home.glob("runs/double-*")
    began = (run / "attempts" / "0001" / "attempt.json").read_text()
    done = subprocess.run([*command, "--json"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    tasks = {one["id"]: one for one in report["tasks"]}
    assert {id: one["status"] for id, one in tasks.items()} == {
        "ops-double": "made",
        "ops-product": "unsupported",
        "ops-absent": "refused",
    }
    assert tasks["ops-double"]["run"] == run.name
    assert len(Store(home).runs().runs) == 1, "gone on with, not begun again"
    assert (run / "attempts" / "0001" / "attempt.json").read_text() == began
    assert "convolution" in tasks["ops-product"]["reason"]
    assert "defines no function 'absent'" in tasks["ops-absent"]["reason"]
    assert report["summary"]["counts"]["made"] == 1
    again = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "3 tasks, 3 of them done" in again.stderr
    assert "1 of 3 have a kernel" in again.stdout
