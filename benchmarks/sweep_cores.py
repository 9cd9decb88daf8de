"""How much of the cores a sweep of 16 short runs uses: ingot sweep's own count of its runs' CPU seconds over cores times wall time.

    python3 benchmarks/sweep_cores.py build/release/ingot
"""
import os
import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "end_to_end"))
os.environ["INGOT_BINARY"] = str(Path(sys.argv[1]).resolve())
from harness import Workspace  # noqa: E402

STEPS = 20
with Workspace() as w:
    config = w.config(family="llama", **{"model.layers": 6, "model.hidden": 256, "model.heads": 4, "model.head_dim": 64, "model.ffn": 768, "data.seq_len": 256,
                                         "train.batch_size": 8, "train.steps": STEPS, "optimizer.name": "muon"})
    file = w.path / "sweep.toml"
    rates = ", ".join(f'"{1e-4 * 1.6 ** i:.3g}"' for i in range(16))
    file.write_text(f'config = "{config}"\nmetric = "loss"\n[[settings]]\nname = "optimizer.lr"\nvalues = [{rates}]\n')
    done = subprocess.run([sys.argv[1], "sweep", str(file), "--dir", str(w.path / "sweep")], capture_output=True, text=True)
    print(done.stdout, done.stderr[-2000:] if done.returncode else "", re.search(r"the runs used .*", done.stderr).group(0), sep="\n")
