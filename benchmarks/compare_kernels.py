#!/usr/bin/env python3
"""Times ingot's fused kernels and the same work done by PyTorch's operations, one after the other on this machine.

    .deps/venv/bin/python benchmarks/compare_kernels.py [--threads 2] [-o TABLE.md]

ingot's side is `ingot bench all --quick`; PyTorch's side runs the same shapes over as many sets of tensors in turn (48 MiB in all,
so that nothing stays in the last cache), all forward passes and then all backward passes. PyTorch's side is the fastest of the
ways that its users have: written out, the fused functional where there is one, torch.compile with --compile.
"""
import argparse
import json
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F

ROOT = Path(__file__).resolve().parent.parent


def leaf(*shape):
    return torch.randn(shape, requires_grad=True)


def written_norm(x, weight):
    return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))


def rms_norm(rows, width):
    x, w = leaf(1, rows, width), leaf(width)
    return {"written out": lambda: (written_norm(x, w),), "F.rms_norm": lambda: (F.rms_norm(x, (width,), w, 1e-5),)}, (x, w)


def join_norm(rows, width):
    r, b, w = leaf(1, rows, width), leaf(1, rows, width), leaf(width)

    def with_norm(norm):
        def run():
            joined = r + b
            return joined, norm(joined)
        return run
    return {"written out": with_norm(lambda x: written_norm(x, w)), "F.rms_norm": with_norm(lambda x: F.rms_norm(x, (width,), w, 1e-5))}, (r, b, w)


def scaled_join_norm(rows, width):
    r, b, w = leaf(1, rows, width), leaf(1, rows, width), leaf(width)
    s = [leaf(width) for _ in range(4)]

    def with_norm(norm):
        def run():
            joined = (r + s[1]) * s[0] + (b + s[3]) * s[2]
            return joined, norm(joined)
        return run
    return {"written out": with_norm(lambda x: written_norm(x, w)), "F.rms_norm": with_norm(lambda x: F.rms_norm(x, (width,), w, 1e-5))}, (r, b, w, *s)


def swiglu(rows, width):
    x = leaf(rows, 2 * width)

    def run():
        gate, up = x.chunk(2, -1)
        return (F.silu(gate) * up,)
    return {"F.silu": run}, (x,)


def split_and_rotate(rows, width):
    dim, heads = 64, width // 64
    kv = max(1, heads // 4)
    packed = leaf(1, rows, width)
    angles = torch.rand(1, rows, 1, dim)
    cos, sin = angles.cos(), angles.sin()

    def rotated(x):
        low, high = x.chunk(2, -1)
        return x * cos + torch.cat((-high, low), -1) * sin

    def run():
        q, k, v = packed.view(1, rows, heads, dim).split((heads - 2 * kv, kv, kv), 2)
        return rotated(q), rotated(k), v.contiguous()
    return {"rotate_half": run}, (packed,)


def cca_mix(rows, width):  # the two convolutions alone; ingot's kernel also does means, norms, rotation and the value shift
    heads, tokens = 5, rows // 5
    latent = heads * width
    x, w1, b1, w2, b2 = leaf(1, latent, tokens), leaf(latent, 1, 2), leaf(latent), leaf(latent, width, 2), leaf(latent)
    return {"conv1d twice": lambda: (F.conv1d(F.pad(F.conv1d(F.pad(x, (1, 0)), w1, b1, groups=latent), (1, 0)), w2, b2, groups=heads),)}, (x, w1, b1, w2, b2)


def cross_entropy(rows, width):
    logits, targets = leaf(rows, width), torch.randint(0, width, (rows,))
    return {"F.cross_entropy": lambda: (F.cross_entropy(logits, targets),)}, (logits,)


CASES = [(rms_norm, 2048, 1024), (join_norm, 2048, 1024), (scaled_join_norm, 2048, 1024), (swiglu, 2048, 1024), (split_and_rotate, 2048, 1024),
         (cca_mix, 10240, 32), (cca_mix, 10240, 128), (cross_entropy, 256, 16384)]


def median_time(body, least=5, seconds=1.0):
    body()
    times = []
    while len(times) < least or sum(times) < seconds:
        start = time.perf_counter()
        body()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def peer_times(case, rows, width, compiled):
    """{way: (forward_s, backward_s)} for one set of tensors."""
    copies = 1 if case is cross_entropy else max(1, min(32, (48 << 20) // (rows * width * 12)))
    sets = [case(rows, width) for _ in range(copies)]
    result = {}
    for way in sets[0][0]:
        for compile_it in ((False, True) if compiled else (False,)):
            runs = [torch.compile(s[0][way]) if compile_it else s[0][way] for s in sets]
            outputs = []

            def forward():
                outputs.clear()
                outputs.extend(run() for run in runs)

            def both():
                forward()
                start = time.perf_counter()
                for out, s in zip(reversed(outputs), reversed(sets)):
                    torch.autograd.backward(out, [torch.full_like(o, 1e-3) for o in out])
                    for t in s[1]:
                        t.grad = None
                both.backward.append(time.perf_counter() - start)
            both.backward = []
            forward_s = median_time(forward) / copies
            median_time(both)
            result[way + (", compiled" if compile_it else "")] = (forward_s, statistics.median(both.backward) / copies)
    return result


def update_times(matrices):
    """One optimizer step with the gradient norm and clipping: AdamW on 4 Mi elements, or Newton-Schulz on four matrices."""
    if not matrices:
        p = torch.nn.Parameter(torch.randn(4 << 20))
        p.grad = torch.randn_like(p)
        optimizer = torch.optim.AdamW([p], lr=1e-6, fused=True)

        def step():
            torch.nn.utils.clip_grad_norm_([p], 1.0)
            optimizer.step()
        return {"AdamW(fused=True)": (median_time(step), 0)}
    params = [torch.nn.Parameter(torch.randn(384, 1152) * 0.02) for _ in range(4)]
    for p in params:
        p.grad = torch.randn_like(p)
    optimizer = torch.optim.Muon(params, lr=1e-6)

    def fp32():
        for p in params:
            x = p.grad / p.grad.norm()
            for _ in range(5):
                a = x @ x.T
                x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
    return {"the iteration in fp32": (median_time(fp32), 0), "torch.optim.Muon (bf16)": (median_time(optimizer.step, least=1), 0)}


def attention_times(seq, dim):
    q = torch.randn(1, 4, seq, dim, requires_grad=True)
    k, v = (torch.randn(1, 2, seq, dim, requires_grad=True) for _ in range(2))
    backward = []

    def run():
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    def both():
        out = run()
        start = time.perf_counter()
        out.backward(torch.ones_like(out))
        backward.append(time.perf_counter() - start)
        q.grad = k.grad = v.grad = None
    forward_s = median_time(run)
    median_time(both)
    return {"scaled_dot_product_attention": (forward_s, statistics.median(backward))}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--binary", default=str(ROOT / "build/release/ingot"))
    parser.add_argument("-o", "--output")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "profile.json")
        subprocess.run([args.binary, "bench", "all", "--quick", "--dtype", "fp32", "-o", path], check=True, capture_output=True)
        profile = json.loads(path.read_text())
    mine = {(k["name"], k["rows"], k["width"]): (k["forward_s"], k["backward_s"]) for k in profile["kernels"] if k["dtype"] == "fp32"}
    mine |= {("attention", a["seq"], a["head_dim"]): (a["forward_s"], a["backward_s"]) for a in profile["attention"] if a["dtype"] == "fp32"}
    jobs = [(c.__name__, rows, width, lambda c=c, r=rows, w=width: peer_times(c, r, w, args.compile)) for c, rows, width in CASES]
    jobs += [("attention", seq, 64, lambda s=seq: attention_times(s, 64)) for seq in (512, 1024)]
    jobs += [("adamw", 4 << 20, 1, lambda: update_times(False)), ("muon", 384, 1152, lambda: update_times(True))]
    table = ["| kernel, rows x width | ingot ms (forward + backward) | PyTorch ms | way | PyTorch / ingot |", "|---|---|---|---|---|"]
    for name, rows, width, measure in jobs:
        own = mine[(name, rows, width)]
        for way, (forward_s, backward_s) in measure().items():
            table.append(f"| {name} {rows} x {width} | {own[0] * 1e3:.3f} + {own[1] * 1e3:.3f} | {forward_s * 1e3:.3f} + {backward_s * 1e3:.3f} | {way} | "
                         f"**{(forward_s + backward_s) / sum(own):.2f}** |")
            print(table[-1], flush=True)
    if args.output:
        Path(args.output).write_text("\n".join(table) + "\n")


if __name__ == "__main__":
    main()
