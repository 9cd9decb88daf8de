"""Loss curves of a dense model and a mixture in fp32, bf16, emulated FP8 and NVFP4, from the same initial weights and the same batches.

    ./scripts/demo && python3 benchmarks/fp8_curves.py [--ingot build/release/ingot] [--steps 1000] [--batch-size 2] [--runs runs/fp8] [--only llama] [--without fp32]

The demo makes the data. Each run is kept in its folder and not repeated. bf16 with another seed says how far two runs lie apart that differ
in nothing but chance. Prints Markdown.
"""
import argparse
import json
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONFIGS = {"dense (llama-nano)": "llama-nano", "mixture (zaya1-nano)": "zaya1-nano"}
RUNS = {"fp32": {"train.precision": "fp32"}, "bf16": {"train.precision": "bf16"}, "bf16, other seed": {"train.precision": "bf16", "train.seed": 2},
        "fp8": {"train.precision": "fp8"}, "fp8_block": {"train.precision": "fp8_block"}, "mxfp8": {"train.precision": "mxfp8"},
        "nvfp4": {"train.precision": "nvfp4"}}
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
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=2, help="sequences of 256 tokens a step")
    parser.add_argument("--without", default="", help="precisions to leave out, by commas")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs/fp8")
    parser.add_argument("--only", default="", help="configurations whose names hold this")
    options = parser.parse_args()
    if options.steps < 10 or options.steps % 10:
        parser.error("--steps is a multiple of 10")
    for title, name in CONFIGS.items():
        if options.only not in name:
            continue
        curves = {}
        for run, settings in RUNS.items():
            if run in options.without.split(","):
                continue
            folder = options.runs / name / run.replace(", ", "-").replace(" ", "-")
            folder.parent.mkdir(parents=True, exist_ok=True)
            curves[run] = train(options.ingot, ROOT / f"configs/{name}.toml", folder, options.steps, options.batch_size, settings)
        print(f"\n## {title}, {options.steps} steps\n")
        last = min(LAST, options.steps)
        mean = {run: sum(line["loss"] for line in lines[-last:]) / last for run, lines in curves.items()}
        validation = {run: {line["step"]: line["validation_loss"] for line in lines if "validation_loss" in line} for run, lines in curves.items()}
        print(f"| precision | training loss, mean of the last {last} | against bf16 | validation loss at the end | against bf16 |")
        print("|---|---:|---:|---:|---:|")
        for run in curves:
            end = validation[run][options.steps]
            print(f"| {run} | {mean[run]:.4f} | {100 * (mean[run] / mean['bf16'] - 1):+.2f} % | {end:.4f} | {100 * (end / validation['bf16'][options.steps] - 1):+.2f} % |")
        print("\nValidation loss on the way:\n")
        print("| step | " + " | ".join(curves) + " |")
        print("|---:|" + "---:|" * len(curves))
        for step in validation["bf16"]:
            print(f"| {step} | " + " | ".join(f"{validation[run][step]:.4f}" for run in curves) + " |", flush=True)


if __name__ == "__main__":
    main()
