"""Attention, as people say it."""

from __future__ import annotations

from tilewright.playbook.named_operation import Effect, NamedOperation, Tensor

_KINDS = r"(?:(?:flash|dropout free|scaled dot product|dot product|softmax) )"
_CAUSAL = rf"causal (?:{_KINDS}?attention|sdpa)|(?:{_KINDS}?attention|sdpa) (?:causal|with causal mask(?:ing)?)"
_DECODE = rf"(?:decode|single query|split kv) {_KINDS}?attention|{_KINDS}?attention decod(?:e|ing)|flash decoding"
_GROUPED = rf"(?:(?:grouped query|gqa) {_KINDS}?attention|gqa)"
_QUERY = ("batch", "heads", "sequence", "head_size")
_SCALE = "queries, keys and values are [batch, heads, sequence, head size]; scores are scaled by 1 / sqrt(head size)"


def _attention(name: str, says: str, pattern: str, options: str = "", kv_heads: int | str = 1) -> NamedOperation:
    return NamedOperation(
        name,
        says,
        pattern,
        f"F.scaled_dot_product_attention({{v}}, {{key}}, {{value}}{options})",
        Effect.RESHAPES,
        (Tensor("key", (0, kv_heads, "keys", -1)), Tensor("value", (0, kv_heads, "keys", -1))),
        _SCALE,
        takes=Tensor("query", _QUERY),
        gives=(0, 1, 2, 3),
    )


ATTENTION_OPERATIONS: tuple[NamedOperation, ...] = (
    _attention("attention", "attention", rf"{_KINDS}?attention|sdpa"),
    _attention("causal_attention", "attention in which no query sees later keys", _CAUSAL, ", is_causal=True"),
    _attention(
        "grouped_attention", "attention whose heads share keys in groups", _GROUPED, ", enable_gqa=True", "kv_heads"
    ),
    _attention(
        "grouped_causal_attention",
        "attention in which no query sees later keys, and heads share keys in groups",
        rf"causal {_GROUPED}|{_GROUPED} (?:causal|with causal mask(?:ing)?)",
        ", is_causal=True, enable_gqa=True",
        "kv_heads",
    ),
    NamedOperation(
        "decode_attention",
        "attention of one query in each head",
        _DECODE,
        "F.scaled_dot_product_attention({v}.unsqueeze(2), {key}, {value}).squeeze(2)",
        Effect.RESHAPES,
        (Tensor("key", (0, 1, "cached", -1)), Tensor("value", (0, 1, "cached", -1))),
        "queries are [batch, heads, head size]; scores are scaled by 1 / sqrt(head size)",
        takes=Tensor("query", ("batch", "heads", "head_size")),
        gives=(0, 1, 2),
    ),
)
