"""Kimi Linear written out token by token (arXiv 2510.26692), as transformers has it not: the oracle of the family in families_test.py.
Parameters are a dict under the names of a Hugging Face folder."""
import torch
from torch.nn import functional as F


def parameters_of(c):
    """Random ones, for every name that a folder has."""
    h, linear, experts = c["hidden_size"], c["linear_attn_config"], c["num_experts"]
    shapes = {"model.embed_tokens.weight": (c["vocab_size"], h), "model.norm.weight": (h,), "lm_head.weight": (c["vocab_size"], h)}

    def mlp(prefix, width, names=("gate_proj", "up_proj", "down_proj")):
        for name in names[:2]:
            shapes[f"{prefix}.{name}.weight"] = (width, h)
        shapes[f"{prefix}.{names[2]}.weight"] = (h, width)

    for layer in range(c["num_hidden_layers"]):
        p = f"model.layers.{layer}"
        shapes |= {f"{p}.input_layernorm.weight": (h,), f"{p}.post_attention_layernorm.weight": (h,)}
        if layer + 1 in linear["kda_layers"]:
            heads, d = linear["num_heads"], linear["head_dim"]
            for name in "qkv":
                shapes[f"{p}.self_attn.{name}_proj.weight"] = (heads * d, h)
                shapes[f"{p}.self_attn.{name}_conv1d.weight"] = (heads * d, 1, linear["short_conv_kernel_size"])
            for name in "fg":
                shapes[f"{p}.self_attn.{name}_a_proj.weight"] = (d, h)
                shapes[f"{p}.self_attn.{name}_b_proj.weight"] = (heads * d, d)
            shapes |= {f"{p}.self_attn.A_log": (1, 1, heads, 1), f"{p}.self_attn.dt_bias": (heads * d,), f"{p}.self_attn.b_proj.weight": (heads, h),
                       f"{p}.self_attn.o_norm.weight": (d,), f"{p}.self_attn.o_proj.weight": (h, heads * d)}
        else:
            heads, nope, rope, v, rank = c["num_attention_heads"], c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"], c["kv_lora_rank"]
            shapes |= {f"{p}.self_attn.q_proj.weight": (heads * (nope + rope), h), f"{p}.self_attn.kv_a_proj_with_mqa.weight": (rank + rope, h),
                       f"{p}.self_attn.kv_a_layernorm.weight": (rank,), f"{p}.self_attn.kv_b_proj.weight": (heads * (nope + v), rank),
                       f"{p}.self_attn.o_proj.weight": (h, heads * v)}
        if layer < c["first_k_dense_replace"]:
            mlp(f"{p}.mlp", c["intermediate_size"])
            continue
        moe = f"{p}.block_sparse_moe"
        shapes |= {f"{moe}.gate.weight": (experts, h), f"{moe}.gate.e_score_correction_bias": (experts,)}
        for expert in range(experts):
            mlp(f"{moe}.experts.{expert}", c["moe_intermediate_size"], ("w1", "w3", "w2"))
        mlp(f"{moe}.shared_experts", c["num_shared_experts"] * c["moe_intermediate_size"])
    made = {}
    for name, shape in shapes.items():
        is_norm = name.endswith(("norm.weight", "layernorm.weight"))
        made[name] = torch.randn(shape) * (0.3 if is_norm or len(shape) == 1 else 0.6 if name.endswith("conv1d.weight") else 0.17) + (1 if is_norm else 0)
        made[name].requires_grad_(not name.endswith("e_score_correction_bias"))
    return made


def rms_norm(x, weight, eps):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def delta_rule(x, p, prefix, c):
    linear = c["linear_attn_config"]
    heads, d, batch, seq = linear["num_heads"], linear["head_dim"], x.shape[0], x.shape[1]

    def projected(name):
        y = F.linear(x, p[f"{prefix}.{name}_proj.weight"]).transpose(1, 2)
        weight = p[f"{prefix}.{name}_conv1d.weight"]
        y = F.conv1d(F.pad(y, (weight.shape[2] - 1, 0)), weight, groups=heads * d)
        return F.silu(y).transpose(1, 2).view(batch, seq, heads, d)

    def low_rank(name):
        return F.linear(F.linear(x, p[f"{prefix}.{name}_a_proj.weight"]), p[f"{prefix}.{name}_b_proj.weight"])

    def unit(y):
        return y * torch.rsqrt(y.square().sum(-1, keepdim=True) + 1e-6)

    q, k, v = unit(projected("q")) * d ** -0.5, unit(projected("k")), projected("v")
    steps = F.softplus(low_rank("f") + p[f"{prefix}.dt_bias"]).view(batch, seq, heads, d)
    decay = torch.exp(-p[f"{prefix}.A_log"].view(heads, 1).exp() * steps)
    beta = torch.sigmoid(F.linear(x, p[f"{prefix}.b_proj.weight"]))
    state, out = x.new_zeros(batch, heads, d, d), []
    for t in range(seq):
        state = state * decay[:, t, :, :, None]
        wrong = v[:, t] - torch.einsum("bhkv,bhk->bhv", state, k[:, t])
        state = state + torch.einsum("bhk,bhv->bhkv", k[:, t], beta[:, t, :, None] * wrong)
        out.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]))
    mixed = rms_norm(torch.stack(out, 1), p[f"{prefix}.o_norm.weight"], c["rms_norm_eps"])
    mixed = mixed * torch.sigmoid(low_rank("g").view(batch, seq, heads, d))
    return F.linear(mixed.flatten(2), p[f"{prefix}.o_proj.weight"])


def latent_attention(x, p, prefix, c):
    heads, nope, rope, v = c["num_attention_heads"], c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
    batch, seq, rank = x.shape[0], x.shape[1], c["kv_lora_rank"]
    q = F.linear(x, p[f"{prefix}.q_proj.weight"]).view(batch, seq, heads, nope + rope)
    latent, shared = F.linear(x, p[f"{prefix}.kv_a_proj_with_mqa.weight"]).split([rank, rope], -1)
    made = F.linear(rms_norm(latent, p[f"{prefix}.kv_a_layernorm.weight"], 1e-6), p[f"{prefix}.kv_b_proj.weight"]).view(batch, seq, heads, nope + v)
    k = torch.cat([made[..., :nope], shared[:, :, None].expand(-1, -1, heads, -1)], -1)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * (nope + rope) ** -0.5
    scores = scores.masked_fill(torch.ones(seq, seq, dtype=torch.bool).triu(1), float("-inf"))
    return F.linear(torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), made[..., nope:]).flatten(2), p[f"{prefix}.o_proj.weight"])


def gated(x, gate, up, down):
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


def mixture(x, p, prefix, c):
    rows, experts, groups = x.flatten(0, 1), c["num_experts"], c["num_expert_group"]
    scores = torch.sigmoid(F.linear(rows, p[f"{prefix}.gate.weight"]))
    shifted = (scores + p[f"{prefix}.gate.e_score_correction_bias"]).view(-1, groups, experts // groups)
    best = shifted.topk(2, -1).values.sum(-1).topk(c["topk_group"], -1).indices
    allowed = torch.zeros(rows.shape[0], groups).scatter(1, best, 1).bool()
    chosen = shifted.masked_fill(~allowed[:, :, None], float("-inf")).flatten(1).topk(c["num_experts_per_token"], -1).indices
    weights = scores.gather(1, chosen)
    weights = weights / (weights.sum(-1, keepdim=True) + 1e-20) * c["routed_scaling_factor"]
    shared = f"{prefix}.shared_experts"
    out = gated(rows, *(p[f"{shared}.{name}_proj.weight"] for name in ("gate", "up", "down")))
    for expert in range(experts):
        each = gated(rows, *(p[f"{prefix}.experts.{expert}.{name}.weight"] for name in ("w1", "w3", "w2")))
        out = out + each * (weights * (chosen == expert)).sum(-1, keepdim=True)
    return out.view_as(x)


def logits(p, c, ids):
    x = F.embedding(ids, p["model.embed_tokens.weight"])
    for layer in range(c["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        normed = rms_norm(x, p[f"{prefix}.input_layernorm.weight"], c["rms_norm_eps"])
        mix = delta_rule if layer + 1 in c["linear_attn_config"]["kda_layers"] else latent_attention
        x = x + mix(normed, p, f"{prefix}.self_attn", c)
        normed = rms_norm(x, p[f"{prefix}.post_attention_layernorm.weight"], c["rms_norm_eps"])
        if layer < c["first_k_dense_replace"]:
            x = x + gated(normed, *(p[f"{prefix}.mlp.{name}_proj.weight"] for name in ("gate", "up", "down")))
        else:
            x = x + mixture(normed, p, f"{prefix}.block_sparse_moe", c)
    return F.linear(rms_norm(x, p["model.norm.weight"], c["rms_norm_eps"]), p["lm_head.weight"])
