"""Bulk copies between global and shared memory on Hopper and later, as text: rows that come, results that leave."""

from __future__ import annotations

from tilewright.playbook.templates import sections

_CUDA = sections("bulk_text")

COPYING = _CUDA["copying"]
STORING = _CUDA["storing"]
