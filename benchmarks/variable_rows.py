"""What rows without padding cost and save: steps of a small model on documents of log-normal lengths, padded and not, by turns.

    python3 benchmarks/variable_rows.py [--binary build/release/ingot] [--rounds 3]
"""
import argparse, json, random, statistics, subprocess, tempfile
from pathlib import Path

WORDS = "the river sees Anna and counts one two three stones because light falls on water".split()
CONFIG = """[model]
family = "llama"
layers = 4
hidden = 128
vocab_size = 512
heads = 4
kv_heads = 2
ffn = 384
[data]
seq_len = 512
tokenizer = "{folder}/tokenizer"
[[data.sources]]
path = "{folder}/tokens"
[train]
steps = 12
batch_size = 16
microbatch_size = 4
[checkpoint]
every = 0
[log]
tensorboard = false
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="build/release/ingot")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    ingot = lambda *words: subprocess.run([args.binary, *map(str, words)], check=True, capture_output=True)
    with tempfile.TemporaryDirectory(prefix="ingot_rows_") as name:
        folder, rng = Path(name), random.Random(2)
        lengths = (min(400, max(2, int(rng.lognormvariate(4, 1)))) for _ in range(3000))
        (folder / "text.txt").write_text("".join(" ".join(rng.choices(WORDS, k=k)) + "\n" for k in lengths))
        (folder / "run.toml").write_text(CONFIG.format(folder=folder))
        ingot("data", "train-tokenizer", folder / "text.txt", "-o", folder / "tokenizer", "--vocab-size", 360)
        ingot("data", "tokenize", folder / "text.txt", "--split", "line", "--tokenizer", folder / "tokenizer", "-o", folder / "tokens")
        found = {(packing, rows): [] for packing in ("documents", "best_fit") for rows in ("fixed", "variable")}
        for turn in range(args.rounds):
            for (packing, rows), of in found.items():
                run = folder / f"{packing}-{rows}-{turn}"
                ingot("train", folder / "run.toml", "--no-forecast", "--run-dir", run, "--set", f"data.packing={packing}", "--set", f"data.rows={rows}")
                steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
                of.append((statistics.median(s["step_ms"] for s in steps[2:]), steps[-1]["tokens"] / len(steps), steps[-1]["loss"]))
    print("| `data.packing` | `data.rows` | step ms, median | range | tokens a step | last loss |\n|---|---|---|---|---|---|")
    for (packing, rows), of in found.items():
        ms = [one[0] for one in of]
        print(f"| {packing} | {rows} | {statistics.median(ms):.0f} | {min(ms):.0f}–{max(ms):.0f} | {of[0][1]:.0f} | {of[0][2]:.6f} |")


main()
