"""The numbers that a reference compares, clamps and divides with, read off its source: results turn there."""

from __future__ import annotations

import ast
import math
from functools import lru_cache

from tilewright.records import Task

_ALWAYS = (0.0, 1.0, -1.0, 0.5)
_MOST = 40
_LARGEST = 1e4
_LEAST = 1e-3
# Functions that turn somewhere without its being written.
_KNOWN = {
    "softplus": (20.0,),
    "Softplus": (20.0,),
    "hardswish": (3.0,),
    "Hardswish": (3.0,),
    "hardsigmoid": (3.0,),
    "Hardsigmoid": (3.0,),
    "relu6": (6.0,),
    "ReLU6": (6.0,),
    "smooth_l1_loss": (1.0,),
    "huber_loss": (1.0,),
}


def thresholds(task: Task) -> tuple[float, ...]:
    """Numbers of both signs, and halves of them, which are ties where something is rounded to multiples of them."""
    numbers = tuple(float(one.value) for one in task.numbers)
    return _thresholds(task.reference, numbers)


@lru_cache(maxsize=64)
def _thresholds(source: str, numbers: tuple[float, ...]) -> tuple[float, ...]:
    written = dict.fromkeys((*_ALWAYS, *numbers, *_constants(source)))
    usual = [one for one in written if math.isfinite(one) and (one == 0 or _LEAST <= abs(one) <= _LARGEST)]
    found = dict.fromkeys(
        sign * part * one for part in (1.0, 0.5, 1.5, 2.5, 3.0) for one in usual for sign in (1.0, -1.0)
    )
    return tuple(found)[:_MOST]


def _constants(source: str) -> list[float]:
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return []
    found: list[float] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
            found.append(float(min(max(node.value, -1e30), 1e30)))
        name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        found += _KNOWN.get(name, ())
    return found
