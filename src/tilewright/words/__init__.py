"""Requests in plain words, read by a catalogue of operations: `read` gives the reference and what is assumed."""

from __future__ import annotations

from tilewright.words.catalogue import Operation, nearest
from tilewright.words.errors import NotUnderstood, Reading, SeveralReadings
from tilewright.words.request import read, reference

__all__ = ["NotUnderstood", "Operation", "Reading", "SeveralReadings", "nearest", "read", "reference"]
