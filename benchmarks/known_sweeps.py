"""Sweeps that this machine's GPU has timed, into the file that comes with the package.

    python benchmarks/known_sweeps.py [FOLDER]      FOLDER: where the tuner keeps them; by default, this machine's

Those that are there already stay, but where the same sweep was made again. Times are kept to four digits.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tilewright.measure.autotune import KNOWN, Sweep, known_sweeps
from tilewright.records import from_json, to_json
from tilewright.toolchain import cache_directory


def gather(folder: Path, known: Path = KNOWN) -> int:
    """Put the folder's sweeps into the file; returns how many it has then."""
    sweeps = dict(known_sweeps(known))
    for path in sorted(folder.glob("*.json")):
        sweep: Sweep = from_json(Sweep, json.loads(path.read_text("utf-8")))
        sweeps[path.stem] = Sweep(tuple((choice, rounded(rounds)) for choice, rounds in sweep.times_us))
    lines = [f"{json.dumps(key)}: {json.dumps(to_json(one))}" for key, one in sorted(sweeps.items())]
    known.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")
    known_sweeps.cache_clear()
    return len(sweeps)


def rounded(rounds: tuple[tuple[float, ...], ...]) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(float(f"{time:.4g}") for time in one) for one in rounds)


def main() -> None:
    builds = cache_directory()
    count = gather(Path(sys.argv[1]) if len(sys.argv) > 1 else builds.with_name(f"{builds.name}-tuned"))
    print(f"{count} sweeps, {KNOWN.stat().st_size:,} bytes: {KNOWN}")


if __name__ == "__main__":
    main()
