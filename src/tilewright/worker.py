"""`python -m tilewright.worker DIR`: run the jobs of a spool directory on a GPU of this machine.

Needs the standard library, numpy, torch and cuda-bindings, nothing else. See `tilewright.devices.spool_worker`.
"""

from __future__ import annotations

import sys

from tilewright.devices.worker_program import main

if __name__ == "__main__":
    sys.exit(main())
