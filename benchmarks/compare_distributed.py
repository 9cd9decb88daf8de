#!/usr/bin/env python3
"""Trains the dense model of compare_pytorch.py over several ranks, with ingot's layouts and PyTorch's counterparts, by turns:

    .deps/venv/bin/python benchmarks/compare_distributed.py [--ranks 2] [--rounds 2] [--steps 6] [--only ddp zero fsdp tp tp-sp pipeline ring experts …] [-o TABLE.md]

Processes of one thread each; the global batch is 4 sequences of 512 tokens, fp32, AdamW, no clipping on PyTorch's side. PyTorch communicates over
Gloo on the loopback interface, its default for processes without GPUs; ingot through shared memory, its default on one machine. PyTorch:
DistributedDataParallel; with ZeroRedundancyOptimizer; fully_shard of every layer; parallelize_module with embedding, head and loss split, without
and with the norms on slices of the sequence. Apart: as many runs of one rank at once, each on its share of the batch, which send each other nothing: the
ideal that data parallelism is held against.
"""
import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import compare_pytorch as single

ROOT = Path(__file__).resolve().parent.parent
torch_threads = {"OMP_NUM_THREADS": "1", **single.KEEP}
# A row of the table: ingot's settings (None: not a layout of it), and whether PyTorch has a counterpart here.
LAYOUTS = {
    "ddp": (["parallel.zero=0"], True),
    "zero": (["parallel.zero=1"], True),
    "zero-2": (["parallel.zero=2"], False),
    "fsdp": (["parallel.zero=3"], True),
    "tp": (["parallel.tensor={ranks}", "parallel.sequence_parallel=false"], True),
    "tp-sp": (["parallel.tensor={ranks}"], True),
    "pipeline": (["parallel.pipeline={ranks}", "train.microbatch_size=1"], False),
    "zero_bubble": (["parallel.pipeline={ranks}", "train.microbatch_size=1", "parallel.pipeline_schedule=zero_bubble"], False),
    "ring": (["parallel.context={ranks}"], False),
    "allgather": (["parallel.context={ranks}", "parallel.context_method=allgather"], False),
    "ulysses": (["parallel.context={ranks}", "parallel.context_method=ulysses"], False),
    # The mixture of experts of compare_pytorch.py, with the router's choices and with tokens dealt out evenly.
    "mixture": ([], False),
    "mixture-forced": (["model.force_balance=true"], False),
    "experts": (["parallel.expert={ranks}"], False),
    "experts-forced": (["parallel.expert={ranks}", "model.force_balance=true"], False),
}
MIXTURES = [name for name in LAYOUTS if name.startswith(("mixture", "experts"))]


def lay_out(model, layout, ranks):
    """The model under PyTorch's own parallelism."""
    import torch.distributed as dist
    from torch.distributed import tensor as dt
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import parallel as tp
    from torch.nn.parallel import DistributedDataParallel

    mesh = dist.init_device_mesh("cpu", (ranks,))
    if layout in ("ddp", "zero"):
        return DistributedDataParallel(model, gradient_as_bucket_view=True)
    if layout == "fsdp":
        for part in (*model.model.layers, model):
            fully_shard(part, mesh=mesh)
        return model
    slices = layout == "tp-sp"
    between = dt.Shard(1) if slices else dt.Replicate()
    plan = {"model.embed_tokens": tp.RowwiseParallel(input_layouts=dt.Replicate(), output_layouts=between),
            "lm_head": tp.ColwiseParallel(input_layouts=between, output_layouts=dt.Shard(-1), use_local_output=False)}
    for number in range(len(model.model.layers)):
        layer = f"model.layers.{number}."
        for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"):
            plan[layer + name] = tp.ColwiseParallel()
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            plan[layer + name] = tp.RowwiseParallel(output_layouts=between)
        if slices:
            for name in ("input_layernorm", "post_attention_layernorm"):
                plan[layer + name] = tp.SequenceParallel()
            plan[layer + "self_attn"] = tp.PrepareModuleInput(input_kwarg_layouts={"hidden_states": between}, desired_input_kwarg_layouts={"hidden_states": dt.Replicate()})
            plan[layer + "mlp"] = tp.PrepareModuleInput(input_layouts=(between,), desired_input_layouts=(dt.Replicate(),))
    if slices:
        plan["model.norm"] = tp.SequenceParallel()
    return tp.parallelize_module(model, mesh, plan)


def peer(layout, steps):
    import torch
    import torch.distributed as dist
    import transformers
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.parallel import loss_parallel

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()
    ranks = dist.get_world_size()
    hidden, layers, heads, kv, ffn, vocab, seq, batch = single.SHAPES["dense"]
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv, head_dim=64, vocab_size=vocab, intermediate_size=ffn,
        max_position_embeddings=seq, use_cache=False, tie_word_embeddings=False)).train()
    model = lay_out(model, layout, ranks)
    options = dict(lr=single.LR, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    if layout == "zero":
        optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, **options)
    else:
        split = [[p for p in model.parameters() if isinstance(p, DTensor) == is_split] for is_split in (True, False)]  # one fused call takes one kind
        optimizer = torch.optim.AdamW([{"params": group} for group in split if group], **options)
    rows = batch if layout.startswith("tp") else batch // ranks
    times = []
    positions = torch.arange(seq).unsqueeze(0)
    for _ in range(single.WARMUP + steps):
        ids = torch.randint(0, vocab, (rows, seq))
        dist.barrier()
        start = time.perf_counter()
        if layout.startswith("tp"):
            with loss_parallel():
                logits = model(input_ids=ids, position_ids=positions).logits  # else made from a slice of the sequence
                torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten()).backward()
        else:
            model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=layout not in ("ddp", "zero"))
        dist.barrier()
        times.append(time.perf_counter() - start)
    peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) * 1024
    if dist.get_rank() == 0:
        print(json.dumps({"times": times[single.WARMUP:], "peak": peak}))


def run_peer(layout, ranks, steps):
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--master-port", "29643", __file__, "--peer", layout,
                           "--steps", str(steps)], capture_output=True, text=True, env={**os.environ, **torch_threads}, cwd=Path(__file__).parent)
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if "Error: " in line]
        print(f"PyTorch's {layout} failed: {errors[0] if errors else done.stderr[-1000:]}", file=sys.stderr)
        return None
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--only", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    parser.add_argument("--binary", default=str(ROOT / "build/release/ingot"))
    parser.add_argument("-o", "--output")
    args = parser.parse_args()
    if args.peer:
        return peer(args.peer, args.steps)
    os.environ["OMP_NUM_THREADS"] = "1"
    (*_, seq, batch), runs = single.SHAPES["dense"], {}
    for _ in range(args.rounds):
        for layout in args.only:
            settings, has_peer = LAYOUTS[layout]
            flags = [word for setting in settings for word in ("--set", setting.format(ranks=args.ranks))]
            runs.setdefault((layout, "ingot"), []).append(
                single.ingot(args.binary, "zaya" if layout in MIXTURES else "dense", "fp32", "adamw", args.steps, launcher=["launch", "-n", str(args.ranks), "--"], flags=flags))
            if has_peer:
                if theirs := run_peer(layout, args.ranks, args.steps):
                    runs.setdefault((layout, "PyTorch"), []).append(theirs)
        if set(args.only) <= set(MIXTURES):
            continue
        with ThreadPoolExecutor() as pool:
            apart = [pool.submit(single.ingot, args.binary, "dense", "fp32", "adamw", args.steps, rows=batch // args.ranks) for _ in range(args.ranks)]
            runs.setdefault(("apart", "ingot"), []).extend(run.result() for run in apart)
    table = [f"| {args.ranks} ranks of one thread | tokens/s (median) | range | peak MiB of a rank |", "|---|---|---|---|"]
    rates = {}
    for (layout, side), done in runs.items():
        rows = batch // args.ranks if layout == "apart" else batch
        rates[layout, side], line = single.row(f"{layout}: {'**ingot**' if side == 'ingot' else side}", rows * seq, done)
        table.append(line)
    for layout in args.only:
        if (layout, "PyTorch") in rates:
            table.append(f"| {layout}: ingot / PyTorch | **{rates[layout, 'ingot'] / rates[layout, 'PyTorch']:.2f}** | | |")
        if layout not in MIXTURES:
            table.append(f"| {layout}: ingot / ({args.ranks} x apart) | {rates[layout, 'ingot'] / rates['apart', 'ingot'] / args.ranks:.2f} | | |")
    print("\n".join(table))
    if args.output:
        Path(args.output).write_text("\n".join(table) + "\n")


if __name__ == "__main__":
    main()
