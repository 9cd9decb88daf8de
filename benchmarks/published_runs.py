"""What `ingot plan time` predicts beside what others published of their runs: the layouts of benchmarks/published_runs.toml on the shipped cluster profiles.

    python3 benchmarks/published_runs.py [--ingot build/release/ingot] [--only WORD] [-o TABLE.md]

Nothing is fitted, and no row has a factor of its own: a row's model, layout, batch, recomputation and cluster profile are all that goes in. An error is
predicted / published tokens per second - 1, so that a positive one promises too much. Prints Markdown in seconds; needs no quiet machine.
"""
import argparse
import json
import statistics
import subprocess
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DATA = tomllib.loads((ROOT / "benchmarks/published_runs.toml").read_text())
PEAKS = {"h100": 989e12, "a100": 312e12, "mi300x": 1307e12}  # of the data sheets, dense bf16
AXES = {"tensor": "tensor", "pipeline": "pipeline", "chunks": "pipeline_chunks", "expert": "expert", "zero": "zero"}
STAND_IN = '[data]\ntokenizer = "x"\nseq_len = 2048\n[[data.sources]]\npath = "x"\n[optimizer]\nname = "adamw"\n[train]\nsteps = 10\nprecision = "bf16"\n'


def config_of(name, folder):
    shipped = ROOT / "configs/published" / f"{name}.toml"
    if shipped.exists():
        return shipped
    # Of configurations with several phases the model alone: the other phases have other batches.
    model = DATA["models"][name]["set"] if name in DATA["models"] else tomllib.loads((ROOT / "configs" / f"{name}.toml").read_text())["model"]
    path = folder / f"{name}.toml"
    path.write_text("[model]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in model.items()) + STAND_IN)
    return path


def settings_of(run):
    values = {"train.batch_size": run["batch"], "train.microbatch_size": run["microbatch"], "train.recompute": run["recompute"],
              "parallel.data": run["devices"] // run.get("tensor", 1) // run.get("pipeline", 1)}
    if "seq" in run:
        values["data.seq_len"] = run["seq"]
    if "optimizer" in run:
        values["optimizer.name"] = run["optimizer"]
    if "chunks" in run:
        values["parallel.pipeline_schedule"] = "interleaved"
    return values | {f"parallel.{setting}": run[axis] for axis, setting in AXES.items() if axis in run}


def predict(ingot, run, folder):
    settings = [word for key, value in settings_of(run).items() for word in ("--set", f"{key}={value}")]
    done = subprocess.run([ingot, "plan", "time", str(config_of(run["model"], folder)), "--cluster", str(ROOT / "configs/clusters" / f"{run['cluster']}.json"), "--devices",
                           str(run["devices"]), *settings, "--expert-load", "1", "--json"], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{run['row']}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def full_row_flops(run, folder, flops_per_token):
    """FLOPs of a token where attention counts all pairs of a row, as several projects publish them."""
    document = tomllib.loads(config_of(run["model"], folder).read_text())
    model, seq = document["model"], run.get("seq", document["data"]["seq_len"])
    width = model["heads"] * model.get("head_dim", model["hidden"] // model["heads"])
    return flops_per_token + 12 * model["layers"] * width * (seq - 1) / 2


def rows_of(ingot, only):
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for source in DATA["sources"]:
            for given in source["runs"]:
                run = {key: value for key, value in source.items() if key != "runs"} | given
                if only.lower() not in f"{run['name']} {run['row']}".lower():
                    continue
                plan = predict(ingot, run, folder)
                flops = plan["flops_per_token"]
                published = run.get("tokens") or run["tflops"] * 1e12 / (full_row_flops(run, folder, flops) if run["counts"] == "full" else flops)
                predicted = plan["tokens_per_s"] / plan["devices"]
                peak = PEAKS[run["cluster"].split("-")[0]]
                known = DATA["models"].get(run["model"], {})
                yield {"source": run["name"], "url": run["url"], "row": run["row"], "cluster": run["cluster"], "stack": run["stack"], "is_mixture": "expert" in run or run["model"].startswith("zaya1"),
                       "is_exact": not known, "gflops_per_token": flops / 1e9, "published": published, "published_mfu": published * flops / peak, "predicted": predicted,
                       "predicted_mfu": predicted * flops / peak, "error": predicted / published - 1, "from_tflops": "tokens" not in run, "is_measured": run.get("measured", True), "missing": run.get("missing", ""), "plan": plan}


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def summary(rows):
    rows = [r for r in rows if r["is_measured"]]
    groups = {"dense, fused kernels": [r for r in rows if not r["is_mixture"] and r["stack"] == "fused"],
              "dense, PyTorch without a compiler": [r for r in rows if not r["is_mixture"] and r["stack"] == "eager"],
              "dense, all": [r for r in rows if not r["is_mixture"]], "mixtures": [r for r in rows if r["is_mixture"]]}
    lines = ["| | rows | median | 90th percentile | largest | mean with sign |", "|---|---|---|---|---|---|"]
    for name, group in groups.items():
        if not group:
            continue
        sizes = [abs(r["error"]) for r in group]
        worst = max(group, key=lambda r: abs(r["error"]))
        lines.append(f"| {name} | {len(group)} | {100 * statistics.median(sizes):.1f} % | {100 * percentile(sizes, 0.9):.1f} % | {100 * worst['error']:+.1f} % ({worst['row']}) | "
                     f"{100 * statistics.mean(r['error'] for r in group):+.1f} % |")
    return lines


def table(rows):
    lines = ["| run | source | profile | GFLOPs a token | published tokens/s/GPU | MFU | predicted | MFU | error | not in the prediction |", "|---|---|---|---|---|---|---|---|---|---|"]
    for r in rows:
        derived = " (from TFLOP/s)" if r["from_tflops"] else ""
        nearest = "" if r["is_exact"] else "*"
        lines.append(f"| {r['row']}{nearest} | [{r['source']}]({r['url']}) | {r['cluster']} | {r['gflops_per_token']:.2f} | {r['published']:,.0f}{derived} | {100 * r['published_mfu']:.1f} % | "
                     f"{r['predicted']:,.0f} | {100 * r['predicted_mfu']:.1f} % | {100 * r['error']:+.1f} % | {r['missing']} |")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ingot", default=str(ROOT / "build/release/ingot"))
    parser.add_argument("--only", default="", help="runs whose source or name holds this")
    parser.add_argument("--parts", action="store_true", help="and where the predicted step goes")
    parser.add_argument("-o", "--output", help="write the Markdown here, too")
    options = parser.parse_args()
    rows = list(rows_of(options.ingot, options.only))
    if not rows:
        raise SystemExit(f"no run's source or name holds '{options.only}'")
    lines = [*summary(rows), "", *table(rows), ""]
    if not options.only:
        lines += ["What cannot be said in ingot's terms:", "", "| rows | why |", "|---|---|", *(f"| {left['rows']} | {left['why']} |" for left in DATA["left_out"])]
    if options.parts:
        for r in rows:
            whole = r["plan"]["step_ms"]["total"]
            lines.append(f"{r['row']}: " + ", ".join(f"{name} {100 * ms / whole:.1f} %" for name, ms in r["plan"]["step_ms"].items() if name != "total" and ms > 0.001 * whole))
    text = "\n".join(lines) + "\n"
    print(text, end="")
    if options.output:
        Path(options.output).write_text(text)


if __name__ == "__main__":
    main()
