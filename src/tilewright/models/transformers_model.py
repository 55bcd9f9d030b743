"""An open model in this process, by Hugging Face's `transformers`: from the Hub, its cache or a directory.

For trying things out and for machines without a server. Weights stay in memory until `close`; one question at a time.
Code that comes with a model is not run.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from typing import TYPE_CHECKING, Any

from tilewright.models.prices import NOTHING, Price
from tilewright.models.protocol import MissingPackage, ModelError, ModelRejected, OnText, Opening, Provider
from tilewright.models.service import without_thinking
from tilewright.records import Question, Reply, StopReason, Usage

if TYPE_CHECKING:
    import torch


def open_model(opening: Opening) -> TransformersModel:
    if importlib.util.find_spec("transformers") is None:
        raise MissingPackage(f"{opening.name} needs the package transformers; run `pip install 'tilewright[local]'`")
    return TransformersModel(opening)


PROVIDERS = (Provider("transformers", open_model, package="transformers", install="'tilewright[local]'"),)


class TransformersModel:
    """A causal language model with a chat template. It is loaded with the first question; it costs nothing."""

    def __init__(self, opening: Opening) -> None:
        self.name = opening.name
        self.price: Price | None = NOTHING
        self._opening = opening
        self._tokenizer: Any = None
        self._model: Any = None

    def complete(self, question: Question, on_text: OnText) -> Reply:
        started = time.monotonic()
        if self._model is None:
            self._load()
        prompt = self._prompt(question)
        limit = self._limit(question, prompt.shape[1])
        produced = self._generate(prompt, limit, on_text)
        text = self._tokenizer.decode(produced, skip_special_tokens=True)
        return Reply(
            model=self.name,
            text=self._opening.scrub(without_thinking(text)),
            stop=self._stop(produced, limit),
            usage=Usage(input_tokens=prompt.shape[1], output_tokens=len(produced)),
            dollars=0.0,
            seconds=time.monotonic() - started,
        )

    def _load(self) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import logging

        bars: Any = logging
        if not sys.stderr.isatty():
            bars.disable_progress_bar()
        source = self._opening.model
        self._opening.say(f"{self.name}: loading the model")
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(source)
            model: Any = AutoModelForCausalLM.from_pretrained(source, dtype="auto")
        except (OSError, ValueError, ImportError) as error:
            problem = " ".join(self._opening.scrub(str(error)).split())[:400]
        else:
            if not self._tokenizer.chat_template:
                raise ModelRejected(f"{self.name} has no chat template; choose a model tuned for instructions")
            self._model = model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
            return
        raise ModelRejected(f"{self.name} cannot be loaded; check its name and that it fits `transformers`: {problem}")

    def _prompt(self, question: Question) -> torch.Tensor:
        messages = [{"role": one.role.value, "content": one.text} for one in question.messages]
        if not question.system:
            return self._template(messages)
        try:
            return self._template([{"role": "system", "content": question.system}, *messages])
        except Exception:
            # Some templates know no system role and raise; its text then leads the first message of the user.
            first = {"role": "user", "content": f"{question.system}\n\n{messages[0]['content']}"}
            return self._template([first, *messages[1:]])

    def _template(self, messages: list[dict[str, str]]) -> torch.Tensor:
        tokens: torch.Tensor = self._tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )["input_ids"]
        return tokens

    def _limit(self, question: Question, prompt_tokens: int) -> int:
        """How many tokens the reply may have: what was asked for, and what the context has room for."""
        context = getattr(self._model.config.get_text_config(), "max_position_embeddings", None)
        room = question.max_output_tokens if context is None else context - prompt_tokens
        if room < 1:
            raise ModelRejected(f"{self.name} takes {context} tokens and the question alone has {prompt_tokens}")
        return min(question.max_output_tokens, room)

    def _generate(self, prompt: torch.Tensor, limit: int, on_text: OnText) -> list[int]:
        import torch
        from transformers import TextStreamer

        class Streamer(TextStreamer):  # type: ignore[misc]  # mypy does not read transformers
            def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
                if text:
                    on_text(text)

        prompt = prompt.to(self._model.device)
        try:
            whole = self._model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=limit,
                streamer=Streamer(self._tokenizer, skip_prompt=True, skip_special_tokens=True),
            )
        except torch.OutOfMemoryError:
            raise ModelError(
                f"{self.name} ran out of GPU memory; choose a smaller model or serve it elsewhere"
            ) from None
        produced: list[int] = whole[0, prompt.shape[1] :].tolist()
        return produced

    def _stop(self, produced: list[int], limit: int) -> StopReason:
        ends = self._model.generation_config.eos_token_id
        ends = ends if isinstance(ends, list) else [ends]
        finished = bool(produced) and produced[-1] in ends
        return StopReason.LENGTH if len(produced) >= limit and not finished else StopReason.END

    def close(self) -> None:
        self._model = self._tokenizer = None
