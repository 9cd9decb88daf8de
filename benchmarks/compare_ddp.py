#!/usr/bin/env python3
"""Trains the dense model of compare_pytorch.py data-parallel, with ingot and with PyTorch's DistributedDataParallel, by turns:

    .deps/venv/bin/python benchmarks/compare_ddp.py [--ranks 2] [--rounds 2] [--steps 8] [-o TABLE.md]

Processes of one thread each; the global batch is 4 sequences of 512 tokens, fp32, AdamW, no clipping on PyTorch's side. PyTorch talks over
Gloo on the loopback interface, its default for processes without GPUs; ingot through shared memory, its default on one machine. A rank alone (its share of the batch, no other rank) is the ideal that both are held against.
"""
import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import compare_pytorch as single

ROOT = Path(__file__).resolve().parent.parent
torch_threads = {"OMP_NUM_THREADS": "1", **single.KEEP}


def peer(steps):
    import torch
    import torch.distributed as dist
    import transformers

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()
    hidden, layers, heads, kv, ffn, vocab = single.SHAPES["dense"]
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv, head_dim=64, vocab_size=vocab, intermediate_size=ffn,
        max_position_embeddings=single.SEQ, use_cache=False, tie_word_embeddings=False)).train()
    model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=single.LR, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    times = []
    for _ in range(single.WARMUP + steps):
        ids = torch.randint(0, vocab, (single.BATCH // dist.get_world_size(), single.SEQ))
        dist.barrier()
        start = time.perf_counter()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        dist.barrier()
        times.append(time.perf_counter() - start)
    peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) * 1024
    if dist.get_rank() == 0:
        print(json.dumps({"times": times[single.WARMUP:], "peak": peak}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--binary", default=str(ROOT / "build/release/ingot"))
    parser.add_argument("-o", "--output")
    args = parser.parse_args()
    if args.peer:
        return peer(args.steps)
    os.environ["OMP_NUM_THREADS"] = "1"
    batch = single.BATCH
    mine, alone, theirs = [], [], []
    for _ in range(args.rounds):
        mine.append(single.ingot(args.binary, "dense", "fp32", "adamw", args.steps, launcher=["launch", "-n", str(args.ranks), "--"]))
        done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(args.ranks), "--master-port", "29643", __file__, "--peer",
                               "--steps", str(args.steps)], capture_output=True, text=True, env={**os.environ, **torch_threads}, cwd=Path(__file__).parent)
        if done.returncode != 0:
            raise SystemExit(done.stderr)
        theirs.append(json.loads(done.stdout.splitlines()[-1]))
        single.BATCH = batch // args.ranks
        alone.append(single.ingot(args.binary, "dense", "fp32", "adamw", args.steps))
        single.BATCH = batch
    table = [f"| {args.ranks} ranks of one thread | tokens/s (median) | range | peak MiB of a rank |", "|---|---|---|---|"]
    rates = {}
    for label, runs in (("**ingot**, data parallel", mine), ("PyTorch DDP over Gloo", theirs)):
        rates[label], line = single.row(label, runs)
        table.append(line)
    single.BATCH = batch // args.ranks
    rates["alone"], line = single.row("ingot, one rank alone on its share", alone)
    table.append(line)
    own, ddp = rates["**ingot**, data parallel"], rates["PyTorch DDP over Gloo"]
    table.append(f"| ingot / DDP | **{own / ddp:.2f}** | | |")
    table.append(f"| ingot / ({args.ranks} x alone; cores then share memory) | {own / rates['alone'] / args.ranks:.2f} | | |")
    print("\n".join(table))
    if args.output:
        Path(args.output).write_text("\n".join(table) + "\n")


if __name__ == "__main__":
    main()
