"""Kernels with one fault each: the emulator finds it, names the right line, and finds nothing once it is mended.

Lines at fault carry `// BUG`, the start of a copy that is read too early `// OTHER SIDE`. `mend:` gives the line as it
should be; the twin with every such line replaced must be right and free of findings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.ptx.harness import A100, Outcome, prepare, shown

from tilewright.kernel_file import KernelFile, parse
from tilewright.ptx.launching import LaunchOptions
from tilewright.records import PROFILES, GpuProfile
from tilewright.records import FindingKind as Kind
from tilewright.records.emulation import kernel_line

SEEDED = Path(__file__).parent / "seeded"
MEND = re.compile(r"^.*\bmend: ?")
SEEDS = (None, 1, 2, 3)
BUDGET = 2_000_000  # thread instructions; the largest kernel here takes a tenth

Arguments = tuple[Any, ...]


@dataclass(frozen=True)
class Bug:
    """One seeded file. `stays_right`: the result is right in spite of the bug; None: not said."""

    name: str
    kinds: frozenset[Kind]  # one of these must be found, at a marked line
    make: Callable[[], Arguments]
    reference: Callable[..., torch.Tensor]
    stays_right: bool | None = None
    also: frozenset[Kind] = frozenset()  # consequences that may be reported as well, anywhere
    gpu: GpuProfile = A100


def _x(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Small whole numbers: sums of them are exact in any order."""
    count = torch.Size(shape).numel()
    return ((torch.arange(count) * 7 + 3) % 23 - 11).reshape(shape).to(dtype)


def _x_int(*shape: int) -> torch.Tensor:
    return _x(*shape, dtype=torch.int32)


def _same(x: torch.Tensor) -> torch.Tensor:
    return x


def _twice(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


def _differences(x: torch.Tensor) -> torch.Tensor:
    return x - torch.nn.functional.pad(x, (1, 0))[..., :-1]


def _reverse(x: torch.Tensor) -> torch.Tensor:
    return x.flip(-1)


def _reverse_by(size: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: x.view(-1, size).flip(-1).reshape(x.shape)


def _bins(count: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: torch.bincount(x & (count - 1), minlength=count).to(torch.int32)


def _total(x: torch.Tensor) -> torch.Tensor:
    return x.sum().reshape(1)


def _sum_of_reversed(x: torch.Tensor) -> torch.Tensor:
    return x.sum(0).flip(0)


def _fragments(x: torch.Tensor) -> torch.Tensor:
    """What ldmatrix.x4 gives each lane: matrix i is a quarter of the tile, rows first."""
    tile = torch.zeros(16, 16, dtype=torch.float16)
    tile[: x.shape[0]] = x
    pairs = tile.view(torch.int32)  # [16, 8]
    quarters = [pairs[i % 2 * 8 : i % 2 * 8 + 8, i // 2 * 4 : i // 2 * 4 + 4].reshape(32) for i in range(4)]
    return torch.stack(quarters, 1)


def _square(x: torch.Tensor) -> torch.Tensor:
    tile = torch.zeros(16, 16)
    tile[: x.shape[0]] = x.float()
    return (tile @ tile)[: x.shape[0]]


def _power(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    for _ in range(16):
        y[1::2] = y[1::2] * y[1::2] - 0.5
    return y


def _kinds(*kinds: Kind) -> frozenset[Kind]:
    return frozenset(kinds)


RACE_SHARED, RACE_GLOBAL = _kinds(Kind.RACE_SHARED), _kinds(Kind.RACE_GLOBAL)
OUTSIDE, OUTSIDE_SHARED = _kinds(Kind.OUT_OF_BOUNDS_GLOBAL), _kinds(Kind.OUT_OF_BOUNDS_SHARED)
NO_SHARED, NO_GLOBAL = _kinds(Kind.UNINITIALISED_SHARED), _kinds(Kind.UNINITIALISED_GLOBAL)
NOT_WAITED, NOT_CONSUMED = _kinds(Kind.ASYNC_NOT_WAITED), _kinds(Kind.ASYNC_NOT_CONSUMED)
MISALIGNED, STUCK, MASK = _kinds(Kind.MISALIGNED), _kinds(Kind.DEADLOCK), _kinds(Kind.SHUFFLE_MASK)

BUGS = (
    # out of bounds and misaligned
    Bug("end_off_by_one", OUTSIDE, lambda: (_x(256),), _twice, stays_right=True),
    Bug("row_overrun", OUTSIDE, lambda: (_x(5, 12)[:, 1:8],), lambda x: x.sum(1)),
    Bug("negative_index", OUTSIDE, lambda: (_x(200),), lambda x: x - 0.5 * _differences(x)),
    Bug("vector_tail", OUTSIDE, lambda: (_x(77, dtype=torch.bfloat16),), lambda x: -x),
    Bug("wild_pointer", OUTSIDE, lambda: (_x(130),), _same, stays_right=False),
    Bug("absent_tensor", OUTSIDE, lambda: (_x(50), None), lambda x, _: x),
    Bug("async_source_overrun", OUTSIDE, lambda: (_x(101),), _same),
    Bug("fragment_store_overrun", OUTSIDE, lambda: (_x(13, 16, dtype=torch.float16),), _square),
    Bug("shared_static_overrun", OUTSIDE_SHARED, lambda: (_x(32, 32),), lambda x: torch.cat([x[1:], 0 * x[:1]])),
    Bug("shared_dynamic_overrun", OUTSIDE_SHARED, lambda: (_x(3, 100),), _differences, also=NO_SHARED),
    Bug("shared_not_requested", OUTSIDE_SHARED, lambda: (_x(100),), _reverse, also=NO_SHARED),
    Bug("local_overrun", _kinds(Kind.OUT_OF_BOUNDS_LOCAL), lambda: (_x(9, 11),), _reverse),
    Bug("misaligned_vector", MISALIGNED, lambda: (_x(129),), lambda x: x[1:].view(-1, 4).sum(1)),
    Bug("misaligned_shared", MISALIGNED, lambda: (_x(32, 32),), lambda x: x.sum(1)),
    Bug("misaligned_async", MISALIGNED, lambda: (_x(32, 7),), lambda x: x[:, :4], also=NO_SHARED),
    # memory nothing wrote
    Bug("uninitialised_shared", NO_SHARED, lambda: (_x(256),), lambda x: x.view(-1, 128).sum(1), stays_right=False),
    Bug("uninitialised_histogram", NO_SHARED, lambda: (_x_int(500),), _bins(64)),
    Bug("uninitialised_fragment", NO_SHARED, lambda: (_x(12, 16, dtype=torch.float16),), _fragments),
    Bug("stale_scratch", NO_GLOBAL, lambda: (_x(300),), _total),
    Bug("unwritten_partial", NO_GLOBAL, lambda: (_x(640),), _total),
    Bug("uninitialised_output", NO_GLOBAL, lambda: (_x(100),), lambda x: x + 3),
    Bug(
        "uninitialised_local",
        _kinds(Kind.UNINITIALISED_LOCAL),
        lambda: (_x(20, 9), torch.arange(20, dtype=torch.int32)),
        lambda x, at: torch.nn.functional.pad(x, (0, 7)).gather(1, (at.long() & 15)[:, None])[:, 0],
    ),
    # races in shared memory
    Bug("dropped_barrier", RACE_SHARED, lambda: (_x(300),), _differences, also=NO_SHARED),
    Bug("syncwarp_missing", RACE_SHARED, lambda: (_x(64),), _reverse_by(32), stays_right=True),
    Bug("tile_reused", RACE_SHARED, lambda: (_x(3, 128),), _sum_of_reversed, also=NO_SHARED),
    Bug("double_buffer", RACE_SHARED, lambda: (_x(4, 128),), _sum_of_reversed, also=NO_SHARED),
    Bug(
        "shared_atomic_and_plain",
        RACE_SHARED,
        lambda: (_x(128),),
        lambda x: (x > 0).sum().to(torch.int32).expand(128),
    ),
    # asynchronous copies
    Bug("async_not_waited", NOT_WAITED, lambda: (_x(256),), _reverse_by(128), stays_right=False, also=NOT_CONSUMED),
    Bug(
        "async_wrong_group", NOT_WAITED, lambda: (_x(3, 128),), lambda x: x.sum(0), stays_right=False, also=NOT_CONSUMED
    ),
    Bug(
        "async_never_waited",
        NOT_CONSUMED,
        lambda: (_x(3, 128),),
        lambda x: x.sum(0),
        stays_right=True,
    ),
    Bug(
        "async_barrier_missing",
        RACE_SHARED | NOT_WAITED,
        lambda: (_x(256),),
        _reverse_by(128),
        also=NO_SHARED,
    ),
    Bug("async_overwrites", RACE_SHARED | NOT_WAITED, lambda: (_x(3, 128),), _sum_of_reversed, also=NO_SHARED),
    # races in global memory
    Bug("race_between_blocks", RACE_GLOBAL, lambda: (_x_int(40),), _bins(4)),
    Bug("race_in_block_global", RACE_GLOBAL, lambda: (_x(64),), lambda x: x[32:]),
    Bug("neighbour_block", RACE_GLOBAL, lambda: (_x(20),), lambda x: x.cumsum(0), also=NO_GLOBAL),
    Bug("atomic_and_plain", RACE_GLOBAL, lambda: (_x(200),), _total),
    Bug("last_block_unfenced", RACE_GLOBAL, lambda: (_x(320),), _total, stays_right=True),
    Bug("grid_barrier_unfenced", RACE_GLOBAL, lambda: (_x(128),), _reverse),
    # barriers, masks, ends
    Bug("barrier_in_branch", _kinds(Kind.BARRIER_DIVERGENCE), lambda: (_x(80),), _reverse, also=STUCK),
    Bug("barrier_count", STUCK | _kinds(Kind.BARRIER_DIVERGENCE), lambda: (_x(64),), _reverse),
    Bug("barrier_order", STUCK, lambda: (_x(64),), _same),
    Bug("flag_never_set", STUCK | _kinds(Kind.BUDGET), lambda: (_x(2),), _same),
    Bug("endless_loop", _kinds(Kind.BUDGET), lambda: (_x(100),), _total),
    Bug("shuffle_mask", MASK, lambda: (_x(16),), lambda x: x + x.view(8, 2).flip(1).reshape(16)),
    Bug("shuffle_outside_mask", MASK, lambda: (_x(32),), lambda x: x + x.view(16, 2).flip(1).reshape(32)),
    Bug("shuffle_inactive", MASK, lambda: (_x(16),), lambda x: x + x[15]),
    Bug("vote_mask", MASK, lambda: (_x(20),), lambda x: (x < 0).any().to(torch.int32).expand(20)),
    Bug("failed_assertion", _kinds(Kind.ASSERTION), lambda: (_x(40).abs(),), torch.sqrt),
    Bug("trap", _kinds(Kind.TRAP), lambda: (_x(40).abs(),), torch.sqrt),
    Bug("writes_input", _kinds(Kind.INPUT_WRITTEN), lambda: (_x(140),), _twice, stays_right=True),
)


def _hopper(
    name: str,
    kinds: frozenset[Kind],
    make: Callable[[], Arguments],
    reference: Callable[..., torch.Tensor],
    stays_right: bool | None = None,
    also: frozenset[Kind] = frozenset(),
) -> Bug:
    return Bug(name, kinds, make, reference, stays_right, also, PROFILES["H200"])


MBARRIER, REFUSED = _kinds(Kind.MBARRIER), _kinds(Kind.BULK_COPY)
UNFENCED, IN_FLIGHT = _kinds(Kind.NO_PROXY_FENCE), NOT_WAITED | RACE_SHARED


def _one() -> Arguments:
    return (_x(128),)


def _two() -> Arguments:
    return (_x(256),)


def _rows() -> Arguments:
    return (_x(5, 128),)


def _sum(x: torch.Tensor) -> torch.Tensor:
    return x.sum(0)


HOPPER_BUGS = (
    # bulk loads and the mbarriers that count them
    _hopper("bulk_not_waited", IN_FLIGHT, _two, _reverse_by(128), stays_right=False, also=NO_SHARED),
    _hopper("bulk_wrong_parity", IN_FLIGHT | STUCK, _two, _reverse_by(128), stays_right=False, also=NO_SHARED),
    _hopper("bulk_parity_kept", IN_FLIGHT, _rows, _sum, also=MBARRIER | NOT_CONSUMED | STUCK),
    _hopper("bulk_one_waits", IN_FLIGHT, _two, _reverse_by(128), also=NO_SHARED),
    _hopper("bulk_expects_too_few", MBARRIER, _two, _reverse_by(128), also=NOT_WAITED | NOT_CONSUMED),
    _hopper("bulk_expects_too_many", STUCK, _two, _reverse_by(128)),
    _hopper("bulk_never_consumed", NOT_CONSUMED, _two, _reverse_by(128), stays_right=True),
    _hopper("bulk_misaligned", REFUSED, lambda: (_x(132),), lambda x: x[:128], also=STUCK),
    _hopper("bulk_source_overrun", OUTSIDE, lambda: (_x(300),), lambda x: torch.cat([t.flip(0) for t in x.split(128)])),
    _hopper("map_wrong_rank", REFUSED, lambda: (_x(64),), _same, also=STUCK),
    _hopper("map_unaligned", REFUSED, lambda: (_x(72),), lambda x: x[8:], also=STUCK),
    # bulk stores
    _hopper("bulk_store_unfenced", UNFENCED, _two, _twice, stays_right=True),
    _hopper("bulk_store_early", RACE_SHARED, _two, _twice, also=NO_SHARED),
    _hopper("bulk_store_never_waited", NOT_CONSUMED, _two, _twice, stays_right=True),
    _hopper("bulk_store_overwritten", RACE_SHARED, lambda: (_x(384),), _twice),
    _hopper("bulk_store_read_back", NOT_WAITED, _one, _twice, also=RACE_GLOBAL),
    # mbarriers alone, and rings of them
    _hopper("mbarrier_not_visible", RACE_SHARED | MBARRIER, _two, _reverse_by(128), also=NO_SHARED | NOT_WAITED),
    _hopper("mbarrier_not_fenced", MBARRIER, _two, _reverse_by(128), stays_right=True),
    _hopper("mbarrier_overwritten", MBARRIER, _one, _reverse, also=RACE_SHARED),
    _hopper("mbarrier_too_many", RACE_SHARED | STUCK, _one, _reverse, also=NO_SHARED),
    _hopper("ring_not_awaited", RACE_SHARED, _rows, _sum, also=NOT_WAITED | MBARRIER | NOT_CONSUMED | STUCK),
    _hopper("ring_arrives_early", IN_FLIGHT, _rows, _sum, also=MBARRIER | NOT_CONSUMED | STUCK),
    _hopper("ring_arrival_missing", STUCK, _rows, _sum),
    _hopper("ring_wrong_phase", STUCK, _rows, _sum),
)
BUGS = (*BUGS, *HOPPER_BUGS)
QUICK_HOPPER = ("bulk_not_waited", "bulk_store_unfenced", "ring_not_awaited", "ring_arrival_missing")


def _marked_slow(bugs: Sequence[Bug]) -> list[Any]:
    slow = [bug for bug in HOPPER_BUGS if bug.name not in QUICK_HOPPER]
    return [pytest.param(bug, marks=pytest.mark.slow) if bug in slow else bug for bug in bugs]


def _mended(text: str) -> str:
    return "\n".join(MEND.sub("", line) for line in text.split("\n"))


def _marked(text: str, mark: str = "// BUG") -> set[int]:
    return {number for number, line in enumerate(text.split("\n"), 1) if mark in line}


@cache
def _file(name: str, mended: bool) -> KernelFile:
    text = (SEEDED / f"{name}.cu").read_text()
    return parse(_mended(text) if mended else text, f"{name}.cu")


def _run(bug: Bug, mended: bool, seed: int | None) -> Outcome:
    options = LaunchOptions(seed=seed, instruction_budget=BUDGET, workers=1)
    return prepare(_file(bug.name, mended), bug.make(), bug.gpu).run(options)


def _is_right(bug: Bug, outcome: Outcome) -> bool:
    (result,) = outcome.results
    expected = bug.reference(*bug.make())
    return outcome.completed and bool((result == expected).all())


@pytest.mark.parametrize("bug", _marked_slow(BUGS), ids=lambda bug: bug.name)
def test_it_is_found_at_the_right_line(bug: Bug) -> None:
    """In the order of the schedule and in random ones alike, and nothing is said of other lines."""
    text = _file(bug.name, False).text
    marked = _marked(text)
    others = marked | _marked(text, "// OTHER SIDE")
    assert marked
    for seed in SEEDS:
        outcome = _run(bug, False, seed)
        found = [finding for finding in outcome.findings if finding.kind in bug.kinds]
        assert found, f"seed {seed}: not found; instead:\n{shown(outcome.findings)}"
        for finding in found:
            assert finding.line in marked, f"seed {seed}:\n{shown([finding])}"
            if finding.other_thread is not None:
                assert finding.other_line in others, f"seed {seed}:\n{shown([finding])}"
            assert finding.count >= 1
        more = [finding for finding in outcome.findings if finding.kind not in bug.kinds | bug.also]
        assert not more, f"seed {seed}:\n{shown(more)}"


@pytest.mark.parametrize("bug", _marked_slow([b for b in BUGS if b.stays_right is not None]), ids=lambda bug: bug.name)
def test_the_result_shows_it_or_does_not(bug: Bug) -> None:
    """Comparing results alone misses those that stay right."""
    assert _is_right(bug, _run(bug, False, None)) == bug.stays_right


@pytest.mark.parametrize("bug", _marked_slow(BUGS), ids=lambda bug: bug.name)
def test_its_mended_twin_is_right_and_clean(bug: Bug) -> None:
    for seed in SEEDS:
        outcome = _run(bug, True, seed)
        assert not outcome.findings, f"seed {seed}:\n{shown(outcome.findings)}"
        assert outcome.completed
        assert _is_right(bug, outcome), f"seed {seed}: {outcome.results}, expected {bug.reference(*bug.make())}"
        assert outcome.counters_left == ()
        assert outcome.unwritten == ()


def test_every_file_has_a_row() -> None:
    with_row = {bug.name for bug in BUGS} | set(COSTLY) | {"counter_left", "output_not_written"}
    assert {path.stem for path in SEEDED.glob("*.cu")} == with_row


# -- faults of cost, not of result: seen in the counters --

COSTLY: dict[str, Callable[[], Arguments]] = {
    "bank_conflict": lambda: (_x(64, 96),),
    "strided_stores": lambda: (_x(64, 96),),
    "divergent_branch": lambda: (_x(128) / 16,),
}


def _counts_at_marks(name: str, mended: bool) -> dict[str, int]:
    """Sums over the instructions of the marked lines."""
    file = _file(name, False)
    outcome = prepare(_file(name, mended), COSTLY[name]()).run(LaunchOptions(workers=1))
    assert not outcome.findings, shown(outcome.findings)
    reference = {"divergent_branch": _power}.get(name, lambda x: x.t())
    (result,) = outcome.results
    torch.testing.assert_close(result, reference(*COSTLY[name]()), rtol=1e-6, atol=1e-6)
    (launch,) = outcome.launches
    assert launch.counts is not None
    fields = ("executions", "active_lanes", "requests", "sectors", "ideal_sectors", "passes", "ideal_passes")
    sums = dict.fromkeys(fields, 0)
    for instruction in launch.counts.instructions:
        if kernel_line(instruction.places) in _marked(file.text):
            for field in fields:
                sums[field] += getattr(instruction, field)
    return sums


def test_a_bank_conflict_shows_in_the_passes() -> None:
    counts = _counts_at_marks("bank_conflict", mended=False)
    assert counts["ideal_passes"] == 64 * 96 // 32
    assert counts["passes"] == 32 * counts["ideal_passes"]
    counts = _counts_at_marks("bank_conflict", mended=True)
    assert counts["passes"] == counts["ideal_passes"] == 64 * 96 // 32


def test_strided_stores_show_in_the_sectors() -> None:
    counts = _counts_at_marks("strided_stores", mended=False)
    assert counts["requests"] == 64 * 96 // 32
    assert counts["ideal_sectors"] == 4 * counts["requests"]
    assert counts["sectors"] == 32 * counts["requests"]


def test_divergence_shows_in_the_lanes() -> None:
    counts = _counts_at_marks("divergent_branch", mended=False)
    assert counts["active_lanes"] == 16 * counts["executions"]
    assert counts["executions"] >= 4 * 16


# -- faults of the whole plan --


def test_a_counter_left_at_the_end_is_seen() -> None:
    bug = Bug("counter_left", frozenset(), lambda: (_x(320),), _total)
    assert _run(bug, False, None).counters_left == ("done",)
    assert _run(bug, True, None).counters_left == ()
    assert _is_right(bug, _run(bug, False, None))


def test_an_output_element_nothing_wrote_is_seen() -> None:
    bug = Bug("output_not_written", frozenset(), lambda: (_x(300),), _twice)
    assert _run(bug, False, None).unwritten == ("y",)
    assert _run(bug, True, None).unwritten == ()
    assert _is_right(bug, _run(bug, True, None))
