#!/usr/bin/env python3
"""Whether any kernel has become slower, by figures that other machines of the kind have too: shares of this machine's own GEMM and triad.

    python3 benchmarks/kernel_floors.py [--record] [--profile PROFILE.json] [--tries 3] [--floors benchmarks/kernel_floors.json]

Of each kernel at the largest size that `ingot bench all --quick` measures: bytes per second over triad's of 64 MiB or over the FLOP/s of the fastest fp32 GEMM: of
what arithmetic bounds whichever holds stiller on this machine (it does not follow the memory's speed, which neighbours on a host change by half); of attention FLOP/s over the dtype's
fastest GEMM; of GEMMs themselves each pass over the fastest one, and the default over the other libraries. A share that falls by more than 15 % below what the file has for this
model of CPU fails (status 3), if it does so in each of --tries measurements, since one that something else ran beside says nothing; and by more than 15 % below what the others
fell by (their median), since then it is the memory that differs. --record writes the medians of --tries measurements into the file, of those that
they agree on within 10 %, each over the yardstick on which they agree best.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KINDS = ("amx_bf16", "avx512_bf16", "avx512f", "avx2")
MOST_BELOW, STEADY = 0.15, 0.1
MEMORY_BOUND = 0.6  # of triad: a kernel that reaches this follows the memory, however still that held while floors were recorded


def kind_of_cpu():
    """Such as "AuthenticAMD 26/2 avx512_bf16, 2 threads": vendor, family and model, the best instructions."""
    info = dict(map(str.strip, line.split(":", 1)) for line in Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines() if ":" in line)
    flags = info.get("flags", "").split()
    return f'{info.get("vendor_id", "unknown")} {info.get("cpu family", "?")}/{info.get("model", "?")} {next((k for k in KINDS if k in flags), "portable")}, {len(os.sched_getaffinity(0))} threads'


def ingot(*command):
    program = os.environ.get("INGOT_BINARY", ROOT / "build/release/ingot")
    done = subprocess.run([program, *command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    return done.stdout


def shares_of(profile):
    triad = max((m for m in profile["memory"] if m["operation"] == "triad"), key=lambda m: m["bytes"])["bytes_per_s"]
    plain = [g for g in profile["gemm"] if g["kind"] == "plain"]
    fastest = {dtype: max(g["flops_per_s"] for g in plain if g["dtype"] == dtype) for dtype in {g["dtype"] for g in plain}}
    shares = {}
    for g in plain:
        name = f'gemm {g["dtype"]} {g["pass"]}'
        shares[name] = max(shares.get(name, 0), g["flops_per_s"] / fastest[g["dtype"]])
    largest = {}
    for kernel in profile["kernels"]:
        key = kernel["name"], kernel["dtype"]
        if key not in largest or kernel["rows"] * kernel["width"] > largest[key]["rows"] * largest[key]["width"]:
            largest[key] = kernel
    for (name, dtype), kernel in largest.items():
        for direction in ("forward", "backward"):
            if kernel.get(f"{direction}_s"):
                rate = kernel[f"{direction}_bytes"] / kernel[f"{direction}_s"]
                shares[f"{name} {dtype} {direction} over triad"] = rate / triad
                shares[f"{name} {dtype} {direction} over gemm"] = rate / fastest["fp32"]
    longest = {}
    for a in profile["attention"]:
        if a["dtype"] not in longest or (a["seq"], a["heads"] * a["head_dim"]) > (longest[a["dtype"]]["seq"], longest[a["dtype"]]["heads"] * longest[a["dtype"]]["head_dim"]):
            longest[a["dtype"]] = a
    for dtype, a in longest.items():
        flops = 2.0 * a["batch"] * a["heads"] * a["head_dim"] * a["seq"] * (a["seq"] + 1)  # of causal forward: two products of half a square
        shares[f"attention {dtype} forward"] = flops / a["forward_s"] / fastest[dtype]
        shares[f"attention {dtype} backward"] = 2.5 * flops / a["backward_s"] / fastest[dtype]
    return shares


def over_other_libraries(dtype):
    """The default's rate over the fastest other library's, of a GEMM that all are good at; nothing where there is no other."""
    with tempfile.TemporaryDirectory() as cache:
        before, os.environ["INGOT_CACHE"] = os.environ.get("INGOT_CACHE"), cache
        text = ingot("bench", "gemm", "--libraries", "--dtype", dtype, "--m", "512", "--n", "512", "--k", "512", "--json")
        os.environ.pop("INGOT_CACHE") if before is None else os.environ.update(INGOT_CACHE=before)
    rates = {}
    for r in json.loads(text).get("libraries", []):
        if r["pass"] == "forward":
            rates[r["library"]] = r["flops_per_s"]
    others = [rate for library, rate in rates.items() if library != "default"]
    return {f"gemm {dtype} over other libraries": rates["default"] / max(others)} if others else {}


def measured():
    with tempfile.TemporaryDirectory() as folder:
        ingot("bench", "all", "--quick", "-o", f"{folder}/profile.json")
        shares = shares_of(json.loads(Path(folder, "profile.json").read_text()))
    return shares | over_other_libraries("fp32") | over_other_libraries("bf16")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--record", action="store_true", help="write what this machine reaches into the file")
    parser.add_argument("--profile", type=Path, help="a profile of this machine as the first measurement")
    parser.add_argument("--tries", type=int, choices=range(1, 10), default=3)
    parser.add_argument("--floors", type=Path, default=ROOT / "benchmarks/kernel_floors.json")
    args = parser.parse_args()
    kind, known = kind_of_cpu(), json.loads(args.floors.read_text()) if args.floors.exists() else {}
    if not args.record and kind not in known:
        print(f"no floors for {kind}: --record writes them into {args.floors.name}")
        sys.exit(77)
    best, all_shares = {}, []
    for number in range(args.tries):
        now = shares_of(json.loads(args.profile.read_text())) if args.profile and number == 0 else measured()
        best = {name: max(best.get(name, 0), now.get(name, 0)) for name in best | now}
        all_shares.append(now)
        if args.record:
            continue
        ratios = {name: best[name] / share for name, share in known[kind].items() if name in best}
        all_fell = min(1, statistics.median(ratios.values()))
        below = {name: known[kind][name] for name, ratio in ratios.items() if ratio < (1 - MOST_BELOW) * all_fell}
        if not args.profile or number > 0:  # a profile need not have all
            below |= {name: share for name, share in known[kind].items() if name not in best}
        if not below:
            print(f"{len(known[kind])} shares are at their floors or above, after {number + 1} measurement{'s' if number else ''}")
            return
    if args.record:
        of = {name: [shares[name] for shares in all_shares if name in shares] for name in best}
        spread = {name: (max(some) - min(some)) / statistics.median(some) for name, some in of.items()}
        stillest = {}
        for name in of:
            if name.endswith(" over gemm") and statistics.median(of[name.removesuffix("gemm") + "triad"]) >= MEMORY_BOUND:
                continue
            kernel = name.removesuffix(" over triad").removesuffix(" over gemm")
            stillest[kernel] = min(stillest.get(kernel, name), name, key=spread.get)
        steady = sorted(name for name in stillest.values() if spread[name] <= STEADY)
        known[kind] = {name: float(f"{statistics.median(of[name]):.3g}") for name in steady}
        args.floors.write_text(json.dumps(known, indent=1) + "\n")
        print(f"{len(steady)} shares of {kind} are in {args.floors}; {len(stillest) - len(steady)} differed by more than {STEADY:.0%} between measurements")
        return
    for name, share in sorted(below.items()):
        print(f"{name}: {best.get(name, 0):.3g} of the machine's own rate, {best.get(name, 0) / share - 1:+.0%} to {share:.3g} in {args.floors.name}")
    sys.exit(3)


if __name__ == "__main__":
    main()
