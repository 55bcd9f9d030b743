"""What an emulated call tells: its results, what is wrong with the kernels, and what they cost in instructions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilewright.records import CountsRecord, FindingRecord


@dataclass(frozen=True)
class EmulatedCall:
    """One call in the emulator. Results are what the call would return; elements that nothing wrote hold the poison.

    Not `complete`: blocks were sampled, or a finding stopped the run; tensors changed in place are then left alone.
    Counts are of the first schedule.
    """

    results: Any
    findings: tuple[FindingRecord, ...]
    counts: tuple[CountsRecord, ...]
    op: str
    file: str
    gpu: str
    complete: bool
    schedules: int
    varying: tuple[str, ...]  # results that differ from schedule to schedule
    thread_instructions: int
    printed: str
    seconds: float
    incomplete: tuple[str, ...] = ()  # what the checkers could not see to the end

    def __str__(self) -> str:
        ran = "all blocks" if self.complete else "some blocks"
        head = (
            f"{self.op} from {self.file} on an emulated {self.gpu}: {ran} under {self.schedules} "
            f"schedule{'s' if self.schedules != 1 else ''}, {self.thread_instructions:,} thread instructions, "
            f"{self.seconds:.3f} s"
        )
        lines = [f"  {finding}" for finding in self.findings] or ["  no findings"]
        lines += [f"  {name} differs from schedule to schedule" for name in self.varying]
        lines += [f"  not checked to the end: {sentence}" for sentence in self.incomplete]
        return "\n".join([head, *lines])
