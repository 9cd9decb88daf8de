"""Models of flash-linear-attention (fla) made here: ingot reads each folder and agrees in logits, loss, every gradient and the greedy
continuation; what it writes back is equal, and fla makes the same of it. Runs with the Python of .deps/venv.

fla's layers run as they are, but for its Triton kernels, which need a GPU: its own token-by-token references stand in for those of the
recurrences (fla.ops.*.naive), a line of torch for norms, convolutions, SwiGLU and softmax attention."""
import json
import os
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "end_to_end"))
os.environ["HF_HUB_OFFLINE"] = "1"
import torch
from harness import Workspace, at_night, expect_error, ingot
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

warnings.filterwarnings("ignore")
import fla.layers.attn
import fla.layers.delta_net
import fla.layers.gated_deltanet
import fla.layers.gla
import fla.layers.kda
import fla.layers.linear_attn
import fla.layers.multiscale_retention
import fla.modules.mlp
from fla.modules import FusedRMSNormGated, RMSNorm, RotaryEmbedding, ShortConvolution
from fla.modules.rotary.ops import rotary_embedding_ref
from fla.ops.delta_rule.naive import delta_rule_recurrence
from fla.ops.gated_delta_rule.gate import naive_gdn_gate
from fla.ops.gated_delta_rule.naive import naive_recurrent_gated_delta_rule
from fla.ops.gla.naive import naive_recurrent_gla
from fla.ops.kda.gate import naive_kda_gate
from fla.ops.kda.naive import naive_recurrent_kda
from fla.ops.linear_attn.naive import naive_recurrent_linear_attn
from fla.ops.retention.naive import naive_retention
from transformers import AutoConfig, AutoModelForCausalLM

# ---- fla's kernels, in torch ----


def unit(x):
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def gla(q, k, v, gk=None, g=None, **_):
    return naive_recurrent_gla(q, k, v, g if gk is None else gk)


def delta_rule(q, k, v, beta, use_qk_l2norm_in_kernel, **_):
    assert use_qk_l2norm_in_kernel
    heads_first = [x.transpose(1, 2) for x in (unit(q), unit(k), v, beta)]
    return delta_rule_recurrence(*heads_first)[0].transpose(1, 2), None


def gated_delta_rule(q, k, v, g, beta, A_log, dt_bias, allow_neg_eigval, **in_kernel):
    assert not allow_neg_eigval and all(in_kernel[f"use_{what}_in_kernel"] for what in ("qk_l2norm", "beta_sigmoid", "gate"))
    q, k = (unit(x).repeat_interleave(v.shape[2] // q.shape[2], 2) for x in (q, k))
    return naive_recurrent_gated_delta_rule(q, k, v, beta.sigmoid(), naive_gdn_gate(g, A_log, dt_bias))


def kda(q, k, v, g, beta, A_log, dt_bias, allow_neg_eigval, lower_bound, safe_gate=False, **in_kernel):
    assert not allow_neg_eigval and not safe_gate and lower_bound is None
    assert all(in_kernel[f"use_{what}_in_kernel"] for what in ("qk_l2norm", "beta_sigmoid", "gate"))
    return naive_recurrent_kda(unit(q), unit(k), v, naive_kda_gate(g, A_log, dt_bias), beta.sigmoid())


def retention(q, k, v, **_):
    return naive_retention(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2), None


def linear_attn(q, k, v, normalize, **_):
    return naive_recurrent_linear_attn(q, k, v, normalize=normalize)


def softmax_attention(q, k, v, causal, window_size):
    assert causal
    k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], 2) for x in (k, v))
    seen = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool).tril()
    if window_size[0] >= 0:
        seen = seen.triu(-window_size[0])
    return F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), attn_mask=seen).transpose(1, 2)


def normed(self, x, residual=None, prenorm=False, **_):
    x = x if residual is None else x + residual
    y = F.rms_norm(x, x.shape[-1:], self.weight, self.eps)
    return (y, x) if prenorm else y


def normed_and_gated(self, x, g):
    return F.rms_norm(x, x.shape[-1:], self.weight, self.eps) * (torch.sigmoid(g) if self.activation == "sigmoid" else F.silu(g))


def convolved(x, weight, activation, **_):
    y = F.conv1d(F.pad(x.transpose(1, 2), (weight.shape[-1] - 1, 0)), weight.unsqueeze(1), groups=weight.shape[0]).transpose(1, 2)
    return (y if activation is None else F.silu(y)), None


def rotated(self, q, k, max_seqlen, **_):
    self._update_cos_sin_cache(max_seqlen, device=q.device, dtype=q.dtype)
    cos, sin = self._cos_cached[:q.shape[1]], self._sin_cached[:q.shape[1]]
    return rotary_embedding_ref(q, cos, sin), rotary_embedding_ref(k, cos, sin)


def run_on_a_cpu():
    fla.layers.gla.chunk_gla = fla.layers.gla.fused_recurrent_gla = gla
    fla.layers.delta_net.chunk_delta_rule = fla.layers.delta_net.fused_recurrent_delta_rule = delta_rule
    fla.layers.gated_deltanet.chunk_gated_delta_rule = fla.layers.gated_deltanet.fused_recurrent_gated_delta_rule = gated_delta_rule
    fla.layers.gated_deltanet.causal_conv1d = lambda x, weight, bias, activation, backend: convolved(x, weight, activation)
    fla.layers.linear_attn.chunk_linear_attn = fla.layers.linear_attn.fused_recurrent_linear_attn = linear_attn
    fla.layers.kda.chunk_kda = fla.layers.kda.fused_recurrent_kda = kda
    fla.layers.multiscale_retention.chunk_retention = fla.layers.multiscale_retention.fused_recurrent_retention = retention
    fla.layers.attn.flash_attn_func = softmax_attention
    fla.modules.mlp.swiglu_linear = lambda gate, up, weight, bias: F.linear(F.silu(gate) * up, weight, bias)
    RMSNorm.forward, FusedRMSNormGated.forward, RotaryEmbedding.forward = normed, normed_and_gated, rotated
    ShortConvolution.forward = lambda self, x, **_: convolved(x, self.weight.squeeze(1), self.activation)


# ---- models ----

COMMON = dict(hidden_size=48, num_hidden_layers=2, num_heads=4, vocab_size=83, intermediate_size=56, max_position_embeddings=256,
              pad_token_id=0)
HYBRID = {"layers": [1], "num_heads": 6, "num_kv_heads": 3, "window_size": None}
# What a case tries, and its settings.
CASES = {
    "gla": dict(model_type="gla"),
    "gla, short convolutions, relu, tied, a width of the MLP by hidden_ratio": dict(
        model_type="gla", use_short_conv=True, conv_size=3, feature_map="relu", tie_word_embeddings=True, intermediate_size=None,
        hidden_ratio=2, expand_k=1.0, expand_v=2.0),
    "gla, no output gate": dict(model_type="gla", use_output_gate=False, norm_eps=1e-5),
    "gla, every other layer through a window": dict(
        model_type="gla", num_hidden_layers=4, attn=HYBRID | {"layers": [1, 3], "window_size": 6, "rope_theta": 500.0}),
    "delta_net": dict(model_type="delta_net", num_hidden_layers=3),
    "delta_net, a gate, other widths of heads": dict(model_type="delta_net", use_gate=True, expand_k=0.5, expand_v=1.5, conv_size=2),
    "delta_net, the first layer of softmax attention": dict(model_type="delta_net", num_hidden_layers=3, attn=[HYBRID | {"layers": [0]}]),
    "gated_deltanet": dict(model_type="gated_deltanet", head_dim=10, num_heads=5),
    "gated_deltanet, heads of keys for two of values, no gate": dict(
        model_type="gated_deltanet", head_dim=8, num_heads=2, num_v_heads=4, expand_v=1.5, use_gate=False, tie_word_embeddings=True),
    "gated_deltanet, hybrid": dict(
        model_type="gated_deltanet", head_dim=8, num_heads=5, num_hidden_layers=3, attn=HYBRID | {"rope_theta": 1e6}),
    "linear_attn, elu": dict(model_type="linear_attn", feature_map="elu"),
    "linear_attn, relu, other widths of heads": dict(model_type="linear_attn", feature_map="relu", expand_k=0.5, expand_v=2.0),
    "linear_attn, identity, hybrid": dict(model_type="linear_attn", feature_map="identity", num_hidden_layers=3, attn=HYBRID),
    "retnet": dict(model_type="retnet"),
    "retnet, relu, other widths of heads": dict(
        model_type="retnet", feature_map="relu", expand_k=0.5, expand_v=1.0),
    "retnet, no output gate, hybrid": dict(model_type="retnet", use_output_gate=False, num_hidden_layers=3, attn=HYBRID | {"rope_theta": 500.0}),
    "kda": dict(model_type="kda", head_dim=10, num_heads=5),
    "kda, heads of keys for two of values, hybrid": dict(
        model_type="kda", head_dim=8, num_heads=2, num_v_heads=4, expand_v=1.5, num_hidden_layers=3, conv_size=3, attn=HYBRID),
}
# What they try, others do by day.
AT_NIGHT = {
    "gla", "gla, no output gate", "delta_net", "gated_deltanet, hybrid", "linear_attn, relu, other widths of heads", "retnet",
    "retnet, relu, other widths of heads", "kda",
}
# What is refused, and by which words.
REFUSED = [
    (dict(model_type="gla", num_kv_heads=2), ["num_kv_heads = 2"]),
    (dict(model_type="gla", clamp_min=-1.0), ["clamp_min"]),
    (dict(model_type="gla", feature_map="sqrelu"), ["feature_map", "sqrelu"]),
    (dict(model_type="gla", elementwise_affine=False), ["elementwise_affine"]),
    (dict(model_type="gla", fuse_norm=False), ["fuse_norm"]),
    (dict(model_type="gla", hidden_act="powlu"), ["hidden_act", "powlu"]),
    (dict(model_type="gla", attnres_block_size=2), ["attnres_block_size"]),
    (dict(model_type="gla", expand_k=0.51), ["expand_k"]),
    (dict(model_type="gla", attn=HYBRID | {"qkv_bias": True}), ["qkv_bias"]),
    (dict(model_type="gla", attn=[HYBRID, HYBRID | {"layers": [0]}]), ["attn"]),
    (dict(model_type="delta_net", use_short_conv=False), ["use_short_conv"]),
    (dict(model_type="delta_net", qk_activation="relu"), ["qk_activation", "relu"]),
    (dict(model_type="delta_net", qk_norm="sum"), ["qk_norm", "sum"]),
    (dict(model_type="delta_net", use_beta=False), ["use_beta"]),
    (dict(model_type="delta_net", allow_neg_eigval=True), ["allow_neg_eigval"]),
    (dict(model_type="gated_deltanet", output_gate_activation="sigmoid"), ["output_gate_activation", "sigmoid"]),
    (dict(model_type="linear_attn"), ["feature_map", "elementwise_product"]),
    (dict(model_type="linear_attn", feature_map="elu", norm_q=True), ["norm_q"]),
    (dict(model_type="linear_attn", feature_map="elu", norm_feature_map=True), ["norm_feature_map"]),
    (dict(model_type="retnet", num_kv_heads=2), ["num_kv_heads = 2"]),
    (dict(model_type="retnet", fuse_norm=False), ["fuse_norm"]),
    (dict(model_type="kda", use_short_conv=False), ["use_short_conv"]),
    (dict(model_type="kda", safe_gate=True, lower_bound=-5.0), ["safe_gate"]),
    (dict(model_type="kda", allow_neg_eigval=True), ["allow_neg_eigval"]),
    (dict(model_type="mamba2"), ["mamba2"]),
]


def config_of(settings):
    return AutoConfig.for_model(**COMMON | settings)


def model_of(settings):
    model = AutoModelForCausalLM.from_config(config_of(settings)).float().eval()
    with torch.no_grad():  # no parameter keeps an initial value
        for p in model.parameters():
            p.add_(torch.randn_like(p) * (0.15 if p.dim() > 1 else 0.3))
    return model


def logits_of(model, ids):
    return model(ids, use_cache=False).logits


def record(model, folder, prompt, new):
    """The model in `folder`; what it makes of random ids."""
    model.save_pretrained(folder)
    ids = torch.randint(3, COMMON["vocab_size"], (2, 31))
    logits = logits_of(model, ids)
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    text = ids[:, :prompt]
    with torch.no_grad():
        for _ in range(new):
            text = torch.cat([text, logits_of(model, text)[:, -1:].argmax(-1)], 1)
    tensors = {"input_ids": ids, "logits": logits.detach(), "loss": loss.detach().reshape(1), "greedy_ids": text[:, prompt:]}
    return tensors | {"grad." + name: p.grad for name, p in model.named_parameters()}


def check_round_trip(folder, work, ids, logits):
    run, again = work / "run", work / "again"
    ingot("checkpoint", "import-hf", folder, "-o", run)
    ingot("checkpoint", "export-hf", run, "-o", again, "--dtype", "fp32")
    before, after = load_file(folder / "model.safetensors"), load_file(again / "model.safetensors")
    assert before.keys() == after.keys(), before.keys() ^ after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    old, new = (AutoConfig.from_pretrained(f).to_dict() for f in (folder, again))
    # What changes no number: kernels, and where the MLP's width comes from.
    for name in ("_name_or_path", "transformers_version", "dtype", "hidden_ratio", "intermediate_size"):
        old.pop(name, None), new.pop(name, None)
    for one in (old, new):
        one["attn"] = one["attn"][0] if isinstance(one["attn"], list) else one["attn"]
    assert old == new, {name: (old.get(name), new.get(name)) for name in old.keys() | new.keys() if old.get(name) != new.get(name)}
    with torch.no_grad():
        assert torch.equal(logits_of(AutoModelForCausalLM.from_pretrained(again).float().eval(), ids), logits)


def main():
    torch.set_num_threads(2)
    run_on_a_cpu()
    prompt, tokens = 9, 8
    assert AT_NIGHT < CASES.keys()
    with Workspace() as w:
        for number, (name, settings) in enumerate(CASES.items()):
            if not name.startswith(tuple(sys.argv[1:]) or "") or (name in AT_NIGHT and not sys.argv[1:] and not at_night()):
                continue
            torch.manual_seed(number)
            work = w.path / f"{number}"
            work.mkdir()
            folder, file = work / "folder", work / "fixture.safetensors"
            model = model_of(settings)
            tensors = record(model, folder, prompt, tokens)
            save_file({of: t.contiguous() for of, t in tensors.items()}, str(file),
                      metadata={"fixture": json.dumps({"family": "fla", "prompt": prompt})})
            report = json.loads(ingot("verify", "model", folder, "--fixture", file, "--json")[0])
            assert report["pass"] and report["compared"] == len(tensors) - 1, (name, report)
            check_round_trip(folder, work, tensors["input_ids"], tensors["logits"])
            print(f"ok {name}: {report['compared']} tensors")
        for number, (settings, words) in enumerate(REFUSED):
            folder = w.path / f"refused_{number}"
            config_of(settings).save_pretrained(folder)
            expect_error("checkpoint", "import-hf", folder, "-o", w.path / "run", status=1, words=words)
        print(f"ok {len(REFUSED)} settings refused")


main()
