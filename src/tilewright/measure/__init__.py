"""How fast a candidate is: measured beside its baselines on a GPU, or modelled from emulated counts; never mixed."""

from tilewright.measure.floor import floor_us
from tilewright.measure.stopwatch import Stopwatch
from tilewright.measure.sweep import sweep

__all__ = ["Stopwatch", "floor_us", "sweep"]
