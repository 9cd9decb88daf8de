"""A run's TensorBoard events, read by TensorBoard itself, hold what metrics.jsonl holds. Runs with the Python of .deps/venv."""
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "end_to_end"))
from harness import Workspace, ingot

with Workspace() as w:
    ingot("train", w.config(**{"log.tensorboard": True, "train.validation_every": 4, "train.validation_batches": 1, "model.max_positions": 64,
                                 "train.evaluations": [str(Path(__file__).parents[2] / "configs/tasks/agreement.toml")], "train.evaluation_every": 6}), "--run-dir", w.path / "run")
    subprocess.run([sys.executable, str(Path(__file__).parent / "check_tensorboard.py"), str(w.path / "run")], check=True)
    print("ok")
