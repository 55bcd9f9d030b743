"""Recorded replies for a small task, so that the whole program runs with no model: a specification and two kernels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.store.records_for_store import ENVIRONMENT, SETTINGS, attempt

from tilewright.frontends.api.requests import task_of
from tilewright.records import Ending, Message, Question, Reply, Role, StopReason, Usage
from tilewright.store import AttemptFolder, LibraryKernel, Request, Store
from tilewright.tasks.lifting.definition_source import function_text

SOURCE = """\
import torch


def scaled_silu(x, scale: float = 0.5):
    return torch.nn.functional.silu(x) * scale
"""

SPECIFICATION = f"""\
The scale is taken to be a number.

```python
{SOURCE}```

```toml
name = "scaled_silu"
function = "scaled_silu"
assumptions = ["the scale is one number for all elements"]

[dimensions]
n = 2048

[inputs]
x = "f32[n]"
scale = 0.5
```
"""

KERNEL = """\
Summary: {summary}

```cuda
//! op      scaled_silu(x, scale: float = 0.5) -> y
//! out     y: x.dtype[x.shape]
//! need    x.dtype == f32
//! tune    THREADS = 128 | 256
//! let     n = x.numel
//! launch  scaled_silu<<<ceil_div(n, THREADS), THREADS>>>(x, y, n, scale)
__global__ void __launch_bounds__(THREADS) scaled_silu(const float* x, float* y, long long n, float scale) {{
  long long i = blockIdx.x * (long long)THREADS + threadIdx.x;
  if (i < n) y[i] = x[i] / (1.f + expf(-x[i])) {rest};
}}
```
"""
WRONG = KERNEL.format(summary="one thread for each element", rest="")
RIGHT = KERNEL.format(summary="the scale is applied", rest="* scale")


def record(folder: Path, *replies: tuple[str, str]) -> Path:
    """A recording to replay: replies by the id of their question, such as `0001-1`."""
    for name, text in replies:
        number, _, k = name.partition("-")
        question = Question(name, "system", (Message(Role.USER, "as recorded"),))
        reply = Reply("recorded", text, StopReason.END, Usage(1000, 100), 0.0)
        AttemptFolder(folder / "attempts" / number, int(number)).reply_to(int(k), question, lambda _, r=reply: r)
    return folder


def kernel_text(reply: str) -> str:
    """The kernel file in a reply."""
    return reply.partition("```cuda\n")[2].partition("```")[0]


def put_into_library(function: Any, text: str, **shapes: str) -> LibraryKernel:
    """A run that made this kernel for a function, as if it had been verified."""
    request = Request(function_text(function).source, shapes, function=function.__name__)
    task = task_of(request)
    assert task is not None
    folder = Store().create_run(task, SETTINGS, ENVIRONMENT, request)
    folder.attempt(1).save_text("kernel.cu", text)
    folder.attempt(1).finish(replace(attempt(1, 5.0), tune=None))
    folder.end(Ending.ATTEMPTS)
    return Store().library.add(folder)
