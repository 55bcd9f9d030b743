"""What can be wrong with a reference."""

from __future__ import annotations


class ReferenceProblem(Exception):
    """The reference itself is at fault: it cannot be imported, raises, is too slow or too large, or died.

    The message is one sentence. Faults of this package or of the machine raise something else.
    """
