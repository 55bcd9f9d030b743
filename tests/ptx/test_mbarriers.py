"""What is said of threads that wait at mbarriers, and that waiting costs nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.ptx.harness import Outcome, prepare

from tilewright.kernel_file import parse
from tilewright.ptx.launching import LaunchOptions
from tilewright.records import PROFILES, FindingKind, FindingRecord

SEEDED, SAMPLES = Path(__file__).parent / "seeded", Path(__file__).parent / "samples"

POLLS = """\
//! op      handed_over(x) -> y
//! out     y: f32[32]
//! need    x.dtype == f32 and device.cc >= 90
//! launch  handed_over<<<1, 64>>>(x, y)

__global__ void handed_over(const float* x, float* y) {
  __shared__ float tile[32];
  __shared__ __align__(8) unsigned long long barrier;
  unsigned b = (unsigned)__cvta_generic_to_shared(&barrier);
  if (threadIdx.x == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], 32;" ::"r"(b) : "memory");
  __syncthreads();
  if (threadIdx.x < 32) {
    int done = 0, rounds = 0;
    while (!done) {
      asm volatile("{ .reg .pred p; mbarrier.FORM p, [%1], %2; selp.s32 %0, 1, 0, p; }"
                   : "=r"(done) : "r"(b), "r"(0) : "memory");
      ++rounds;
    }
    y[threadIdx.x] = tile[31 - threadIdx.x] + (rounds < 1000 ? 0.0f : 1.0f);
  } else {
    float value = x[threadIdx.x - 32];
    for (int k = 0; k < 4000; ++k) value = -value;
    tile[threadIdx.x - 32] = value;
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(b) : "memory");
  }
}
"""


def run(text: str, x: torch.Tensor, seed: int | None = None) -> Outcome:
    call = prepare(parse(text, "mbarriers.cu"), (x,), PROFILES["H200"])
    return call.run(LaunchOptions(seed=seed, workers=1, instruction_budget=2_000_000))


def stuck(name: str, shape: tuple[int, ...]) -> FindingRecord:
    outcome = run((SEEDED / f"{name}.cu").read_text(), torch.ones(shape))
    (finding,) = (one for one in outcome.findings if one.kind is FindingKind.DEADLOCK)
    return finding


@pytest.mark.parametrize("form", ["try_wait.parity.shared::cta.b64", "test_wait.parity.acquire.cta.shared::cta.b64"])
def test_a_thread_that_polls_sleeps_until_the_phase_ends(form: str) -> None:
    x = torch.arange(32.0)
    for seed in (None, 5):
        outcome = run(POLLS.replace("FORM", form), x, seed)
        assert outcome.findings == ()
        assert outcome.results[0].equal(x.flip(0))


def test_a_deadlock_names_the_missing_arrivals() -> None:
    finding = stuck("ring_arrival_missing", (5, 128))
    assert (finding.where, finding.line) == ("mbarrier", 29)  # of all that wait, where some have come and some not
    assert "byte 0 of empty in shared memory, initialised at line 24 (32 of 128 arrivals missing)" in finding.detail


def test_a_deadlock_names_the_missing_bytes() -> None:
    finding = stuck("bulk_expects_too_many", (256,))
    assert "phase 0 of the mbarrier at byte 0 of barrier" in finding.detail
    assert "(16 bytes missing) at line 28" in finding.detail


@pytest.mark.slow
@pytest.mark.parametrize("name", ["libcu_barrier", "libcu_pipeline", "tensormap_replace"])
def test_what_headers_and_grouped_products_write(name: str) -> None:
    """cuda::barrier, cuda::memcpy_async and cuda::pipeline, and a map that the kernel changes: without a finding."""
    x = torch.arange(1088.0).reshape(17, 64) if name == "tensormap_replace" else torch.arange(1024.0)
    for seed in (None, 1, 2):
        outcome = run((SAMPLES / f"{name}.cu").read_text(), x, seed)
        assert outcome.findings == ()
        assert outcome.results[0].equal(2 * x)


WHOLE_BLOCK = """\
//! op      reversed(x) -> y
//! out     y: f32[x.shape]
//! need    x.dtype == f32 and device.cc >= 90
//! launch  reversed<<<1, 1024>>>(x, y)

__global__ void reversed(const float* x, float* y) {
  __shared__ __align__(128) float tile[1024];
  __shared__ __align__(8) unsigned long long barrier;
  unsigned b = (unsigned)__cvta_generic_to_shared(&barrier), to = (unsigned)__cvta_generic_to_shared(tile);
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1; fence.mbarrier_init.release.cluster;" ::"r"(b) : "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 4096;" ::"r"(b) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 4096, [%2];"
                 ::"r"(to), "l"(x), "r"(b) : "memory");
  }
  __syncthreads();
  asm volatile("{ .reg .pred p; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0; @!p bra AGAIN; }"
               ::"r"(b) : "memory");
  y[threadIdx.x] = tile[1023 - threadIdx.x];
}
"""


def test_a_block_of_all_threads_may_wait_for_a_copy() -> None:
    """No thread number is left to stand for the copy, and nothing wrong is said of it."""
    x = torch.arange(1024.0)
    for seed in (None, 3):
        outcome = run(WHOLE_BLOCK, x, seed)
        assert outcome.findings == ()
        assert outcome.results[0].equal(x.flip(0))


def test_lanes_that_meet_later_are_not_to_blame() -> None:
    """One lane waits for ever, the others of its warp for that lane: it is the mbarrier's fault, not the mask's."""
    text = POLLS.replace("mbarrier.FORM p, [%1], %2", "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2")
    text = text.replace("[%0], 32;", "[%0], 33;").replace("while (!done)", "while (!done && threadIdx.x == 0)")
    text = text.replace("    y[threadIdx.x] = tile", "    __syncwarp();\n    y[threadIdx.x] = tile")
    for seed in (None, 5):
        (finding,) = run(text, torch.arange(32.0), seed).findings
        assert finding.kind is FindingKind.DEADLOCK
        assert "(1 of 33 arrivals missing)" in finding.detail


# -- a ring of two stages, passed very often: what the race detector keeps of it must not run out --

RING = """\
//! op      passed_on(x) -> y
//! out     y: i32[32]
//! need    x.dtype == i32 and device.cc >= 90
//! launch  passed_on<<<1, 64>>>(x, y)

__device__ void wait(unsigned b, int parity) {
  asm volatile("{ .reg .pred p; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra AGAIN; }"
               ::"r"(b), "r"(parity) : "memory");
}
__device__ void arrive(unsigned b) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(b) : "memory"); }

__global__ void passed_on(const int* x, int* y) {
  __shared__ int stage[2][32];
  __shared__ __align__(8) unsigned long long barriers[4];
  unsigned b = (unsigned)__cvta_generic_to_shared(barriers);
  if (threadIdx.x < 4) asm volatile("mbarrier.init.shared::cta.b64 [%0], 32;" ::"r"(b + 8 * threadIdx.x) : "memory");
  __syncthreads();
  int lane = threadIdx.x % 32, sum = 0;
  for (int k = 0; k < ROUNDS; ++k) {
    unsigned full = b + k % 2 * 8, empty = full + 16;
    if (threadIdx.x < 32) {
      wait(empty, (k / 2 & 1) ^ 1);
      stage[k % 2][lane] = x[lane] + k;
      if (k == BROKEN) stage[1 - k % 2][lane] = 0;
      arrive(full);
    } else {
      wait(full, k / 2 & 1);
      sum += stage[k % 2][31 - lane];
      arrive(empty);
    }
  }
  if (threadIdx.x >= 32) y[lane] = sum;
}
"""
ROUNDS = 8000


@pytest.mark.parametrize("broken", [-1, ROUNDS - 1])
def test_a_long_pipeline_is_checked_to_its_end(broken: int) -> None:
    x = torch.arange(32, dtype=torch.int32)
    text = RING.replace("ROUNDS", str(ROUNDS)).replace("BROKEN", str(broken))
    call = prepare(parse(text, "mbarriers.cu"), (x,), PROFILES["H200"])
    outcome = call.run(LaunchOptions(seed=3, workers=1))
    assert [launch.incomplete for launch in outcome.launches] == [()]
    if broken < 0:
        assert outcome.findings == ()
        assert outcome.results[0].equal(x.flip(0) * ROUNDS + sum(range(ROUNDS)))
    else:  # the other stage may still be read
        assert {one.kind for one in outcome.findings} == {FindingKind.RACE_SHARED}


ALONE = """\
//! op      told_alone(x) -> y
//! out     y: i32[32]
//! need    x.dtype == i32 and device.cc >= 90
//! launch  told_alone<<<1, 96>>>(x, y)

__global__ void told_alone(const int* x, int* y) {
  __shared__ int first, second;
  __shared__ __align__(8) unsigned long long barriers[2];
  unsigned b = (unsigned)__cvta_generic_to_shared(barriers);
  if (threadIdx.x < 2) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(b + 8 * threadIdx.x) : "memory");
  __syncthreads();
  if (threadIdx.x >= 32) {  // each of two warps tells one number
    if (threadIdx.x % 32) return;
    *(threadIdx.x == 32 ? &first : &second) = x[threadIdx.x / 32];
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(b + threadIdx.x / 32 * 8 - 8) : "memory");
    return;
  }
#define WAIT(b) \\
  asm volatile("{ .reg .pred p; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0; @!p bra AGAIN; }" \\
               ::"r"(b) : "memory")
  if (threadIdx.x == READER) WAIT(b);
  WAIT(b + 8);
  int also = 0;
  if (threadIdx.x == 5)  // nobody else, not even ahead of time
    asm volatile("ld.shared.s32 %0, [%1];" : "=r"(also) : "r"((unsigned)__cvta_generic_to_shared(&first)) : "memory");
  y[threadIdx.x] = second + also;
}
"""


@pytest.mark.parametrize(("reader", "races"), [(5, False), (6, True)])
def test_what_one_lane_was_told_stays_with_it(reader: int, races: bool) -> None:
    x = torch.arange(32, dtype=torch.int32)
    outcome = run(ALONE.replace("READER", str(reader)), x)
    assert bool(outcome.findings) == races, outcome.findings
    assert {one.kind for one in outcome.findings} <= {FindingKind.RACE_SHARED}


ROLES = """\
//! op      by_roles(x) -> y
//! out     y: i32[32]
//! need    x.dtype == i32 and device.cc >= 90
//! launch  by_roles<<<1, 64>>>(x, y)

__global__ void by_roles(const int* x, int* y) {
  __shared__ int stage[32];
  __shared__ __align__(8) unsigned long long barrier;
  unsigned b = (unsigned)__cvta_generic_to_shared(&barrier);
  int lane = threadIdx.x % 32, left = FIRST_LANE ? lane : 0;
  if (threadIdx.x < 32) {  // every lane of the warp, with the same count
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(b), "r"(32 + left) : "memory");
    asm volatile("bar.sync 15;" ::: "memory");
    stage[lane] = x[lane];
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(b) : "memory");
  } else {
    asm volatile("bar.sync 15;" ::: "memory");  // the same barrier, met at another place
    asm volatile("{ .reg .pred p; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0; @!p bra AGAIN; }"
                 ::"r"(b) : "memory");
    y[lane] = stage[31 - lane];
  }
}
"""


def test_warps_with_roles_of_their_own_meet_at_different_places() -> None:
    x = torch.arange(32, dtype=torch.int32)
    outcome = run(ROLES.replace("FIRST_LANE", "0"), x)
    assert outcome.findings == ()
    assert outcome.results[0].equal(x.flip(0))
    different = run(ROLES.replace("FIRST_LANE", "1"), x)  # counts that differ are no longer one barrier's
    assert FindingKind.RACE_SHARED in {one.kind for one in different.findings}
