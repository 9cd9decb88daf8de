"""ZAYA1's two published forms of a folder: the recorded references, renamed to the older form from its description alone (stages, per-layer
lists or scalars), give the recorded numbers and those of the form that they came in, bit for bit. Standard library only."""
import json
import os
import re
import shutil
import struct
import sys
import tempfile
from pathlib import Path

from harness import expect_error, ingot

REFERENCES = Path(__file__).parent.parent / "references" / "hf"


def read_tensors(path):
    """name -> (dtype, shape, bytes)"""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    return {name: (one["dtype"], one["shape"], data[8 + size + one["data_offsets"][0]:8 + size + one["data_offsets"][1]])
            for name, one in header.items()}


def write_tensors(path, tensors):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))


def older_tensors(tensors, layers):
    """Attention of layer L is stage 2L, its MoE 2L + 1; a scale lies with the stage that reads it, the last with the model."""
    older = {}
    for name, (dtype, shape, data) in tensors.items():
        found = re.fullmatch(r"model\.layers\.(\d+)\.(.*)", name)
        if not found:
            name = {"model.norm.weight": "model.final_norm.weight"}.get(name, name)
            older[name.replace("model.input_hidden_states_", "model.layers.0.res_scale.hidden_states_")] = (dtype, shape, data)
            continue
        layer, rest = int(found[1]), found[2]
        attention, moe = f"model.layers.{2 * layer}.", f"model.layers.{2 * layer + 1}."
        following = f"model.layers.{2 * layer + 2}." if layer + 1 < layers else "model."
        kind = re.fullmatch(r"mlp\.experts\.(gate_up|down)_proj", rest)
        if kind:
            each = len(data) // shape[0]
            for expert in range(shape[0]):
                matrix = {"gate_up": "linear_fc1", "down": "linear_fc2"}[kind[1]]
                older[f"{moe}zaya_block.experts.local_experts.{expert}.{matrix}.weight"] = (dtype, shape[1:], data[expert * each:(expert + 1) * each])
            continue
        for ours, theirs in [("input_layernorm", attention + "input_norm"), ("post_attention_layernorm", moe + "input_norm"),
                             ("post_attention_residual_scale", moe + "res_scale"), ("post_mlp_residual_scale", following + "res_scale"),
                             ("self_attn.qkv_proj.q_proj", attention + "self_attn.qkv.linear_q"),
                             ("self_attn.qkv_proj.k_proj", attention + "self_attn.qkv.linear_k"),
                             ("self_attn.qkv_proj.v_proj_current", attention + "self_attn.qkv.val_proj1"),
                             ("self_attn.qkv_proj.v_proj_delayed", attention + "self_attn.qkv.val_proj2"),
                             ("self_attn.qkv_proj.conv_qk_depthwise", attention + "self_attn.qkv.conv_qk.0"),
                             ("self_attn.qkv_proj.conv_qk_grouped", attention + "self_attn.qkv.conv_qk.1"),
                             ("self_attn.qk_norm.temp", attention + "self_attn.qkv.temp"), ("self_attn.o_proj", attention + "self_attn.o_proj"),
                             ("mlp.gate.router_mlp.norm", moe + "zaya_block.router.rmsnorm_eda"),
                             ("mlp.gate.router_mlp.fc1", moe + "zaya_block.router.router_mlp.0"),
                             ("mlp.gate.router_mlp.fc2", moe + "zaya_block.router.router_mlp.2"),
                             ("mlp.gate.router_mlp.out_proj", moe + "zaya_block.router.router_mlp.4"), ("mlp.gate", moe + "zaya_block.router")]:
            if rest == ours or rest.startswith(ours + "."):
                older[theirs + rest[len(ours):]] = (dtype, shape, data)
                break
        else:
            raise AssertionError(name)
    return older


def older_config(config, with_lists):
    layers, rope = config["num_hidden_layers"], config["rope_parameters"]["hybrid"]
    older = {"architectures": ["ZayaForCausalLM"], "model_type": "zaya", "cca": True, "activation_func": "swiglu", "gated_linear_unit": True,
             "add_bias_linear": False, "attention_bias": False, "lm_head_bias": False, "normalization": "RMSNorm", "norm_epsilon": config["rms_norm_eps"],
             "moe_router_topk": 1, "zaya_use_mod": True, "zaya_use_eda": True, "zaya_high_prec": True, "scale_residual_merge": True,
             "clamp_temp": False, "activation_func_fp8_input_store": False, "bias_activation_fusion": True, "sliding_window": None,
             "rope_scaling": False, "mamba_cache_dtype": "float32", "rope_theta": int(rope["rope_theta"]), "partial_rotary_factor": 0.5}
    older |= {name: config[name] for name in ("hidden_size", "vocab_size", "max_position_embeddings", "tie_word_embeddings", "pad_token_id",
                                              "bos_token_id", "eos_token_id", "num_key_value_heads")}
    ffn, kv, router = 2 * config["moe_intermediate_size"], config["num_key_value_heads"], config["router_hidden_size"]
    if not with_lists:  # ZAYA1-8B
        return older | {"num_hidden_layers": 2 * layers, "num_attention_heads": config["num_attention_heads"], "head_dim": config["head_dim"],
                        "kv_channels": config["head_dim"], "num_query_groups": kv, "ffn_hidden_size": ffn, "num_experts": config["num_experts"],
                        "zaya_mlp_expansion": router, "residual_in_fp32": True}
    # ZAYA1-base: num_hidden_layers is stale, lists may be longer, and num_attention_heads says a head's width alone.
    return older | {"num_hidden_layers": 3 * layers, "num_attention_heads": config["hidden_size"] // config["head_dim"], "residual_in_fp32": False,
                    "zaya_layers": ["a", config["num_experts"]] * layers, "cca_num_q_heads": [config["num_attention_heads"], 0] * layers,
                    "num_query_groups_list": [kv, 0] * (layers + 1), "ffn_hidden_size_list": [0, ffn] * (layers + 4),
                    "zaya_mlp_expansion": [0, router] * layers}


def compared(folder, fixture, *flags):
    """Name -> what `verify` measured, to the last digit."""
    report = json.loads(ingot("verify", "model", folder, "--fixture", fixture, "--json", *flags)[0])
    assert report["pass"] and report["compared"] > 60, report
    return report


def write_older(folder, reference, with_lists, change=None):
    folder.mkdir(exist_ok=True)
    config = json.loads((reference / "config.json").read_text())
    older = older_config(config, with_lists)
    tensors = older_tensors(read_tensors(reference / "model.safetensors"), config["num_hidden_layers"])
    if change:
        change(older, tensors)
    (folder / "config.json").write_text(json.dumps(older))
    write_tensors(folder / "model.safetensors", tensors)
    return folder


def both_forms_give_the_same_numbers(path):
    for name, flags in (("zaya", ["--set", "model.skip_output=zero"]), ("zaya_skip_identity", [])):
        reference = REFERENCES / name
        fixture = reference / "fixture.safetensors"
        plain = compared(reference, fixture)
        for with_lists in (True, False):
            older = write_older(path / f"{name}-{with_lists}", reference, with_lists)
            assert compared(older, fixture, *flags) == plain, "the older form gives other numbers"
    # Without the flag a skipped token keeps p * x, as in the programs of that form: the numbers of transformers are missed.
    ingot("verify", "model", path / "zaya-True", "--fixture", REFERENCES / "zaya" / "fixture.safetensors", status=3)


def what_does_not_fit_is_named(path):
    def refused(words, change, with_lists=True):
        expect_error("verify", "model", write_older(path / "broken", REFERENCES / "zaya", with_lists, change), "--fixture",
                     REFERENCES / "zaya" / "fixture.safetensors", status=1, words=words)

    def missing(config, tensors):
        del tensors["model.layers.3.zaya_block.experts.local_experts.2.linear_fc1.weight"]

    def unknown(config, tensors):
        tensors["model.layers.2.res_scale.other"] = tensors["model.final_norm.weight"]

    def reshaped(config, tensors):
        dtype, shape, data = tensors["model.layers.0.self_attn.qkv.linear_k.weight"]
        tensors["model.layers.0.self_attn.qkv.linear_k.weight"] = (dtype, shape[::-1], data)

    refused(["model.layers.3.zaya_block.experts.local_experts.2.linear_fc1.weight is missing"], missing)
    refused(["model.layers.2.res_scale.other is not part of a zaya1 model"], unknown)
    refused(["model.layers.0.self_attn.qkv.linear_k.weight has shape"], reshaped)
    refused(["swa_layers"], lambda config, tensors: config.update(swa_layers=[4096, 0, 0, 0, 0, 0]))
    refused(["local_experts.4.linear_fc1.weight is missing", "router_mlp.4.weight has shape"],
            lambda config, tensors: config.update(num_experts=5), with_lists=False)

    # What balances experts in a training program is no part of the model.
    state = write_older(path / "state", REFERENCES / "zaya", True, lambda config, tensors: tensors.update(
        {"model.layers.1.zaya_block.router.balance_m": ("F32", [5], b"\0" * 20), "model.layers.1.zaya_block.router.balance_step": ("F32", [1], b"\0" * 4)}))
    compared(state, REFERENCES / "zaya" / "fixture.safetensors", "--set", "model.skip_output=zero")


def an_older_folder_becomes_a_run_and_a_folder_of_transformers_form(path):
    older = write_older(path / "older", REFERENCES / "zaya", True)
    ingot("checkpoint", "import-hf", older, "-o", path / "run")
    _, log = ingot("checkpoint", "export-hf", path / "run", "-o", path / "folder", "--dtype", "fp32")
    assert "model.skip_output = identity" in log, log
    ours, theirs = read_tensors(path / "folder" / "model.safetensors"), read_tensors(REFERENCES / "zaya" / "model.safetensors")
    assert ours == theirs, "a tensor has changed on the way"
    config, reference = (json.loads((folder / "config.json").read_text()) for folder in (path / "folder", REFERENCES / "zaya"))
    for name in ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "moe_intermediate_size", "router_hidden_size",
                 "num_experts", "rms_norm_eps", "max_position_embeddings", "vocab_size", "tie_word_embeddings", "layer_types"):
        assert config[name] == reference[name], (name, config[name], reference[name])
    assert config["rope_parameters"]["hybrid"] == reference["rope_parameters"]["hybrid"]


CASES = [both_forms_give_the_same_numbers, what_does_not_fit_is_named, an_older_folder_becomes_a_run_and_a_folder_of_transformers_form]

if __name__ == "__main__":
    wanted = sys.argv[1:] or [case.__name__ for case in CASES]
    for case in CASES:
        if case.__name__ in wanted:
            folder = Path(tempfile.mkdtemp(prefix="ingot_zaya_"))
            case(folder)
            shutil.rmtree(folder)
            print("ok", case.__name__)
