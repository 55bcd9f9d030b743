"""For all tests."""

import signal

# Where a shell started the tests in the background, SIGINT is ignored, and every child would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
