"""Faults that compute-sanitizer reports: what it printed on an H200 for known faults, and whatever else it may do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from benchmarks.spool_cases import make_job, tensor
from tests.devices.scripted_jobs import RUNNER, scripted_job

from tilewright.devices.child_device import CudaDevice
from tilewright.devices.sanitizer import SANITIZER, read_findings, sanitize_job
from tilewright.devices.vendor_tools import ToolUnavailable
from tilewright.records import PROFILES, Completed, DType, FindingKind, GpuProfile, Job, Limits, ThreadRecord, Watch
from tilewright.toolchain.nvrtc import INSTALL_CUTE, find_toolkit

SAID = Path(__file__).parent / "sanitizer"
PLAN = """//! op      f(x) -> y
//! out     y: f32[x.shape]
//! need    x.dtype == f32
//! launch  k<<<2, 64>>>(x, y, x.numel)
"""
KERNELS = {
    "oob": """__device__ void put(float* y, int i, float v) {
  y[i] = v;
}
__global__ void k(const float* x, float* y, long long n) {
  int i = blockIdx.x * 64 + threadIdx.x;
  put(y, i, x[i] + 1.0f);
}
""",
    "mis": """__global__ void k(const float* x, float* y, long long n) {
  int i = threadIdx.x;
  if (i < 10) *(float4*)(y + 1 + 4 * i) = *(const float4*)(x + 4*i);
}
""",
    "race": """__global__ void k(const float* x, float* y, long long n) {
  __shared__ float s[64];
  int i = threadIdx.x;
  s[i] = i < n ? x[i] : 0.0f;
  if (i < n) y[i] = s[63 - i];
}
""",
    "sync": """__global__ void k(const float* x, float* y, long long n) {
  __shared__ float s[64];
  int i = threadIdx.x;
  if (i < n) s[i] = x[i];
  if (i < 40) __syncthreads();
  if (i < n) y[i] = s[i];
}
""",
    "smem": """__global__ void k(const float* x, float* y, long long n) {
  __shared__ float s[64];
  int i = threadIdx.x;
  s[i + 8] = 1.0f;
  __syncthreads();
  if (i < n) y[i] = s[i];
}
""",
    "clean": """__global__ void k(const float* x, float* y, long long n) {
  int i = blockIdx.x * 64 + threadIdx.x;
  if (i < n) y[i] = x[i] + 1.0f;
}
""",
}
ADDRESSES = {"oob": {"x": 0x7F2402800000, "y": 0x7F2402800200}, "mis": {"x": 0x7FA6DE800000, "y": 0x7FA6DE800200}}


def job_of(name: str, gpu: GpuProfile = PROFILES["H200"]) -> Job:
    return make_job(name, PLAN + KERNELS[name], {"x": tensor(DType.F32, (50,), 1, 0, 50)}, {}, gpu)


# Of each: the kind, the line, where, and the other line of a race.
FAULTS = {
    "oob": (FindingKind.OUT_OF_BOUNDS_GLOBAL, 10, "right after the end of x", None),
    "mis": (FindingKind.MISALIGNED, 7, "y[1]", None),
    "race": (FindingKind.RACE_SHARED, 8, "", 9),
    "sync": (FindingKind.BARRIER_DIVERGENCE, 9, "", None),
    "smem": (FindingKind.OUT_OF_BOUNDS_SHARED, 8, "", None),
}


@pytest.mark.parametrize(
    ("name", "tool"),
    [("oob", "memcheck"), ("mis", "memcheck"), ("race", "racecheck"), ("sync", "synccheck"), ("smem", "memcheck")],
)
def test_reports_become_findings_with_their_place(name: str, tool: str) -> None:
    said = (SAID / f"{name}.{tool}.txt").read_text()
    (one,) = read_findings(said, job_of(name), ADDRESSES.get(name, {}))
    assert (one.kind, one.line, one.where, one.other_line) == FAULTS[name]
    assert (one.kernel, one.launch_line) == ("k", 4)
    assert one.count > 1
    assert name == "race" or one.thread is not None


def test_the_first_thread_is_shown() -> None:
    (one,) = read_findings((SAID / "oob.memcheck.txt").read_text(), job_of("oob"), ADDRESSES["oob"])
    assert one.thread == ThreadRecord((0, 0, 0), (50, 0, 0))
    assert str(one) == (
        "k, line 10, thread 50 of block 0: global access outside every tensor: right after the end of x: "
        "read of 4 bytes (3 times)"
    )


def test_warnings_and_clean_runs_are_no_findings() -> None:
    job = job_of("oob")
    assert read_findings((SAID / "oob.synccheck.txt").read_text(), job, {}) == ()
    warned = (SAID / "race.racecheck.txt").read_text().replace("Error: Race", "Warning: Race")
    assert read_findings(warned, job_of("race"), {}) == ()


def test_a_line_of_a_header_is_nobody_s_line() -> None:
    said = (SAID / "oob.memcheck.txt").read_text().replace("kernel.cu:10", "cuda_fp16.hpp:10")
    (one,) = read_findings(said, job_of("oob"), ADDRESSES["oob"])
    assert one.line is None
    assert str(one).startswith("k, thread 50 of block 0: ")


def program(folder: Path, text: str) -> str:
    path = folder / "compute-sanitizer"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_all_tools_are_asked_and_one_finds_something(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "asked"
    script = f"""echo "$2" >> {log}
case "$2" in racecheck) cat {SAID}/race.racecheck.txt ;; *) cat {SAID}/oob.synccheck.txt ;; esac"""
    monkeypatch.setenv(SANITIZER.variable, program(tmp_path, script))
    (one,) = sanitize_job(job_of("race"), 0)
    assert one.kind is FindingKind.RACE_SHARED
    assert sorted(log.read_text().split()) == ["memcheck", "racecheck", "synccheck"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("echo broken", "did not start: broken"),
        ("echo '========= COMPUTE-SANITIZER'; echo '========= Error: Device not supported'", "cannot use this GPU"),
        (f"cat {SAID}/smem.racecheck.txt", "did not run under memcheck: illegal memory access"),
        ("sleep 600", "not done after 1 s"),
    ],
)
def test_reasons_for_no_answer(text: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SANITIZER.variable, program(tmp_path, text))
    with pytest.raises(ToolUnavailable, match=reason):
        sanitize_job(replace(job_of("oob"), limits=Limits(seconds=1.0 if text == "sleep 600" else 300.0)), 0)


def test_without_it_a_watched_job_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SANITIZER.variable, "")
    with CudaDevice(command=RUNNER) as device:
        done = device.execute(replace(scripted_job("p"), watch=Watch.FAULTS))
    assert isinstance(done, Completed)
    assert "compute-sanitizer is not installed" in done.not_watched


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available() or SANITIZER.find() is None, reason="needs a GPU and the sanitizer")
@pytest.mark.parametrize("name", KERNELS)
def test_known_faults_under_the_real_sanitizer(name: str) -> None:
    with CudaDevice() as device:
        job = replace(job_of(name, device.profile), watch=Watch.FAULTS, limits=Limits(seconds=120))
        done = device.execute(job)
    assert isinstance(done, Completed)
    if done.not_watched:
        pytest.skip(done.not_watched)
    if name == "clean":
        assert done.faults == ()
    else:
        one = done.faults[0]
        assert (one.kind, one.line, one.where, one.other_line) == FAULTS[name]


EXAMPLES = Path(__file__).parents[2] / "examples"
MATRICES = {"a": tensor(DType.BF16, (200, 264), 1), "b": tensor(DType.BF16, (264, 136), 2)}
HOPPER = {
    "matmul_wgmma_tma": MATRICES,
    "matmul_cute_sm90": MATRICES,
    "cluster_softmax": {"x": tensor(DType.F32, (3, 40000), 3)},
}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available() or SANITIZER.find() is None, reason="needs a GPU and the sanitizer")
@pytest.mark.parametrize("name", HOPPER)
def test_honest_kernels_that_no_emulator_runs_are_clean(name: str) -> None:
    """Pipelines of TMA, mbarriers and wgmma must not be taken for races."""
    if "cute" in name and find_toolkit().cute_include is None:
        pytest.skip(f"needs CuTe's headers: {INSTALL_CUTE}")
    with CudaDevice() as device:
        if device.profile.cc != 90:
            pytest.skip("needs Hopper")
        job = make_job(name, (EXAMPLES / f"{name}.cu").read_text(), HOPPER[name], {}, device.profile)
        done = device.execute(replace(job, returns=(), watch=Watch.FAULTS, limits=Limits(seconds=120)))
    assert isinstance(done, Completed)
    if done.not_watched:
        pytest.skip(done.not_watched)
    assert done.faults == ()
