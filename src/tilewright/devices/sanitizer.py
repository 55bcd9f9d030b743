"""Faults of a job's kernels on a GPU, found by `compute-sanitizer` where it is installed.

For kernels that the emulator cannot run. memcheck, synccheck and racecheck find invalid accesses, misused barriers and
races in shared memory, but no races in global memory. Every tensor is a separate allocation, so that bounds are exact.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace
from functools import partial

from tilewright.child.process import uninterrupted
from tilewright.devices.vendor_tools import ToolUnavailable, VendorTool, job_folder, program, run_tool
from tilewright.records import FindingKind, FindingRecord, Job, TensorSpec, ThreadRecord

SANITIZER = VendorTool(
    "compute-sanitizer",
    "compute-sanitizer",
    "TILEWRIGHT_SANITIZER",
    ("/usr/local/cuda/bin/compute-sanitizer", "/usr/local/cuda*/bin/compute-sanitizer"),
)
TOOLS = ("memcheck", "synccheck", "racecheck")
_SHOWN = 20  # reports of one tool
_OWN_ALLOCATIONS = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}

_MARK = "========= "
_ACCESS = re.compile(r"Invalid __(?P<space>\w+)__ (?P<what>read|write|atomic\w*) of size (?P<bytes>\d+) bytes")
_RACE = re.compile(r"Error: (?:Potential )?(?P<how>[\w ]*?)Race reported between (?P<first>\w+) access at (?P<at>.*)")
_BARRIER = re.compile(r"Barrier error detected\. (?P<how>.*)")
_PLACE = re.compile(r"(?P<kernel>[^(+]+?)(?:<.*>)?\(.*\)\+0x[0-9a-f]+(?: in (?P<file>\S+):(?P<line>\d+))?")
_AND = re.compile(r"and (?P<second>\w+) access at (?P<at>.*?)(?: \[(?P<count>\d+) hazards?\])?$")
_THREAD = re.compile(r"by thread \((\d+),(\d+),(\d+)\) in block \((\d+),(\d+),(\d+)\)")
_ADDRESS = re.compile(r"Access to (0x[0-9a-f]+) is (.*)")
_KERNEL_FILE = "kernel.cu"
_SPACES = {
    "global": FindingKind.OUT_OF_BOUNDS_GLOBAL,
    "shared": FindingKind.OUT_OF_BOUNDS_SHARED,
    "local": FindingKind.OUT_OF_BOUNDS_LOCAL,
}


def sanitize_job(job: Job, index: int, interrupt: Callable[[], bool] = uninterrupted) -> tuple[FindingRecord, ...]:
    """The faults of the job's plan on GPU `index`, one record per line. Raises `ToolUnavailable`."""
    path = SANITIZER.path()
    with ThreadPoolExecutor(len(TOOLS)) as executor:  # each tool spends seconds on starting torch
        asked = (partial(_findings_of, name, path, job, index, interrupt) for name in TOOLS)
        runs = [executor.submit(partial(copy_context().run, one)) for one in asked]
    return next(filter(None, (one.result() for one in runs)), ())


def _findings_of(
    name: str, path: str, job: Job, index: int, interrupt: Callable[[], bool]
) -> tuple[FindingRecord, ...]:
    """The findings of one tool."""
    with job_folder(job) as folder:
        command = (path, "--tool", name, "--print-limit", str(_SHOWN), *program(folder, index))
        said = run_tool(command, folder, job.limits.seconds, interrupt, _OWN_ALLOCATIONS)
        if f"{_MARK}COMPUTE-SANITIZER" not in said:
            raise ToolUnavailable(f"compute-sanitizer did not start: {_last(said)}")
        if "Device not supported" in said:
            raise ToolUnavailable("compute-sanitizer cannot use this GPU here (Device not supported)")
        places = folder / "tensors.json"
        found = read_findings(said, job, json.loads(places.read_text()) if places.exists() else {})
        if not found and "Target application returned an error" in said:
            raise ToolUnavailable(f"the plan did not run under {name}: {_last(said)}")
        return found


def _last(said: str) -> str:
    plain = [line.strip() for line in said.splitlines() if line.strip() and not line.startswith(_MARK)]
    return plain[-1] if plain else "it said nothing"


# -- parsing the output --


def read_findings(said: str, job: Job, addresses: Mapping[str, int]) -> tuple[FindingRecord, ...]:
    """The reports in a tool's output: one per kind and line, with the first thread."""
    found: dict[tuple[FindingKind, str, int | None, int | None], FindingRecord] = {}
    counts: dict[tuple[FindingKind, str, int | None, int | None], int] = {}
    for report in _reports(said):
        one = _finding(report, job, addresses)
        if one is not None:
            key = (one.kind, one.kernel, one.line, one.other_line)
            found.setdefault(key, one)
            counts[key] = counts.get(key, 0) + one.count
    return tuple(replace(one, count=counts[key]) for key, one in found.items())


def _reports(said: str) -> Iterator[list[str]]:
    """The lines of each report, without prefixes and host frames."""
    report: list[str] = []
    for line in said.splitlines():
        if not line.startswith(_MARK):
            continue
        text = line.removeprefix(_MARK)
        if text and not text.startswith(" "):
            if report:
                yield report
            report = []
        if text.strip() and "Host Frame" not in text and "Saved host backtrace" not in text:
            report.append(text.strip())
    if report:
        yield report


def _finding(report: Sequence[str], job: Job, addresses: Mapping[str, int]) -> FindingRecord | None:
    head, text = report[0], "\n".join(report)
    if found := _ACCESS.match(head):
        address = _ADDRESS.search(text)
        misaligned = address is not None and "misaligned" in address[2]
        kind = FindingKind.MISALIGNED if misaligned else _SPACES.get(found["space"], FindingKind.OUT_OF_BOUNDS_GLOBAL)
        where = _where(int(address[1], 16), job, addresses) if address and found["space"] == "global" else ""
        return _record(kind, report[1:], job, where, f"{found['what']} of {found['bytes']} bytes")
    if found := _BARRIER.match(head):
        return _record(FindingKind.BARRIER_DIVERGENCE, report[1:], job, "", found["how"])
    if found := _RACE.match(head):
        other = _AND.search(text)
        second = _PLACE.search(other["at"]) if other else None
        line = int(second["line"]) if second and _own(second) else None
        later = other["second"].lower() if other else "second access"
        detail = f"a {found['first'].lower()} and a {later} with no barrier between"
        count = int(other["count"]) if other and other["count"] else 1
        return _record(FindingKind.RACE_SHARED, [found["at"]], job, "", detail, line, count)
    return None


def _record(
    kind: FindingKind,
    lines: Sequence[str],
    job: Job,
    where: str,
    detail: str,
    other_line: int | None = None,
    count: int = 1,
) -> FindingRecord:
    text = "\n".join(lines)
    place, by = _PLACE.search(text.removeprefix("at ")), _THREAD.search(text)
    name = place["kernel"].removeprefix("at ").removeprefix("void ").strip() if place else ""
    step = next((one for one in job.plan.launches if re.split(r"[<(]", one.kernel)[0].strip() == name), None)
    numbers = [int(number) for number in by.groups()] if by else []
    thread = ThreadRecord((*numbers[3:],), (*numbers[:3],)) if numbers else None  # type: ignore[arg-type]
    return FindingRecord(
        kind=kind,
        kernel=step.kernel if step else name,
        launch_line=step.line if step else 0,
        line=int(place["line"]) if place and _own(place) else None,
        column=0,
        thread=thread,
        where=where,
        detail=detail,
        count=count,
        other_line=other_line,
    )


def _own(place: re.Match[str]) -> bool:
    return place["file"] is not None and place["file"].endswith(_KERNEL_FILE)


def _where(address: int, job: Job, addresses: Mapping[str, int]) -> str:
    """The element at an address, or the distance to the nearest tensor."""
    specs = {one.name: one.spec for one in job.inputs} | {one.name: one.spec for one in job.plan.buffers}
    nearest: tuple[int, str] | None = None
    for name, base in addresses.items():
        spec = specs.get(name)
        if spec is None:
            continue
        end = base + spec.storage_bytes
        if base <= address < end:
            return _element(name, spec, (address - base) // spec.dtype.itemsize)
        distance = base - address if address < base else address - end
        side = "before the start" if address < base else "after the end"
        if nearest is None or distance < nearest[0]:
            nearest = (distance, f"{f'{distance} bytes' if distance else 'right'} {side} of {name}")
    return nearest[1] if nearest else ""


def _element(name: str, spec: TensorSpec, offset: int) -> str:
    """`x[3, 17]`: the element at an offset of the storage, by its strides."""
    index, left = [0] * len(spec.shape), offset
    for axis in sorted(range(len(spec.shape)), key=lambda axis: -spec.stride[axis]):
        if spec.stride[axis]:
            index[axis], left = divmod(left, spec.stride[axis])
    return f"{name}[{', '.join(map(str, index))}]"
