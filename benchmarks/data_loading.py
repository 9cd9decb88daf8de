#!/usr/bin/env python3
"""What a run pays for its data: opening 10^8 documents and 1,000 sources, and batches beside the step of the demo's model.

    cmake --build build/release --target loader_bench
    .deps/venv/bin/python benchmarks/data_loading.py [--folder /tmp] [--documents 100000000] [--sources 1000] [--rounds 5] [--step-ms 0]

Makes data sets of documents of 1 to 1,000 tokens (an index of 20 bytes a document, and a sparse .bin) in the folder and removes them again. Each round opens each in a process
of its own. Beside it numpy does what Megatron's GPTDataset does when nothing is cached, in one epoch: maps the index, shuffles the documents, finds where each sample begins, and
shuffles the samples. --step-ms: of the demo's model; with it, batches come from the prefetcher beside steps that keep each core busy.
"""
import argparse
import json
import os
import resource
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
BENCH = os.environ.get("INGOT_LOADER_BENCH", str(ROOT / "build/release/benchmarks/data/loader_bench"))


def write_tokens(prefix, documents, seed):
    lengths = np.random.default_rng(seed).integers(1, 1001, documents, dtype=np.int32)
    pointers = np.zeros(documents, dtype=np.int64)
    np.cumsum(2 * lengths[:-1], dtype=np.int64, out=pointers[1:])
    with open(f"{prefix}.idx", "wb") as file:
        file.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, documents, documents + 1))
        for part in (lengths, pointers, np.arange(documents + 1, dtype=np.int64)):
            part.tofile(file)
    with open(f"{prefix}.bin", "wb") as file:
        file.truncate(int(pointers[-1]) + 2 * int(lengths[-1]))


def megatron_style(prefix, seq_len):
    """Prints seconds until samples can be drawn, and bytes."""
    start = time.perf_counter()
    with open(f"{prefix}.idx", "rb") as file:
        _, _, documents, entries = struct.unpack("<QBQQ", file.read(34)[9:])
    index = np.memmap(f"{prefix}.idx", mode="r")
    sizes = np.frombuffer(index, dtype=np.int32, count=documents, offset=34)
    draw = np.random.default_rng(1)
    document_index = np.arange(entries - 1, dtype=np.int32)
    draw.shuffle(document_index)
    ends = np.cumsum(sizes[document_index], dtype=np.int64)
    samples = (int(ends[-1]) - 1) // seq_len
    sample_index = np.empty((samples + 1, 2), dtype=np.int64)
    begins = np.arange(samples + 1, dtype=np.int64) * seq_len
    sample_index[:, 0] = np.searchsorted(ends, begins, side="right")
    sample_index[:, 1] = begins - np.where(sample_index[:, 0] > 0, ends[sample_index[:, 0] - 1], 0)
    shuffle_index = np.arange(samples, dtype=np.uint32)
    draw.shuffle(shuffle_index)
    print(json.dumps({"open_s": time.perf_counter() - start, "opened_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10}))


def run(words):
    return json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default="/tmp")
    parser.add_argument("--documents", type=int, default=10**8)
    parser.add_argument("--sources", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--step-ms", type=float, default=0)
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--megatron-style", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.megatron_style:
        return megatron_style(options.megatron_style, options.seq_len)
    seq, batch = str(options.seq_len), str(options.batch)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        few, many = f"{folder}/few", f"{folder}/many"
        write_tokens(few, options.documents // options.sources, 0)
        write_tokens(many, options.documents, 1)
        parts = [f"{folder}/part{i}" for i in range(options.sources)]
        for i, part in enumerate(parts):
            write_tokens(part, options.documents // options.sources, 2 + i)
        cases = [(f"{options.documents // options.sources:,} documents, 1 source", [few]), (f"{options.documents:,} documents, 1 source", [many]),
                 (f"{options.documents:,} documents, {options.sources:,} sources", parts)]
        print(f"| data | packing | open s | first batch s | batch ms | of the processor, ms | wait ms | MiB after opening | MiB after {100} batches |")
        print("|---|---|---|---|---|---|---|---|---|")
        for packing in ("stream", "best_fit"):
            runs = [[] for _ in cases]
            for _ in range(options.rounds):
                for into, (_, sources) in zip(runs, cases):
                    into.append(run([BENCH, packing, seq, batch, "100", str(options.step_ms), *sources]))
            for (name, _), found in zip(cases, runs):
                def row(key, scale, digits):
                    values = [scale * one[key] for one in found]
                    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}–{max(values):.{digits}f})"
                print(f"| {name} | {packing} | {row('open_s', 1, 4)} | {row('first_batch_s', 1, 4)} | {row('batch_s', 1e3, 3)} | {row('batch_processor_s', 1e3, 3)} | "
                      f"{row('wait_s', 1e3, 3)} | {row('opened_bytes', 2**-20, 1)} | {row('batches_bytes', 2**-20, 1)} |", flush=True)
        peers = [run([sys.executable, __file__, "--megatron-style", many, "--seq-len", seq]) for _ in range(1)]
        print(f"\nnumpy in Megatron's manner, {options.documents:,} documents: {statistics.median(p['open_s'] for p in peers):.1f} s, "
              f"{statistics.median(p['opened_bytes'] for p in peers) / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
