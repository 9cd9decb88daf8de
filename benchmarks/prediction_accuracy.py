"""Predicted step time and peak memory beside the measured ones, over training runs that the profile has not seen: dense, mixture and linear
models of several sizes, batches, recomputation, and 1 to 4 ranks on every axis.

    python3 benchmarks/prediction_accuracy.py [--ingot build/release/ingot] [--only WORD] [--rounds 1] [-o FILE.json]

Each run trains for some steps on generated text; its step time is the median of the steps behind the first three, its memory the largest of
its ranks' peaks. Nothing is fitted here: errors are predicted / measured - 1, raw. Prints Markdown; a quiet machine is up to the caller.
"""
import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def dense(hidden, layers, ffn, heads, kv_heads, **more):
    return {"model.family": "llama", "model.hidden": hidden, "model.layers": layers, "model.ffn": ffn, "model.heads": heads, "model.kv_heads": kv_heads} | more


def mixture(hidden, layers, experts, expert_ffn, heads, kv_heads, **more):
    return {"model.family": "zaya1", "model.hidden": hidden, "model.layers": layers, "model.experts": experts, "model.expert_ffn": expert_ffn,
            "model.heads": heads, "model.kv_heads": kv_heads, "model.router_hidden": 64, "model.rope_fraction": 0.5} | more


def linear(hidden, layers, ffn, heads, kind, **more):
    return {"model.family": "linear_llama", "model.hidden": hidden, "model.layers": layers, "model.ffn": ffn, "model.heads": heads, "model.kv_heads": heads,
            "model.linear_attention": kind} | more


def shape(batch, seq, microbatch=0, precision="fp32", recompute="none", optimizer="muon"):
    return {"train.batch_size": batch, "data.seq_len": seq, "train.microbatch_size": microbatch, "train.precision": precision, "train.recompute": recompute,
            "optimizer.name": optimizer}


SMALL, MEDIUM, WIDE = dense(192, 6, 576, 6, 2), dense(320, 8, 896, 5, 5), dense(640, 4, 1792, 10, 2)
EXPERTS, MORE_EXPERTS = mixture(192, 5, 6, 288, 6, 2), mixture(320, 4, 8, 384, 5, 5)

RUNS = {
    "dense small": SMALL | shape(8, 192),
    "dense small, long": SMALL | shape(2, 1536),
    "dense small, bf16": SMALL | shape(8, 192, precision="bf16"),
    "dense small, AdamW": SMALL | shape(12, 192, optimizer="adamw"),
    "dense small, 4 microbatches": SMALL | shape(12, 320, microbatch=3),
    "dense medium": MEDIUM | shape(6, 384),
    "dense medium, recompute": MEDIUM | shape(6, 384, recompute="full"),
    "dense medium, selective": MEDIUM | shape(6, 384, recompute="selective"),
    "dense medium, bf16": MEDIUM | shape(10, 320, precision="bf16"),
    "dense wide": WIDE | shape(4, 448),
    "dense wide, bf16 AdamW": WIDE | shape(4, 448, precision="bf16", optimizer="adamw"),
    "dense medium, Dion": MEDIUM | shape(6, 384, optimizer="dion"),
    "dense medium, Dion, bf16": MEDIUM | shape(6, 384, precision="bf16", optimizer="dion"),
    "dense wide, AdamW, bf16 moments": WIDE | shape(4, 448, optimizer="adamw") | {"optimizer.moments_dtype": "bf16"},
    "dense wide, bf16, bf16 moments": WIDE | shape(4, 448, precision="bf16") | {"optimizer.moments_dtype": "bf16"},
    "mixture small": EXPERTS | shape(8, 256),
    "mixture small, bf16": EXPERTS | shape(8, 256, precision="bf16"),
    "mixture larger": MORE_EXPERTS | shape(6, 320),
    "mixture larger, recompute": MORE_EXPERTS | shape(6, 320, recompute="full"),
    "mixture larger, 2 microbatches": MORE_EXPERTS | shape(12, 192, microbatch=6),
    "linear basic": linear(256, 6, 704, 4, "basic") | shape(6, 512),
    "linear gated delta": linear(256, 6, 704, 4, "gated_delta") | shape(6, 512),
    "linear diagonal gate": linear(256, 6, 704, 4, "diagonal_gate") | shape(6, 512),
    "linear scalar gate, bf16": linear(320, 4, 896, 5, "scalar_gate") | shape(4, 768, precision="bf16"),
    "2 ranks: data": SMALL | shape(8, 256) | {"parallel.data": 2},
    "2 ranks: data, ZeRO 3": MEDIUM | shape(8, 256) | {"parallel.data": 2, "parallel.zero": 3},
    "2 ranks: tensor": MEDIUM | shape(6, 256) | {"parallel.tensor": 2, "model.heads": 10, "model.kv_heads": 2, "model.head_dim": 32},
    "2 ranks: sequence ring": SMALL | shape(4, 768) | {"parallel.context": 2},
    "2 ranks: sequence gather": SMALL | shape(4, 768) | {"parallel.context": 2, "parallel.context_method": "allgather"},
    "2 ranks: pipeline": MEDIUM | shape(8, 256, microbatch=2) | {"parallel.pipeline": 2},
    "2 ranks: tensor_sequence": SMALL | shape(4, 512) | {"parallel.tensor_sequence": 2},
    "2 ranks: experts": EXPERTS | shape(8, 256) | {"parallel.expert": 2},
    "2 ranks: mixture data": MORE_EXPERTS | shape(8, 256) | {"parallel.data": 2},
    "2 ranks: linear lasp2": linear(256, 6, 704, 4, "gated_delta") | shape(4, 1024) | {"parallel.context": 2, "parallel.context_order": "contiguous"},
    "4 ranks: data": SMALL | shape(8, 256) | {"parallel.data": 4},
    "4 ranks: data x tensor": SMALL | shape(8, 256) | {"parallel.data": 2, "parallel.tensor": 2},
    "4 ranks: pipeline x data": MEDIUM | shape(8, 256, microbatch=2) | {"parallel.pipeline": 2, "parallel.data": 2},
    "4 ranks: tensor_sequence": dense(256, 6, 768, 8, 4) | shape(4, 512) | {"parallel.tensor_sequence": 4},
}
STEPS, WARM = 14, 4


def make_data(ingot, folder):
    rng = random.Random(5)
    words = ["".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randint(2, 9))) for _ in range(4000)]
    text = folder / "text.txt"
    text.write_text("\n\n".join(" ".join(rng.choice(words) for _ in range(rng.randint(40, 200))) for _ in range(3000)))
    for args in (["data", "train-tokenizer", text, "-o", folder / "tokenizer", "--vocab-size", 2048],
                 ["data", "tokenize", text, "-o", folder / "tokens", "--tokenizer", folder / "tokenizer"]):
        subprocess.run([ingot, *map(str, args)], check=True, capture_output=True)


def ranks_of(settings):
    count = 1
    for axis in ("data", "tensor", "context", "pipeline", "tensor_sequence"):
        count *= max(1, settings.get(f"parallel.{axis}", 1))
    # Experts fold the ranks that are there: they need as many data ranks.
    return max(count, settings.get("parallel.expert", 1))


def write_config(folder, settings):
    values = settings | {"model.vocab_size": 2048, "data.tokenizer": str(folder / "tokenizer"), "train.steps": STEPS, "optimizer.warmup_steps": 2,
                         "checkpoint.every": 0, "log.tensorboard": False}
    groups = {}
    for key, value in values.items():
        group, _, leaf = key.partition(".")
        groups.setdefault(group, []).append(f"{leaf} = {json.dumps(value)}")
    config = folder / "run.toml"
    config.write_text("".join(f"[{g}]\n" + "\n".join(lines) + "\n" for g, lines in groups.items()) + f"[[data.sources]]\npath = {json.dumps(str(folder / 'tokens'))}\n")
    return config


def train(ingot, folder, name, settings):
    config = write_config(folder, settings)
    run_dir = folder / "run"
    subprocess.run(["rm", "-rf", str(run_dir)], check=True)
    ranks = ranks_of(settings)
    command = [ingot, "train", str(config), "--run-dir", str(run_dir)]
    if ranks > 1:
        command = [ingot, "launch", "-n", str(ranks), "--", *command]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    if done.returncode != 0:
        return {"name": name, "ranks": ranks, "failed": done.stderr.strip().splitlines()[-1][:300]}
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    lines = [line for line in lines if "step_ms" in line]
    measured_ms = statistics.median(line["step_ms"] for line in lines[WARM:])
    memory = max(line["memory_peak_bytes"] for line in lines)
    last = lines[-1]
    return {"name": name, "ranks": ranks, "step_ms": measured_ms, "predicted_step_ms": last["predicted_step_ms"], "memory_bytes": memory,
            "predicted_memory_bytes": last["predicted_memory_bytes"], "time_error": last["predicted_step_ms"] / measured_ms - 1,
            "memory_error": last["predicted_memory_bytes"] / memory - 1}


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ingot", default=str(ROOT / "build/release/ingot"))
    parser.add_argument("--only", default="", help="runs whose names hold this")
    parser.add_argument("--rounds", type=int, default=1, help="times that all are run in turn; the median error of each counts")
    parser.add_argument("-o", "--output")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        make_data(options.ingot, folder)
        print("| run | ranks | step ms | predicted | error | peak MiB | predicted | error |\n|---|---|---|---|---|---|---|---|", flush=True)
        chosen = {name: settings for name, settings in RUNS.items() if options.only in name}
        # Round after round over all runs: a slow minute of the machine is then one try of a run, not all of them.
        tries_of = {name: [] for name in chosen}
        for name in [*chosen] * options.rounds:
            tries = tries_of[name]
            tries.append(train(options.ingot, folder, name, chosen[name]))
            if len(tries) < options.rounds:
                continue
            good = sorted((t for t in tries if "failed" not in t), key=lambda t: t["time_error"])
            row = good[len(good) // 2] if good else tries[0]
            rows.append(row)
            if "failed" in row:
                print(f"| {name} | {row['ranks']} | failed: {row['failed']} |", flush=True)
                continue
            print(f"| {name} | {row['ranks']} | {row['step_ms']:.1f} | {row['predicted_step_ms']:.1f} | {100 * row['time_error']:+.1f} % | {row['memory_bytes'] / 2**20:.0f} | "
                  f"{row['predicted_memory_bytes'] / 2**20:.0f} | {100 * row['memory_error']:+.1f} % |", flush=True)
    good = [row for row in rows if "failed" not in row]
    if not good:
        sys.exit(1)
    for what in ("time", "memory"):
        errors = [abs(row[f"{what}_error"]) for row in good]
        print(f"\n{what}: median {100 * statistics.median(errors):.1f} %, 90th percentile {100 * percentile(errors, 0.9):.1f} %, largest {100 * max(errors):.1f} % of {len(good)} runs")
    if options.output:
        Path(options.output).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
