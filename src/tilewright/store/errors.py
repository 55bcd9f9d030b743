"""What the store can raise.

    StoreError              every refusal of the store's own; one sentence that says what to do
    ├── NoSuchRun           nothing here is called that, or several are
    ├── RunBusy             another process works on the run
    ├── NotAccepted         a request in words whose specification nobody has accepted yet: there is no task
    └── Damaged             a file that is not what this version writes

A disk that is full or a folder that cannot be written stays an `OSError`.
"""

from __future__ import annotations


class StoreError(RuntimeError):
    """Something the store refuses; see the module's docstring for the tree."""


class NoSuchRun(StoreError):
    """No run is meant by what was said, or more than one."""


class RunBusy(StoreError):
    """Another process holds the run's lock."""


class NotAccepted(StoreError):
    """There is a request in words, and no task yet."""


class Damaged(StoreError):
    """A file of a run or of the library that cannot be read as what it should be."""
