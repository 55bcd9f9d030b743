"""What is said of a kernel that the library has already: one sentence for the command line and for Python."""

from __future__ import annotations

from tilewright.frontends.run_rows import time_words
from tilewright.store import LibraryEntry


def found_words(entry: LibraryEntry, wanted: str, anew: str) -> str:
    """Who made it. `wanted`: the author named for this request, if any; `anew`: the option that has it made anew."""
    made = f"already made by run {entry.run} ({entry.author}, {time_words(entry.measurement)} on {entry.gpu})"
    if wanted and wanted != entry.author:
        return f"{made}, so {wanted} was not asked for one; {anew} has it made anew by {wanted}"
    return f"{made}; {anew} makes it anew"
