"""ingot's collectives over Gloo beside a plain loop over PyTorch's own (c10d, Gloo), by turns on one machine: the same sizes, ranks, dtype and calls.

    .deps/venv/bin/python benchmarks/collectives_vs_c10d.py [--ranks 2 4] [--rounds 5] [--least 64K] [--most 32M] [--factor 8] [--calls 20] [-o TABLE.md]

Both sides are processes of one thread that communicate over the loopback interface. A round runs either side in fresh processes, ingot first in even rounds
and second in odd ones; a call's time is the median of its calls on the rank where that is longest. Ratio: ingot's bus bandwidth / c10d's, median over the rounds and
its range; 1.00 is the aim, above is ingot ahead. The last column has the fastest call of all rounds instead, which other programs disturb least. Sizes are counted as nccl-tests count them. Another load falsifies small sizes first: a load average
above the ranks' own is printed with a warning.
"""
import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OPERATIONS = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"]
WARM = 5  # calls
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "MKL_NUM_THREADS": "1"}


def bytes_of(text):
    return int(text[:-1]) << {"K": 10, "M": 20, "G": 30}[text[-1].upper()] if text[-1].isalpha() else int(text)


def slots_of(size, sizes):
    """Buffers that are used in turn, as ingot bench collectives has them: small messages do not always find the same lines in the caches."""
    return max(1, min(64, sizes[-1] // size))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def peer(rank, ranks, port, calls, sizes):
    """One rank of the plain loop; rank 0 prints the microseconds."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    found = {}
    for operation in OPERATIONS:
        for size in sizes:
            slots, count = slots_of(size, sizes), size // 4
            wholes, parts, others = (torch.ones(slots, n) for n in (count, count // ranks, count))
            call = {"all_reduce": lambda i: dist.all_reduce(wholes[i]), "all_gather": lambda i: dist.all_gather_into_tensor(wholes[i], parts[i]),
                    "reduce_scatter": lambda i: dist.reduce_scatter_tensor(parts[i], wholes[i]), "broadcast": lambda i: dist.broadcast(wholes[i], 0),
                    "all_to_all": lambda i: dist.all_to_all_single(others[i], wholes[i])}[operation]
            for i in range(WARM):
                call(i % slots)
            wholes.fill_(1)
            dist.barrier()
            single = []
            for i in range(calls):
                begin = time.perf_counter()
                call((WARM + i) % slots)
                single.append(time.perf_counter() - begin)
            median = torch.tensor([statistics.median(single)], dtype=torch.float64)
            dist.all_reduce(median, op=dist.ReduceOp.MAX)
            least = torch.tensor([min(single)], dtype=torch.float64)
            dist.all_reduce(least, op=dist.ReduceOp.MIN)
            found[f"{operation} {size}"] = [median.item() * 1e6, least.item() * 1e6]
    if rank == 0:
        print(json.dumps(found), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def run_peer(ranks, sizes, calls):
    port, code = free_port(), str(Path(__file__).resolve())
    processes = [subprocess.Popen([sys.executable, code, "--peer", str(rank), str(ranks), str(port), str(calls), ",".join(map(str, sizes))], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  text=True, env=os.environ | ONE_THREAD) for rank in range(ranks)]
    outputs = [process.communicate(timeout=600) for process in processes]
    for process, (_, errors) in zip(processes, outputs):
        if process.returncode != 0:
            raise SystemExit(f"c10d: {errors.strip()[-500:]}")
    return json.loads(outputs[0][0].splitlines()[-1])


def run_ingot(ingot, ranks, sizes, calls, factor):
    command = [ingot, "bench", "collectives", *OPERATIONS, "--backend", "gloo", "--ranks", str(ranks), "--group-sizes", str(ranks), "--placements", "neighbours", "-b", str(sizes[0]), "-e",
               str(sizes[-1]), "-f", str(factor), "-n", str(calls), "-w", str(WARM), "-c", "0", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | ONE_THREAD)
    if done.returncode != 0:
        raise SystemExit(f"ingot: {done.stderr.strip()[-500:]}")
    return {f"{row['operation']} {row['bytes']}": row["us"] for row in rows_of(json.loads(done.stdout))}


def rows_of(document):
    """Operation, bytes and microseconds of a call, whatever else the document holds."""
    for entry in document["results"]:
        for side in ("out_of_place", "in_place"):
            if entry.get(side):
                yield {"operation": entry["operation"], "bytes": entry["bytes"], "us": [entry[side]["p50_s"] * 1e6, entry[side]["min_s"] * 1e6]}
                break


def bus_share(operation, ranks):
    return {"all_reduce": 2 * (ranks - 1) / ranks, "broadcast": 1}.get(operation, (ranks - 1) / ranks)


def main():
    if len(sys.argv) > 1 and sys.argv[1] == "--peer":
        rank, ranks, port, calls, sizes = sys.argv[2:7]
        return peer(int(rank), int(ranks), int(port), int(calls), [int(size) for size in sizes.split(",")])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ingot", default=str(ROOT / "build/release/ingot"))
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--least", default="64K", help="smallest size")
    parser.add_argument("--most", default="32M", help="largest size")
    parser.add_argument("--factor", type=int, default=8, help="from size to size")
    parser.add_argument("--calls", type=int, default=20, help="timed calls of each size in each round")
    parser.add_argument("-o", "--output")
    options = parser.parse_args()
    sizes = [bytes_of(options.least)]
    while sizes[-1] * options.factor <= bytes_of(options.most):
        sizes.append(sizes[-1] * options.factor)
    lines = [f"{options.rounds} rounds, load average at the start {os.getloadavg()[0]:.1f}", "", "| ranks | operation | bytes | ingot, us | c10d, us | ingot, GB/s of bus | c10d | ratio | range | of the fastest calls |", "|---|---|---|---|---|---|---|---|---|---|"]
    ratios = []
    for ranks in options.ranks:
        if os.getloadavg()[0] > 0.3 * (os.cpu_count() or 1):
            print(f"warning: the machine is busy (load average {os.getloadavg()[0]:.1f}); ratios of small sizes mean little", file=sys.stderr)
        ours, theirs = [], []
        for turn in range(options.rounds):
            for side in ((ours, theirs) if turn % 2 == 0 else (theirs, ours)):
                side.append(run_ingot(options.ingot, ranks, sizes, options.calls, options.factor) if side is ours else run_peer(ranks, sizes, options.calls))
        for operation in OPERATIONS:
            for size in sizes:
                key = f"{operation} {size}"
                us, peers_us = [run[key][0] for run in ours], [run[key][0] for run in theirs]
                each = sorted(b / a for a, b in zip(us, peers_us))
                ratio, least = statistics.median(each), min(run[key][1] for run in theirs) / min(run[key][1] for run in ours)
                ratios.append((ratio, ranks, operation, size))
                bandwidth = [bus_share(operation, ranks) * size / statistics.median(times) / 1e3 for times in (us, peers_us)]
                lines.append(f"| {ranks} | {operation} | {size} | {statistics.median(us):.1f} | {statistics.median(peers_us):.1f} | {bandwidth[0]:.2f} | {bandwidth[1]:.2f} | **{ratio:.2f}** | {each[0]:.2f}–{each[-1]:.2f} | {least:.2f} |")
    behind = [r for r in ratios if r[0] < 0.97]
    lines += ["", f"at least 0.97 in {len(ratios) - len(behind)} of {len(ratios)}" + (f"; behind: {', '.join(f'{op} of {size} on {n} ranks {ratio:.2f}' for ratio, n, op, size in sorted(behind))}" if behind else "")]
    text = "\n".join(lines) + "\n"
    print(text, end="")
    if options.output:
        Path(options.output).write_text(text)


if __name__ == "__main__":
    main()
