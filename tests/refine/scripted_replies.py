"""A small task, replies to it as a model would write them, and a script by which a server gives them."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.models.servers import Answer, AnthropicServer, Cut, OpenAIServer, ScriptedServer, Status, Trouble
from tests.models.tiny_model import TEMPLATE

from tilewright.records import Dimension, DType, Task, TaskOutput, TensorInput

KEY = "sk-a-key-that-must-stay-secret"

SOURCE = """\
import torch


def squash(x):
    return torch.where(x > 0, torch.tanh(x), 0.1 * x)
"""
TASK = Task(
    name="squash",
    reference=SOURCE,
    function="squash",
    inputs=(TensorInput("x", DType.F32, ("rows", "cols")),),
    outputs=(TaskOutput("y", DType.F32, ("rows", "cols")),),
    dimensions=(Dimension("rows", 64), Dimension("cols", 1000)),
)

_SLOW = """\
//! op      squash(x) -> y
//! out     y: x.dtype[x.shape]
//! need    x.dtype == f32
//! let     n = x.numel
//! let     per = max(1, ceil_div(n, 1024))
//! launch  squash<<<4, 256>>>(x, y, n, per)

__global__ void squash(const float* x, float* y, long long n, long long per) {
    const long long first = (blockIdx.x * 256ll + threadIdx.x) * per;
    for (long long i = first; i < first + per && i < n; ++i) y[i] = x[i] > 0.0f ? tanhf(x[i]) : %s;
}
"""
FAST_KERNEL = """\
//! op      squash(x) -> y
//! out     y: x.dtype[x.shape]
//! need    x.dtype == f32
//! let     n = x.numel
//! launch  squash<<<max(1, ceil_div(n, 256)), 256>>>(x, y, n)

__global__ void squash(const float* x, float* y, long long n) {
    const long long i = blockIdx.x * 256ll + threadIdx.x;
    if (i < n) y[i] = x[i] > 0.0f ? tanhf(x[i]) : 0.1f * x[i];
}
"""


def whole(summary: str, kernel: str) -> str:
    return f"Summary: {summary}\n\n```cuda\n{kernel}```\n"


MALFORMED = "Each thread takes a run of elements; I would write:\n\n    squash<<<4, 256>>>(x, y, n, per)\n"
WRONG = whole("a run of elements for each thread", _SLOW % "x[i]")
RIGHT = whole("the slope is applied", _SLOW % "0.1f * x[i]")
CUT_OFF = RIGHT[: RIGHT.index("for (long")]
REFUSAL = "I cannot help with that."
FASTER = """\
Summary: neighbouring elements to neighbouring threads

<<<<<<< SEARCH
//! let     per = max(1, ceil_div(n, 1024))
//! launch  squash<<<4, 256>>>(x, y, n, per)
=======
//! launch  squash<<<max(1, ceil_div(n, 256)), 256>>>(x, y, n)
>>>>>>> REPLACE

<<<<<<< SEARCH
__global__ void squash(const float* x, float* y, long long n, long long per) {
    const long long first = (blockIdx.x * 256ll + threadIdx.x) * per;
    for (long long i = first; i < first + per && i < n; ++i) y[i] = x[i] > 0.0f ? tanhf(x[i]) : 0.1f * x[i];
=======
__global__ void squash(const float* x, float* y, long long n) {
    const long long i = blockIdx.x * 256ll + threadIdx.x;
    if (i < n) y[i] = x[i] > 0.0f ? tanhf(x[i]) : 0.1f * x[i];
>>>>>>> REPLACE
"""


class Script:
    """The next reply for every new question, and the same reply to the same question, however often it is asked."""

    def __init__(self, *answers: Answer | str) -> None:
        self._answers = list(answers)
        self._given: dict[str, Answer | str] = {}
        self._lock = threading.Lock()

    def __call__(self, body: dict[str, Any]) -> Answer | str:
        question = json.dumps(body["messages"])
        with self._lock:
            if question not in self._given:
                assert self._answers, f"nobody expected to be asked: {question[-500:]}"
                self._given[question] = self._answers.pop(0)
            return self._given[question]


@dataclass(frozen=True)
class Service:
    """A provider with its server, and its own words for how a reply ended."""

    name: str
    serve: type[ScriptedServer]
    key_variable: str
    cut: str
    refused: str
    dollars_per_reply: float | None

    def answers(self) -> Script:
        """What the model says when all goes well, in order: six replies over four attempts, and a fifth attempt."""
        return Script(
            self._said(MALFORMED),
            self._said(WRONG),
            self._said(CUT_OFF, self.cut),
            self._said(RIGHT),
            self._refusal(),
            self._said(FASTER),
            self._said(RIGHT),
        )

    def _said(self, text: str, stop: str = "") -> Answer:
        return Answer(text, stop, input_tokens=1000, output_tokens=200, cache_read_tokens=3000)

    def _refusal(self) -> Answer:
        return replace(self._said("", self.refused), refusal=REFUSAL)


# What a reply of theirs costs by the table in `PRICES`, which has no price for the router.
SERVICES = [
    Service("anthropic:clever-1", AnthropicServer, "ANTHROPIC_API_KEY", "max_tokens", "refusal", 0.0046),
    Service("openai:clever-2", OpenAIServer, "OPENAI_API_KEY", "length", "content_filter", 0.0046),
    Service("hf:some-org/clever-3:some-host", OpenAIServer, "HF_TOKEN", "length", "content_filter", None),
]
# The n-th request meets the n-th trouble. Questions: 1-1, 1-2, 2-1, 2-2, 3-1, 4-1, 5-1.
TROUBLES: list[Trouble | None] = [
    Status(429, {"retry-after": "0.2"}, {"error": {"message": "slow down"}}),
    Status(529, body={"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}),
    None,  # 1-1: malformed
    None,  # 1-2: wrong
    Status(503, body="upstream connect error"),
    Cut(12),
    None,  # 2-1: cut off at the limit
    Cut(20, orderly=True),
    None,  # 2-2: right
    None,  # 3-1: refused
    Cut(5),
    None,  # 4-1: faster
    Status(401, body={"error": {"message": f"the key {KEY} is not valid"}}),
]
PRICES = """\
[anthropic]
"clever-1" = {input = 2.0, output = 10.0, cache_read = 0.2}
[openai]
"clever-2" = {input = 2.0, output = 10.0, cache_read = 0.2}
"""


def make_random_model(directory: Path) -> Path:
    """A model of random weights for `transformers:`; it answers any question with a few words at random."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    words = ["<end>", "<unknown>", "a", "kernel", "thread", "block", "warp", "loads", "one", "row", "element", "of"]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unknown>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", unk_token="<unknown>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(directory)

    torch.manual_seed(0)
    small = GPT2Config(
        vocab_size=len(words), n_positions=16384, n_embd=8, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=0
    )
    model = GPT2LMHeadModel(small)
    model.generation_config.do_sample = True
    model.save_pretrained(directory)
    return directory


class Correspondent:
    """Somebody who answers a relay: a thread that writes a reply for every prompt file, by the question's id."""

    def __init__(self, directory: Path, replies: dict[str, str]) -> None:
        self._directory = directory
        self._replies = replies
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self.answered: list[str] = []

    def __enter__(self) -> Correspondent:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _serve(self) -> None:
        while not self._stop.wait(0.02):
            for prompt in sorted(self._directory.glob("*.prompt.md")):
                name = prompt.name.removesuffix(".prompt.md")
                if name not in self.answered:
                    writing = self._directory / f"{name}.writing"
                    writing.write_text(self._replies[name])
                    writing.rename(self._directory / f"{name}.reply.md")
                    self.answered.append(name)
