"""How a record shows itself in a notebook."""

from __future__ import annotations

import importlib


class Displayed:
    """Something that a notebook shows as HTML. What that looks like is the front end's to say."""

    def _repr_html_(self) -> str:
        # Looked up by name and late: records know nothing above them, and nobody but a notebook asks.
        return str(importlib.import_module("tilewright.frontends.report.run_report").html_of(self))
