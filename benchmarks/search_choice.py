"""How good the layout is that `ingot plan search` takes: the layouts that it finds for this machine, each trained for some steps.

    ingot bench all && python3 benchmarks/search_choice.py [--ingot build/release/ingot] [--top 8] [--rounds 2] [--only WORD]

Prints Markdown: predicted and measured step times of the best layouts as the search orders them, and of its choice how much slower it is than
the fastest that was measured. A quiet machine is up to the caller.
"""
import argparse
import json
import statistics
import subprocess
import tempfile
import tomllib
from pathlib import Path

from prediction_accuracy import EXPERTS, MEDIUM, ROOT, make_data, shape, train, write_config

MODELS = {"dense medium": MEDIUM | shape(8, 256), "mixture small": EXPERTS | shape(8, 256), "dense medium, bf16": MEDIUM | shape(8, 256, precision="bf16")}


def settings_of(layout):
    axes = {f"parallel.{name}": value for name, value in layout["parallel"].items() if isinstance(value, str) or value > 1 or name in ("data", "zero")}
    return axes | {"train.microbatch_size": layout["microbatch_size"], "train.recompute": layout["recompute"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ingot", default=str(ROOT / "build/release/ingot"))
    parser.add_argument("--top", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=2, help="times that each is run; the least step time counts")
    parser.add_argument("--only", default="", help="models whose names hold this")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ingot_search_") as scratch:
        folder = Path(scratch)
        make_data(options.ingot, folder)
        for name, model in MODELS.items():
            if options.only not in name:
                continue
            config = write_config(folder, model)
            found = json.loads(subprocess.run([options.ingot, "plan", "search", config, "--top", "1000", "--json"], check=True, capture_output=True, text=True).stdout)
            layouts = found["layouts"]
            assert tomllib.loads(found["toml"])["parallel"]["data"] == layouts[0]["parallel"]["data"]
            # The best, and the best of every kind of layout that is not among them.
            chosen = layouts[:options.top]
            for layout in layouts:
                if all(other["parallel"] != layout["parallel"] for other in chosen):
                    chosen.append(layout)
            print(f"\n**{name}**, {found['tokens_per_step']} tokens a step\n\n| layout | predicted ms | measured ms | error |\n|---|---|---|---|", flush=True)
            measured = []
            for layout in chosen:
                runs = [train(options.ingot, folder, name, model | settings_of(layout)) for _ in range(options.rounds)]
                failed = [run for run in runs if "failed" in run]
                assert not failed, (layout["layout"], failed)
                measured.append(min(run["step_ms"] for run in runs))
                predicted = layout["step_ms"]["total"]
                print(f"| {layout['layout']} | {predicted:.1f} | {measured[-1]:.1f} | {100 * (predicted / measured[-1] - 1):+.1f} % |", flush=True)
            errors = [abs(layout["step_ms"]["total"] / ms - 1) for layout, ms in zip(chosen, measured)]
            print(f"\nthe search's choice takes {100 * (measured[0] / min(measured) - 1):.1f} % longer than the fastest of these {len(chosen)}; median error {100 * statistics.median(errors):.1f} %", flush=True)


if __name__ == "__main__":
    main()
