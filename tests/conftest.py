"""For all tests."""

import os
import signal

from hypothesis import HealthCheck, settings

# Where a shell started the tests in the background, SIGINT is ignored, and every child would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# What a person has set up for themselves is not the tests': a proxy would stand between them and their own servers,
# and keys, addresses and colours change what is said.
PERSONAL = ("_PROXY", "_API_KEY", "_TOKEN", "_BASE_URL", "FORCE_COLOR", "NO_COLOR", "PY_COLORS", "GITHUB_ACTIONS")
PERSONAL_SETTINGS = ("HOME", "EMULATE", "EMULATE_BUDGET", "PRICES", "PURE_PYTHON_LAUNCHER")
for _name in tuple(os.environ):
    if _name.upper().endswith(PERSONAL) or _name in {f"TILEWRIGHT_{one}" for one in PERSONAL_SETTINGS}:
        del os.environ[_name]

# The tests share the cores among themselves: threads of torch that wait for each other would only take them away.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Random tests have hypothesis's hundred examples in `make test`, and four hundred in `make slow`. Nothing of them hangs
# on the clock: a machine may have much else to do.
settings.register_profile("usual", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", settings.get_profile("usual"), max_examples=400)
settings.load_profile("usual")
