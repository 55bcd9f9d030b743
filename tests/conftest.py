"""For all tests."""

import os
import signal

from hypothesis import settings

# Where a shell started the tests in the background, SIGINT is ignored, and every child would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The tests share the cores among themselves: threads of torch that wait for each other would only take them away.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Random tests have hypothesis's hundred examples in `make test`, and these in `make slow`.
settings.register_profile("thorough", max_examples=400)
