"""For all tests."""

import os
import signal

from hypothesis import HealthCheck, settings

# Where a shell started the tests in the background, SIGINT is ignored, and every child would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The tests share the cores among themselves: threads of torch that wait for each other would only take them away.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Random tests have hypothesis's hundred examples in `make test`, and four hundred in `make slow`. Nothing of them hangs
# on the clock: a machine may have much else to do.
settings.register_profile("usual", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", settings.get_profile("usual"), max_examples=400)
settings.load_profile("usual")
