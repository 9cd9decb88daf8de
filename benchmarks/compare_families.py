#!/usr/bin/env python3
"""Trains one small model of every family with ingot and with transformers (eager, or by torch.compile) on this machine, and prints both sides: milliseconds of a step,
and per TFLOP beside llama's.

    .deps/venv/bin/python benchmarks/compare_families.py build/release/ingot [--only qwen3 …] [--steps 8] [--compile] [-o TABLE.md]

A step is forward, cross-entropy, backward and AdamW, fp32, on 4 sequences of 512 random tokens; ingot's also holds data loading, the gradient norm
and clipping. The fastest of the steps behind the first two, since what else the machine does only slows them, of each side in a process of its own; peak memory is the high-water mark of resident
memory. transformers has its default attention (scaled_dot_product_attention where the family has it) and experts by grouped_mm where it knows that.
"""
import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SEQ, BATCH, WARMUP, VOCAB = 512, 4, 2, 4096
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
COMMON = dict(hidden_size=512, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=2, head_dim=64, intermediate_size=1536, vocab_size=VOCAB,
              max_position_embeddings=2048, tie_word_embeddings=True, pad_token_id=0, bos_token_id=2, eos_token_id=1)
OURS = {"layers": 4, "hidden": 512, "heads": 8, "kv_heads": 2, "head_dim": 64, "ffn": 1536, "vocab_size": VOCAB, "tie_embeddings": True}
MOE, OUR_MOE = dict(num_experts_per_tok=2), {"experts": 8, "top_k": 2, "expert_ffn": 768}
# transformers' settings, ours.
FAMILIES = {
    "llama": ({}, {}),
    "qwen3": ({}, {}),
    "olmo2": ({}, {}),
    "smollm3": ({}, {"layer_types": ["full", "full", "full", "nope"]}),
    "phi3": ({}, {}),
    "granite": (dict(residual_multiplier=0.3, logits_scaling=4.0, attention_multiplier=0.125), {"residual_scale": 0.3, "logit_scale": 0.25}),
    "gemma3_text": (dict(sliding_window=128, layer_types=["sliding_attention"] * 3 + ["full_attention"], query_pre_attn_scalar=64),
                    {"window": 128, "layer_types": ["sliding", "sliding", "sliding", "full"]}),
    "mixtral": (dict(num_local_experts=8, intermediate_size=768) | MOE, OUR_MOE),
    "olmoe": (dict(num_experts=8, intermediate_size=768, num_key_value_heads=8) | MOE, OUR_MOE | {"kv_heads": 8}),
    "qwen3_moe": (dict(num_experts=8, moe_intermediate_size=768, norm_topk_prob=True) | MOE, OUR_MOE),
    "gpt_oss": (dict(num_local_experts=8, intermediate_size=768, sliding_window=128, rope_parameters=ROPE) | MOE,
                OUR_MOE | {"window": 128, "layer_types": ["sliding", "full"], "attention_bias": True}),
    "deepseek_v3": (dict(num_key_value_heads=8, n_routed_experts=8, n_group=1, topk_group=1, moe_intermediate_size=768, n_shared_experts=1, head_dim=32, kv_lora_rank=128, q_lora_rank=None,
                         qk_nope_head_dim=32, qk_rope_head_dim=32, v_head_dim=64, first_k_dense_replace=1, rope_parameters=ROPE) | MOE,
                    OUR_MOE | {"kv_heads": 8, "kv_rank": 128, "rope_head_dim": 32, "value_head_dim": 64, "first_dense_layers": 1, "shared_expert_ffn": 768,
                               "router_score": "sigmoid"}),
    "qwen3_next": (dict(linear_num_value_heads=8, linear_num_key_heads=4, linear_key_head_dim=64, linear_value_head_dim=64, num_experts=8, moe_intermediate_size=768,
                        shared_expert_intermediate_size=768) | MOE,
                   OUR_MOE | {"linear_heads": 8, "linear_key_heads": 4, "linear_key_dim": 64, "linear_value_dim": 64, "shared_expert_ffn": 768, "rope_fraction": 0.25,
                              "feature_map": "l2"}),
}


def peer(family, steps, is_compiled):
    """One run of transformers, in a process of its own; prints a JSON line."""
    import resource

    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(family, **(COMMON | {"use_cache": False} | FAMILIES[family][0]))).train()
    try:
        model.set_experts_implementation("grouped_mm")
    except (AttributeError, ValueError):
        pass
    if is_compiled:
        model.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    times = []
    for _ in range(steps):
        ids = torch.randint(VOCAB, (BATCH, SEQ))
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        model(ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        times.append(1e3 * (time.perf_counter() - start))
    print(json.dumps({"ms": min(times[WARMUP:]), "bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}))


def tokens(folder):
    """A token file of random ids: Megatron's format."""
    count = BATCH * SEQ * 40
    data = os.urandom(2 * count)
    ids = [x % VOCAB for x in struct.unpack(f"<{count}H", data)]
    (folder / "t.bin").write_bytes(struct.pack(f"<{count}H", *ids))
    (folder / "t.idx").write_bytes(struct.pack("<9sQBQQiqqq", b"MMIDIDX\0\0", 1, 8, 1, 2, count, 0, 0, 1))


def ours(program, family, steps, folder):
    value = lambda v: json.dumps(v)
    model = {"family": family} | OURS | FAMILIES[family][1]
    text = "[model]\n" + "".join(f"{key} = {value(v)}\n" for key, v in model.items())
    text += f'[data]\nseq_len = {SEQ}\n[[data.sources]]\npath = "{folder / "t"}"\n[optimizer]\nname = "adamw"\nlr = 1e-6\n'
    text += f"[train]\nsteps = {steps}\nbatch_size = {BATCH}\n[checkpoint]\nevery = 0\n[log]\ntensorboard = false\n"
    (folder / f"{family}.toml").write_text(text)
    run = folder / f"run-{family}"
    subprocess.run([program, "train", folder / f"{family}.toml", "--run-dir", run, "--no-forecast"], check=True, capture_output=True)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {"ms": min(line["step_ms"] for line in lines[WARMUP:]), "bytes": lines[-1]["memory_peak_bytes"],
            "tflop": lines[-1]["flops_per_token"] * BATCH * SEQ / 1e12}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--only", nargs="*", default=list(FAMILIES))
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--compile", action="store_true", help="transformers by torch.compile, not eager")
    parser.add_argument("-o", "--output")
    arguments = parser.parse_args()
    rows, llama = [], None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokens(folder)
        for family in arguments.only:
            mine = ours(arguments.program, family, arguments.steps, folder)
            theirs = json.loads(subprocess.run([sys.executable, __file__, "--peer", family, str(arguments.steps), *(["compile"] if arguments.compile else [])], check=True, capture_output=True, text=True).stdout.splitlines()[-1])
            per_tflop = mine["ms"] / mine["tflop"]
            llama = llama or per_tflop
            rows.append(f"| {family} | {mine['tflop']:.3f} | {mine['ms']:.0f} | {per_tflop / llama:.2f} | {theirs['ms']:.0f} | {theirs['ms'] / mine['ms']:.2f} | "
                        f"{mine['bytes'] / 2 ** 20:.0f} | {theirs['bytes'] / 2 ** 20:.0f} |")
            print(rows[-1], flush=True)
    table = "| family | TFLOP a step | ingot, ms | ms per TFLOP, of llama's | transformers, ms | ingot is faster by | ingot, MiB | transformers, MiB |\n|---|---|---|---|---|---|---|---|\n" + "\n".join(rows) + "\n"
    print(table)
    if arguments.output:
        Path(arguments.output).write_text(table)


if sys.argv[1:2] == ["--peer"]:
    peer(sys.argv[2], int(sys.argv[3]), is_compiled="compile" in sys.argv[4:])
else:
    main()
