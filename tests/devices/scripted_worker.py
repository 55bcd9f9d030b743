"""`python -m tilewright.worker` with the scripted runner in place of a GPU's."""

from __future__ import annotations

import sys

from scripted_jobs import RUNNER

from tilewright.worker import main

if __name__ == "__main__":
    sys.exit(main(command=RUNNER))
