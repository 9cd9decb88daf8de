#!/usr/bin/env python3
"""Seconds from the start of `ingot train` to the end of its first step, and how much of that the step is, with a cached profile of the machine.

    python3 benchmarks/start_up.py [--ingot build/release/ingot] [--rounds 5] [--profile-folder ~/.cache/ingot] [-o TABLE.md]

Runs of prediction_accuracy.py in turn, each in a new run directory; the first line of metrics.jsonl ends the time. A first start of each model, which
measures what the profile lacks and traces the model, is a column of its own. Beside it: a Python that imports torch and nothing else, where there is one.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import prediction_accuracy as runs

ROOT = Path(__file__).resolve().parents[1]
MODELS = ["dense small", "dense wide", "mixture larger, 2 microbatches", "2 ranks: data"]
DEADLINE_S = 120


def first_step(ingot, folder, name):
    """Seconds until the first step has ended, and of that step."""
    settings = runs.RUNS[name]
    config, run_dir = runs.write_config(folder, settings | {"train.steps": 1}), folder / "run"
    shutil.rmtree(run_dir, ignore_errors=True)
    ranks = runs.ranks_of(settings)
    command = [ingot, *(["launch", "-n", str(ranks), "--", ingot] if ranks > 1 else []), "train", str(config), "--run-dir", str(run_dir), "--set", "train.steps=1"]
    metrics, begin = run_dir / "metrics.jsonl", time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while not (metrics.exists() and "\n" in metrics.read_text()):
        if process.poll() is not None and not metrics.exists():
            sys.exit(f"{name}: {(process.stderr.read().strip().splitlines() or ['no message'])[-1]}")
        if time.monotonic() - begin > DEADLINE_S:
            process.kill()
            sys.exit(f"{name}: no step within {DEADLINE_S} s")
        time.sleep(0.002)
    seconds = time.monotonic() - begin
    process.communicate()
    return seconds, json.loads(metrics.read_text().splitlines()[0])["step_ms"] / 1e3


def import_torch():
    python = ROOT / ".deps/venv/bin/python"
    if not python.exists():
        return None
    begin = time.monotonic()
    return time.monotonic() - begin if subprocess.run([python, "-c", "import torch"], capture_output=True).returncode == 0 else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ingot", default=os.environ.get("INGOT_BINARY", str(ROOT / "build/release/ingot")))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile-folder", help="with machine profiles and traces (default: the cache of this user)")
    parser.add_argument("-o", "--output")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds is at least 1")
    if options.profile_folder:
        os.environ["INGOT_CACHE"] = options.profile_folder
    table = ["| run | first start, s | later starts, s (median) | range | the step in it, s |", "|---|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        runs.make_data(options.ingot, folder)
        first = {name: first_step(options.ingot, folder, name)[0] for name in MODELS}
        later = {name: [] for name in MODELS}
        torch = []
        for _ in range(options.rounds):
            for name in MODELS:
                later[name].append(first_step(options.ingot, folder, name))
            torch.append(import_torch())
    for name, times in later.items():
        seconds = [whole for whole, _ in times]
        table.append(f"| {name} | {first[name]:.2f} | {statistics.median(seconds):.2f} | {min(seconds):.2f}-{max(seconds):.2f} | {statistics.median(step for _, step in times):.2f} |")
    if None not in torch:
        table.append(f"| python -c 'import torch' | | {statistics.median(torch):.2f} | {min(torch):.2f}-{max(torch):.2f} | |")
    print("\n".join(table))
    if options.output:
        Path(options.output).write_text("\n".join(table) + "\n")


if __name__ == "__main__":
    main()
