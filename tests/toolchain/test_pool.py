"""Compile children: limits, death, replacement, threads, forks, and no orphans. All with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.waiting import wait_until

from tilewright.records import Build, BuildFailure, BuildRequest, FailureReason
from tilewright.toolchain import BuildLimits, CompilePool

GOOD = "__global__ void k(float* x) { x[threadIdx.x] = %d; }"
LIMITS = BuildLimits(seconds=3.0, memory_bytes=1 << 30)
PATIENT = BuildLimits(seconds=60.0, memory_bytes=1 << 29)

TYPES = (
    "template <int N, class... T> struct F : F<N - 1, T..., T...> {};\ntemplate <class... T> struct F<0, T...> {};\n"
)
BOMBS = {
    "doubling templates": (TYPES + "__global__ void k(int* x) { F<40, int> f; x[0] = 1; }", "time or memory"),
    "doubling macros": (
        "#define A0 x[0] += 1;\n"
        + "".join(f"#define A{i} A{i - 1} A{i - 1}\n" for i in range(1, 40))
        + "__global__ void k(int* x) { A39 }",
        "time or memory",
    ),
    "unrolling": (
        "__global__ void k(float* x) {\n#pragma unroll\nfor (int i = 0; i < 100000; i++) {\n#pragma unroll\n"
        "for (int j = 0; j < 1000; j++) x[i * j] = sinf(x[i + j]); } }",
        "time or memory",
    ),
    "huge table": (
        "__device__ const int big[1ll << 34] = {1, 2, 3};\n__global__ void k(int* x) { x[0] = big[threadIdx.x]; }",
        "memory",
    ),
    "endless recursion": (
        "template <int N> struct F { static constexpr int v = F<N + 1>::v + F<N + 2>::v; };\n"
        "__global__ void k(int* x) { x[0] = F<0>::v; }",
        "diagnostics",
    ),
    "endless constant": (
        "constexpr int f() { int s = 0; for (long long i = 0; i < 1000000000000ll; ++i) s += i; return s; }\n"
        "__global__ void k(int* x) { constexpr int v = f(); x[0] = v; }",
        "diagnostics",
    ),
}
OUTCOMES = {
    "time or memory": {FailureReason.TIME, FailureReason.MEMORY},
    "memory": {FailureReason.MEMORY},
    "diagnostics": {FailureReason.DIAGNOSTICS},
}


def request(source: str) -> BuildRequest:
    return BuildRequest(source, (), ("k",), "sm_90a")


@pytest.fixture(scope="module")
def pool() -> Iterator[CompilePool]:
    pool = CompilePool(2)
    yield pool
    pool.close()


def test_a_build_in_a_child(pool: CompilePool) -> None:
    result = pool.run(request(GOOD % 1), "key", BuildLimits())
    assert isinstance(result, Build)
    assert result.key == "key"
    assert result.kernels[0].resources.registers > 0


def test_a_rejected_source_in_a_child(pool: CompilePool) -> None:
    result = pool.run(request("__global__ void k(float* x) {\n  oops;\n}"), "key", BuildLimits())
    assert isinstance(result, BuildFailure)
    assert result.diagnostics[0].line == 2


# One of each outcome is quick: a bomb that takes time takes all that its limits give it.
QUICK_BOMBS = {"unrolling", "endless recursion"}


@pytest.mark.parametrize(
    "name", [name if name in QUICK_BOMBS else pytest.param(name, marks=pytest.mark.slow) for name in BOMBS]
)
def test_bombs_end_and_the_pool_goes_on(pool: CompilePool, name: str) -> None:
    source, outcome = BOMBS[name]
    limits = PATIENT if outcome == "memory" else LIMITS
    started = time.monotonic()
    result = pool.run(request(source), "key", limits)
    assert isinstance(result, BuildFailure)
    assert result.reason in OUTCOMES[outcome]
    assert time.monotonic() - started < limits.seconds + 60
    assert isinstance(pool.run(request(GOOD % 2), "key", BuildLimits()), Build)
    assert len(pool.child_pids()) <= pool.size


def test_a_child_that_died_while_idle_is_replaced(pool: CompilePool) -> None:
    pool.run(request(GOOD % 3), "key", BuildLimits())
    for pid in pool.child_pids():
        os.kill(pid, signal.SIGKILL)
    time.sleep(0.1)
    assert isinstance(pool.run(request(GOOD % 4), "key", BuildLimits()), Build)


def test_a_child_killed_at_work_is_a_crash_and_nothing_more(pool: CompilePool) -> None:
    source, _ = BOMBS["unrolling"]
    results: list[Build | BuildFailure] = []
    limits = BuildLimits(seconds=60, memory_bytes=64 << 30)  # far more than it has by then
    worker = threading.Thread(target=lambda: results.append(pool.run(request(source), "key", limits)))
    pool.run(request(GOOD % 10), "key", BuildLimits())
    before = {pid: _cpu_ticks(pid) for pid in pool.child_pids()}
    worker.start()
    wait_until(lambda: any(_cpu_ticks(pid) >= ticks + 10 for pid, ticks in before.items()))  # 0.1 s: at work
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    worker.join(timeout=300)
    (result,) = results
    assert isinstance(result, BuildFailure)
    assert result.reason is FailureReason.CRASH
    assert isinstance(pool.run(request(GOOD % 5), "key", BuildLimits()), Build)


@pytest.mark.slow
def test_many_threads_share_the_children(pool: CompilePool) -> None:
    with ThreadPoolExecutor(8) as executor:
        results = list(executor.map(lambda i: pool.run(request(GOOD % i), str(i), BuildLimits()), range(24)))
    assert [r.key for r in results] == [str(i) for i in range(24)]
    assert all(isinstance(r, Build) and f"{i}" in r.key for i, r in enumerate(results))
    assert len(pool.child_pids()) <= 2


def test_children_get_no_secrets_and_no_torch(pool: CompilePool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret")
    pool.close()
    pool.run(request(GOOD % 6), "key", BuildLimits())
    (pid,) = pool.child_pids()
    with open(f"/proc/{pid}/environ", "rb") as environment:
        assert b"secret" not in environment.read()
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps:
        text = maps.read()
    assert "libnvrtc" in text
    assert "libtorch" not in text


def test_a_forked_copy_has_children_of_its_own(pool: CompilePool) -> None:
    pool.run(request(GOOD % 7), "key", BuildLimits())
    ours = set(pool.child_pids())
    pid = os.fork()
    if pid == 0:
        fine = not pool.child_pids() and isinstance(pool.run(request(GOOD % 8), "key", BuildLimits()), Build)
        fine = fine and ours.isdisjoint(pool.child_pids())
        pool.close()
        os._exit(0 if fine else 1)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert isinstance(pool.run(request(GOOD % 9), "key", BuildLimits()), Build)
    assert set(pool.child_pids()) >= ours


PARENT = """
import sys, threading, time
from tilewright.records import BuildRequest
from tilewright.toolchain import BuildLimits, CompilePool
pool = CompilePool(1)
good = BuildRequest("__global__ void k(float* x) {{ x[0] = 1; }}", (), ("k",), "sm_90a")
pool.run(good, "key", BuildLimits())
bomb = BuildRequest({bomb!r}, (), ("k",), "sm_90a")
threading.Thread(target=pool.run, args=(bomb, "key", BuildLimits(seconds=60)), daemon=True).start()
time.sleep(0.5)
print(*pool.child_pids(), flush=True)
{end}
"""


@pytest.mark.parametrize("end", ["time.sleep(60)", "sys.exit(0)"])
def test_no_child_outlives_its_parent(end: str) -> None:
    script = PARENT.format(bomb=BOMBS["unrolling"][0], end=end)
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    children = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(children) == 1
    if "sleep" in end:
        parent.kill()
    parent.wait(timeout=300)
    parent.stdout.close()
    wait_until(lambda: not any(_runs(pid) for pid in children))


def _cpu_ticks(pid: int) -> int:
    """How long a process has computed, in hundredths of a second."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False
