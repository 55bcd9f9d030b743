"""A page about the GPU's own counters, from what ncu printed on an H200."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.measure import kernels

from tilewright.devices.profiler import read_report
from tilewright.measure.evidence import profile, profile_text
from tilewright.measure.preparation import prepare
from tilewright.records import PROFILES, Completed, Execution, Faulted, FaultKind, Job, Watch

TABLES = Path(__file__).parent.parent / "devices" / "ncu"
(SEEN,) = read_report((TABLES / "raw.csv").read_text(), (TABLES / "lines.csv").read_text())
SOURCE = "".join(f"code of line {line};\n" for line in range(1, 300))


def test_the_page_names_peaks_bytes_waits_and_lines() -> None:
    text = profile_text(Completed("job", "NVIDIA H200", (), (), profiles=(SEEN,)), SOURCE)
    assert text.startswith("Counters of NVIDIA H200")
    for told in (
        *("masked_softmax: 26.1 us", "memory 50 %, L2 82 %", "41.5 MB read, 21.9 MB written"),
        *("13.3 sectors per load, 16.0 sectors per store", "491,520 requests", "device memory or L2 46%"),
        *("code of line 186;", "a barrier"),
    ):
        assert told in text
    assert "bank conflicts" not in text  # two per cent of the passes are none to speak of
    assert len(text.splitlines()) < 30


def test_what_the_profiler_did_not_give_is_not_made_up() -> None:
    bare = replace(SEEN, figures={}, waits={}, lines=())
    text = profile_text(Completed("job", "GPU", (), (), profiles=(bare,)), SOURCE)
    assert text.splitlines()[1:] == ["masked_softmax: 26.1 us"]


def test_of_many_launches_the_longest_are_shown() -> None:
    many = tuple(replace(SEEN, kernel=f"k{number}", duration_us=float(number)) for number in range(5))
    text = profile_text(Completed("job", "GPU", (), (), profiles=many), SOURCE)
    assert "k4: 4.0 us" in text
    assert "k1: " not in text
    assert "(2 shorter launches are not shown.)" in text


class _Scripted:
    """A device that answers as it was told."""

    profile = PROFILES["H200"]

    def __init__(self, answer: Execution) -> None:
        self._answer = answer
        self.asked: Job | None = None

    def execute(self, job: Job) -> Execution:
        self.asked = job
        return self._answer


def test_reasons_for_no_counters_are_passed_on() -> None:
    task = kernels.scale_task(64, 64)
    prepared = prepare(kernels.VECTOR, task, None)
    for answer, reason in (
        (Completed("profile", "GPU", (), (), not_watched="ncu is away"), "ncu is away"),
        (Completed("profile", "GPU", (), ()), "the device reads no counters"),
        (Faulted("profile", "GPU", FaultKind.TIME, "too long"), "time limit passed: too long"),
    ):
        device = _Scripted(answer)
        assert profile(prepared, task, device) == reason  # type: ignore[arg-type]
        assert device.asked is not None
        assert device.asked.watch is Watch.COUNTERS
