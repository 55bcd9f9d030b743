"""Where a finished kernel comes from: who wrote each line, asked what, and what speaks for it."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.records.measurement import Measurement

UNSTATED = "NOASSERTION"  # SPDX's word for a licence that nobody has stated


@dataclass(frozen=True)
class Contribution:
    """One step's share of the file. Number 0 is the file the person gave to start from."""

    attempt: int
    stage: str
    author: str  # "playbook", "anthropic:claude-sonnet-5", "given"
    summary: str
    prompts: tuple[str, ...]  # SHA-256 of each question, to the letter as it was stored; () where none was asked
    lines: tuple[tuple[int, int], ...]  # first and last, counted from 1


@dataclass(frozen=True)
class Provenance:
    """The record that lies beside a finished kernel, `softmax.cu.provenance.json`."""

    op: str
    kernel: str  # the file's identity
    task_hash: str
    run: str
    created: str  # of the run; ISO 8601, UTC
    tilewright: str
    licence: str  # an SPDX expression, or `UNSTATED`
    contributions: tuple[Contribution, ...]  # in the order of the steps; those without a line left are not among them
    verified_on: tuple[str, ...]  # devices
    right_cases: int
    worst_error: float | None  # over what is allowed; None where nothing was compared in numbers
    measurement: Measurement | None
    notes: tuple[str, ...] = ()
    degenerate: str = ""  # of the task: why passing proves nothing
