"""Golden vectors: what a real GPU answers for every conversion, approximation, warp and tensor-core instruction.

    python benchmarks/golden_vectors.py record --out golden.npz    # needs a GPU; about a minute
    python benchmarks/golden_vectors.py build                      # compiles every family, runs nothing

`cases()` are the families; the emulator's tests run the same kernels and compare. A family that cannot be built or run
is reported and left out of the file; the exit status then is 1.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import traceback
from dataclasses import replace
from pathlib import Path

import numpy as np

_ROOT = Path(__file__).resolve().parent.parent
if str(_ROOT) not in sys.path:  # started as a program
    sys.path.insert(0, str(_ROOT))

from benchmarks.golden_probe import Family, Probe, Words  # noqa: E402
from benchmarks.golden_scalar import scalar_families  # noqa: E402
from benchmarks.golden_warp import warp_families  # noqa: E402

from tilewright.records import Build, BuildRequest  # noqa: E402
from tilewright.toolchain import build  # noqa: E402

ARCH = "sm_90a"  # also what the emulator's tests build for: fp8 conversions need sm_89


def cases() -> tuple[Family, ...]:
    return (*scalar_families(), *warp_families())


def build_family(family: Family) -> Build:
    """Raises RuntimeError with the compiler's words if the kernel file is refused."""
    result = build(BuildRequest(family.source(), (), ("golden",), ARCH, f"{family.name}.cu"))
    if isinstance(result, Build):
        return result
    raise RuntimeError("\n".join(str(d) for d in result.diagnostics[:20]) or result.log[-2000:])


def run_on_gpu(family: Family, folder: Path) -> Words:
    """[results, threads] as the GPU of this machine answers."""
    import torch

    import tilewright

    path = folder / f"{family.name}.cu"
    path.write_text(family.source())
    x = torch.from_numpy(family.inputs.view(np.int64).copy()).cuda()
    y = tilewright.load(path, strict=True)(x)
    torch.cuda.synchronize()
    return np.asarray(y.cpu().numpy()).view(np.uint64)


# -- the file --


def packed(name: str, identity: str, results: Words) -> dict[str, np.ndarray]:
    """Low and high halves apart: most results are 32 bits, and zeros cost nothing."""
    return {
        f"{name}.identity": np.array(identity),
        f"{name}.low": (results & np.uint64(0xFFFFFFFF)).astype(np.uint32),
        f"{name}.high": (results >> np.uint64(32)).astype(np.uint32),
    }


def unpacked(stored: dict[str, np.ndarray], name: str) -> tuple[str, Words]:
    low, high = stored[f"{name}.low"].astype(np.uint64), stored[f"{name}.high"].astype(np.uint64)
    return str(stored[f"{name}.identity"]), low | high << np.uint64(32)


def rows_of(family: Family) -> list[tuple[Probe, int, int]]:
    """Each probe's first row and the row after its last."""
    placed, row = [], 0
    for probe in family.probes:
        placed.append((probe, row, row + len(probe.results)))
        row += len(probe.results)
    return placed


# -- the program --


def _report_refused_probes(family: Family) -> None:
    """A family that does not build: which probes are to blame."""
    for probe in family.probes:
        try:
            build_family(replace(family, probes=(probe,)))
        except RuntimeError as problem:
            print(f"    {probe.label}: {str(problem).splitlines()[0]}", flush=True)


def _build_all(names: list[str]) -> int:
    failures = 0
    for family in cases():
        if names and family.name not in names:
            continue
        start = time.perf_counter()
        try:
            built = build_family(family)
        except RuntimeError as problem:
            failures += 1
            print(f"{family.name}: NOT BUILT\n{problem}", flush=True)
            _report_refused_probes(family)
            continue
        print(
            f"{family.name}: {len(family.probes)} probes, {time.perf_counter() - start:.1f} s, {len(built.ptx)} PTX",
            flush=True,
        )
    return 1 if failures else 0


def _record(out: Path, names: list[str]) -> int:
    import torch

    stored: dict[str, np.ndarray] = {"gpu": np.array(torch.cuda.get_device_name())}
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        for family in cases():
            if names and family.name not in names:
                continue
            start = time.perf_counter()
            try:
                results = run_on_gpu(family, Path(folder))
            except Exception:  # any fault of one family must not lose the others
                failures += 1
                print(f"{family.name}: FAILED", flush=True)
                traceback.print_exc(limit=-4)
                continue
            seconds = time.perf_counter() - start
            stored |= packed(family.name, family.identity(), results)
            print(
                f"{family.name}: {len(family.probes)} probes, {results.size} results, {seconds:.1f} s",
                flush=True,
            )
    out.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(out, **stored)
    print(f"{out}: {out.stat().st_size / 1e6:.2f} MB, {failures} families failed")
    return 1 if failures else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    record = commands.add_parser("record", help="run on this machine's GPU and write the file")
    record.add_argument("--out", type=Path, default=Path("golden.npz"))
    record.add_argument("families", nargs="*", help="only these")
    building = commands.add_parser("build", help="compile every family")
    building.add_argument("families", nargs="*", help="only these")
    arguments = parser.parse_args()
    if arguments.command == "record":
        return _record(arguments.out, arguments.families)
    return _build_all(arguments.families)


if __name__ == "__main__":
    sys.exit(main())
