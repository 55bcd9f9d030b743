"""How fast a candidate is: measured beside its baselines on a GPU, or modelled from emulated counts; never mixed."""

from tilewright.measure.autotune import autotune, slower_than
from tilewright.measure.floor import floor_us
from tilewright.measure.stopwatch import Stopwatch

__all__ = ["Stopwatch", "autotune", "floor_us", "slower_than"]
