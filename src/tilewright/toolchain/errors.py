"""The one exception of this part: faults of ours or of the machine. A rejected source is a `BuildFailure` value."""

from __future__ import annotations


class ToolchainError(RuntimeError):
    """No compiler found, a compile child that cannot be started, an answer that makes no sense."""
