"""Loads the TensorBoard event files of a run directory with TensorBoard's own reader and compares every scalar with
metrics.jsonl, which is written by other code.

    python -m pip install tensorboard
    python tests/python/check_tensorboard.py RUN_DIR

Prints one line per tag. Exit status: 0 all equal, 3 a difference.
"""

import json
import math
import struct
import sys
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def as_float32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def same(a, b):
    return a == b or (math.isnan(a) and math.isnan(b))


def expected_scalars(path):
    """{tag: {step: value}} from metrics.jsonl."""
    expected = {}
    for line in path.read_text().splitlines():
        record = json.loads(line)
        record.update({name: float(text) for name, text in record.get("nonfinite", {}).items()})
        for tag in TAGS:
            name = tag.split("/")[1]
            present = name in record and not (name.startswith("predicted_") and record[name] == 0)
            if present:
                expected.setdefault(tag, {})[record["step"]] = as_float32(record[name])
        for task, values in record.get("evaluations", {}).items():
            for name, value in values.items():
                if name != "items":
                    value = record[f"{task}/{name}"] if value is None else value  # of "nonfinite"
                    expected.setdefault(f"evaluations/{task}/{name}", {})[record["step"]] = as_float32(value)
        if "expert_load" in record:
            load = record["expert_load"]
            expected.setdefault("experts/max_over_mean", {})[record["step"]] = as_float32(load["max"] / load["mean"] if load["mean"] else 0.0)
            expected.setdefault("experts/router_entropy", {})[record["step"]] = as_float32(sum(load["entropy"]) / len(load["entropy"]))
    return expected


TAGS = [
    "train/loss", "train/validation_loss", "train/grad_norm", "train/lr", "train/tokens",
    "speed/step_ms", "speed/predicted_step_ms", "speed/calibrated_step_ms", "speed/tokens_per_s", "speed/tflops", "speed/mfu", "speed/comm_bytes",
    "memory/memory_peak_bytes", "memory/predicted_memory_bytes",
]


def main(run_dir):
    accumulator = EventAccumulator(str(run_dir), size_guidance={"scalars": 0, "histograms": 0, "tensors": 0})
    accumulator.Reload()
    expected = expected_scalars(run_dir / "metrics.jsonl")
    wrong = 0
    if set(accumulator.Tags()["scalars"]) != set(expected):
        print("tags differ:", sorted(set(accumulator.Tags()["scalars"]) ^ set(expected)))
        wrong += 1
    for tag in sorted(expected):
        events = accumulator.Scalars(tag) if tag in accumulator.Tags()["scalars"] else []
        read = {event.step: event.value for event in events}
        equal = read.keys() == expected[tag].keys() and all(same(read[s], v) for s, v in expected[tag].items())
        equal = equal and len(events) == len(read)
        last = max(expected[tag])
        print(f"{tag:32} {len(read):8} steps  last {expected[tag][last]:.6g} at step {last}  {'ok' if equal else 'DIFFERS'}")
        wrong += not equal
    for tag in accumulator.Tags()["histograms"]:
        events = accumulator.Histograms(tag)
        print(f"{tag:32} {len(events):8} steps  {events[-1].histogram_value.num:.0f} tokens in the last")
    return 3 if wrong else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1])))
