"""The runner child's entry points, and the program that a profiler or sanitizer starts.

    python -m tilewright.devices.runner_program cuda --device N
    python -m tilewright.devices.runner_program emulated --profile JSON --address-space BYTES
    python -m tilewright.devices.runner_program watched FOLDER --device N

The first two serve jobs until their parent exits. The third runs the job in a folder once and writes the address of
each tensor there.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from tilewright.child.envelope import EnvelopeKind, record_in, unseal
from tilewright.child.inside import leave
from tilewright.devices.runner import Engine, EngineRefused, JobFault, serve
from tilewright.records import GpuProfile, Job, RecordError, from_json


def main(arguments: Sequence[str]) -> int:
    if arguments[0] == "watched":
        return _run_watched(_parsed(arguments[1:]))
    opened = _open_cuda if arguments[0] == "cuda" else _open_emulator
    return serve(arguments[1:], lambda own: opened(_parsed(own)))


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tilewright.devices.runner_program", description="Started by us.")
    parser.add_argument("folder", type=Path, nargs="?", help="that has the job to be watched")
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--profile", help="the GPU to emulate, as JSON")
    parser.add_argument("--address-space", type=int, help="most bytes this process may map")
    return parser.parse_args(arguments)


def _open_cuda(options: argparse.Namespace) -> Engine:
    try:
        from tilewright.devices.cuda_engine import CudaEngine

        return CudaEngine(options.device)
    except ImportError as error:
        raise EngineRefused(
            f"cuda:{options.device} cannot be used: {error}; "
            f"install torch and cuda-bindings for this Python ({sys.executable})"
        ) from error
    except (RuntimeError, AssertionError) as error:  # of the driver, or of torch
        raise EngineRefused(
            f"cuda:{options.device} cannot be used: {error}; `nvidia-smi` shows which GPUs this machine has"
        ) from error


def _open_emulator(options: argparse.Namespace) -> Engine:
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (options.address_space, most))  # may be raised later
    try:
        from tilewright.devices.emulation.engine import EmulatorEngine
        from tilewright.devices.emulation.programs import core_problem

        problem = core_problem()
        if problem is not None:
            raise EngineRefused(problem)
        return EmulatorEngine(from_json(GpuProfile, json.loads(options.profile)))
    except ImportError as error:
        raise EngineRefused(
            f"the emulator cannot be used: {error}; install it for this Python ({sys.executable})"
        ) from error
    except (ValueError, RecordError) as error:
        raise EngineRefused(f"the profile to emulate cannot be read: {error}") from error


def _run_watched(options: argparse.Namespace) -> int:
    from tilewright.devices.cuda_engine import CudaEngine

    threading.Thread(target=_end_with_parent, daemon=True).start()
    job = record_in(unseal((options.folder / "job").read_bytes()), EnvelopeKind.JOB, Job)

    places = options.folder / "tensors.json"
    try:
        CudaEngine(options.device).run_under_tool(job, lambda addresses: places.write_text(json.dumps(addresses)))
    except JobFault as fault:
        sys.stderr.write(f"{fault.kind.value}: {fault.message}\n")
        return 1
    return 0


def _end_with_parent() -> None:
    while os.read(0, 4096):  # the parent keeps the other end of stdin open until it is done or dead
        pass
    os._exit(2)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
