"""Kernels as the playbook drafts them, put into the library as if a run had verified them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.store.records_for_store import ENVIRONMENT, SETTINGS, attempt

from tilewright.frontends.api import make as api
from tilewright.frontends.api.objects import ObjectRequest
from tilewright.frontends.api.requests import task_of
from tilewright.frontends.finding import kernels
from tilewright.playbook.understanding import understand
from tilewright.records import Ending
from tilewright.store import Store
from tilewright.tasks import TaskOptions, backward_task, task_op_line


def drafting(patch: pytest.MonkeyPatch, spoil: tuple[str, str] = ("", "")) -> None:
    """Have regions' kernels drafted instead of made; `spoil` changes the text of each."""

    def make(request: ObjectRequest, **options: Any) -> Any:
        asked = request.request
        task = task_of(asked)
        assert task is not None
        both = [task, backward_task(task, TaskOptions())] if options.get("backward") else [task]
        for one in both:
            text = understand(one).draft.write(task_op_line(one)).replace(*spoil)
            folder = Store().create_run(one, SETTINGS, ENVIRONMENT, replace(asked, backward=one is not task))
            folder.attempt(1).save_text("kernel.cu", text)
            folder.attempt(1).finish(replace(attempt(1, 5.0), tune=None))
            folder.end(Ending.ATTEMPTS)
            Store().library.add(folder)
        return api.make(request, gpu="H200", quiet=True)

    patch.setattr(kernels, "make", make)
