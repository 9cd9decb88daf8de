#!/usr/bin/env python3
"""How near each operator comes to what bounds it, and attention to GEMMs: tables of a profile that `ingot bench kernels` or `bench all -o FILE` wrote.

    python3 benchmarks/kernel_rooflines.py PROFILE.json [-o TABLE.md]

Bytes are those that the operations of a call read and write, each tensor once; of the largest measured size. The bound is memory's (triad at its largest) or
the fastest GEMM's of the dtype, whichever is nearer; a share is above 1 where tensors stay in a cache. FLOPs of attention: causal, 2 x 2 products of half a
square forward, 2.5 times that backward (with the scores that are computed again).
"""
import argparse
import json
import sys
from pathlib import Path


def kernels(profile):
    """Every measured kernel: its rates, and its share of the bound that is nearer, memory's (triad) or the fastest GEMM's of its dtype."""
    memory = {m["operation"]: m["bytes_per_s"] for m in sorted(profile["memory"], key=lambda m: m["bytes"])}
    gemm = {}
    for g in profile["gemm"]:
        if g["kind"] == "plain":
            gemm[g["dtype"]] = max(gemm.get(g["dtype"], 0), g["flops_per_s"])
    rates = [f"{name} {rate / 1e9:,.0f} GB/s" for name, rate in memory.items() if name in ("copy", "triad")]
    yield ", ".join([*rates, *(f"GEMMs in {dtype} {rate / 1e12:,.3g} TFLOP/s" for dtype, rate in gemm.items())]) + ".\n"
    yield "| kernel | dtype | rows x width | us | GB/s | TFLOP/s | of its bound |\n|---|---|---|---|---|---|---|"
    for k in profile["kernels"]:
        size = f"{k['rows']:,} x {k['width']:,}" + (f" x {k['count']}" if k["count"] > 1 else "")
        for side in ("forward", "backward"):
            seconds, moved, flops = k[f"{side}_s"], k.get(f"{side}_bytes", 0), k.get(f"{side}_flops", 0)
            if not seconds:
                continue
            bound = max(moved / memory["triad"], flops / gemm[k["dtype"]] if k["dtype"] in gemm else 0)
            name = k["name"] if side == "forward" else f"{k['name']} backward"
            figures = [f"{seconds * 1e6:,.1f}", f"{moved / seconds / 1e9:,.0f}" if moved else "", f"{flops / seconds / 1e12:,.2f}" if flops else "", f"{bound / seconds:.0%}"]
            yield f"| {name} | {k['dtype']} | {size} | {' | '.join(figures)} |"
    by_name = {k["name"]: k["forward_s"] for k in profile["kernels"]}
    if "newton_schulz_of_gemms" in by_name:
        yield f"\nNewton-Schulz by symmetric matmuls is {by_name['newton_schulz_of_gemms'] / by_name['newton_schulz']:.2f} times as fast as by GEMMs."


def largest(profile):
    """Of each kernel and dtype the largest size alone."""
    sizes = {}
    for k in profile["kernels"]:
        key = k["name"], k["dtype"]
        if key not in sizes or k["rows"] * k["width"] > sizes[key]["rows"] * sizes[key]["width"]:
            sizes[key] = k
    return profile | {"kernels": list(sizes.values())}


def attention(profile):
    plain = [g for g in profile["gemm"] if g["kind"] == "plain"]
    fastest = {dtype: max(g["flops_per_s"] for g in plain if g["dtype"] == dtype) for dtype in sorted({g["dtype"] for g in plain})}
    lines = [", ".join(f"GEMMs in {dtype}: {rate / 1e9:.0f} GFLOP/s" for dtype, rate in fastest.items()) + ".", "",
             "| attention | heads x size | forward | backward | both |", "|---|---|---|---|---|"]
    for a in sorted(profile["attention"], key=lambda a: (a["dtype"], a["head_dim"], a["seq"])):
        if a.get("window"):
            continue
        flops = 2.0 * a["batch"] * a["heads"] * a["head_dim"] * a["seq"] * (a["seq"] + 1)
        share = lambda times, seconds: f"{times * flops / seconds / fastest[a['dtype']]:.2f}"
        lines.append(f"| {a['dtype']}, {a['seq']:,} tokens | {a['heads']} x {a['head_dim']} | {share(1, a['forward_s'])} | {share(2.5, a['backward_s'])} | {share(3.5, a['forward_s'] + a['backward_s'])} |")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profile", type=Path)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    try:
        profile = json.loads(options.profile.read_text())
        parts = [list(part(of(profile))) for part, of, needs in ((kernels, largest, "kernels"), (attention, dict, "attention")) if profile.get(needs)]
    except (OSError, ValueError, KeyError) as failure:
        sys.exit(f"{options.profile} is no profile with memory, GEMMs and operators: {failure!r}; ingot bench all -o FILE writes one")
    text = "\n\n".join("\n".join(lines) for lines in parts)
    print(text)
    if options.output:
        options.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
