"""Tests of the kernel files in `examples/`: they build everywhere they claim to, and they are right on a GPU."""
