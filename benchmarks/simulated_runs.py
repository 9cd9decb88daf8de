"""`ingot plan simulate` beside measured runs of 2 and 4 ranks on this machine: what the simulation moves through a step, what `plan time` adds up, and what training took.

    ingot bench all && python3 benchmarks/simulated_runs.py [--ingot build/release/ingot] [--only WORD] [--rounds 2] [-o FILE.json]

Each run trains for some steps on generated text, as in prediction_accuracy.py; its step time is the median behind the first steps, the least of the rounds.
Nothing is fitted. A few minutes; the profiles of as many ranks side by side must have been measured before (ingot bench all), and another load falsifies
both them and the runs: the script says so when the machine is busy.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from prediction_accuracy import EXPERTS, MEDIUM, ROOT, SMALL, make_data, ranks_of, shape, train, write_config

RUNS = {
    "2 ranks: data": SMALL | shape(8, 256) | {"parallel.data": 2},
    "2 ranks: data, ZeRO 3": MEDIUM | shape(8, 256) | {"parallel.data": 2, "parallel.zero": 3},
    "2 ranks: sequence ring": SMALL | shape(4, 768) | {"parallel.context": 2},
    "2 ranks: pipeline": MEDIUM | shape(8, 256, microbatch=2) | {"parallel.pipeline": 2},
    "2 ranks: experts": EXPERTS | shape(8, 256) | {"parallel.expert": 2},
    "4 ranks: data": SMALL | shape(8, 256) | {"parallel.data": 4},
    "4 ranks: pipeline x data": MEDIUM | shape(8, 256, microbatch=2) | {"parallel.pipeline": 2, "parallel.data": 2},
}


def simulate(ingot, folder, settings):
    config, ranks = write_config(folder, settings), ranks_of(settings)
    done = subprocess.run([ingot, "plan", "simulate", str(config), "--devices", str(ranks), "--json"], capture_output=True, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr.strip().splitlines()[-1][:300]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ingot", default=str(ROOT / "build/release/ingot"))
    parser.add_argument("--only", default="", help="runs whose names hold this")
    parser.add_argument("--rounds", type=int, default=2, help="times that each is run; the least step time counts")
    parser.add_argument("-o", "--output")
    options = parser.parse_args()
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > 0.2 * cores:
        print(f"warning: load average {load:.1f} on {cores} cores before the first run: measured times are too long, and these errors mean little", file=sys.stderr)
    rows = []
    with tempfile.TemporaryDirectory(prefix="ingot_simulated_") as scratch:
        folder = Path(scratch)
        make_data(options.ingot, folder)
        print(f"load average at the start {load:.1f} on {cores} cores\n\n| run | formulas, ms | simulated, ms | measured, ms | simulated / measured | simulated / formulas |\n|---|---|---|---|---|---|", flush=True)
        for name, settings in RUNS.items():
            if options.only not in name:
                continue
            simulated = simulate(options.ingot, folder, settings)
            if isinstance(simulated, str):
                print(f"| {name} | not simulated: {simulated} |", flush=True)
                continue
            tries = [train(options.ingot, folder, name, settings) for _ in range(options.rounds)]
            good = [run["step_ms"] for run in tries if "failed" not in run]
            if not good:
                print(f"| {name} | failed: {tries[0]['failed']} |", flush=True)
                continue
            row = {"name": name, "predicted_ms": simulated["predicted_ms"], "simulated_ms": simulated["step_ms"]["mean"], "measured_ms": min(good)}
            rows.append(row)
            print(f"| {name} | {row['predicted_ms']:.1f} | {row['simulated_ms']:.1f} | {row['measured_ms']:.1f} | {100 * (row['simulated_ms'] / row['measured_ms'] - 1):+.1f} % | "
                  f"{100 * (row['simulated_ms'] / row['predicted_ms'] - 1):+.1f} % |", flush=True)
    if not rows:
        sys.exit(1)
    errors = sorted(abs(row["simulated_ms"] / row["measured_ms"] - 1) for row in rows)
    print(f"\nsimulated / measured: median {100 * statistics.median(errors):.1f} %, largest {100 * errors[-1]:.1f} % of {len(rows)} runs")
    if options.output:
        Path(options.output).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
