"""The stopwatch without a GPU, autotuning, and the page of evidence: with the real referee and reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

import pytest
from tests.measure import kernels
from tests.measure.test_gpu_timing import Diary
from tests.tasks.in_process import JudgingReference

from tilewright.devices.child_device import EmulatedDevice
from tilewright.kernel_file import Choice, KernelFile, parse
from tilewright.measure import Stopwatch, autotune
from tilewright.measure.autotune import Sweep, SweepMemory, sampled_choices
from tilewright.measure.emulated_counts import NotCounted
from tilewright.records import (
    MEASURED_NOISE,
    PROFILES,
    Case,
    Faulted,
    FaultKind,
    GpuProfile,
    Measured,
    Modelled,
    Passed,
    Rejected,
    Task,
    TuneResult,
    Unstable,
    WrongValues,
    from_json,
    to_json,
)
from tilewright.reference import AnyReference
from tilewright.verify import Referee


@pytest.fixture(scope="module")
def task() -> Task:
    return kernels.scale_task(512, 4096)


@pytest.fixture(scope="module")
def reference(task: Task) -> Iterator[JudgingReference]:
    with JudgingReference(task.reference, task.function) as one:
        yield one


@pytest.fixture
def stopwatch(task: Task, reference: AnyReference, emulator: EmulatedDevice) -> Iterator[Stopwatch]:
    with Stopwatch(task, reference, emulator=emulator) as one:
        yield one


def test_without_a_gpu_it_models(stopwatch: Stopwatch) -> None:
    modelled = stopwatch.measure(kernels.VECTOR)
    assert isinstance(modelled, Modelled)
    assert modelled.gpu == "H200"
    assert modelled.floor_us == stopwatch.floor_us
    assert 0.4 < modelled.fraction < 1.0


def test_what_cannot_be_measured_is_none_and_somebody_hears_why(
    task: Task, reference: AnyReference, emulator: EmulatedDevice
) -> None:
    heard: list[str] = []
    refusing = parse(kernels.VECTOR.text.replace("x.dtype == f32", "x.dtype == f16"), "k.cu")
    with Stopwatch(task, reference, emulator=emulator, say=heard.append) as stopwatch:
        assert stopwatch.measure(refusing) is None
        assert stopwatch.times_us(refusing, None, 3) is None
        assert stopwatch.evidence(refusing).startswith("Nothing is known of it")
        assert "x.dtype == f16" in stopwatch.unmeasured
    assert "x.dtype == f16" in heard[0]


def test_what_the_emulator_does_not_get_through_is_said_without_places_in_the_code() -> None:
    spent = Faulted("count", "H200 (emulated)", FaultKind.STOPPED, "k, line 63: instruction budget spent: warps 0, 1")
    stuck = replace(spent, message="k, line 63: deadlock")
    assert NotCounted(spent).short == "at these sizes it runs more instructions than the emulator does for a model"
    assert str(NotCounted(spent)) == spent.message
    assert NotCounted(stuck).short == stuck.message


@pytest.mark.slow
def test_baselines_begin_to_compile_at_once_and_end_with_the_stopwatch(
    task: Task, reference: AnyReference, emulator: EmulatedDevice
) -> None:
    """The GPU only keeps a diary; the process of the baselines is a real one, and sees none."""
    with Stopwatch(task, reference, emulator=emulator, gpu=Diary()) as stopwatch:  # type: ignore[arg-type]
        compiling = stopwatch._compiling
        assert compiling is not None
        made = stopwatch.measure(kernels.VECTOR)
    assert isinstance(made, Measured)
    assert any("this process sees no GPU" in note for note in made.notes)
    with Stopwatch(task, reference, emulator=emulator, gpu=Diary()) as stopwatch:  # type: ignore[arg-type]
        compiling = stopwatch._compiling  # closed before torch is imported there
    assert compiling is not None
    assert not compiling.is_alive()


@pytest.mark.slow
def test_the_sweep_finds_the_fastest_choice_that_is_right(
    task: Task, reference: AnyReference, stopwatch: Stopwatch, emulator: EmulatedDevice
) -> None:
    heard: list[str] = []
    with Referee(task, reference, emulator=emulator) as referee:
        result = autotune(kernels.TUNED, referee, stopwatch, 24, heard.append, memory=_Forgetful())
    tried = dict(result.tried)
    default = (("THREADS", 32), ("WIDE", False))
    assert len(tried) == 8
    assert next(iter(tried)) == default
    assert dict(result.choice)["WIDE"] is True
    assert result.choice != (("THREADS", 256), ("WIDE", True))
    assert tried[result.choice] < 0.8 * tried[default]
    assert (result.skipped, heard[7]) == (0, "tuning 7/8: THREADS = 256, WIDE = false")


class _Forgetful(SweepMemory):
    def find(self, key: str) -> None:
        return None

    def keep(self, key: str, sweep: Sweep) -> None: ...


@dataclass
class _Scores:
    """A stopwatch that tells set times, and a referee that finds every choice but some right."""

    task: Task
    default_us: float
    other_us: float
    wrong: tuple[dict[str, int | bool], ...] = ()
    profile: GpuProfile = PROFILES["H200"]
    judged: list[dict[str, int | bool]] = field(default_factory=list)
    scatters: bool = False
    is_far: bool = False
    floor_us: float = 1.0
    turn: Callable[[], AbstractContextManager[None]] = nullcontext

    def times_us(self, file: KernelFile, choice: Choice, runs: int) -> tuple[float, ...]:
        return ({32: self.default_us, 64: self.other_us}.get(int(choice["THREADS"]), 50.0),)

    def judge(self, file: KernelFile, choice: Choice) -> Passed | Rejected:
        self.judged.append(dict(choice))
        return Rejected(Unstable(Case(self.task.sizes, 1), ("y",))) if choice in self.wrong else Passed(())

    def tuned(self, **options: float) -> TuneResult:
        return autotune(kernels.TUNED, self, self, 24, memory=_Forgetful(), **options)  # type: ignore[arg-type]

    def threads(self, **options: float) -> int | bool:
        """The THREADS that autotuning settles on."""
        return dict(self.tuned(**options).choice)["THREADS"]


def test_a_choice_must_beat_the_default_beyond_noise(task: Task) -> None:
    assert _Scores(task, 10.0, 9.85).threads(gain=0.02) == 32
    assert _Scores(task, 10.0, 9.75).threads(gain=0.02) == 64
    assert _Scores(task, 10.0, 9.85).threads(gain=0.01) == 64
    assert _Scores(task, 10.0, 10.0 * (1.0 - MEASURED_NOISE / 2)).threads() == 32
    assert _Scores(task, 10.0, 10.0 * (1.0 - MEASURED_NOISE * 2)).threads() == 64
    assert _Scores(task, 10.0, 10.1).threads(gain=0.02) == 32


def test_a_faster_choice_that_is_wrong_does_not_win(task: Task) -> None:
    wrong: tuple[dict[str, int | bool], ...] = tuple({"THREADS": 64, "WIDE": wide} for wide in (False, True))
    assert _Scores(task, 10.0, 5.0, wrong).threads() == 32
    assert _Scores(task, 10.0, 5.0, wrong[:1]).threads() == 64
    both = _Scores(task, 10.0, 5.0, wrong).tuned()
    assert both.failed == 2
    assert [dict(one.choice) for one in both.refused] == list(wrong)
    assert all(isinstance(one.verdict, Rejected) for one in both.refused)
    assert from_json(TuneResult, to_json(both)) == both


def test_only_what_may_be_adopted_is_judged(task: Task) -> None:
    scores = _Scores(task, 10.0, 5.0)
    assert scores.tuned().refused == ()
    assert scores.judged == [{"THREADS": 64, "WIDE": False}]
    scores = _Scores(task, 10.0, 11.0)
    assert scores.threads() == 32
    assert scores.judged == []


def test_a_choice_that_only_a_wider_case_shows_wrong_is_not_adopted(emulator: EmulatedDevice) -> None:
    """With 64 threads each strides by 256 all the same: rows of up to 64 elements come out right."""
    task = kernels.row_sum_task(512, 4096)
    with (
        JudgingReference(task.reference, task.function) as reference,
        Referee(task, reference, emulator=emulator) as referee,
        Stopwatch(task, reference, emulator=emulator) as stopwatch,
    ):
        result = autotune(kernels.FIXED_STRIDE, referee, stopwatch, 24, memory=_Forgetful())
    times = dict(result.tried)
    assert min(times, key=lambda choice: times[choice]) == (("THREADS", 64),)
    assert result.choice == (("THREADS", 256),)
    assert {dict(one.choice)["THREADS"] for one in result.refused} == {64, 128}
    for one in result.refused:
        assert isinstance(one.verdict, Rejected)
        assert isinstance(one.verdict.evidence, WrongValues)


def test_a_sweep_stays_within_its_limit_and_a_file_without_choices_has_one_entry(
    task: Task, reference: AnyReference, stopwatch: Stopwatch, emulator: EmulatedDevice
) -> None:
    with Referee(task, reference, emulator=emulator) as referee:
        result = autotune(kernels.VECTOR, referee, stopwatch, 24, memory=_Forgetful())
        assert [choice for choice, _ in result.tried] == [()]
        assert result.choice == ()
        limited = autotune(kernels.TUNED, referee, stopwatch, 1, memory=_Forgetful())
        assert limited.skipped == 7
        assert limited.choice == (("THREADS", 32), ("WIDE", False))


def test_choices_beyond_the_limit_are_spread_over_all() -> None:
    choices: list[dict[str, int | bool]] = [
        {"A": a, "B": b, "C": c} for a in range(8) for b in range(4) for c in range(4)
    ]
    chosen = sampled_choices(choices, 16)
    assert chosen[0] == choices[0]
    assert len(chosen) == 16
    assert len({tuple(one.items()) for one in chosen}) == 16
    for name, count in (("A", 7), ("B", 4), ("C", 4)):
        assert len({one[name] for one in chosen}) >= count
    assert sampled_choices(choices, 500) == choices


def test_evidence_without_counts_has_what_the_compiler_knows(
    task: Task, reference: AnyReference, emulator: EmulatedDevice
) -> None:
    with Stopwatch(replace(task, gpu="A100"), reference, emulator=emulator) as stopwatch:
        assert stopwatch.measure(kernels.VECTOR) is None
        text = stopwatch.evidence(kernels.VECTOR)
    assert text.startswith("No counts: the job is built for sm_80")
    assert "100% of what it holds, limited by threads" in text
    assert "LDG.128 1" in text


def test_evidence_is_a_page_that_names_the_bound_and_the_lines(stopwatch: Stopwatch) -> None:
    text = stopwatch.evidence(kernels.STRIDED)
    assert len(text.splitlines()) <= 60
    assert text.startswith("Emulated and modelled for H200")
    costly = next(line for line in text.splitlines() if "for (int k = 0; k < 32; ++k)" in line)
    assert "32.0 (4.0) !" in costly
    assert "limited by" in text
    assert "narrower than 16 bytes, of the global requests that ran: 100% of the loads, 100% of the stores" in text
    assert "Bound by L" in text


def test_accesses_that_never_ran_are_not_called_narrow(stopwatch: Stopwatch) -> None:
    text = stopwatch.evidence(kernels.VECTOR_WITH_TAIL)
    assert "LDG.128 1" in text
    assert "STG " in text
    assert "narrower" not in text
