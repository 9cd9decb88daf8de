"""Loss curves of a small model by precisions or by update rules, from the same initial weights and the same batches.

    ./scripts/demo && python3 benchmarks/loss_curves.py [--set precisions|update_rules|newton_schulz] [--ingot build/release/ingot] [--steps 1000] [--batch-size 2] [--runs runs/curves] [--only llama] [--without fp32]

The demo makes the data. Each run is kept in its folder and not repeated. Another seed says how far two runs lie apart that differ in nothing
but chance. Prints Markdown; shares are against bf16, Muon, or Muon's iterations in fp32.
"""
import argparse
import json
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONFIGS = {"dense (llama-nano)": "llama-nano", "mixture (zaya1-nano)": "zaya1-nano"}
SETS = {
    "precisions": {"fp32": {"train.precision": "fp32"}, "bf16": {"train.precision": "bf16"}, "bf16, other seed": {"train.precision": "bf16", "train.seed": 2},
                   "fp8": {"train.precision": "fp8"}, "fp8_block": {"train.precision": "fp8_block"}, "mxfp8": {"train.precision": "mxfp8"},
                   "nvfp4": {"train.precision": "nvfp4"}},
    "update_rules": {"adamw": {"optimizer.name": "adamw", "optimizer.lr": 1e-3}, "adamw, other seed": {"optimizer.name": "adamw", "optimizer.lr": 1e-3, "train.seed": 2},
                     "adamw, moments in bf16": {"optimizer.name": "adamw", "optimizer.lr": 1e-3, "optimizer.moments_dtype": "bf16"},
                     "muon": {"optimizer.name": "muon"}, "muon, other seed": {"optimizer.name": "muon", "train.seed": 2},
                     "muon, momentum in bf16": {"optimizer.name": "muon", "optimizer.moments_dtype": "bf16"}, "normuon": {"optimizer.name": "normuon"},
                     "dion, rank 1": {"optimizer.name": "dion", "optimizer.rank_fraction": 1.0}, "dion, rank 1/4": {"optimizer.name": "dion", "optimizer.rank_fraction": 0.25},
                     "dion, rank 1/16": {"optimizer.name": "dion", "optimizer.rank_fraction": 0.0625}},
    "newton_schulz": {"fp32": {"optimizer.newton_schulz_precision": "own"}, "fp32, other seed": {"optimizer.newton_schulz_precision": "own", "train.seed": 2},
                      "bf16": {"optimizer.newton_schulz_precision": "bf16"}, "bf16, other seed": {"optimizer.newton_schulz_precision": "bf16", "train.seed": 2}}}
REFERENCE = {"precisions": "bf16", "update_rules": "muon", "newton_schulz": "fp32"}
LAST = 100  # steps whose mean training loss is compared


def train(ingot, config, folder, steps, batch_size, settings):
    every = steps // 10
    settings = {"train.steps": steps, "train.batch_size": batch_size, "train.validation_every": every, "train.validation_batches": 32, "checkpoint.every": steps, "checkpoint.keep": 1} | settings
    metrics = folder / "metrics.jsonl"
    if not metrics.exists() or len(metrics.read_text().splitlines()) < steps:
        subprocess.run([ingot, "train", config, "--run-dir", folder, *(word for key, value in settings.items() for word in ("--set", f"{key}={value}"))],
                       check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
    return [json.loads(line) for line in metrics.read_text().splitlines()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ingot", default=str(ROOT / "build/release/ingot"))
    parser.add_argument("--set", default="precisions", choices=SETS)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=2, help="sequences of 256 tokens a step")
    parser.add_argument("--without", default="", help="runs to leave out, by commas")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs/curves")
    parser.add_argument("--only", default="", help="configurations whose names hold this")
    options = parser.parse_args()
    if options.steps < 10 or options.steps % 10:
        parser.error("--steps is a multiple of 10")
    for title, name in CONFIGS.items():
        if options.only not in name:
            continue
        curves = {}
        for run, settings in SETS[options.set].items():
            if run in options.without.split(","):
                continue
            folder = options.runs / name / run.replace(", ", "-").replace(" ", "-").replace("/", "-")
            folder.parent.mkdir(parents=True, exist_ok=True)
            curves[run] = train(options.ingot, ROOT / f"configs/{name}.toml", folder, options.steps, options.batch_size, settings)
        print(f"\n## {title}, {options.steps} steps\n")
        against = REFERENCE[options.set]
        last = min(LAST, options.steps)
        mean = {run: sum(line["loss"] for line in lines[-last:]) / last for run, lines in curves.items()}
        validation = {run: {line["step"]: line["validation_loss"] for line in lines if "validation_loss" in line} for run, lines in curves.items()}
        print(f"| run | training loss, mean of the last {last} | against {against} | validation loss at the end | against {against} |")
        print("|---|---:|---:|---:|---:|")
        for run in curves:
            end = validation[run][options.steps]
            print(f"| {run} | {mean[run]:.4f} | {100 * (mean[run] / mean[against] - 1):+.2f} % | {end:.4f} | {100 * (end / validation[against][options.steps] - 1):+.2f} % |")
        print("\nValidation loss on the way:\n")
        print("| step | " + " | ".join(curves) + " |")
        print("|---:|" + "---:|" * len(curves))
        for step in validation[against]:
            print(f"| {step} | " + " | ".join(f"{validation[run][step]:.4f}" for run in curves) + " |", flush=True)


if __name__ == "__main__":
    main()
