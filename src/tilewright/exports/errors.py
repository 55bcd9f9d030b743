"""Why something cannot be exported or published: one sentence for the person who asked."""

from __future__ import annotations


class NotExportable(ValueError):
    """What was asked for cannot be exported; the message says why and what to do."""


class NotPublishable(ValueError):
    """What was asked for may not be published; the message says why and what to do."""
