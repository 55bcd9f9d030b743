"""References that share their children: Python and torch start once for each source, not once for each use.

For tests that are about what references answer. How their processes start, end and die is tests/reference's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

import pytest

from tilewright.child.process import SupervisedChild
from tilewright.reference.loading import ReferenceSetup
from tilewright.reference.reference import Reference, ReferenceLimits

MOST_KEPT = 3  # each holds torch in memory

_start, _close = Reference._start, Reference.close
_kept: OrderedDict[tuple[ReferenceSetup, ReferenceLimits], SupervisedChild] = OrderedDict()


def _start_or_take(self: Reference) -> SupervisedChild:
    child = _kept.pop((self._setup, self._limits), None)
    if child is None or not child.alive:
        return _start(self)
    child.interrupt = self._interrupt
    self._child, self._loaded = child, True
    return child


def _keep_or_close(self: Reference) -> None:
    key, child = (self._setup, self._limits), self._child
    if self._loaded and child is not None and not child._over and child.alive and key not in _kept:
        _kept[key], self._child = child, None
        if len(_kept) > MOST_KEPT:
            _kept.popitem(last=False)[1].end()
    _close(self)


@pytest.fixture(scope="module", autouse=True)
def kept_references() -> Iterator[None]:
    """For the modules below a conftest.py that imports it; what was kept ends with the module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Reference, "_start", _start_or_take)
        patch.setattr(Reference, "close", _keep_or_close)
        yield
    while _kept:
        _kept.popitem()[1].end()
