"""Functions that people write kernels for today, in plain PyTorch as one finds them in serving and training."""

import math

import torch
import torch.nn.functional as F

# -- mixtures of experts --


def group_limited_router(logits, bias):
    scores = torch.sigmoid(logits.float())
    biased = (scores + bias).view(logits.shape[0], 4, -1)
    chosen = biased.topk(2, -1)[0].sum(-1).topk(2, -1)[1]
    kept = torch.zeros(logits.shape[0], 4, dtype=torch.bool, device=logits.device).scatter(1, chosen, True)
    masked = biased.masked_fill(~kept[..., None], float("-inf")).flatten(1)
    experts = masked.topk(3, -1)[1]
    weights = scores.gather(1, experts)
    return weights / weights.sum(-1, keepdim=True) * 2.5, experts


def router(x, gate):
    weights, experts = torch.topk(torch.softmax((x @ gate.t()).float(), -1), 2, -1)
    return (weights / weights.sum(-1, keepdim=True)).to(x.dtype), experts


def aligned_permutation(experts):
    counts = F.one_hot(experts, 6).sum(0)
    padded = (counts + 7) // 8 * 8
    starts = torch.cumsum(padded, 0) - padded
    order = torch.argsort(experts, stable=True)
    ordered = experts[order]
    within = torch.arange(experts.shape[0], device=experts.device) - (torch.cumsum(counts, 0) - counts)[ordered]
    return starts[ordered] + within, order, counts


def combine(y, token, weight, tokens):
    return torch.zeros_like(tokens).index_add(0, token, y * weight[:, None])


def load_balance(logits, experts):
    probability = torch.softmax(logits.float(), -1)
    share = F.one_hot(experts, logits.shape[1]).float().sum(1).mean(0)
    return logits.shape[1] * (share * probability.mean(0)).sum() + 1e-3 * torch.logsumexp(logits, -1).square().mean()


# -- attention --


def paged_decode(q, keys, values, table, lengths):
    d = q.shape[-1]
    k = keys[table].flatten(1, 2)
    v = values[table].flatten(1, 2)
    scores = torch.einsum("bhd,bthd->bht", q.float(), k.float()) / math.sqrt(d)
    dead = torch.arange(k.shape[1], device=q.device)[None] >= lengths[:, None]
    weights = torch.softmax(scores.masked_fill(dead[:, None], float("-inf")), -1)
    return torch.einsum("bht,bthd->bhd", weights, v.float()).to(q.dtype)


def mla_decode(q, q_rope, compressed, k_rope, lengths):
    scores = torch.einsum("bhc,btc->bht", q, compressed) + torch.einsum("bhr,btr->bht", q_rope, k_rope)
    dead = torch.arange(compressed.shape[1], device=q.device) >= lengths[:, None]
    scores = scores.float() * (q.shape[-1] + q_rope.shape[-1]) ** -0.5
    weights = scores.masked_fill(dead[:, None], float("-inf")).softmax(-1).to(q.dtype)
    return torch.einsum("bht,btc->bhc", weights, compressed)


def sink_window(q, k, v, sinks):
    n = q.shape[2]
    i = torch.arange(n, device=q.device)
    seen = (i[None] <= i[:, None]) & (i[None] > i[:, None] - 4)
    scores = (q @ k.mT).float() * q.shape[-1] ** -0.5
    scores = scores.masked_fill(~seen, float("-inf"))
    column = sinks.float()[None, :, None, None].expand(q.shape[0], -1, n, 1)
    weights = torch.softmax(torch.cat([scores, column], -1), -1)[..., :-1]
    return weights.to(v.dtype) @ v


def capped_attention(q, k, v):
    scores = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
    scores = 50.0 * torch.tanh(scores / 50.0)
    dead = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu(1)
    return torch.softmax(scores.float().masked_fill(dead, -1e30), -1).to(q.dtype) @ v


def alibi_attention(q, k, v):
    h, n = q.shape[1], q.shape[2]
    slopes = 2.0 ** (-8.0 / h * torch.arange(1, h + 1, device=q.device))
    i = torch.arange(n, device=q.device)
    bias = -(i[:, None] - i[None]).abs() * slopes[:, None, None]
    dead = i[None] > i[:, None]
    scores = q @ k.mT / math.sqrt(q.shape[-1]) + bias
    return scores.masked_fill(dead, float("-inf")).softmax(-1) @ v


def packed_sequences(q, k, v, lengths):
    place = torch.arange(q.shape[0], device=q.device)
    document = (torch.cumsum(lengths, 0)[None] <= place[:, None]).sum(1)
    seen = (document[:, None] == document[None]) & (place[:, None] >= place[None])
    scores = torch.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, float("-inf")).softmax(-1), v)


def triangle_softmax(scores):
    n = scores.shape[-1]
    mask = torch.triu(torch.full((n, n), float("-inf"), device=scores.device), diagonal=1)
    return torch.softmax(scores / math.sqrt(64) + mask, dim=-1)


def differential_attention(q, k, v, lam):
    q1, q2 = q.chunk(2, -1)
    k1, k2 = k.chunk(2, -1)
    scale = q1.shape[-1] ** -0.5
    weights = (q1 @ k1.mT * scale).softmax(-1) - lam * (q2 @ k2.mT * scale).softmax(-1)
    y = weights @ v
    return y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)


def relative_bias(table, q):
    n = q.shape[2]
    away = torch.arange(n, device=q.device)[None] - torch.arange(n, device=q.device)[:, None]
    near = -torch.min(away, torch.zeros_like(away))
    far = 4 + (torch.log(near.float().clamp(min=1) / 4) / math.log(32) * 4).long()
    bucket = torch.where(near < 4, near, far.clamp(max=7))
    return q + table[bucket].permute(2, 0, 1)[None]


# -- rotary embeddings and caches --


def rotate_half(x):
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


def qk_norm_rope(q, k, wq, wk, cos, sin):
    def normed(x, w):
        f = x.float()
        return w * (f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)

    q, k = normed(q, wq), normed(k, wk)
    c, s = cos[:, None], sin[:, None]
    return q * c + rotate_half(q) * s, k * c + rotate_half(k) * s


def rotary_tables(x, positions, inverse):
    angles = positions[:, :, None].float() * inverse[None, None].float()
    both = torch.cat((angles, angles), -1)
    return both.cos().to(x.dtype), both.sin().to(x.dtype)


def interleaved_rope(x, positions):
    d = x.shape[-1]
    rates = 1.0 / 10000.0 ** (torch.arange(0, d, 2, device=x.device, dtype=torch.float32) / d)
    angles = positions[:, None].float() * rates
    even, odd = x[..., ::2].float(), x[..., 1::2].float()
    c, s = angles.cos()[:, None], angles.sin()[:, None]
    return torch.stack((even * c - odd * s, even * s + odd * c), -1).flatten(-2).to(x.dtype)


def append_to_cache(cache, k, start):
    cache.index_copy_(0, start + torch.arange(k.shape[0], device=k.device), k)


def append_fp8(cache, k, start, scale):
    slots = start + torch.arange(k.shape[0], device=k.device)
    cache[slots] = (k.float() / scale).clamp(-448.0, 448.0).to(torch.float8_e4m3fn)


def qwen_attention(x, wq, wk, wv, wo, nq, nk, cos, sin):
    b, n, d = x.shape[0], x.shape[1], nq.shape[0]
    q = F.rms_norm(F.linear(x, wq).view(b, n, -1, d), (d,), nq, 1e-6).transpose(1, 2)
    k = F.rms_norm(F.linear(x, wk).view(b, n, -1, d), (d,), nk, 1e-6).transpose(1, 2)
    v = F.linear(x, wv).view(b, n, -1, d).transpose(1, 2)
    q, k = (one * cos + rotate_half(one) * sin for one in (q, k))
    many = q.shape[1] // k.shape[1]
    k, v = (one[:, :, None].expand(-1, -1, many, -1, -1).flatten(1, 2) for one in (k, v))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return F.linear(y.transpose(1, 2).reshape(b, n, -1), wo)


# -- quantisation --


def quantise_groups(x):
    g = x.float().view(x.shape[0], -1, 16)
    scale = (g.abs().amax(-1, keepdim=True) / 448.0).clamp(min=1e-10)
    return (g / scale).to(torch.float8_e4m3fn).view(x.shape), scale[..., 0]


def quantise_blocks(w):
    n, k = w.shape
    blocks = w.float().view(n // 8, 8, k // 8, 8)
    scale = blocks.abs().amax((1, 3), keepdim=True).clamp(min=1e-4) / 448.0
    return (blocks / scale).to(torch.float8_e4m3fn).view(n, k), scale[:, 0, :, 0]


def block_scaled_gemm(a, b, a_scale, b_scale):
    af = a.float().view(a.shape[0], -1, 8) * a_scale[..., None]
    bf = b.float().view(b_scale.shape[0], 8, -1, 8) * b_scale[:, None, :, None]
    return (af.view(a.shape) @ bf.view(b.shape).t()).to(torch.bfloat16)


def silu_mul_quantise(x):
    a, b = x.float().chunk(2, -1)
    y = F.silu(a) * b
    scale = y.abs().amax(-1, keepdim=True).clamp(min=1e-10) / 448.0
    return (y / scale).to(torch.float8_e4m3fn), scale[:, 0]


def int4_gemm(x, packed, scales, zeros):
    shifts = torch.arange(0, 32, 4, device=x.device)
    w = ((packed[:, :, None] >> shifts) & 15).view(packed.shape[0], -1, 8).float()
    w = (w - zeros[..., None].float()) * scales[..., None].float()
    return (x.float() @ w.flatten(1).t()).to(x.dtype)


def w8a8_gemm(x, w, w_scale):
    scale = x.float().abs().amax(-1, keepdim=True).clamp(min=1e-5) / 127.0
    q = torch.round(x.float() / scale).to(torch.int8)
    return ((q.float() @ w.float().t()) * scale * w_scale).to(x.dtype)


def pack_int4(x):
    q = (torch.round(x.float() * 7.0).clamp(-8, 7).to(torch.int32) + 8).view(x.shape[0], -1, 8)
    return (q << torch.arange(0, 32, 4, device=x.device)).sum(-1).to(torch.int32)


def hadamard(x):
    y = x.float()
    for step in (1, 2, 4, 8):
        pair = y.view(x.shape[0], -1, 2, step)
        y = torch.stack((pair[:, :, 0] + pair[:, :, 1], pair[:, :, 0] - pair[:, :, 1]), 2).view(x.shape)
    return (y * 0.25).to(x.dtype)


# -- recurrences --


def conv_state_step(x, state, weight, bias):
    state.copy_(torch.roll(state, shifts=-1, dims=-1))
    state[:, :, -1] = x
    return F.silu((state * weight).sum(-1) + bias)


def causal_conv(x, weight, bias):
    n = x.shape[-1]
    return F.silu(F.conv1d(x, weight, bias, padding=weight.shape[-1] - 1, groups=x.shape[1])[..., :n])


def state_update(state, x, dt, a, b, c, d):
    dt = F.softplus(dt)
    kept = torch.exp(dt[..., None] * a)
    state.mul_(kept).add_(dt[..., None] * b[:, None] * x[..., None])
    return (state * c[:, None]).sum(-1) + d * x


def chunk_of_scan(x, a, b, c):
    total = torch.cumsum(a, -1)
    n = a.shape[-1]
    away = total[..., :, None] - total[..., None, :]
    dead = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)
    decay = torch.exp(away.masked_fill(dead, float("-inf")))
    return torch.einsum("bln,bsn,bls,bsp->blp", c, b, decay, x)


def gated_sums(gate, x):
    kept = torch.cumsum(F.logsigmoid(gate), 1)
    return torch.exp(kept) * torch.cumsum(x * torch.exp(-kept), 1)


def delta_step(state, q, k, v, beta, decay):
    state.mul_(decay[..., None, None])
    read = torch.einsum("bhkv,bhk->bhv", state, k)
    state.add_(torch.einsum("bhk,bhv->bhkv", k, (v - read) * beta[..., None]))
    return torch.einsum("bhkv,bhk->bhv", state, q)


# -- sampling --


def top_p_probabilities(logits, p):
    probability = torch.softmax(logits.float(), -1)
    ordered, places = probability.sort(-1, descending=True)
    ordered = ordered.masked_fill(ordered.cumsum(-1) - ordered > p[:, None], 0.0)
    kept = torch.zeros_like(probability).scatter(-1, places, ordered)
    return kept / kept.sum(-1, keepdim=True)


def min_p_filter(logits, temperature: float = 0.7):
    probability = torch.softmax(logits / temperature, -1)
    least = 0.05 * probability.amax(-1, keepdim=True)
    return logits.masked_fill(probability < least, float("-inf"))


def sparsemax(x):
    ordered, _ = torch.sort(x, -1, descending=True)
    k = torch.arange(1, x.shape[-1] + 1, device=x.device, dtype=x.dtype)
    total = ordered.cumsum(-1)
    count = (1 + k * ordered > total).sum(-1, keepdim=True)
    tau = (total.gather(-1, count - 1) - 1) / count
    return torch.clamp(x - tau, min=0)


def penalties(logits, counts, frequency: float = 0.3, presence: float = 0.1, repetition: float = 1.2):
    seen = counts > 0
    scaled = torch.where(logits > 0, logits / repetition, logits * repetition)
    return torch.where(seen, scaled, logits) - frequency * counts - presence * seen.to(logits.dtype)


# -- losses --


def fused_linear_loss(x, w, target):
    return F.cross_entropy((x @ w.t()).float(), target, ignore_index=-100)


def shifted_loss(logits, labels):
    return F.cross_entropy(logits[..., :-1, :].reshape(-1, logits.shape[-1]).float(), labels[..., 1:].reshape(-1))


def log_probability_and_entropy(logits, labels):
    logp = F.log_softmax(logits.float(), -1)
    return logp.gather(-1, labels[..., None]).squeeze(-1), -(logp.exp() * logp).sum(-1)


def smoothed(logits, labels):
    logp = F.log_softmax(logits, -1)
    return (-0.1 * logp.mean(-1) - 0.9 * logp.gather(-1, labels[:, None])[:, 0]).mean()


def group_policy_loss(logp, old, reference, advantage, mask):
    ratio = torch.exp(logp - old)
    clipped = torch.clamp(ratio, 0.8, 1.2)
    gain = torch.min(ratio * advantage[:, None], clipped * advantage[:, None])
    away = torch.exp(reference - logp) - (reference - logp) - 1
    return -(((gain - 0.04 * away) * mask).sum(1) / mask.sum(1).clamp(min=1)).mean()


def focal(logits, target):
    loss = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    p = torch.sigmoid(logits)
    right = p * target + (1 - p) * (1 - target)
    return ((0.25 * target + 0.75 * (1 - target)) * (1 - right) ** 2 * loss).mean()


def cross_entropy_backward(logits, labels, grad):
    p = torch.softmax(logits.float(), -1)
    one = F.one_hot(labels, logits.shape[-1])
    return ((p - one) * grad[:, None] / logits.shape[0]).to(logits.dtype)


def box_overlap(a, b):
    low, high = torch.maximum(a[:, None, :2], b[None, :, :2]), torch.minimum(a[:, None, 2:], b[None, :, 2:])
    inner = (high - low).clamp(min=0).prod(-1)
    areas = [(one[:, 2] - one[:, 0]) * (one[:, 3] - one[:, 1]) for one in (a, b)]
    return inner / (areas[0][:, None] + areas[1][None] - inner + 1e-6)


# -- gradients --


def rms_norm_backward(x, w, grad):
    f, g = x.float(), grad.float()
    r = torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + 1e-6)
    wg = g * w.float()
    dx = r * (wg - f * r * r * (wg * f).mean(-1, keepdim=True))
    return dx.to(x.dtype), (g * f * r).sum(0).to(w.dtype)


def group_norm_silu_backward(x, w, b, grad):
    with torch.enable_grad():
        x, w, b = (one.detach().requires_grad_() for one in (x, w, b))
        return torch.autograd.grad(F.silu(F.group_norm(x, 2, w, b)), (x, w, b), grad)


def swiglu_backward(a, b, grad):
    s = torch.sigmoid(a)
    return grad * b * s * (1 + a * (1 - s)), grad * a * s


def layer_norm_gelu_backward(x, w, grad):
    with torch.enable_grad():
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        return torch.autograd.grad(F.gelu(F.layer_norm(x, x.shape[-1:], w)), (x, w), grad)


# -- optimisers --


def adamw(
    p, g, m, v, lr: float = 1e-3, b1: float = 0.9, b2: float = 0.95, eps: float = 1e-8, wd: float = 0.1, step: int = 10
):
    p.mul_(1 - lr * wd)
    m.mul_(b1).add_(g, alpha=1 - b1)
    v.mul_(b2).addcmul_(g, g, value=1 - b2)
    p.addcdiv_(m / (1 - b1**step), (v / (1 - b2**step)).sqrt() + eps, value=-lr)


def adam_8bit(p, g, m, v, m_scale, v_scale, lr: float = 1e-3):
    mf = m.float().view(-1, 16) * m_scale[:, None]
    vf = v.float().view(-1, 16) * v_scale[:, None]
    gf = g.float().view(-1, 16)
    mf = 0.9 * mf + 0.1 * gf
    vf = 0.99 * vf + 0.01 * gf * gf
    new_m, new_v = mf.abs().amax(1) / 127.0 + 1e-12, vf.amax(1) / 255.0 + 1e-12
    out = p - lr * (mf / (vf.sqrt() + 1e-8)).view(p.shape)
    return out, torch.round(mf / new_m[:, None]).to(torch.int8).view(m.shape), new_m, new_v


def newton_schulz(g):
    x = g / (g.norm() + 1e-7)
    for _ in range(2):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x


def sgd_momentum(p, g, buffer, lr: float = 0.01, momentum: float = 0.9):
    buffer.mul_(momentum).add_(g)
    p.sub_(lr * (g + momentum * buffer))


# -- norms, graphs, images --


def sinkhorn(x):
    y = torch.exp(x.float() - x.float().amax((-1, -2), keepdim=True))
    for _ in range(3):
        y = y / y.sum(-1, keepdim=True)
        y = y / y.sum(-2, keepdim=True)
    return y.to(x.dtype)


def modulated_norm(x, shift, scale, gate, y):
    h = x + gate[:, None] * y
    return F.layer_norm(h, h.shape[-1:], eps=1e-6) * (1 + scale[:, None]) + shift[:, None], h


def segment_mean(x, segment, like):
    total = torch.zeros_like(like).index_add(0, segment, x)
    count = torch.zeros(like.shape[0], device=x.device).index_add(0, segment, torch.ones_like(x[:, 0]))
    return total / count.clamp(min=1)[:, None]


def graph_softmax(score, target, nodes):
    most = torch.full_like(nodes, float("-inf")).scatter_reduce(0, target, score, "amax")
    weight = torch.exp(score - most[target])
    total = torch.zeros_like(nodes).scatter_add(0, target, weight)
    return weight / total[target]


def histogram(x):
    place = (x.clamp(0.0, 0.999) * 10).long()
    return torch.zeros(10, dtype=torch.int64, device=x.device).scatter_add(0, place, torch.ones_like(place))


def bicubic(x):
    return F.interpolate(x, scale_factor=2.0, mode="bicubic", align_corners=False)


def antialiased_shrink(x):
    return F.interpolate(x, size=(4, 5), mode="bilinear", align_corners=False)


def sampled(x, grid):
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def convnext_block(x, dw, db, lw, lb, w1, b1, w2, b2, gamma):
    y = F.conv2d(x, dw, db, padding=3, groups=x.shape[1]).permute(0, 2, 3, 1)
    y = F.linear(F.gelu(F.linear(F.layer_norm(y, y.shape[-1:], lw, lb, 1e-6), w1, b1)), w2, b2)
    return x + (gamma * y).permute(0, 3, 1, 2)


def squeeze_excite(x, w1, w2):
    s = torch.sigmoid(F.relu(x.mean((2, 3)) @ w1.t()) @ w2.t())
    return x * s[:, :, None, None]


def mel_features(spectrum, filters):
    power = spectrum.pow(2) @ filters.t()
    logs = torch.log10(power.clamp(min=1e-10))
    return (torch.maximum(logs, logs.amax((-1, -2), keepdim=True) - 8.0) + 4.0) / 4.0


def rank_fusion(a, b):
    ra, rb = a.argsort(-1, descending=True).argsort(-1), b.argsort(-1, descending=True).argsort(-1)
    return 1.0 / (60.0 + ra) + 1.0 / (60.0 + rb)


# -- and further ones, mostly fusions --


def q_norm_rope(q, weight, cos, sin):
    f = q.float()
    n = (f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + 1e-6)).to(q.dtype) * weight
    c, s = cos[None, :, None, :], sin[None, :, None, :]
    return n * c + rotate_half(n) * s


def poly_norm(x, weight, bias):
    f = x.float()

    def n(t):
        return t * torch.rsqrt(t.pow(2).mean(-1, keepdim=True) + 1e-6)

    return (weight[0] * n(f**3) + weight[1] * n(f**2) + weight[2] * n(f) + bias).to(x.dtype)


def moe_router(logits):
    v, i = torch.softmax(logits.float(), -1).topk(8, -1)
    return v / v.sum(-1, keepdim=True), i


def quant_int8_groups(x):
    g = x.float().view(x.shape[0], -1, 128)
    s = g.abs().amax(-1, keepdim=True) / 127.0
    return torch.round(g / s.clamp(min=1e-8)).clamp(-127, 127).to(torch.int8).view(x.shape), s[..., 0]


def embed_norm(ids, tok, pos, w, b):
    return F.layer_norm(tok[ids] + pos[: ids.shape[1]], tok.shape[-1:], w, b)


def convnext_dw(x, w, b, g, be):
    return F.layer_norm(F.conv2d(x, w, b, padding=3, groups=x.shape[1]).permute(0, 2, 3, 1), x.shape[1:2], g, be)


def bilinear_up(x):
    return F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False)


def sliding_window(q, k, v):
    n = q.shape[2]
    i = torch.arange(n, device=q.device)
    m = (i[None] <= i[:, None]) & (i[None] > i[:, None] - 512)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=m)


def decode_attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def gqa_causal(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def linear_attention(q, k, v):
    q, k = F.elu(q) + 1, F.elu(k) + 1
    return q @ (k.transpose(-1, -2) @ v) / (q @ k.sum(-2, keepdim=True).transpose(-1, -2))


def chunk_states(b, decay, x):
    return torch.einsum("bclhn,bclh,bclhp->bchpn", b, decay, x)


def dequant_int4(packed, scales):
    sh = torch.arange(0, 32, 4, device=packed.device)
    w = ((packed[:, :, None] >> sh) & 15).view(packed.shape[0], -1).float() - 8
    return (w.view(w.shape[0], -1, 128) * scales[..., None].float()).view(w.shape).to(torch.bfloat16)


def w8a16_gemv(x, w, scale):
    return (x.float() @ w.float().t() * scale).to(torch.bfloat16)


def conv_bn_relu(x, w, mean, var, g, b):
    return F.relu(F.batch_norm(F.conv2d(x, w, padding=1), mean, var, g, b))


def jsd(p_logits, q_logits):
    p = F.softmax(p_logits.float(), -1)
    q = F.softmax(q_logits.float(), -1)
    m = 0.5 * (p + q)
    return 0.5 * (p * (p.log() - m.log()) + q * (q.log() - m.log())).sum(-1).mean()


def softcap_softmax(x):
    return torch.softmax(30.0 * torch.tanh(x / 30.0), -1)


def gather_rows(x, index):
    return x[index]


def info_nce(a, b):
    logits = F.normalize(a.float(), dim=-1) @ F.normalize(b.float(), dim=-1).t() / 0.07
    return F.cross_entropy(logits, torch.arange(a.shape[0], device=a.device))


def fused_add_rms_norm(x, residual, weight):
    h = x + residual
    f = h.float()
    return (f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * weight, h


def swiglu_packed(x):
    a, b = x.chunk(2, -1)
    return F.silu(a) * b


def lora(x, w, a, b):
    return F.linear(x, w) + 2.0 * F.linear(F.linear(x, a), b)


def image_normalise(x):
    return (
        (
            (x.float() / 255.0 - torch.tensor([0.485, 0.456, 0.406], device=x.device))
            / torch.tensor([0.229, 0.224, 0.225], device=x.device)
        )
        .permute(0, 3, 1, 2)
        .half()
    )


def scatter_mean(x, index):
    return torch.zeros(20000, x.shape[1], device=x.device, dtype=x.dtype).index_add(0, index, x)


def quant_fp8_rows(x):
    f = x.float()
    s = f.abs().amax(-1, keepdim=True) / 448.0
    return (f / s.clamp(min=1e-12)).to(torch.float8_e4m3fn), s


def top_p_mask(logits):
    s, i = torch.sort(logits, descending=True, dim=-1)
    c = torch.softmax(s, -1).cumsum(-1)
    return torch.full_like(logits, float("-inf")).scatter(
        -1, i, s.masked_fill(c - torch.softmax(s, -1) > 0.9, float("-inf"))
    )
