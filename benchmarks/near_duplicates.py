#!/usr/bin/env python3
"""Times near duplicates (MinHash in bands) of made-up texts with planted pairs, in ingot and in datasketch, and says what each found.

    .deps/venv/bin/python benchmarks/near_duplicates.py [--megabytes 1000] [--sample 20] [-o TABLE.md]

Documents have 50 to 1,000 words of a vocabulary of 50,000, frequent ones often (Zipf). One in ten is a copy of an earlier one, of which a
share of the words is replaced in one place; pairs are counted by the Jaccard overlap of their runs of five words. datasketch gets the
first --sample MB, since it needs hours for all: 112 permutations, 14 bands of 8 rows, the same runs of words. Recall: of the planted
documents those that went. Precision: of the documents that went those that were planted.
"""
import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GROUPS = [(0.0, "1"), (0.02, "0.95–1"), (0.05, "0.9–0.95"), (0.1, "0.8–0.85"), (0.2, "0.65–0.7"), (0.5, "0.3–0.35")]


def documents(megabytes):
    """Texts, and for each copy the share of it that is new."""
    draw = random.Random(1)
    words = ["".join(draw.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(draw.randint(2, 10))) for _ in range(50000)]
    pool = draw.choices(words, weights=[1 / (rank + 10) for rank in range(len(words))], k=1 << 21)
    recent, written = [], 0
    while written < megabytes * 1e6:
        fresh = None
        if recent and draw.random() < 0.1:
            fresh = draw.choice(GROUPS)[0]
            text = list(draw.choice(recent))
            count = int(fresh * len(text))
            at = draw.randint(0, len(text) - count)
            new = draw.randint(0, len(pool) - count - 1)
            text[at:at + count] = pool[new:new + count]
        else:
            count = draw.randint(50, 1000)
            at = draw.randint(0, len(pool) - count - 1)
            text = pool[at:at + count]
            draw.shuffle(text)
            recent.append(text)
            if len(recent) > 5000:
                recent[draw.randint(0, 4999)] = recent.pop()
        line = " ".join(text)
        written += len(line)
        yield line, fresh


def by_datasketch(lines):
    from datasketch import MinHash, MinHashLSH

    index, kept = MinHashLSH(num_perm=112, params=(14, 8)), set()
    for number, text in enumerate(lines):
        words = text.split()
        hashes = MinHash(num_perm=112)
        hashes.update_batch([" ".join(words[i:i + 5]).encode() for i in range(max(1, len(words) - 4))])
        if not index.query(hashes):
            kept.add(number)
        index.insert(number, hashes)
    return kept


def rows(kept, planted, total):
    gone = set(range(total)) - kept
    found = [f"{sum(i in gone for i in of) / max(1, len(of)):.3f}" for fresh, _ in GROUPS for of in [[i for i, f in planted.items() if f == fresh and i < total]]]
    near = {i for i, f in planted.items() if i < total}
    return found, f"{len(gone & near) / max(1, len(gone)):.4f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--sample", type=int, default=20, help="MB for datasketch; 0 = none")
    parser.add_argument("--binary", default=str(ROOT / "build/release/ingot"))
    parser.add_argument("-o", "--output")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        planted, total, size, sample = {}, 0, 0, []
        with open(f"{folder}/all.jsonl", "w") as out:
            for number, (text, fresh) in enumerate(documents(args.megabytes)):
                if fresh is not None:
                    planted[number] = fresh
                if size < args.sample * 1e6:
                    sample.append(text)
                out.write(json.dumps({"id": number, "text": text}) + "\n")
                size += len(text)
                total = number + 1
        Path(folder, "r.toml").write_text(f'folder = "out"\n[[sources]]\nfiles = ["all.jsonl"]\n[[steps]]\nkind = "near_duplicates"\n')
        begin = time.perf_counter()
        done = subprocess.run([args.binary, "data", "process", f"{folder}/r.toml", "--json"], capture_output=True, text=True)
        seconds = time.perf_counter() - begin
        if done.returncode != 0:
            sys.exit(done.stderr)
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        report = json.loads(done.stdout)
        text = subprocess.run(["zstdcat", *[f"{folder}/out/{name}" for name in report["files"]]], check=True, capture_output=True, text=True).stdout
        kept = {json.loads(line)["id"] for line in text.splitlines()}
        found, precision = rows(kept, planted, total)
        table = [f"{total:,} documents, {size / 1e6:,.0f} MB, of which {len(planted):,} are copies with some of their words replaced.", "",
                 "| | s | MB/s | peak MiB | work files MiB | recall by overlap: " + " | ".join(name for _, name in GROUPS) + " | precision |",
                 "|---|---|---|---|---|" + "---|" * len(GROUPS) + "---|",
                 f"| ingot, all | {seconds:.1f} | {size / 1e6 / seconds:.1f} | {peak:.0f} | {report['work_bytes'] / 2**20:.0f} | " + " | ".join(found) + f" | {precision} |"]
        if sample:
            begin = time.perf_counter()
            theirs = by_datasketch(sample)
            seconds, megabytes = time.perf_counter() - begin, sum(map(len, sample)) / 1e6
            found, precision = rows(theirs, planted, len(sample))
            table.append(f"| datasketch, the first {megabytes:.0f} MB | {seconds:.1f} | {megabytes / seconds:.2f} | | | " + " | ".join(found) + f" | {precision} |")
            found, precision = rows(kept & set(range(len(sample))), planted, len(sample))
            table.append(f"| ingot, of the same documents | | | | | " + " | ".join(found) + f" | {precision} |")
    print("\n".join(table))
    if args.output:
        Path(args.output).write_text("\n".join(table) + "\n")


if __name__ == "__main__":
    main()
