#!/usr/bin/env python3
"""Trains the same two models with ingot and with PyTorch (eager and torch.compile) in turn, on this machine, and prints both sides.

    .deps/venv/bin/python benchmarks/compare_pytorch.py [--device cuda] [--odd] [--rounds 2] [--steps 8] [--only dense/fp32/adamw …] [-o TABLE.md]

A step is forward, cross-entropy, backward and optimizer, on 4 sequences of 512 random tokens (--odd: 3 of 768); ingot's also holds data loading, the
gradient norm and clipping. Sides alternate, so that a machine whose speed drifts is fair to both; medians and ranges of steps are
shown. PyTorch runs with glibc keeping freed blocks (as ingot sets for itself), in fp32, in bf16 by autocast, and with bf16 weights
over fp32 masters. Peak memory is the high-water mark of resident memory in the steps, on a GPU of what torch took of it.
On a GPU the models are larger (0.5 B parameters, 8 sequences of 2048 tokens).
"""
import argparse
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHAPES = {  # hidden, layers, heads, kv heads, ffn (of an expert for zaya), vocabulary, tokens of a sequence, sequences
    "dense": (512, 8, 8, 2, 1536, 8192, 512, 4),
    "zaya": (256, 6, 4, 2, 256, 4096, 512, 4),
    "dense-odd": (384, 6, 6, 2, 1088, 6001, 768, 3),
    "zaya-odd": (384, 6, 6, 2, 320, 6001, 768, 3),
    "dense-0.5b": (1024, 24, 16, 8, 4096, 32000, 2048, 8),
    "zaya-0.5b": (1024, 12, 8, 2, 1536, 32000, 2048, 8),
}
TINY = (64, 3, 2, 1, 64, 256, 32, 2)  # to see that it runs
DEVICE = "cpu"
WARMUP, LR = 3, 1e-6
CASES = ["dense/fp32/adamw", "dense/bf16/adamw", "dense/fp32/muon", "dense/bf16/muon", "zaya/fp32/adamw", "zaya/bf16/adamw", "zaya/fp32/muon"]
ODD_CASES = [case.replace("/", "-odd/", 1) for case in CASES]
GPU_CASES = ["dense-0.5b/bf16/adamw", "zaya-0.5b/bf16/adamw", "dense-0.5b/bf16/muon", "zaya-0.5b/bf16/muon"]
KEEP = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "100000000000"}


def peer(model_name, variant, optimizer_name, compiled, steps):
    """One PyTorch run, in a process of its own; prints a JSON line."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    hidden, layers, heads, kv, ffn, vocab, seq, batch = SHAPES[model_name]
    common = dict(hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv, head_dim=64, vocab_size=vocab,
                  max_position_embeddings=seq, use_cache=False)
    if model_name.startswith("dense"):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(intermediate_size=ffn, **common))
    else:
        model = transformers.ZayaForCausalLM(transformers.ZayaConfig(num_experts=8, num_experts_per_tok=1, moe_intermediate_size=ffn, router_hidden_size=64, **common))
        model.set_experts_implementation("grouped_mm")
    cast = variant == "bf16-cast"
    model = model.train().to(DEVICE, torch.bfloat16 if cast else torch.float32)
    wait = torch.cuda.synchronize if DEVICE == "cuda" else lambda: None
    names, params = zip(*model.named_parameters())
    masters = [p.detach().float().requires_grad_() for p in params] if cast else list(params)
    is_hidden = {id(m.weight) for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and n != "lm_head"}
    groups = {"muon": [], "adamw": []}
    for p, m in zip(params, masters):
        groups["muon" if optimizer_name == "muon" and id(p) in is_hidden else "adamw"].append(m)
    optimizers = [torch.optim.AdamW(groups["adamw"], lr=LR, betas=(0.9, 0.95), weight_decay=0.1, fused=True)]
    if groups["muon"]:
        optimizers.append(torch.optim.Muon(groups["muon"], lr=LR, weight_decay=0.1))
    run = torch.compile(model) if compiled else model
    times = []
    for step in range(WARMUP + steps):
        if step == WARMUP:
            Path("/proc/self/clear_refs").write_text("5")
            if DEVICE == "cuda":
                torch.cuda.reset_peak_memory_stats()
        ids = torch.randint(0, vocab, (batch, seq), device=DEVICE)
        wait()
        start = time.perf_counter()
        with torch.autocast(DEVICE, torch.bfloat16, enabled=variant == "bf16"):
            loss = run(input_ids=ids, labels=ids).loss
        loss.backward()
        if cast:
            for p, m in zip(params, masters):
                m.grad = p.grad.float()
        for optimizer in optimizers:
            optimizer.step()
        if cast:
            with torch.no_grad():
                torch._foreach_copy_(list(params), masters)
        for t in (*params, *masters):
            t.grad = None
        wait()
        times.append(time.perf_counter() - start)
    peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) * 1024
    peak = torch.cuda.max_memory_reserved() if DEVICE == "cuda" else peak
    print(json.dumps({"times": times[WARMUP:], "peak": peak, "parameters": sum(p.numel() for p in params)}))


def ingot(binary, model_name, precision, optimizer_name, steps, launcher=(), flags=(), rows=None):
    hidden, layers, heads, kv, ffn, vocab, seq, batch = SHAPES[model_name]
    batch = rows or batch
    with tempfile.TemporaryDirectory() as folder:
        tokens = (WARMUP + steps + 2) * batch * seq
        state = 1
        ids = []
        for _ in range(tokens):  # a multiplicative congruence: random enough, the same everywhere
            state = state * 48271 % 2147483647
            ids.append(state % vocab)
        Path(folder, "t.bin").write_bytes(struct.pack(f"<{tokens}H", *ids))
        Path(folder, "t.idx").write_bytes(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 1, 2) + struct.pack("<iqqq", tokens, 0, 0, 1))
        Path(folder, "c.toml").write_text(f"""
[model]
family = "{'llama' if model_name.startswith('dense') else 'zaya1'}"
layers = {layers}
hidden = {hidden}
heads = {heads}
kv_heads = {kv}
head_dim = 64
vocab_size = {vocab}
ffn = {ffn}
expert_ffn = {ffn}
experts = 8
router_hidden = 64
tie_embeddings = {'false' if model_name.startswith('dense') else 'true'}
rope_fraction = {1.0 if model_name.startswith('dense') else 0.5}
[data]
seq_len = {seq}
[[data.sources]]
path = "{folder}/t"
[optimizer]
name = "{optimizer_name}"
lr = {LR}
warmup_steps = 0
[train]
steps = {WARMUP + steps}
batch_size = {batch}
precision = "{precision}"
device = "{DEVICE}"
[checkpoint]
every = 0
[log]
tensorboard = false
""")
        done = subprocess.run([binary, *launcher, *([binary] if launcher else []), "train", f"{folder}/c.toml", "--run-dir", f"{folder}/run", *flags], capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
        lines = [json.loads(line) for line in Path(folder, "run/metrics.jsonl").read_text().splitlines()]
        return {"times": [line["step_ms"] / 1e3 for line in lines[WARMUP:]], "peak": lines[-1]["memory_peak_bytes"],
                "mfu": [line["mfu"] for line in lines[WARMUP:]]}


def row(label, tokens, runs):
    times = [t for r in runs for t in r["times"]]
    rate = tokens / statistics.median(times)
    mfu = [share for r in runs for share in r.get("mfu", [])]
    return rate, (f"| {label} | {rate:,.0f} | {tokens / max(times):,.0f}-{tokens / min(times):,.0f} | {max(r['peak'] for r in runs) / 2**20:,.0f} | "
                  f"{f'{100 * statistics.median(mfu):.0f} %' if mfu else ''} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--warmup", type=int, default=WARMUP, help="steps before those that count")
    parser.add_argument("--only", nargs="*", help="model/precision/optimizer (default: all of the device)")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--odd", action="store_true", help="sizes that are no powers of two: hidden 384, 6 heads, 768 tokens")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--tiny", action="store_true", help="every model at a tiny size, and ingot without a forecast: a rehearsal")
    parser.add_argument("--binary", default=str(ROOT / "build/release/ingot"))
    parser.add_argument("-o", "--output")
    args = parser.parse_args()
    globals().update(WARMUP=args.warmup, DEVICE=args.device)
    if args.tiny:
        SHAPES.update(dict.fromkeys(SHAPES, TINY))
    if args.peer:
        return peer(args.peer[0], args.peer[1], args.peer[2], args.peer[3] == "compile", args.steps)
    table = ["| model / precision / optimizer | tokens/s (median) | range | peak MiB | of the GEMM peak |", "|---|---|---|---|---|"]
    for case in args.only or (GPU_CASES if args.device == "cuda" else ODD_CASES if args.odd else CASES):
        model_name, precision, optimizer_name = case.split("/")
        tokens = SHAPES[model_name][-2] * SHAPES[model_name][-1]
        variants = [(v, c) for v in (["fp32"] if precision == "fp32" else ["bf16", "bf16-cast"]) for c in ("eager", *([] if args.no_compile else ["compile"]))]
        mine, theirs = [], {v: [] for v in variants}
        for _ in range(args.rounds):
            try:
                mine.append(ingot(args.binary, model_name, precision, optimizer_name, args.steps, flags=["--no-forecast"] if args.tiny else []))
            except RuntimeError as failure:
                print(f"{case} ingot failed: {failure}", file=sys.stderr)
            for variant, mode in variants:
                done = subprocess.run([sys.executable, __file__, "--steps", str(args.steps), "--warmup", str(args.warmup), "--device", args.device, *(["--tiny"] if args.tiny else []), "--peer", model_name, variant, optimizer_name, mode],
                                      capture_output=True, text=True, env={**os.environ, **KEEP})
                if done.returncode == 0:
                    theirs[(variant, mode)].append(json.loads(done.stdout.splitlines()[-1]))
                else:
                    print(f"{case} {variant} {mode} failed: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        rate = 0
        if mine:
            rate, line = row(f"**{case} ingot**", tokens, mine)
            table.append(line)
        best = 0
        for (variant, mode), runs in theirs.items():
            if runs:
                peer_rate, line = row(f"{case} PyTorch {variant} {mode}", tokens, runs)
                best = max(best, peer_rate)
                table.append(line)
        if best and rate:
            table.append(f"| {case}: ingot / best PyTorch | **{rate / best:.2f}** | | | |")
        print("\n".join(table[-len(variants) - 2:]), flush=True)
        if args.output:  # after each: who ends it early has those before
            Path(args.output).write_text("\n".join(table) + "\n")


if __name__ == "__main__":
    main()
