"""The best learning rate of widths 64 to 512, under μP and without (docs/mup.md): with it they are the same within one step of the grid, without it
they are not. Standard parametrisation is PyTorch's: initial deviations by the root of the width, one rate for all. Some minutes: of ./scripts/test --night. INGOT_MUP_STEPS and INGOT_MUP_WIDTHS make it another one."""
import json
import os
import sys

from harness import ingot, run_chosen

WIDTHS = [int(width) for width in os.environ.get("INGOT_MUP_WIDTHS", "64 128 256 512").split()]
STEPS = int(os.environ.get("INGOT_MUP_STEPS", "80"))
RATES = [2.0 ** n for n in range(-11, -3)]


def best_of(w, width, optimizer, base):
    name = f"{optimizer}-{width}-{'mup' if base else 'standard'}"
    config = w.config(name, family="llama", **{"model.layers": 2, "model.hidden": width, "model.heads": width // 32, "model.kv_heads": width // 32, "model.head_dim": 32,
                                               "model.ffn": 2 * width, "model.init_std": 0.09 if base else 0.09 * (WIDTHS[0] / width) ** 0.5, "model.tie_embeddings": False, "model.mup_base_hidden": base,
                                               "data.seq_len": 64, "data.validation_fraction": 0, "train.batch_size": 8, "train.steps": STEPS, "optimizer.name": optimizer,
                                               "optimizer.weight_decay": 0, "optimizer.schedule": "linear", "optimizer.warmup_steps": 8, "checkpoint.every": 0})
    rates = ", ".join(f'"{rate:.6g}"' for rate in RATES)
    file = w.path / f"sweep-{name}.toml"
    file.write_text(f'config = "{config}"\nmetric = "loss"\naverage = 10\nthreads = 1\n[[settings]]\nname = "optimizer.lr"\nvalues = [{rates}]\n')
    report = json.loads(ingot("sweep", file, "--dir", w.path / f"sweep-{name}", "--json", timeout=3600)[0])
    losses = [t["result"]["metric"] for t in report["trials"]]
    finite = [loss if loss is not None else float("inf") for loss in losses]
    best = finite.index(min(finite))
    print(f"{optimizer:6} {'μP' if base else 'standard':9} {width:4}  " + " ".join("   inf" if loss is None else f"{loss:6.3f}" for loss in losses) + f"   best 2^{-11 + best}", flush=True)
    return best, finite


def rates_hold_for_every_width(w):
    if not os.environ.get("INGOT_NIGHT") and "INGOT_MUP_WIDTHS" not in os.environ:
        print("of ./scripts/test --night")
        sys.exit(77)
    print("learning rates 2^-11 to 2^-4; mean loss of the last ten of", STEPS, "steps")
    wrong = False
    for optimizer in ("adamw", "muon"):
        spread, costs = {}, {}
        for base in (WIDTHS[0], 0):
            found = [best_of(w, width, optimizer, base) for width in WIDTHS]
            bests = [best for best, _ in found]
            spread[base] = max(bests) - min(bests)
            costs[base] = max(losses[bests[0]] / min(losses) - 1 for _, losses in found)  # of the narrowest one's best rate
        print(f"{optimizer}: best rates lie within {spread[WIDTHS[0]]} steps of the grid with μP, {spread[0]} without; the narrowest one's best costs others up to "
              f"{100 * costs[WIDTHS[0]]:.1f} % of the loss with μP, {100 * costs[0]:.1f} % without", flush=True)
        # Muon's losses are flat over a factor of four, and its steps grow with the width by themselves: of it the cost is asked for.
        wrong = wrong or (costs[WIDTHS[0]] > 0.05 if optimizer == "muon" else spread[WIDTHS[0]] > 1 or spread[0] <= 1)
    assert not wrong


TESTS = [rates_hold_for_every_width]

if __name__ == "__main__":
    run_chosen(TESTS)
