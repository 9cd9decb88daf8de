"""Models that transformers makes here, of sizes and settings that no recorded reference has: ingot reads each folder and agrees in
logits, loss, every gradient and the greedy continuation. Runs with the Python of .deps/venv."""
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "end_to_end"))
sys.modules["fla"] = None  # else transformers takes its Triton kernels, which want a GPU
import kimi_linear
import torch
from harness import Workspace, at_night, ingot
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

COMMON = dict(hidden_size=40, intermediate_size=56, num_attention_heads=4, num_key_value_heads=2, vocab_size=83, max_position_embeddings=256,
              pad_token_id=0, bos_token_id=2, eos_token_id=1)
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
STRETCHED = {"rope_type": "linear", "rope_theta": 50000.0, "factor": 8.0}
LONG = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0, 1.1, 1.3, 1.6, 2.0], "long_factor": [1.0, 2.0, 4.5, 9.0, 20.0]}
# What a case tries, and its settings.
CASES = {
    "llama, llama3's frequencies and biases": dict(
        model_type="llama", num_hidden_layers=2, attention_bias=True, mlp_bias=True,
        rope_parameters={"rope_type": "llama3", "rope_theta": 500000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                         "original_max_position_embeddings": 16}),
    "qwen3, heads wider than the stream": dict(model_type="qwen3", num_hidden_layers=3, head_dim=24, tie_word_embeddings=True),
    "olmo2": dict(model_type="olmo2", num_hidden_layers=3, tie_word_embeddings=False),
    "olmo2, one kv head, tied": dict(model_type="olmo2", num_hidden_layers=2, num_key_value_heads=1, tie_word_embeddings=True, rms_norm_eps=1e-5),
    "mixtral": dict(model_type="mixtral", num_hidden_layers=2, num_local_experts=5, num_experts_per_tok=2),
    "mixtral, three of four experts and a window": dict(model_type="mixtral", num_hidden_layers=2, num_local_experts=4, num_experts_per_tok=3, sliding_window=6),
    "smollm3, every fourth layer": dict(model_type="smollm3", num_hidden_layers=5),
    "smollm3, a list": dict(model_type="smollm3", num_hidden_layers=3, no_rope_layers=[0, 1, 1], attention_bias=True, tie_word_embeddings=False),
    "gpt_oss, yarn and every other layer through a window": dict(
        model_type="gpt_oss", num_hidden_layers=3, head_dim=12, num_local_experts=5, num_experts_per_tok=2, sliding_window=6, intermediate_size=24,
        rope_parameters={"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "beta_fast": 8.0, "beta_slow": 1.0, "truncate": False,
                         "original_max_position_embeddings": 32}),
    "gpt_oss, wide weights, which the gate clamps": dict(
        model_type="gpt_oss", num_hidden_layers=2, head_dim=8, num_local_experts=4, num_experts_per_tok=3, sliding_window=31, attention_bias=False,
        rope_parameters=ROPE, wide=8.0),
    "qwen3_next, heads of keys for two of values": dict(
        model_type="qwen3_next", num_hidden_layers=4, head_dim=16, linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=8,
        linear_value_head_dim=10, linear_conv_kernel_dim=4, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=20,
        shared_expert_intermediate_size=28, tie_word_embeddings=False),
    "qwen3_next, as many heads, all weights of experts": dict(
        model_type="qwen3_next", num_hidden_layers=2, head_dim=12, linear_num_value_heads=3, linear_num_key_heads=3, linear_key_head_dim=6,
        linear_value_head_dim=6, linear_conv_kernel_dim=2, num_experts=4, num_experts_per_tok=3, norm_topk_prob=False, moe_intermediate_size=16,
        shared_expert_intermediate_size=12, layer_types=["full_attention", "linear_attention"], rope_parameters=ROPE | {"partial_rotary_factor": 0.5}),
    "granite, four multipliers": dict(
        model_type="granite", num_hidden_layers=3, embedding_multiplier=6.0, attention_multiplier=0.2, residual_multiplier=0.3, logits_scaling=4.0,
        tie_word_embeddings=True, attention_bias=True, rope_parameters=ROPE),
    "gemma3, capped logits": dict(
        model_type="gemma3_text", num_hidden_layers=2, head_dim=12, query_pre_attn_scalar=12, sliding_window=5, final_logit_softcapping=2.5,
        layer_types=["sliding_attention", "full_attention"], rope_parameters={"full_attention": ROPE, "sliding_attention": ROPE}),
    "mistral, a window": dict(model_type="mistral", num_hidden_layers=2, sliding_window=6, head_dim=12),
    "mistral, none": dict(model_type="mistral", num_hidden_layers=2, sliding_window=None, tie_word_embeddings=True),
    "qwen2, deep layers slide": dict(model_type="qwen2", num_hidden_layers=3, use_sliding_window=True, sliding_window=6, max_window_layers=1),
    "qwen2, tied": dict(model_type="qwen2", num_hidden_layers=2, num_key_value_heads=1, tie_word_embeddings=True),
    "gemma2, scores and logits near their caps": dict(
        model_type="gemma2", num_hidden_layers=3, head_dim=12, sliding_window=6, query_pre_attn_scalar=4, attn_logit_softcapping=1.5, final_logit_softcapping=2.0),
    "gemma2, no caps, untied": dict(model_type="gemma2", num_hidden_layers=2, head_dim=8, sliding_window=64, attn_logit_softcapping=None,
                                    final_logit_softcapping=None, tie_word_embeddings=False),
    "phi3, longrope, rows within the original context": dict(
        model_type="phi3", num_hidden_layers=2, original_max_position_embeddings=64,
        rope_parameters=LONG | {"original_max_position_embeddings": 64}),
    "phi3, longrope, longer rows": dict(
        model_type="phi3", num_hidden_layers=2, original_max_position_embeddings=8,
        rope_parameters=LONG | {"original_max_position_embeddings": 8}),
    "phi3": dict(model_type="phi3", num_hidden_layers=2, tie_word_embeddings=True),
    "phi3, rotating in part, a window": dict(
        model_type="phi3", num_hidden_layers=2, num_key_value_heads=1, hidden_size=64, sliding_window=6, rope_parameters=ROPE | {"partial_rotary_factor": 0.75}),
    "deepseek_v3, a dense layer, groups and yarn": dict(
        model_type="deepseek_v3", num_hidden_layers=3, num_key_value_heads=4, first_k_dense_replace=1, n_routed_experts=6, n_group=3, topk_group=2,
        num_experts_per_tok=2, moe_intermediate_size=20, n_shared_experts=2, kv_lora_rank=14, q_lora_rank=18, qk_nope_head_dim=10, qk_rope_head_dim=8,
        v_head_dim=12, routed_scaling_factor=1.7,
        rope_parameters={"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "beta_fast": 4.0, "beta_slow": 1.0, "mscale": 0.7,
                         "mscale_all_dim": 1.0, "original_max_position_embeddings": 16}),
    "deepseek_v3, queries without a latent, biases": dict(
        model_type="deepseek_v3", num_hidden_layers=2, num_key_value_heads=4, first_k_dense_replace=0, n_routed_experts=4, n_group=1, topk_group=1,
        num_experts_per_tok=3, moe_intermediate_size=24, n_shared_experts=1, kv_lora_rank=10, q_lora_rank=None, qk_nope_head_dim=6, qk_rope_head_dim=4,
        v_head_dim=10, norm_topk_prob=False, attention_bias=True, rope_parameters=ROPE),
    "gemma3, seven layers and a window of 5": dict(
        model_type="gemma3_text", num_hidden_layers=7, head_dim=12, query_pre_attn_scalar=20, sliding_window=5,
        layer_types=(["sliding_attention"] * 5 + ["full_attention"]) * 2, rope_parameters={"full_attention": ROPE | {"rope_theta": 1e6}, "sliding_attention": ROPE}),
    "gemma3, full layers stretched, untied, biases": dict(
        model_type="gemma3_text", num_hidden_layers=3, head_dim=16, query_pre_attn_scalar=16, sliding_window=8, tie_word_embeddings=False,
        attention_bias=True, layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters={"full_attention": STRETCHED, "sliding_attention": ROPE}),
}


# They differ from others of their family in sizes, or in settings that another family has by day.
AT_NIGHT = {
    "olmo2", "mixtral", "smollm3, every fourth layer", "qwen3_next, as many heads, all weights of experts", "gemma3, capped logits",
    "gemma3, seven layers and a window of 5", "mistral, none", "qwen2, tied", "gemma2, no caps, untied", "phi3",
    "phi3, longrope, rows within the original context", "deepseek_v3, queries without a latent, biases",
    "deepseek_v3, a dense layer, groups and yarn, predicting 1 further", "kimi_linear, no dense layer, two shared experts",
}


def model_of(settings):
    settings = COMMON | settings
    wide = settings.pop("wide", 1)  # how much larger matrices of experts are
    if "layer_types" in settings:
        settings["layer_types"] = settings["layer_types"][:settings["num_hidden_layers"]]
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings), attn_implementation="eager").float().eval()
    with torch.no_grad():  # no parameter keeps an initial value
        for p in model.parameters():
            p.add_(torch.randn_like(p) * (0.15 if p.dim() > 1 else 0.3) * (wide if p.dim() > 2 else 1))
        for name, b in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                b.add_(torch.randn_like(b) * 0.2)
    return model


def stored_gradients(model, folder):
    """Under the names and in the shapes of the folder: a stack of experts lies there as a matrix for each."""
    names = set(safe_open(folder / "model.safetensors", "pt").keys())
    for of, p in model.named_parameters():
        if of in names:
            yield of, p.grad
        elif of.endswith(".gate.weight"):
            yield of.replace(".mlp.", ".block_sparse_moe."), p.grad
        else:
            is_mixtral = any(".block_sparse_moe." in name for name in names)
            prefix = of.rsplit(".", 1)[0].replace(".mlp.", ".block_sparse_moe.") if is_mixtral else of.rsplit(".", 1)[0]
            gate, up, down = ("w1", "w3", "w2") if is_mixtral else ("gate_proj", "up_proj", "down_proj")
            for expert, grad in enumerate(p.grad):
                parts = zip((gate, up), grad.chunk(2)) if "gate_up" in of else [(down, grad)]
                yield from ((f"{prefix}.{expert}.{part}.weight", g) for part, g in parts)


def record_transformers(settings, folder, prompt, new):
    """A model in `folder`; what it makes of random ids."""
    model = model_of(settings)
    model.save_pretrained(folder)
    ids = torch.randint(3, COMMON["vocab_size"], (2, 31))
    out = model(ids, labels=ids, use_cache=False)
    out.loss.backward()
    greedy = model.generate(ids[:, :prompt], max_new_tokens=new, do_sample=False, eos_token_id=None, pad_token_id=0)[:, prompt:]
    tensors = {"input_ids": ids, "logits": out.logits.detach(), "loss": out.loss.detach().reshape(1), "greedy_ids": greedy}
    return tensors | {"grad." + of: grad for of, grad in stored_gradients(model, folder)}


def record_predictors(settings, folder, count, coefficient):
    """DeepSeek-V3 with predictors of further tokens (its paper, section 2.2), which transformers leaves out: put together of its layers."""
    from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek

    model = model_of(settings)
    config, seq = model.config, 31

    class Predictor(torch.nn.Module):
        def __init__(self):
            super().__init__()
            norm = lambda: deepseek.DeepseekV3RMSNorm(config.hidden_size, config.rms_norm_eps)
            self.enorm, self.hnorm, self.norm = norm(), norm(), norm()
            self.eh_proj = torch.nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
            self.block = deepseek.DeepseekV3DecoderLayer(config, config.num_hidden_layers - 1)

    predictors = [Predictor().float().eval() for _ in range(count)]
    with torch.no_grad():
        for p in (p for predictor in predictors for p in predictor.parameters()):
            p.copy_(torch.randn_like(p) * 0.15 + (1 if p.dim() == 1 else 0))
    model.save_pretrained(folder)
    ids = torch.randint(3, COMMON["vocab_size"], (2, seq))
    out = model(ids, labels=ids, use_cache=False)
    state = model.model(ids, use_cache=False).last_hidden_state
    mask = torch.full((seq, seq), float("-inf")).triu(1)[None, None]
    rotary = model.model.rotary_emb(state, torch.arange(seq)[None])
    losses = 0
    for k, predictor in enumerate(predictors, 1):
        following = torch.cat([ids[:, k:], torch.zeros_like(ids[:, :k])], 1)
        joined = predictor.eh_proj(torch.cat([predictor.enorm(model.model.embed_tokens(following)), predictor.hnorm(state)], -1))
        state = predictor.block(joined, attention_mask=mask, position_embeddings=rotary)
        logits = model.lm_head(predictor.norm(state))[:, :seq - 1 - k]
        losses = losses + torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1 + k:].flatten(), reduction="sum") / (2 * (seq - 1) * count)
    (out.loss + coefficient * losses).backward()

    def named(tensor_of):
        for k, predictor in enumerate(predictors):
            prefix = f"model.layers.{config.num_hidden_layers + k}"
            values = dict(predictor.named_parameters()) | {of: b for of, b in predictor.named_buffers() if of.endswith("e_score_correction_bias")}
            for of, p in values.items():
                of = of.removeprefix("block.").replace("norm.weight", "shared_head.norm.weight") if of == "norm.weight" else of.removeprefix("block.")
                x = tensor_of(p)
                if x is None:
                    continue
                if ".experts." not in of or x.dim() < 3:
                    yield f"{prefix}.{of}", x
                    continue
                for expert, each in enumerate(x):
                    parts = zip(("gate_proj", "up_proj"), each.chunk(2)) if "gate_up" in of else [("down_proj", each)]
                    yield from ((f"{prefix}.mlp.experts.{expert}.{part}.weight", y) for part, y in parts)

    weights = folder / "model.safetensors"
    with safe_open(weights, "pt") as stored:
        kept = {of: stored.get_tensor(of) for of in stored.keys()}
    gradients = {"grad." + of: grad for of, grad in stored_gradients(model, folder)} | {"grad." + of: g for of, g in named(lambda p: p.grad)}
    save_file(kept | {of: x.detach().contiguous() for of, x in named(lambda p: p)}, str(weights), metadata={"format": "pt"})
    return {"input_ids": ids, "logits": out.logits.detach(), "loss": out.loss.detach().reshape(1), "mtp_loss": losses.detach().reshape(1)} | gradients


def record_kimi(settings, folder, prompt, new):
    config = COMMON | dict(model_type="kimi_linear", rms_norm_eps=1e-5, tie_word_embeddings=False, rope_theta=10000.0, mla_use_nope=True, q_lora_rank=None,
                           hidden_act="silu", moe_renormalize=True, moe_router_activation_func="sigmoid", use_grouped_topk=True, moe_layer_freq=1) | settings
    p = kimi_linear.parameters_of(config)
    ids = torch.randint(3, config["vocab_size"], (2, 31))
    logits = kimi_linear.logits(p, config, ids)
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file({of: x.detach() for of, x in p.items()}, str(folder / "model.safetensors"), metadata={"format": "pt"})
    text = ids[:, :prompt]
    with torch.no_grad():
        for _ in range(new):
            text = torch.cat([text, kimi_linear.logits(p, config, text)[:, -1:].argmax(-1)], 1)
    tensors = {"input_ids": ids, "logits": logits.detach(), "loss": loss.detach().reshape(1), "greedy_ids": text[:, prompt:]}
    return tensors | {"grad." + of: x.grad for of, x in p.items() if x.grad is not None}


KIMI = {
    "kimi_linear, a dense layer and groups": dict(
        num_hidden_layers=4, qk_nope_head_dim=10, qk_rope_head_dim=4, v_head_dim=12, kv_lora_rank=14, first_k_dense_replace=1, num_experts=6,
        num_experts_per_token=2, num_shared_experts=1, moe_intermediate_size=20, routed_scaling_factor=1.7, num_expert_group=3, topk_group=2,
        num_key_value_heads=4, linear_attn_config={"kda_layers": [1, 2, 4], "full_attn_layers": [3], "head_dim": 8, "num_heads": 3, "short_conv_kernel_size": 4}),
    "kimi_linear, no dense layer, two shared experts": dict(
        num_hidden_layers=2, qk_nope_head_dim=6, qk_rope_head_dim=6, v_head_dim=12, kv_lora_rank=10, first_k_dense_replace=0, num_experts=4,
        num_experts_per_token=3, num_shared_experts=2, moe_intermediate_size=12, routed_scaling_factor=2.4, num_expert_group=1, topk_group=1,
        num_key_value_heads=4, linear_attn_config={"kda_layers": [2], "full_attn_layers": [1], "head_dim": 12, "num_heads": 2, "short_conv_kernel_size": 3}),
}


def main():
    torch.set_num_threads(2)
    prompt, new = 9, 8
    # Of the delta rule transformers' own logits in fp32 are off by 2e-5 of the largest from those in fp64.
    cases = [(name, settings["model_type"], 3e-4 if settings["model_type"] == "qwen3_next" else None,
              lambda folder, settings=settings: record_transformers(settings, folder, prompt, new)) for name, settings in CASES.items()]
    cases += [(name, "kimi_linear", 3e-4, lambda folder, settings=settings: record_kimi(settings, folder, prompt, new)) for name, settings in KIMI.items()]
    for of, count in (("deepseek_v3, a dense layer, groups and yarn", 1), ("deepseek_v3, queries without a latent, biases", 2)):
        cases.append((f"{of}, predicting {count} further", "deepseek_v3", None,
                      lambda folder, of=of, count=count: record_predictors(CASES[of], folder, count, coefficient=0.4)))
    assert AT_NIGHT < {name for name, *_ in cases}
    with Workspace() as w:
        for number, (name, family, tolerance, record) in enumerate(cases):
            if not name.startswith(tuple(sys.argv[1:]) or "") or (name in AT_NIGHT and not sys.argv[1:] and not at_night()):
                continue
            torch.manual_seed(number)
            folder, file = w.path / f"{number}", w.path / f"{number}.safetensors"
            tensors = record(folder)
            save_file({of: t.contiguous() for of, t in tensors.items()}, str(file),
                      metadata={"fixture": json.dumps({"family": family, "prompt": prompt, "mtp_coefficient": 0.4})})
            report = json.loads(ingot("verify", "model", folder, "--fixture", file, *(("--rtol", tolerance) if tolerance else ()), "--json")[0])
            assert report["pass"] and report["compared"] == len(tensors) - 1, (name, report)
            print(f"ok {name}: {report['compared']} tensors")


main()
