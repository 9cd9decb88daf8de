#!/usr/bin/env python3
"""Times the gated delta rule, 12 heads of 64, forward and backward, in ingot and by fla's reference that CPUs run, and ingot's softmax attention.

    ninja -C build/release linear_attention_bench
    .deps/venv/bin/python benchmarks/linear_attention_beside_fla.py [--rounds 3] [--longest 4096] [-o TABLE.md]

fla (flash-linear-attention, `naive_chunk_gated_delta_rule`: chunks of 64, autograd) computes in fp32 whatever it is given. The sides
alternate, each with all cores; medians (ranges) of wall time, in milliseconds. `ingot verify op` holds the kernel's numbers against fp64.
"""
import argparse
import re
import statistics
import subprocess
import time
from pathlib import Path

import torch
from fla.ops.gated_delta_rule.naive import naive_chunk_gated_delta_rule

ROOT = Path(__file__).resolve().parent.parent
HEADS, DIM = 12, 64
DTYPES = {"fp32": ("Float", torch.float32), "bf16": ("BFloat16", torch.bfloat16)}


def fla_ms(seq, dtype):
    def leaf(*shape):
        return (torch.randn(1, seq, HEADS, *shape) / DIM**0.5).to(dtype).requires_grad_()

    q, k, v = leaf(DIM), leaf(DIM), leaf(DIM)
    gate = torch.nn.functional.logsigmoid(torch.randn(1, seq, HEADS) + 3).requires_grad_()
    beta = torch.sigmoid(torch.randn(1, seq, HEADS)).requires_grad_()
    grad = torch.randn(1, seq, HEADS, DIM)
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        out, _ = naive_chunk_gated_delta_rule(q, k, v, gate, beta)
        out.float().backward(grad)
        times.append((time.perf_counter() - begin) * 1e3)
    return times[1:]


def ingot_ms(binary, longest):
    """{(dtype, seq, what): milliseconds}"""
    text = subprocess.run([binary, "3", "0", str(longest), "softmax"], check=True, capture_output=True, text=True).stdout
    found, dtype, seq = {}, "", 0
    for line in text.splitlines():
        if head := re.match(r"(\w+), seq (\d+),", line):
            dtype, seq = head[1], int(head[2])
        elif row := re.match(r"\| (gated delta rule|softmax attention) *\| *([\d.]+)", line):
            found[dtype, seq, row[1]] = float(row[2])
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--longest", type=int, default=4096)
    parser.add_argument("--binary", default=str(ROOT / "build/release/benchmarks/kernels/linear_attention_bench"))
    parser.add_argument("-o", "--output")
    args = parser.parse_args()
    torch.manual_seed(0)
    lengths = [seq for seq in (512, 1024, 2048, 4096, 8192, 16384) if seq <= args.longest]
    mine, theirs = {}, {}
    for _ in range(args.rounds):
        for key, ms in ingot_ms(args.binary, args.longest).items():
            mine.setdefault(key, []).append(ms)
        for name, (_, dtype) in DTYPES.items():
            for seq in lengths:
                theirs.setdefault((name, seq), []).extend(fla_ms(seq, dtype))

    def shown(times):
        return f"{statistics.median(times):.1f} ({min(times):.1f}–{max(times):.1f})"

    table = ["| dtype, tokens | gated delta rule | fla | × fla | softmax attention | × softmax |", "|---|---|---|---|---|---|"]
    for name, (torch_name, _) in DTYPES.items():
        for seq in lengths:
            delta, softmax, fla = mine[torch_name, seq, "gated delta rule"], mine[torch_name, seq, "softmax attention"], theirs[name, seq]
            own = statistics.median(delta)
            table.append(f"| {name}, {seq:,} | {shown(delta)} | {shown(fla)} | **{statistics.median(fla) / own:.1f}** | {shown(softmax)} | **{statistics.median(softmax) / own:.2f}** |")
    print("\n".join(table))
    if args.output:
        Path(args.output).write_text("\n".join(table) + "\n")


if __name__ == "__main__":
    main()
