"""The emulating runner child: `python -m tilewright.devices.emulated_runner --profile JSON --address-space BYTES ...`.

The same conversation as the GPU's runner; what differs is the engine, and a hard limit on the process's own memory.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
from collections.abc import Sequence

from tilewright.devices.runner import Engine, EngineRefused, serve
from tilewright.records import GpuProfile, RecordError, from_json


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tilewright.devices.emulated_runner", description="Started by EmulatedDevice.", add_help=False
    )
    parser.add_argument("--profile", required=True, help="the GPU to emulate, as JSON")
    parser.add_argument("--address-space", type=int, required=True, help="most bytes this process may map")
    options, rest = parser.parse_known_args(arguments)
    resource.setrlimit(resource.RLIMIT_AS, (options.address_space, options.address_space))
    return serve(rest, lambda index: _open(options.profile))


def _open(profile: str) -> Engine:
    try:
        from tilewright.devices.emulation.engine import EmulatorEngine
        from tilewright.devices.emulation.programs import core_problem

        problem = core_problem()
        if problem is not None:
            raise EngineRefused(problem)
        return EmulatorEngine(from_json(GpuProfile, json.loads(profile)))
    except ImportError as error:
        raise EngineRefused(
            f"the emulator cannot be used: {error}; install it for this Python ({sys.executable})"
        ) from error
    except (ValueError, RecordError) as error:
        raise EngineRefused(f"the profile to emulate cannot be read: {error}") from error


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(status)
