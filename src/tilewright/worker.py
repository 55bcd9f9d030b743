"""`python -m tilewright.worker DIR`: run the jobs of a spool directory on a GPU of this machine.

Kernels run in one child, the references they are compared with in others, one at a time. Needs the standard library,
numpy, torch and cuda-bindings, nothing else. See `tilewright.devices.spool_worker`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tilewright.devices import worker_program
from tilewright.devices.cuda_device import RUNNER
from tilewright.reference.spooled import References


def main(arguments: Sequence[str] | None = None, command: Sequence[str] = RUNNER) -> int:
    """Serve a spool; returns the exit status. `command` is the runner program."""
    return worker_program.main(arguments, command, References)


if __name__ == "__main__":
    sys.exit(main())
