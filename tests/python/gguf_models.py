"""Small models that transformers makes, of every family that llama.cpp knows, and what a GGUF file of one must hold: names as the gguf package
maps Hugging Face's, values as the folder's safetensors have them. Runs with the Python of .deps/venv."""
import gguf
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

COMMON = dict(hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2, vocab_size=83, max_position_embeddings=256,
              pad_token_id=0, bos_token_id=2, eos_token_id=1)
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}
LINEAR = {"rope_type": "linear", "rope_theta": 50000.0, "factor": 4.0}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "beta_fast": 4.0, "beta_slow": 1.0, "original_max_position_embeddings": 64}
LONG = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0, 1.1, 1.2, 1.4, 1.6, 1.8, 2.0, 2.5],
        "long_factor": [1.0, 2.0, 3.0, 4.5, 6.0, 9.0, 14.0, 20.0], "original_max_position_embeddings": 256}
# Case: (llama.cpp's architecture, settings).
CASES = {
    "llama": ("LLAMA", dict(model_type="llama", tie_word_embeddings=False)),
    "llama, llama3's frequencies and biases": ("LLAMA", dict(model_type="llama", attention_bias=True, mlp_bias=True, tie_word_embeddings=True,
                                                             rope_parameters=LLAMA3)),
    "llama, linear and wider heads": ("LLAMA", dict(model_type="llama", head_dim=24, rope_parameters=LINEAR)),
    "llama, yarn": ("LLAMA", dict(model_type="llama", rope_parameters=YARN)),
    "mistral": ("LLAMA", dict(model_type="mistral", sliding_window=None)),
    "mixtral": ("LLAMA", dict(model_type="mixtral", num_local_experts=5, num_experts_per_tok=2, intermediate_size=32)),
    "granite": ("GRANITE", dict(model_type="granite", embedding_multiplier=6.0, attention_multiplier=0.2, residual_multiplier=0.3,
                                logits_scaling=4.0, tie_word_embeddings=True, attention_bias=True, rope_parameters=ROPE)),
    "smollm3": ("SMOLLM3", dict(model_type="smollm3", num_hidden_layers=5, attention_bias=False)),
    "qwen2": ("QWEN2", dict(model_type="qwen2", num_key_value_heads=1, tie_word_embeddings=True)),
    "qwen3": ("QWEN3", dict(model_type="qwen3", head_dim=24, tie_word_embeddings=False)),
    "qwen3, yarn": ("QWEN3", dict(model_type="qwen3", head_dim=16, rope_parameters=YARN)),
    "qwen3_moe": ("QWEN3MOE", dict(model_type="qwen3_moe", head_dim=16, num_experts=5, num_experts_per_tok=2, norm_topk_prob=True,
                                   moe_intermediate_size=32)),
    "olmo2": ("OLMO2", dict(model_type="olmo2", tie_word_embeddings=False)),
    "olmo2, tied": ("OLMO2", dict(model_type="olmo2", tie_word_embeddings=True, rms_norm_eps=1e-5)),
    "olmoe": ("OLMOE", dict(model_type="olmoe", num_key_value_heads=4, num_experts=5, num_experts_per_tok=2, norm_topk_prob=False,
                            intermediate_size=32)),
    "gemma2": ("GEMMA2", dict(model_type="gemma2", num_hidden_layers=3, head_dim=16, sliding_window=6, query_pre_attn_scalar=16,
                              attn_logit_softcapping=5.0, final_logit_softcapping=20.0)),
    "gemma3": ("GEMMA3", dict(model_type="gemma3_text", num_hidden_layers=3, head_dim=16, query_pre_attn_scalar=16, sliding_window=6,
                              layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                              rope_parameters={"full_attention": LINEAR, "sliding_attention": ROPE})),
    "phi3": ("PHI3", dict(model_type="phi3", sliding_window=None, rope_parameters=ROPE)),
    "phi3, longrope": ("PHI3", dict(model_type="phi3", sliding_window=None, original_max_position_embeddings=256, max_position_embeddings=512,
                                    rope_parameters=LONG)),
    "phi3, rotating in part": ("PHI3", dict(model_type="phi3", sliding_window=None, tie_word_embeddings=True,
                                            rope_parameters=ROPE | {"partial_rotary_factor": 0.75})),
    "gpt_oss": ("GPT_OSS", dict(model_type="gpt_oss", num_hidden_layers=3, head_dim=16, num_local_experts=5, num_experts_per_tok=2,
                                sliding_window=6, intermediate_size=32, rope_parameters=YARN | {"truncate": True})),
    "deepseek_v3": ("DEEPSEEK2", dict(
        model_type="deepseek_v3", num_hidden_layers=3, num_key_value_heads=4, first_k_dense_replace=1, n_routed_experts=6, n_group=3, topk_group=2,
        num_experts_per_tok=2, moe_intermediate_size=32, n_shared_experts=2, kv_lora_rank=32, q_lora_rank=32, qk_nope_head_dim=32,
        qk_rope_head_dim=8, v_head_dim=16, routed_scaling_factor=1.7, rope_parameters=ROPE)),
    "deepseek_v3, yarn": ("DEEPSEEK2", dict(
        model_type="deepseek_v3", num_key_value_heads=4, first_k_dense_replace=1, n_routed_experts=4, n_group=1, topk_group=1,
        num_experts_per_tok=2, moe_intermediate_size=32, n_shared_experts=1, kv_lora_rank=32, q_lora_rank=None, qk_nope_head_dim=32,
        qk_rope_head_dim=8, v_head_dim=16, norm_topk_prob=True, rope_parameters=YARN | {"mscale": 0.7, "mscale_all_dim": 0.7})),
}


def save_model(case, folder, **more):
    """A model in `folder` whose parameters all differ from their initial values."""
    settings = dict(num_hidden_layers=2) | COMMON | CASES[case][1] | more
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings), attn_implementation="eager").float().eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * (0.15 if p.dim() > 1 else 0.3))
        for name, b in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                b.copy_(torch.rand_like(b) * 0.2)
    model.save_pretrained(folder)
    return model.config


def neighbours(x, heads):
    """Rows of queries or keys as the architectures with interleaved RoPE have them: channel i of a head, then i + head_dim / 2."""
    per_head = x.shape[0] // heads
    order = [h * per_head + half * (per_head // 2) + i for h in range(heads) for i in range(per_head // 2) for half in (0, 1)]
    return x[order]


def rope_freqs(rope, dim):
    import math
    out = []
    for i in range(0, dim, 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (i / dim)
        old = rope["original_max_position_embeddings"]
        low, high = old / rope["low_freq_factor"], old / rope["high_freq_factor"]
        if wavelength < high:
            out.append(1.0)
        elif wavelength > low:
            out.append(rope["factor"])
        else:
            smooth = (old / wavelength - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"])
            out.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return torch.tensor(out)


def expected_tensors(case, config, folder):
    """{name in the GGUF file: fp32 values}."""
    arch, settings = CASES[case]
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[arch], config.num_hidden_layers)
    of = lambda name: names.get_name(name, try_suffixes=(".weight", ".bias")) or exec(f"raise KeyError({name!r})")
    stored = {}
    for file in folder.glob("*.safetensors"):
        stored |= load_file(file)
    out, experts = {}, {}
    for name, x in stored.items():
        if arch in ("LLAMA", "GRANITE", "SMOLLM3") and ".self_attn.q_proj." in name:
            x = neighbours(x, config.num_attention_heads)
        if arch in ("LLAMA", "GRANITE", "SMOLLM3") and ".self_attn.k_proj." in name:
            x = neighbours(x, config.num_key_value_heads)
        if arch.startswith("GEMMA") and name.endswith("norm.weight"):
            x = x + 1
        if ".experts." in name and arch != "GPT_OSS":
            before, after = name.split(".experts.")
            number, matrix = after.split(".", 1)
            # Mixtral's names are known to the map in their merged form alone.
            kind = {"w1.weight": "gate", "w3.weight": "up", "w2.weight": "down"}.get(matrix) or matrix.split("_")[0]
            layer = before.split(".")[2]
            experts.setdefault(f"blk.{layer}.ffn_{kind}_exps.weight", {})[int(number)] = x
        elif arch == "GPT_OSS" and ".gate_up_proj" in name:
            x = x if name.endswith("_bias") else x.transpose(1, 2)
            suffix = ".bias" if name.endswith("_bias") else ".weight"
            prefix = name.split("gate_up_proj")[0]
            out[of(prefix + "gate_proj" + suffix)], out[of(prefix + "up_proj" + suffix)] = x[:, 0::2], x[:, 1::2]
        elif arch == "GPT_OSS" and name.endswith(".down_proj"):
            out[of(name + ".weight")] = x.transpose(1, 2)
        elif arch == "GPT_OSS" and name.endswith(".down_proj_bias"):
            out[of(name.replace("_bias", ".bias"))] = x
        elif name.endswith(".sinks"):
            out[of(name + ".weight")] = x
        elif name.endswith(".kv_b_proj.weight"):
            by_heads = x.view(config.num_attention_heads, config.qk_nope_head_dim + config.v_head_dim, -1)
            out[of(name.replace("kv_b", "k_b"))] = by_heads[:, :config.qk_nope_head_dim].transpose(1, 2)
            out[of(name.replace("kv_b", "v_b"))] = by_heads[:, config.qk_nope_head_dim:]
        elif name.endswith(".e_score_correction_bias"):
            out[f"blk.{name.split('.')[2]}.exp_probs_b.bias"] = x
        else:
            out[of(name)] = x
    for name, parts in experts.items():
        out[name] = torch.stack([parts[i] for i in range(len(parts))])
    if arch in ("OLMO2", "OLMOE", "GPT_OSS") and "output.weight" not in out:
        out["output.weight"] = out["token_embd.weight"]
    rope = settings.get("rope_parameters", {})
    if rope.get("rope_type") == "llama3":
        out["rope_freqs.weight"] = rope_freqs(rope, config.head_dim)
    if rope.get("rope_type") == "longrope":
        out["rope_factors_long.weight"], out["rope_factors_short.weight"] = torch.tensor(rope["long_factor"]), torch.tensor(rope["short_factor"])
    return {name: x.float().contiguous() for name, x in out.items()}
