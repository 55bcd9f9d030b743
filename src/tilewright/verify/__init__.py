"""The referee: whether a kernel file computes what a task asks for, and what is wrong where it does not."""

from tilewright.verify.candidate import read_kernel
from tilewright.verify.referee import Referee

__all__ = ["Referee", "read_kernel"]
