"""Attention as it is written, for tests: by PyTorch's function and by hand, in every layout."""

from __future__ import annotations

from tests.playbook.placed import Placed

_HEADS = "q: {t}[batch, heads, rows, size]; k: {t}[batch, {kv}, keys, size]; v: {t}[batch, {kv}, keys, size]"
_ROWS = "q: {t}[batch, rows, heads, size]; k: {t}[batch, keys, heads, size]; v: {t}[batch, keys, heads, size]"
_RESULT = "{t}[batch, heads, rows, size]"
_SMALL = {"batch": 2, "heads": 2, "rows": 9, "keys": 37, "size": 16}
_ODD = ({**_SMALL, "rows": 100, "keys": 170, "size": 64}, {**_SMALL, "rows": 70, "keys": 65, "size": 64})


def _case(
    name: str, body: str, kind: str = "bf16", inputs: str = _HEADS, result: str = _RESULT, kv: str = "heads"
) -> Placed:
    given = inputs.replace("{t}", kind).replace("{kv}", kv)
    at = _ODD if kv == "heads" else ({},)
    return Placed(name, body, given, result.replace("{t}", kind), at)


def _call(options: str = "") -> str:
    return f"return F.scaled_dot_product_attention(q, k, v{options})"


_BY_HAND = "s = (q @ k.transpose(-2, -1)) / (q.shape[-1] ** 0.5)\n"
_LAST = "return torch.softmax(s, -1).to(v.dtype) @ v"
_TRIANGLE = "torch.ones(s.shape[-2], s.shape[-1], dtype=torch.bool, device=q.device)"

CASES = {
    one.name: one
    for one in (
        _case("plain", _call()),
        _case("plain_f32", _call(), "f32"),
        _case("causal", _call(", is_causal=True"), "f16"),
        _case("causal_f32", _call(", is_causal=True"), "f32"),
        _case(
            "other_names",
            "return F.scaled_dot_product_attention(query, sum, rows, attn_mask=scale)",
            "f16",
            _HEADS.replace("q:", "query:").replace("k:", "sum:").replace("v:", "rows:") + "; scale: {t}[rows, keys]",
        ),
        _case(
            "other_names_f32",
            "return F.scaled_dot_product_attention(key, value, score, is_causal=True)",
            "f32",
            _HEADS.replace("q:", "key:").replace("k:", "value:").replace("v:", "score:"),
        ),
        _case("scaled", _call(", scale=0.3"), "f16"),
        _case(
            "kept",
            _call(", attn_mask=m & (torch.arange(q.shape[2])[:, None] != 2)"),
            "bf16",
            _HEADS + "; m: bool[rows, keys]",
        ),
        _case("kept_f32", _call(", attn_mask=m"), "f32", _HEADS + "; m: bool[batch, heads, rows, keys]"),
        _case("added", _call(", attn_mask=m"), "f16", _HEADS + "; m: f16[heads, rows, keys]"),
        _case("grouped", _call(", enable_gqa=True"), "bf16", kv="few"),
        _case("grouped_causal", _call(", enable_gqa=True, is_causal=True"), "f16", kv="few"),
        _case("by_hand", f"{_BY_HAND}s = s.masked_fill(~{_TRIANGLE}.tril(), float('-inf'))\n{_LAST}"),
        _case(
            "by_hand_shifted",
            f"{_BY_HAND}m = {_TRIANGLE}.tril(k.shape[2] - q.shape[2])\ns = s.masked_fill(~m, float('-inf'))\n{_LAST}",
            "f16",
        ),
        _case(
            "distances",
            f"{_BY_HAND}s = s - (torch.arange(q.shape[2])[:, None] - torch.arange(k.shape[2])).abs() * 0.1\n{_LAST}",
            "f16",
        ),
        _case(
            "side_by_side",
            "q, k, v = (one.transpose(1, 2) for one in (q, k, v))\n"
            "a = F.scaled_dot_product_attention(q, k, v, is_causal=True)\n"
            "return a.transpose(1, 2).reshape(a.shape[0], a.shape[2], -1)",
            "f16",
            _ROWS,
            "{t}[batch, rows, all = heads * size]",
        ),
        _case(
            "einsum",
            "a = torch.einsum('bqhd,bkhd->bhqk', q, k) * 0.125\n"
            "return torch.einsum('bhqk,bkhd->bqhd', a.softmax(-1), v)",
            "f16",
            _ROWS,
            "{t}[batch, rows, heads, size]",
        ),
        _case("then_more", _call().replace("return ", "y = ") + "\nreturn torch.relu(y) + q", "f16"),
        _case(
            "one_query",
            "return F.scaled_dot_product_attention(q.unsqueeze(2), k, v).squeeze(2)",
            "bf16",
            _HEADS.replace("heads, rows, size]; k", "heads, size]; k"),
            "{t}[batch, heads, size]",
        ),
    )
}
