"""Hardware counters: ncu's tables as it prints them, and whatever a program called ncu may do instead."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from benchmarks.spool_cases import make_job, tensor
from tests.devices.scripted_jobs import RUNNER, scripted_job

from tilewright.child.process import Interrupted
from tilewright.devices.child_device import CudaDevice
from tilewright.devices.profiler import NCU, profile_job, read_report
from tilewright.devices.vendor_tools import ToolUnavailable
from tilewright.records import Completed, DType, Limits, Watch, from_json, to_json

TABLES = Path(__file__).parent / "ncu"  # of an H200, cut down to a few columns and rows
RAW, LINES = TABLES / "raw.csv", TABLES / "lines.csv"


def test_tables_are_read() -> None:
    (one,) = read_report(f"==PROF== something\n{RAW.read_text()}", f"==WARNING== too\n{LINES.read_text()}")
    assert one.kernel == "masked_softmax"
    assert one.duration_us == pytest.approx(26.144)
    assert one.figures["memory %"] == pytest.approx(50.5, abs=0.1)
    assert one.figures["bytes read"] == pytest.approx(41_475_840)
    assert one.figures["load sectors"] / one.figures["load requests"] == pytest.approx(13.33, abs=0.01)
    assert next(iter(one.waits)) == "device memory or L2"
    assert sum(one.waits.values()) < 1.0  # the rest was issuing, or could have
    assert one.samples == 2837
    by_line = {line.line: line for line in one.lines}
    assert by_line[186].samples == 227
    assert next(iter(by_line[186].waits)) == "a barrier"
    assert [line.line for line in one.lines] == sorted(by_line)
    done = Completed("job", "GPU", (), (), profiles=(one,))
    assert from_json(Completed, to_json(done)) == done


def test_lines_of_other_files_and_kernels_are_left_out() -> None:
    elsewhere = LINES.read_text().replace("/tilewright/kernel.cu", "/usr/include/cuda_fp16.hpp")
    assert read_report(RAW.read_text(), elsewhere)[0].lines == ()
    assert read_report(RAW.read_text(), LINES.read_text().replace("masked_softmax", "other"))[0].lines == ()


def test_a_report_without_kernels_is_no_profile() -> None:
    with pytest.raises(ToolUnavailable, match="no kernel"):
        read_report("==PROF== nothing\n", "")


def program(folder: Path, text: str) -> str:
    path = folder / "ncu"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


WRITES = f"""
case "$*" in
  *--export*) test -n "$TILEWRIGHT_API_KEY" && exit 1
              for word in "$@"; do case $word in *.ncu-rep) touch "$word";; esac; done ;;
  *"page raw"*) cat {RAW} ;;
  *) cat {LINES} ;;
esac
"""


def test_the_program_called_ncu_is_asked_for_a_report_and_its_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(NCU.variable, program(tmp_path, WRITES))
    monkeypatch.setenv("TILEWRIGHT_API_KEY", "not for children")
    (one,) = profile_job(scripted_job("p"), 0)
    assert one.kernel == "masked_softmax"
    assert one.lines


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("echo '==ERROR== ERR_NVGPUCTRPERM - no permission'; exit 1", "may not read the GPU's counters"),
        ("echo connected; echo '==ERROR== Failed to initialize the profiler'", "Failed to initialize the profiler"),
        ("exit 0", "it said nothing"),
        ("sleep 600", "not done after 1 s"),
    ],
)
def test_reasons_for_no_profile(text: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NCU.variable, program(tmp_path, text))
    with pytest.raises(ToolUnavailable, match=reason):
        profile_job(scripted_job("p", seconds=1.0 if text == "sleep 600" else 300.0), 0)


def gone(pid: int) -> bool:
    """Whether a process ends."""
    for _ in range(6000):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (ProcessLookupError, FileNotFoundError):
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def test_what_ncu_started_is_gone_when_its_time_is_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NCU.variable, program(tmp_path, f"sh -c 'echo $$ > {tmp_path}/pid; exec sleep 600' & wait"))
    with pytest.raises(ToolUnavailable):
        profile_job(scripted_job("p", seconds=2.0), 0)
    assert gone(int((tmp_path / "pid").read_text()))


def test_an_interrupt_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NCU.variable, program(tmp_path, "sleep 600"))
    with pytest.raises(Interrupted):
        profile_job(scripted_job("p", seconds=500.0), 0, lambda: True)


STARTER = """
import pathlib, sys
from tilewright.devices.vendor_tools import run_tool
folder, program = pathlib.Path(sys.argv[1]), sys.argv[2]
run_tool(("sh", "-c", 'exec "$0" -c "$1"', sys.executable, program), folder, 600.0, lambda: False)
"""
STARTED = """
import os, pathlib
from tilewright.devices.runner_program import _end_with_parent
pathlib.Path("pid").write_text(str(os.getpid()))
_end_with_parent()
"""


def test_what_runs_under_a_tool_ends_with_the_one_who_started_it(tmp_path: Path) -> None:
    """The starter is killed; the tool knows nothing of that, and the program notices that its input has ended."""
    starter = subprocess.Popen([sys.executable, "-c", STARTER, str(tmp_path), STARTED])
    pid_file = tmp_path / "pid"
    while not (pid_file.exists() and pid_file.read_text()):
        assert starter.poll() is None
        time.sleep(0.05)
    starter.kill()
    starter.wait()
    assert gone(int(pid_file.read_text()))


def test_without_ncu_a_profiled_job_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NCU.variable, "")
    assert NCU.find() is None
    with CudaDevice(command=RUNNER) as device:
        done = device.execute(replace(scripted_job("p"), watch=Watch.COUNTERS))
    assert isinstance(done, Completed)
    assert done.profiles == ()
    assert "Nsight Compute (ncu) is not installed" in done.not_watched


KERNEL = """
//! op      f(x) -> y
//! out     y: f32[x.shape]
//! need    x.dtype == f32
//! launch  copy<<<ceil_div(x.numel, 256), 256>>>(x, y, x.numel)
__global__ void copy(const float* x, float* y, long long n) {
  long long i = blockIdx.x * 256LL + threadIdx.x;
  if (i < n) y[i] = x[i] + 1.0f;
}
"""


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available() or NCU.find() is None, reason="needs a CUDA device and ncu")
def test_a_copy_under_the_real_profiler() -> None:
    with CudaDevice() as device:
        job = make_job("p", KERNEL, {"x": tensor(DType.F32, (1 << 24,), 1, 0, 50)}, {}, device.profile)
        done = device.execute(replace(job, watch=Watch.COUNTERS, limits=Limits(seconds=120)))
    assert isinstance(done, Completed)
    if not done.profiles:
        pytest.skip(done.not_watched)
    (one,) = done.profiles
    assert one.kernel == "copy"
    assert 64e6 < one.figures["bytes read"] < 80e6
    assert one.figures["load sectors"] / one.figures["load requests"] == pytest.approx(4.0, abs=0.1)
    assert {line.line for line in one.lines} <= {5, 6, 7, 8}
    assert 7 in {line.line for line in one.lines}
