"""A module as a text of its own: it computes the same from the same parameters, without any class's constructor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from tilewright.frontends.api.objects import object_request
from tilewright.tasks.errors import BadArgument
from tilewright.tasks.lifting.module_source import ModuleText, constant_fields, module_source


def made_of(text: ModuleText, module: nn.Module) -> Any:
    """The module of a text, as a function that has the parameters of another."""
    namespace: dict[str, Any] = {}
    exec(text.source, namespace)
    rebuilt = eval(text.build, namespace)
    assert type(rebuilt) is not type(module) or type(module).__module__.startswith("torch.")
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return lambda *args, **kwargs: torch.func.functional_call(rebuilt, state, args, kwargs)


def compare(module: nn.Module, *args: torch.Tensor, method: str = "forward", **kwargs: Any) -> ModuleText:
    text = module_source(module, method)
    module.eval()
    torch.testing.assert_close(made_of(text, module)(*args, **kwargs), getattr(module, method)(*args, **kwargs))
    return text


@dataclass
class Config:
    size: int = 8
    eps: float = 1e-3
    label: str = "unused"

    @property
    def half(self) -> float:
        return 0.5


def twice(x: torch.Tensor) -> torch.Tensor:
    return x * FACTOR


FACTOR = 2.0


class Norm(nn.Module):
    scale = 3.0

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.randn(config.size))
        self.register_buffer("mask", torch.arange(config.size) % 2 == 0)
        self.unused = object()

    def forward(self, x: torch.Tensor, *, shift: float = 0.0, **kwargs: Any) -> torch.Tensor:
        scaled = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.config.eps) * self.config.half
        return self._masked(scaled * self.weight * self.scale) + shift

    def _masked(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(self.mask, twice(x), x)

    def doubled(self, x: torch.Tensor) -> torch.Tensor:
        return twice(x) * self.weight


class Louder(Norm):
    @torch.no_grad()
    def forward(self, x: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        return super().forward(x) + self.loudness(4)

    @staticmethod
    def loudness(n: int) -> int:
        return n + 1


class OwnLinear(nn.Linear):
    pass


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8, bias=index == 0) for index in range(2)])
        self.layers[1].weight = self.layers[0].weight
        self.last = nn.Sequential(OwnLinear(8, 4), nn.GELU(approximate="tanh"), nn.Dropout(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.last(x)


def test_what_methods_reach_and_read_is_in_the_text_and_nothing_else() -> None:
    module, x = Norm(Config()), torch.randn(3, 8)
    text = compare(module, x, shift=1.0)
    assert "__init__" not in text.source.replace("torch.nn.Module.__init__", "")
    assert "unused" not in text.source
    assert "doubled" not in text.source
    assert "FACTOR = 2.0" in text.source
    assert {one.name for one in text.constants} >= {"config.eps", "config.half"}
    module.config.eps = 2.0
    assert [one.name for one in text.constants if not one.holds(module)] == ["config.eps"]


def test_a_subclass_brings_what_it_inherits() -> None:
    text = compare(Louder(Config()), torch.randn(3, 8))
    assert "class Louder(Norm)" in text.source
    assert "no_grad" not in text.source


def test_a_method_stands_in_the_place_of_forward() -> None:
    module, x = Norm(Config()), torch.randn(3, 8)
    compare(module, x, method="doubled")


def test_layers_of_torch_are_made_by_their_constructors() -> None:
    compare(nn.LayerNorm(8), torch.randn(3, 8))
    text = compare(Whole(), torch.randn(3, 8))
    assert "torch.nn.Linear(in_features=8, out_features=8, bias=True)" in text.source
    assert text.trains_otherwise  # there is a dropout
    assert not module_source(nn.LayerNorm(8)).trains_otherwise
    compare(nn.BatchNorm1d(8), torch.randn(3, 8))
    compare(nn.Linear(8, 4).bfloat16(), torch.randn(3, 8).bfloat16())
    compare(nn.LSTM(8, 4, batch_first=True), torch.randn(2, 3, 8))
    compare(nn.TransformerEncoderLayer(8, 2, 16), torch.randn(2, 3, 8))


def test_equal_modules_have_equal_texts_whatever_their_weights() -> None:
    torch.manual_seed(1)
    first = module_source(nn.Linear(256, 128))
    torch.manual_seed(2)
    second = module_source(nn.Linear(256, 128))
    assert (first.source, first.values) == (second.source, second.values)
    assert first.values == {"weight": "normal 0.0 0.03125", "bias": "normal 0.0 0.03125"}
    assert module_source(nn.LayerNorm(8)).values == {"weight": "normal 1.0 0.1", "bias": "normal 0.0 0.125"}


def test_large_parameters_have_no_content_in_the_text() -> None:
    namespace: dict[str, Any] = {}
    text = module_source(nn.Linear(64, 64))
    exec(text.source, namespace)
    assert eval(text.build, namespace).weight.is_meta
    with torch.device("meta"):
        large = nn.Linear(1 << 15, 1 << 15)
    assert "in_features=32768" in module_source(large).source


def test_what_an_instance_holds_is_listed() -> None:
    source = "def make():\n    module.eps = 1e-06\n    module.kind = 'a'\n    module.x = f(1)\n"
    assert constant_fields(source) == ["eps = 1e-06", "kind = 'a'"]


class Uncarried(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lock = iter(())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * len(list(self.lock))


def hooked() -> nn.Module:
    module = nn.Linear(4, 4)
    module.register_forward_hook(lambda module, args, output: output * 2)
    return module


def swapped() -> nn.Module:
    module = nn.Linear(4, 4)
    module.forward = lambda x: x  # type: ignore[method-assign,assignment]
    return module


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Uncarried(), "Uncarried: lock is a tuple_iterator, which a source text cannot hold"),
        (hooked(), "Linear has forward hooks, which a source text cannot hold; remove them"),
        (swapped(), "Linear has a forward of its own beside its class's"),
        (nn.Module(), "Module has no forward"),
        (nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), "ParametrizedLinear is parametrized; remove that"),
    ],
)
def test_what_cannot_be_carried_is_said_in_one_sentence(module: nn.Module, message: str) -> None:
    with pytest.raises(BadArgument, match=message):
        module_source(module)


def test_of_a_layer_with_parts_the_way_on_is_said() -> None:
    layer = nn.Sequential(Uncarried(), nn.Linear(8, 8))
    with pytest.raises(BadArgument, match=r"cannot hold.*; of a whole layer, `tilewright find`.* makes kernels"):
        object_request(layer, {"input": "4x8:f32"}, {}, {})
    with pytest.raises(BadArgument, match="cannot hold") as refused:
        object_request(Uncarried(), {"x": "4x8:f32"}, {}, {})
    assert "whole layer" not in str(refused.value)
