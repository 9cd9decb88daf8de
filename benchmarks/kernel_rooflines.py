#!/usr/bin/env python3
"""How near each operator comes to this machine's memory, and attention to its GEMMs: a table of a profile that `ingot bench all -o FILE` wrote.

    python3 benchmarks/kernel_rooflines.py PROFILE.json [-o TABLE.md]

Bytes are those that the operations of a call read and write, each tensor once; of the largest measured size over triad's rate at its largest. Where a table
lies in a cache a share may be above 1. FLOPs of attention: causal, 2 x 2 products of half a square forward, 2.5 times that backward (with the scores that are
computed again), over the fastest GEMM of the dtype.
"""
import argparse
import json
import sys
from pathlib import Path


def operators(profile):
    triad = max((m for m in profile["memory"] if m["operation"] == "triad"), key=lambda m: m["bytes"])["bytes_per_s"]
    largest = {}
    for kernel in profile["kernels"]:
        key = kernel["name"], kernel["dtype"]
        if key not in largest or kernel["rows"] * kernel["width"] > largest[key]["rows"] * largest[key]["width"]:
            largest[key] = kernel
    share = lambda kernel, of: f"{kernel[f'{of}_bytes'] / kernel[f'{of}_s'] / triad:.2f}" if kernel and kernel.get(f"{of}_s") and kernel.get(f"{of}_bytes") else ""
    lines = [f"Triad: {triad / 1e9:.1f} GB/s.", "", "| operator | rows x width | fp32 forward | backward | bf16 forward | backward |", "|---|---|---|---|---|---|"]
    for name in dict.fromkeys(name for name, _ in largest):
        wide, narrow = largest.get((name, "fp32")), largest.get((name, "bf16"))
        one = wide or narrow
        lines.append(f"| {name} | {one['rows']:,} x {one['width']:,} | {share(wide, 'forward')} | {share(wide, 'backward')} | {share(narrow, 'forward')} | {share(narrow, 'backward')} |")
    return lines


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
        parts = [part(profile) for part, needs in ((operators, "kernels"), (attention, "attention")) if profile.get(needs)]
    except (OSError, ValueError, KeyError) as failure:
        sys.exit(f"{options.profile} is no profile with memory, GEMMs and operators: {failure!r}; ingot bench all -o FILE writes one")
    text = "\n\n".join("\n".join(lines) for lines in parts)
    print(text)
    if options.output:
        options.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
