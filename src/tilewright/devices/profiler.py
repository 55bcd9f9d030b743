"""Hardware counters of a job's kernels, read by Nsight Compute (`ncu`) where it is installed and permitted.

ncu runs `runner_program watched`, replays each launch of the job's plan until it has read every counter, and writes a
report, which a second ncu call prints as tables. Line numbers are the kernel file's; ncu needs a source file to show
them in, so it gets a placeholder with enough lines.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Mapping

from tilewright.child.process import uninterrupted
from tilewright.devices.vendor_tools import ToolUnavailable, VendorTool, job_folder, program, run_tool
from tilewright.records import Job, KernelProfile, LineSamples

NCU = VendorTool(
    "ncu",
    "Nsight Compute (ncu)",
    "TILEWRIGHT_NCU",
    ("/usr/local/cuda/bin/ncu", "/opt/nvidia/nsight-compute/*/ncu"),
)
_SECTIONS = (
    *("SpeedOfLight", "MemoryWorkloadAnalysis", "MemoryWorkloadAnalysis_Tables", "ComputeWorkloadAnalysis"),
    *("Occupancy", "SchedulerStats", "WarpStateStats", "SourceCounters"),
)
_SOURCE = "tilewright/kernel.cu"  # the kernel file's name in builds
_SOURCE_LINES = 5000
_TABLE_SECONDS = 60.0
_KEPT_LINES = 14

# Our names -> ncu's.
FIGURES: Mapping[str, str] = {
    "memory %": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "L2 %": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "L1 %": "l1tex__throughput.avg.pct_of_peak_sustained_elapsed",
    "issue slots %": "sm__issue_active.avg.pct_of_peak_sustained_elapsed",
    "tensor cores %": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "bytes read": "dram__bytes_read.sum",
    "bytes written": "dram__bytes_write.sum",
    "L2 hits %": "lts__t_sector_hit_rate.pct",
    "L1 hits %": "l1tex__t_sector_hit_rate.pct",
    "warps per scheduler": "smsp__warps_active.avg.per_cycle_active",
    "eligible warps per scheduler": "smsp__warps_eligible.avg.per_cycle_active",
    "load requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "load sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "store requests": "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    "store sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "shared wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
    "bank conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
    "local requests": "l1tex__t_requests_pipe_lsu_mem_local_op_ld.sum",
}
_DURATION = "gpu__time_duration.sum"
_REASONS = {  # our name of a stall reason -> ncu's, which differ between tables
    "device memory or L2": ("long_sb", "long_scoreboard"),
    "shared memory or special functions": ("short_sb", "short_scoreboard"),
    "room in the queue of shared memory and special functions": ("mio", "mio_throttle"),
    "room in the queue of global accesses": ("lg", "lg_throttle"),
    "room in the texture queue": ("tex", "tex_throttle"),
    "a barrier": ("barrier",),
    "a memory fence": ("membar",),
    "the fixed latency of an instruction": ("wait",),
    "a busy arithmetic pipe": ("math", "math_pipe_throttle"),
    "wgmma": ("gmma", "warpgroup_arrive"),
    "a branch": ("branch_resolving",),
    "the dispatcher": ("dispatch", "dispatch_stall"),
    "stores at the kernel's end": ("drain",),
    "constants": ("imc", "imc_miss"),
    "the instruction cache": ("no_inst", "no_instructions"),
    "nanosleep": ("sleep", "sleeping"),
    "something else": ("misc",),
}
_WAITS = {theirs: ours for ours, names in _REASONS.items() for theirs in names}
_BUSY = ("selected", "not_selected")  # not stalled
_STALLED = re.compile(r"smsp__pcsamp_warps_issue_stalled_(\w+?)(_not_issued)?")
_STALL_COLUMN = re.compile(r"stall_(\w+)")
_UNITS = {  # in microseconds, or in bytes
    "nsecond": 1e-3,
    "usecond": 1.0,
    "msecond": 1e3,
    "second": 1e6,
    "ns": 1e-3,
    "us": 1.0,
    "ms": 1e3,
    "s": 1e6,
    "byte": 1.0,
    "Kbyte": 1e3,
    "Mbyte": 1e6,
    "Gbyte": 1e9,
    "Tbyte": 1e12,
}


def profile_job(job: Job, index: int, interrupt: Callable[[], bool] = uninterrupted) -> tuple[KernelProfile, ...]:
    """The launches of the job's plan on GPU `index`, in order. Raises `ToolUnavailable`."""
    ncu = NCU.path()
    with job_folder(job) as folder:
        source = folder / "source" / _SOURCE
        source.parent.mkdir(parents=True)
        source.write_text("".join(f"{line}\n" for line in range(1, _SOURCE_LINES + 1)))
        report = folder / "report.ncu-rep"
        sections = [word for section in _SECTIONS for word in ("--section", section)]
        watch = (
            *(ncu, "--clock-control", "none", "--profile-from-start", "off", "--import-source", "yes"),
            *("--source-folders", str(folder / "source"), *sections, "--force-overwrite", "--export", str(report)),
        )
        said = run_tool((*watch, *program(folder, index)), folder, job.limits.seconds, interrupt)
        if not report.exists():
            raise ToolUnavailable(_reason(said))
        raw = run_tool((ncu, "--import", str(report), "--csv", "--page", "raw"), folder, _TABLE_SECONDS, interrupt)
        by_line = (ncu, "--import", str(report), "--csv", "--page", "source", "--print-source", "cuda,sass")
        return read_report(raw, run_tool(by_line, folder, _TABLE_SECONDS, interrupt))


def _reason(said: str) -> str:
    if "ERR_NVGPUCTRPERM" in said:
        return (
            "this user may not read the GPU's counters (ERR_NVGPUCTRPERM); run as root, or let the driver permit it "
            "(NVreg_RestrictProfilingToAdminUsers=0)"
        )
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    telling = [line for line in lines if "==ERROR==" in line] or lines[-1:]
    return f"ncu made no report: {telling[0].removeprefix('==ERROR==').strip() if telling else 'it said nothing'}"


# -- reading ncu's tables --


def read_report(raw: str, by_line: str) -> tuple[KernelProfile, ...]:
    """The launches of a report, from its raw and source tables."""
    rows = [row for row in csv.reader(_table(raw, '"ID"')) if row]
    if len(rows) < 3:
        raise ToolUnavailable("ncu's report has no kernel in it")
    names, units = rows[0], rows[1]
    blocks = list(_line_blocks(by_line))
    profiles = []
    for row in rows[2:]:
        values = {
            name: value
            for name, unit, text in zip(names, units, row, strict=False)
            if (value := _number(text, unit)) is not None
        }
        kernel = _plain_name(row[names.index("Kernel Name")])
        lines = next((block for name, block in blocks if name == kernel), ())
        profiles.append(_profile(kernel, values, lines))
    return tuple(profiles)


def _profile(kernel: str, values: Mapping[str, float], lines: tuple[LineSamples, ...]) -> KernelProfile:
    counts: dict[str, float] = {}
    total = 0.0
    for name, value in values.items():
        found = _STALLED.fullmatch(name)
        if found is None or found[2]:
            continue
        total += value
        if found[1] not in _BUSY:
            reason = _WAITS.get(found[1], found[1].replace("_", " "))
            counts[reason] = counts.get(reason, 0.0) + value
    waits = sorted(((reason, count / total) for reason, count in counts.items() if count), key=lambda one: -one[1])
    figures = {name: values[theirs] for name, theirs in FIGURES.items() if theirs in values}
    heaviest = sorted(lines, key=lambda one: -one.samples)[:_KEPT_LINES]
    kept = tuple(sorted(heaviest, key=lambda one: one.line))
    return KernelProfile(kernel, values.get(_DURATION, 0.0), figures, dict(waits), int(total), kept)


def _line_blocks(text: str) -> Iterator[tuple[str, tuple[LineSamples, ...]]]:
    """For every kernel in the source table: its name, and the kernel file's lines with samples."""
    kernel, path, header = "", "", [""]
    lines: list[LineSamples] = []
    for row in csv.reader(_table(text, '"File Path"')):
        if not row:
            continue
        if row[0] == "File Path":
            if kernel and path.endswith(_SOURCE):
                yield kernel, tuple(lines)
            path, lines = row[1], []
        elif row[0] == "Function Name":
            kernel = _plain_name(row[1])
        elif row[0] == "Line No":
            header = row
        elif row[0].isdigit():
            found = _line(dict(zip(header[4:], row[4:], strict=False)), int(row[0]))
            lines += [found] if found.samples else []
    if kernel and path.endswith(_SOURCE):
        yield kernel, tuple(lines)


def _line(cells: Mapping[str, str], line: int) -> LineSamples:
    waits: dict[str, int] = {}
    for name, text in cells.items():
        found = _STALL_COLUMN.fullmatch(name)
        count = int(_number(text, "") or 0) if found and found[1] not in _BUSY else 0
        if found and count:
            reason = _WAITS.get(found[1], found[1].replace("_", " "))
            waits[reason] = waits.get(reason, 0) + count
    ordered = dict(sorted(waits.items(), key=lambda one: -one[1]))
    return LineSamples(line, int(_number(cells.get("# Samples", ""), "") or 0), ordered)


def _table(text: str, start: str) -> list[str]:
    """The lines of a table, without ncu's messages before it."""
    lines = text.splitlines()
    return lines[next((at for at, line in enumerate(lines) if line.startswith(start)), len(lines)) :]


def _plain_name(signature: str) -> str:
    """`softmax` of `void softmax<32>(const float *, int)`."""
    return re.split(r"[<(]", signature.removeprefix("void "))[0].strip()


def _number(text: str, unit: str) -> float | None:
    try:
        return float(text.replace(",", "")) * _UNITS.get(unit, 1.0)
    except ValueError:
        return None
