"""Requests that the built-in author is sure to refuse, refused before torch is imported: words it does not read, and
functions that call what it has no structure for. What is not plain to see is left to be found out."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from tilewright.playbook.errors import PlaybookProblem
from tilewright.playbook.foresight import foresee
from tilewright.playbook.specification import specification
from tilewright.store import Request, Store, StoreError

_FUNCTION = re.compile(r"(?P<path>\S+\.py)(?::(?P<name>\w+))?")
_LONGEST_PATH = 1000


def refuse_foreseen(request: Request, anew: bool) -> None:
    """Raises what the playbook would; not where the library may have a kernel, for which no author is asked."""
    try:
        _foresee(request)
    except PlaybookProblem:
        if anew or not _may_be_known(request):
            raise


def _foresee(request: Request) -> None:
    text = request.text.strip()
    found = _FUNCTION.fullmatch(text)
    if found is None:
        if text and ":" not in text and ".py" not in text and not _is_path(text):
            specification(text, request.shapes)
        return
    with contextlib.suppress(OSError, UnicodeDecodeError):
        source = Path(found["path"]).expanduser().read_text(encoding="utf-8")
        foresee(source, found["name"] or "Model")


def _is_path(text: str) -> bool:
    return len(text) < _LONGEST_PATH and Path(text).expanduser().exists()


def _may_be_known(request: Request) -> bool:
    for kernel in Store().library.all():
        with contextlib.suppress(StoreError):
            asked = kernel.request()
            if asked is not None and asked.text == request.text:
                return True
    return False
