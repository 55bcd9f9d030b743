"""The program that a profiler or a sanitizer starts: `python -m tilewright.devices.watched_run FOLDER --device N`.

It runs the plan of the job in the folder, and leaves there where in memory each tensor was.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from tilewright.devices.cuda_engine import CudaEngine
from tilewright.devices.envelope import open_job, unseal
from tilewright.devices.job_run import Fault


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tilewright.devices.watched_run", description="Started by a tool.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", type=int, default=0)
    options = parser.parse_args(arguments)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    job = open_job(unseal((options.folder / "job").read_bytes()))

    def place(addresses: dict[str, int]) -> None:
        (options.folder / "tensors.json").write_text(json.dumps(addresses))

    try:
        CudaEngine(options.device).watch(job, place)
    except Fault as fault:
        sys.stderr.write(f"{fault.kind.value}: {fault.message}\n")
        return 1
    return 0


def _end_with_parent() -> None:
    """The one who started the tool holds the other end of the standard input until it is done, or dead."""
    while os.read(0, 4096):
        pass
    os._exit(2)


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(status)  # no tidying up in a context that may be lost
