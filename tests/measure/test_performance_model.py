"""The model orders versions of the same operation as a GPU does, and its parts are what they say."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.measure import kernels

from tilewright.devices.child_device import EmulatedDevice
from tilewright.kernel_file import KernelFile
from tilewright.measure.emulated_counts import count_plan
from tilewright.measure.performance_model import (
    L2_BYTES_PER_CYCLE,
    PART_LOOKUP_BYTES,
    SAME_SECTOR_US,
    SHORT_LOOKUP_BYTES,
    PlanModel,
    model_launch,
    model_plan,
    norm,
)
from tilewright.measure.what_if import coalesced
from tilewright.records import PROFILES, Dimension, DType, ModelTerm, Task, TaskOutput, TensorInput


def model(file: KernelFile, task: Task, emulator: EmulatedDevice) -> PlanModel:
    return model_plan(count_plan(file, task, None, emulator), task, floor_us=30.0)


def term(made: PlanModel, name: str) -> float:
    return next((one.time_us for one in made.modelled.terms if one.name == name), 0.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("good", "bad", "least_ratio"),
    [
        (kernels.VECTOR, kernels.SCALAR, 1.05),
        (kernels.SCALAR, kernels.STRIDED, 2.0),
        (kernels.VECTOR, kernels.TWO_LAUNCHES, 1.8),
        (kernels.VECTOR, kernels.TWO_PASSES, 1.02),
        (kernels.VECTOR, kernels.CROWDED, 1.5),
    ],
    ids=["scalar loads", "strided", "a launch more", "a pass more", "low occupancy"],
)
def test_a_worse_pointwise_kernel_scores_worse(
    good: KernelFile, bad: KernelFile, least_ratio: float, emulator: EmulatedDevice
) -> None:
    task = kernels.scale_task()
    better, worse = model(good, task, emulator), model(bad, task, emulator)
    assert worse.modelled.time_us > least_ratio * better.modelled.time_us


def test_a_good_pointwise_kernel_is_bound_by_memory_and_near_what_a_gpu_does(emulator: EmulatedDevice) -> None:
    made = model(kernels.VECTOR, kernels.scale_task(16384, 4096), emulator)
    assert made.modelled.terms[0].name == "device memory"
    # 537 MB at the 4.27 TB/s that a long copy reaches on an H200 take 126 us
    assert made.modelled.time_us == pytest.approx(129, rel=0.06)


def test_few_rows_want_several_blocks_each_and_many_rows_do_not(emulator: EmulatedDevice) -> None:
    few = kernels.row_sum_task(16, 1 << 20)
    one, many = (model(kernels.row_sum(blocks), few, emulator) for blocks in (1, 64))
    assert one.modelled.time_us > 2 * many.modelled.time_us
    assert one.modelled.terms[0].name == "latency"
    rows = kernels.row_sum_task(16384, 1024)
    one, many = (model(kernels.row_sum(blocks), rows, emulator) for blocks in (1, 64))
    assert one.modelled.time_us < many.modelled.time_us


def test_bank_conflicts_and_scattered_stores_cost(emulator: EmulatedDevice) -> None:
    task = kernels.transpose_task()
    padded, colliding, naive = (
        model(file, task, emulator) for file in (kernels.transpose(33), kernels.transpose(32), kernels.NAIVE_TRANSPOSE)
    )
    assert padded.modelled.time_us < colliding.modelled.time_us < naive.modelled.time_us
    shared = "L1 and shared memory"
    assert term(colliding, shared) > 5 * term(padded, shared)
    assert padded.launches[0].facts.work.conflict_cycles == 0


def test_the_combination_of_terms_is_the_stated_norm() -> None:
    assert norm([10.0], 4.0) == pytest.approx(10.0)
    assert norm([10.0, 10.0], 4.0) == pytest.approx(10.0 * 2**0.25)
    assert norm([10.0, 2.0], 1.0) == pytest.approx(12.0)
    assert norm([], 4.0) == norm([0.0], 4.0) == 0.0


def test_one_block_that_loads_then_works_takes_the_time_of_both(emulator: EmulatedDevice) -> None:
    """Loading and working overlap as far as there is somebody to take turns."""
    (launch,) = model(kernels.VECTOR, kernels.scale_task(16384, 4096), emulator).launches
    terms = (ModelTerm("device memory", 100.0, ""), ModelTerm("issue slots", 60.0, ""))
    resident = replace(launch.facts.occupancy, blocks_per_sm=1)
    phased = replace(launch.facts, occupancy=resident, code=replace(launch.facts.code, together=8.0))
    assert replace(launch, terms=terms, facts=phased).time_us > 108
    assert replace(launch, terms=terms).time_us < 103


def test_one_block_does_one_kind_of_work_after_the_other(emulator: EmulatedDevice) -> None:
    """With nobody to take turns shared memory and arithmetic add up too, however many waves there are."""
    (launch,) = model(kernels.VECTOR, kernels.scale_task(16384, 4096), emulator).launches
    terms = (ModelTerm("L1 and shared memory", 100.0, ""), ModelTerm("issue slots", 90.0, ""))
    resident = replace(launch.facts.occupancy, blocks_per_sm=1)
    alone = replace(launch.facts, occupancy=resident, code=replace(launch.facts.code, together=8.0), waves=500.0)
    assert replace(launch, terms=terms, facts=alone).time_us > 112
    assert replace(launch, terms=terms).time_us < 105


def test_those_who_take_turns_hide_each_others_latency(emulator: EmulatedDevice) -> None:
    (launch,) = model(kernels.VECTOR, kernels.scale_task(16384, 4096), emulator).launches
    terms = (ModelTerm("device memory", 100.0, ""), ModelTerm("latency", 60.0, ""))
    facts = launch.facts
    alone = replace(
        facts,
        occupancy=replace(facts.occupancy, blocks_per_sm=1),
        code=replace(facts.code, together=float(facts.counted.block_warps)),
    )
    assert (alone.takers, facts.takers) == (1, 64)
    many, one = (replace(launch, terms=terms, facts=each).time_us for each in (facts, alone))
    assert 102 < many < one - 5


def test_a_last_wave_of_few_blocks_takes_as_long_as_a_block_alone(emulator: EmulatedDevice) -> None:
    """The same work in 1.1 waves takes longer than in 1 or in 2, and of many waves the last is hardly seen."""
    (launch,) = model(kernels.VECTOR, kernels.scale_task(16384, 4096), emulator).launches

    def time_us(waves: float) -> float:
        facts = replace(launch.facts, waves=waves)
        terms = (ModelTerm("device memory", 100.0, ""), ModelTerm("latency", 30.0 * facts.rounds, ""))
        return replace(launch, terms=terms, facts=facts).time_us

    assert time_us(1.1) > time_us(1.0) + 10
    assert time_us(1.1) > time_us(1.95)
    facts = [replace(launch.facts, waves=waves) for waves in (100.0, 100.1)]
    terms = (ModelTerm("device memory", 100.0, ""), ModelTerm("latency", 30.0, ""))
    even, odd = (replace(launch, terms=terms, facts=one).time_us for one in facts)
    assert even == pytest.approx(odd, rel=0.01)


def test_sectors_of_many_lines_are_looked_up_one_by_one(emulator: EmulatedDevice) -> None:
    """All bytes of every sector are used, so sectors alone say nothing; a whole line is looked up in two halves."""
    task = kernels.scale_task(16384, 4096)
    (whole,), (parts,) = (model(one, task, emulator).launches for one in (kernels.VECTOR, kernels.SECTOR_BY_SECTOR))
    assert parts.facts.work.load_bytes == pytest.approx(whole.facts.work.load_bytes, rel=0.01)
    size = 16384 * 4096 * 4
    assert whole.facts.work.short_lookups == 0
    assert parts.facts.work.short_lookups == pytest.approx(size / 64, rel=0.01)
    assert (whole.facts.work.half_lookups, whole.facts.work.part_stores) == (0, 0)
    assert parts.facts.work.half_lookups == pytest.approx(size / 128, rel=0.01)
    assert parts.facts.work.part_stores == pytest.approx(3 * parts.facts.work.store_bytes / 128, rel=0.01)
    works = [replace(one.facts.work, store_bytes=0.0, part_stores=0.0) for one in (whole, parts)]
    read_only = [replace(one.facts, work=work) for one, work in zip((whole, parts), works, strict=True)]
    made = [model_launch(facts, PROFILES["H200"]) for facts in read_only]
    times = [{one.name: one.time_us for one in launch.terms}["L2 cache"] for launch in made]
    more = (SHORT_LOOKUP_BYTES / 64 + PART_LOOKUP_BYTES / 128) * size / (L2_BYTES_PER_CYCLE * 132 * 1.98e3)
    assert times[1] - times[0] == pytest.approx(more, rel=0.02)


def test_sectors_that_are_needed_lie_in_few_lines(emulator: EmulatedDevice) -> None:
    """What mending strided loads can gain is not lost to look-ups of lines that would no longer be touched."""
    task = kernels.scale_task(4096, 4096)
    made = model(kernels.STRIDED, task, emulator)
    (launch,) = made.counted.launches
    fixed = replace(
        launch, counts=replace(launch.counts, instructions=tuple(map(coalesced, launch.counts.instructions)))
    )
    changed = model_plan(replace(made.counted, launches=(fixed,)), task, made.modelled.floor_us)
    assert made.launches[0].facts.work.short_lookups > 0
    work = changed.launches[0].facts.work
    assert (work.short_lookups, work.half_lookups, work.part_stores) == (0, 0, 0)


def test_stores_of_a_part_of_a_line_are_looked_up_one_by_one(emulator: EmulatedDevice) -> None:
    (launch,) = model(kernels.VECTOR, kernels.scale_task(16384, 4096), emulator).launches
    parts = replace(launch.facts, work=replace(launch.facts.work, part_stores=1e6))
    times = [
        {one.name: one.time_us for one in model_launch(facts, PROFILES["H200"]).terms}["L2 cache"]
        for facts in (launch.facts, parts)
    ]
    assert times[1] - times[0] == pytest.approx(PART_LOOKUP_BYTES * 1e6 / (L2_BYTES_PER_CYCLE * 132 * 1.98e3))


def test_what_is_stored_passes_l2_twice_whether_it_has_left_it_or_not(emulator: EmulatedDevice) -> None:
    (launch,) = model(kernels.VECTOR, kernels.scale_task(16384, 4096), emulator).launches
    kept = replace(launch.facts, traffic=replace(launch.facts.traffic, written_bytes=0.0, evicted_bytes=0.0))
    times = [
        {one.name: one.time_us for one in model_launch(facts, PROFILES["H200"]).terms} for facts in (launch.facts, kept)
    ]
    assert times[0]["L2 cache"] == times[1]["L2 cache"]
    size = 16384 * 4096 * 4
    assert times[0]["L2 cache"] == pytest.approx(4 * size / (L2_BYTES_PER_CYCLE * 132 * 1.98e3), rel=0.02)
    assert times[0]["device memory"] > 1.5 * times[1]["device memory"]


def test_small_tensors_stay_in_what_shared_memory_leaves_of_l1(emulator: EmulatedDevice) -> None:
    """48 KB that every block reads: each multiprocessor fetches them once, unless blocks take all room on chip."""
    text = """//! op      add(x, w) -> y
//! out     y: x.dtype[x.shape]
//! need    x.dtype == f32 and w.dtype == f32
//! launch  add<<<x.shape[0], 256, %d>>>(x, w, y, x.shape[1])
__global__ void add(const float4* __restrict__ x, const float4* __restrict__ w, float4* __restrict__ y, int cols) {
  const long long start = blockIdx.x * (long long)(cols / 4);
  for (int i = threadIdx.x; i < cols / 4; i += 256) {
    const float4 a = x[start + i], b = w[i];
    y[start + i] = make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
  }
}
"""
    inputs = (TensorInput("x", DType.F32, ("rows", "cols")), TensorInput("w", DType.F32, ("cols",)))
    dims = (Dimension("rows", 4096), Dimension("cols", 12288))
    outputs = (TaskOutput("y", DType.F32, ("rows", "cols")),)
    task = Task("add", "def add(x, w):\n    return x + w\n", "add", inputs, outputs, dims)
    roomy, crowded = (model(kernels.file(text % shared), task, emulator).launches[0] for shared in (0, 110 << 10))
    read = 4096 * 12288 * 4
    assert roomy.facts.l1_bytes == pytest.approx(read - 133 * 12288 * 4, rel=0.01)
    assert crowded.facts.l1_bytes == 0


def test_blocks_of_a_grid_meet_one_after_the_other(emulator: EmulatedDevice) -> None:
    """All that come to a counter, which has a line of its own in scratch, not one of all that the launch writes."""
    (launch,) = model(kernels.VECTOR, kernels.scale_task(16384, 4096), emulator).launches

    def latency(requests: float, counter_bytes: float, cooperative: bool) -> float:
        facts = replace(
            launch.facts,
            work=replace(launch.facts.work, atomic_requests=requests),
            traffic=replace(launch.facts.traffic, counter_bytes=counter_bytes),
            counted=replace(launch.facts.counted, launch=replace(launch.facts.counted.launch, cooperative=cooperative)),
        )
        made = model_launch(facts, PROFILES["H200"])
        return next(one.time_us for one in made.terms if one.name == "latency")

    none = latency(0.0, 128.0, True)
    assert latency(13200.0, 128.0, True) == pytest.approx(none + 13200 * SAME_SECTOR_US)
    assert latency(13200.0, 256.0, True) == pytest.approx(none + 6600 * SAME_SECTOR_US)
    assert latency(132.0, 0.0, True) == pytest.approx(none + 132 * SAME_SECTOR_US)  # the counter of a whole grid
    assert latency(13200.0, 128.0, False) == pytest.approx(none)


def test_atomics_on_one_place_wait_for_each_other(emulator: EmulatedDevice) -> None:
    """As many bytes and atomic operations: 4,096 on each of eight sums, or eight on each of 4,096."""
    crowded = model(kernels.row_sum(512), kernels.row_sum_task(8, 1 << 19), emulator)
    apart = model(kernels.row_sum(1), kernels.row_sum_task(4096, 1 << 10), emulator)
    assert term(crowded, "L2 cache") > 5 * term(apart, "L2 cache")
    assert crowded.modelled.time_us > 2 * apart.modelled.time_us


def test_atomics_on_one_place_hold_up_what_else_passes_l2(emulator: EmulatedDevice) -> None:
    (launch,) = model(kernels.VECTOR, kernels.scale_task(16384, 4096), emulator).launches

    def l2_us(atomic_bytes: float, cooperative: bool) -> float:
        facts = replace(
            launch.facts,
            work=replace(launch.facts.work, atomic_bytes=atomic_bytes, atomic_requests=atomic_bytes / 32),
            traffic=replace(launch.facts.traffic, counter_bytes=128.0),
            counted=replace(launch.facts.counted, launch=replace(launch.facts.counted.launch, cooperative=cooperative)),
        )
        return next(one.time_us for one in model_launch(facts, PROFILES["H200"]).terms if one.name == "L2 cache")

    assert l2_us(128e3, False) == pytest.approx(l2_us(0.0, False) + 1000 * SAME_SECTOR_US, rel=0.01)
    assert l2_us(128e3, True) == pytest.approx(l2_us(0.0, True), rel=0.01)  # these wait, which is in their latency


def test_few_long_blocks_start_sooner_than_many_short_ones(emulator: EmulatedDevice) -> None:
    task = kernels.scale_task(4096, 4096)
    many, few = (
        model(kernels.scale("if (i < n) y[i] = 2 * x[i];", 1, threads), task, emulator) for threads in (64, 512)
    )
    assert term(many, "starting blocks") == pytest.approx(8 * term(few, "starting blocks"), rel=0.01)
    assert few.modelled.time_us < many.modelled.time_us


def test_what_binds_is_a_resource_or_where_none_takes_half_of_the_time_latency(emulator: EmulatedDevice) -> None:
    made = model(kernels.VECTOR, kernels.scale_task(16384, 4096), emulator).modelled
    assert made.bounds[0].name == "device memory"
    assert {one.name for one in made.bounds} == {one.name for one in made.terms} - {"launches"}
    assert replace(made, time_us=10 * made.time_us).bounds[0].name == "latency"


def test_a_model_says_what_it_rests_on(emulator: EmulatedDevice) -> None:
    made = model(kernels.TWO_LAUNCHES, kernels.scale_task(512, 512), emulator).modelled
    assert (made.launches, made.grid_blocks, made.sampled_blocks) == (2, 512, 128)
    assert made.sizes == {"rows": 512, "cols": 512}
    assert made.spill_bytes == 0
    assert made.occupancy == 1.0
    # a megabyte fits in L2, so the second launch reads nothing from memory
    second = model(kernels.TWO_LAUNCHES, kernels.scale_task(512, 512), emulator).launches[1]
    assert second.facts.traffic.read_bytes == 0


def test_amounts_of_a_plan_are_those_of_all_its_launches(emulator: EmulatedDevice) -> None:
    made = model(kernels.TWO_LAUNCHES, kernels.scale_task(512, 512), emulator).modelled
    details = {one.name: one.detail for one in made.terms}
    assert details["starting blocks"] == "512 of them"
    assert details["device memory"].startswith("1.05 MB read, 2.1 MB written")  # the second reads what L2 holds
    assert details["L2 cache"].startswith("7.34 MB")
    assert details["latency"].endswith("in each warp, in copy")  # of one of them


def test_clusters_that_do_not_all_fit_take_a_second_round(emulator: EmulatedDevice) -> None:
    """128 blocks, one to a multiprocessor: an H200 runs 66 clusters of 2 at once and 15 of 8, not 16."""
    task = kernels.scale_task(128, 1024)
    alone, *clustered = (
        model(kernels.file(kernels.CROWDED.text.replace("x.numel)\n", f"x.numel){more}\n", 1)), task, emulator)
        for more in ("", " cluster(2)", " cluster(8)")
    )
    assert [one.launches[0].facts.waves for one in (alone, *clustered)] == [128 / 132, 128 / 132, 128 / 120]
    assert term(clustered[1], "issue slots") == pytest.approx(2 * term(clustered[0], "issue slots"))


def test_what_neighbours_in_a_block_read_is_fetched_once(emulator: EmulatedDevice) -> None:
    """Windows of five, one apart: a block asks for each sector again and again, and L2 is asked once or little more."""
    file = kernels.scale("float v = 0; for (int k = 0; k < 5; ++k) v += x[i + k < n ? i + k : i]; y[i] = v;", 1)
    (launch,) = model(file, kernels.scale_task(4096, 4096), emulator).launches
    size, work = 4096 * 4096 * 4, launch.facts.work
    assert work.load_bytes > 5 * size
    assert work.fetched_bytes == pytest.approx(size, rel=0.05)
    assert launch.facts.l1_bytes == work.load_bytes - work.fetched_bytes
    assert launch.facts.traffic.again_bytes == 0


def test_loads_that_pass_by_l1_are_fetched_each_time(emulator: EmulatedDevice) -> None:
    body = "float v = 0; for (int k = 0; k < 4; ++k) v += %s; y[i] = v;"
    cached, past = (
        model(kernels.scale(body % one, 1), kernels.scale_task(1024, 4096), emulator).launches[0].facts
        for one in ("x[(i + k) % n]", "__ldcg(x + (i + k) % n)")
    )
    assert past.work.load_bytes == cached.work.load_bytes
    assert past.work.fetched_bytes == past.work.load_bytes > 3 * cached.work.fetched_bytes


def test_copies_out_of_shared_memory_are_stores(emulator: EmulatedDevice) -> None:
    text = """//! op      scale(x) -> y
//! out     y: x.dtype[x.shape]
//! need    x.dtype == f32
//! need    device.cc >= 90
//! launch  scale<<<x.numel / 1024, 256>>>(x, y)
__global__ void scale(const float4* __restrict__ x, float4* __restrict__ y) {
  __shared__ alignas(128) float4 held[256];
  const long long i = blockIdx.x * 256ll + threadIdx.x;
  const float4 v = x[i];
  held[threadIdx.x] = make_float4(2 * v.x, 2 * v.y, 2 * v.z, 2 * v.w);
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 4096;" ::"l"(y + blockIdx.x * 256ll),
                 "r"((unsigned)__cvta_generic_to_shared(held)) : "memory");
    asm volatile("cp.async.bulk.commit_group;\\n cp.async.bulk.wait_group 0;" ::: "memory");
  }
}
"""
    (launch,) = model(kernels.file(text), kernels.scale_task(1024, 4096), emulator).launches
    size = 1024 * 4096 * 4
    assert (launch.facts.work.load_bytes, launch.facts.work.store_bytes) == (size, size)
    assert launch.facts.traffic.written_bytes == size
