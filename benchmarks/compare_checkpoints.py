#!/usr/bin/env python3
"""Saves and loads one state through ingot's Python package and through its peers, by turns, beside what disk and memory can do:

    .deps/venv/bin/python benchmarks/compare_checkpoints.py [--ranks 2 4] [--gib 1] [--rounds 5] [--only ingot dcp …] [-o TABLE.md]
        [--bytecheckpoint-python PYTHON]   a Python with bytecheckpoint==0.0.2 and torch==2.5.0, which it wants; left out without

State: bf16 weights, whole on each rank, and fp32 moments, cut by rows, as DTensors; each distinct byte counts once. Processes of one thread,
Gloo on loopback. Each round does everything once, in one set of processes (bytecheckpoint in its own); round 0 is a warm-up.
  stall     how long the caller may not change its tensors or waits (slowest rank): at once; or around half a second of a step in which the
            device computes (the host sleeps) or the host does (matrix products; how much longer they take than alone is told too)
  durable   until the system is done and all files and folders are fsynced; by us, where it does not do it itself
  load      page cache emptied before (fsync, FADV_DONTNEED); all that was loaded is compared bit for bit afterwards
  memory    a fresh set of processes for each system, two saves; private and shared-memory pages of a rank and its children, looked at some 20
            times a second
  processor user and system time of all ranks, without daemons
Measurements wait while a compiler runs, for a while. --folder is emptied; it should lie on the disk that is to be measured.
"""
import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from checkpoint_systems import GIB, KINDS

ROOT = Path(__file__).resolve().parent.parent


def own_pages(process):
    """Bytes of private and shared-memory pages of a process and all below it."""
    children, total, left = {}, 0, [process]
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            children.setdefault(int(stat.read_text().rsplit(")", 1)[1].split()[1]), []).append(int(stat.parent.name))
        except OSError:
            pass  # it ended
    while left:
        one = left.pop()
        left += children.get(one, [])
        try:
            lines = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("Pss_Anon", "Pss_Shmem")))
    return total


def is_compiling():
    names = []
    for comm in Path("/proc").glob("[0-9]*/comm"):
        try:
            names.append(comm.read_text().strip())
        except OSError:
            pass
    return any(name in ("cc1plus", "cc1", "lto1", "ld", "ctest") for name in names)


class Ranks:
    """Processes that wait for orders."""
    waited_s = 0
    disturbed = measured = 0

    def __init__(self, args, ranks, python, folder):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1",
                       "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "ignore", "PYTHONDONTWRITEBYTECODE": "1",
                       "PYTHONPATH": args.package, "BYTECHECKPOINT_LOG_LEVEL": "ERROR"}
        self.patience_s = args.patience
        self.folder, self.log = folder, open(folder.with_suffix(".log"), "w+")
        mine, theirs = os.pipe()
        command = [python, str(Path(__file__).with_name("checkpoint_ranks.py")), str(folder), str(args.gib)]
        self.processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=self.log, stderr=self.log, text=True, pass_fds=[theirs],
                                           env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank), "REPLIES": str(theirs)}) for rank in range(ranks)]
        os.close(theirs)
        self.replies = os.fdopen(mine)
        for _ in self.processes:
            self.reply()

    def reply(self):
        line = self.replies.readline()
        if not line:
            self.log.seek(0)
            sys.exit(f"a rank died:\n{self.log.read()[-3000:]}")
        return json.loads(line)

    def ask(self, do, **order):
        while is_compiling() and Ranks.waited_s < self.patience_s:
            Ranks.waited_s += 1
            time.sleep(1)
        for process in self.processes:
            process.stdin.write(json.dumps({"do": do, **order}) + "\n")
            process.stdin.flush()
        result = self.reply()
        Ranks.measured += 1
        Ranks.disturbed += is_compiling()
        return result

    def peak_of(self, **order):
        """What each rank takes beyond what it had before, at most at any time; the largest."""
        before = [own_pages(process.pid) for process in self.processes]
        peaks, done = list(before), threading.Event()

        def watch():
            while not done.wait(0.01):
                for rank, process in enumerate(self.processes):
                    peaks[rank] = max(peaks[rank], own_pages(process.pid))
        watching = threading.Thread(target=watch)
        watching.start()
        self.ask(**order)
        done.set()
        watching.join()
        peaks = [max(peak, own_pages(process.pid)) for peak, process in zip(peaks, self.processes)]
        return max(peak - first for peak, first in zip(peaks, before))

    def end(self):
        for process in self.processes:
            process.stdin.close()
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
        for path in (self.folder, Path(self.log.name)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def python_of(args, system):
    return args.bytecheckpoint_python if system == "bytecheckpoint" else sys.executable


def measure(args, ranks):
    """Everything, by turns: (what, of which system) to the results of all rounds but the first, and those of the first."""
    runs, first = {}, {}
    sets = {python: Ranks(args, ranks, python, args.folder / f"set{number}") for number, python in enumerate({python_of(args, name): 0 for name in args.only})}
    main = sets[sys.executable]
    for number in range(args.rounds + 1):
        def note(what, system, result):
            (runs if number else first).setdefault((what, system), []).append(result)
            print(f"{ranks} ranks, round {number}: {what} {system} {json.dumps(result)}", file=sys.stderr, flush=True)
        for name in ("memory_copy", "disk", "alone"):
            note(name, "", main.ask(name))
        for name in args.only:
            own = sets[python_of(args, name)]
            note("at once", name, own.ask("save", name=name, compute="none"))
            if name in ("ingot", "dcp, thread"):
                for compute in ("device", "host"):
                    note(compute, name, own.ask("save", name=name, compute=compute))
        for name in args.only:
            note("load", name, sets[python_of(args, name)].ask("load", name=name))
        note("irregular", "", main.ask("irregular"))
    if {"ingot", "dcp"} <= set(args.only):
        note("metadata", "", main.ask("metadata", planning=args.planning))
    for one in sets.values():
        one.end()
    for name in args.only:
        one = Ranks(args, ranks, python_of(args, name), args.folder / "memory")
        order = dict(do="save", name=name, compute="none")
        note("memory", name, [one.peak_of(**order), one.peak_of(**order)])
        one.end()
    return runs, first


# Tables.

def spread(values, scale=1, digits=2):
    return f"{statistics.median(values) * scale:.{digits}f} ({min(values) * scale:.{digits}f}-{max(values) * scale:.{digits}f})"


def tables(args, ranks, runs, first):
    out = []
    def row(*cells):
        out.append("| " + " | ".join(map(str, cells)) + " |")
    def head(*cells):
        out.append("")
        row(*cells)
        row(*["---"] * len(cells))
    def values(what, system, key):
        return [run[key] for run in runs.get((what, system), [])]
    def ratio(mine, other):
        return f"{statistics.median(other) / statistics.median(mine):.1f}" if mine and other else ""

    head(f"the machine alone, {ranks} ranks, {args.gib:g} GiB", "ms", "GB/s")
    machine = {"memory copy": values("memory_copy", "", "memory copy")} | {key: values("disk", "", key) for key in runs["disk", ""][0]}
    for name, times in machine.items():
        row(name, spread(times, 1e3, 0), f"{args.gib * GIB / 1e9 / statistics.median(times):.2f}")
    roof = {kind: min(statistics.median(times) for name, times in machine.items() if name.startswith(kind)) for kind in ("write", "read")}

    head(f"save, {ranks} ranks", "stall at once, ms", "of ingot's", "of the memory copy", "first", "around a device's step, ms", "around a host's step, ms", "its step longer by, ms",
         "durable, ms", "of ingot's", "of the disk", "processor, all ranks, s")
    alone = statistics.median(values("alone", "", "compute"))
    for name in args.only:
        stall, durable = values("at once", name, "stall"), values("at once", name, "durable")
        around = [values(kind, name, "stall") for kind in ("device", "host")]
        longer = [value - alone for value in values("host", name, "compute")]
        row(name, spread(stall, 1e3, 0), ratio(values("at once", "ingot", "stall"), stall), ratio(machine["memory copy"], stall), f"{first['at once', name][0]['stall'] * 1e3:.0f}",
            *(spread(times, 1e3, 1) if times else "as before" for times in around), spread(longer, 1e3, 0) if longer else "", spread(durable, 1e3, 0),
            ratio(values("at once", "ingot", "durable"), durable), f"{roof['write'] / statistics.median(durable):.0%}",
            spread(values("at once", name, "processor")))

    head(f"load, {ranks} ranks", "ms", "of ingot's", "of the disk", "processor, all ranks, s", "needed, all ranks, GiB", "asked by read(), GiB", "from disk, GiB")
    for name in args.only:
        times = values("load", name, "load")
        row(name, spread(times, 1e3, 0), ratio(values("load", "ingot", "load"), times), f"{roof['read'] / statistics.median(times):.0%}", spread(values("load", name, "processor")),
            *(f"{statistics.median(values('load', name, key)) / GIB:.3f}" for key in ("needed", "asked", "disk")))

    head(f"irregular slices, {ranks} ranks, {args.gib * 2 / 3:.2f} GiB of moments", "ms", "the gather takes times as long")
    gather = values("irregular", "", "gather")
    row("all-gather, keep own rows", spread(gather, 1e3, 0), "")
    for key, name in (("at once", "ingot's stall at once"), ("device", "ingot's stall around a device's step")):
        times = values("irregular", "", key)
        row(name, spread(times, 1e3, 1), ratio(times, gather))

    head(f"memory beyond the state, largest of {ranks} ranks", "first save, GiB", "second save, GiB")
    for name in args.only:
        row(name, *(f"{value / GIB:.2f}" for value in runs["memory", name][0]))
    if ("metadata", "") in runs:
        head(f"metadata, {ranks} ranks", "bytes", "open, ms", "parse, ms")
        for name, (size, open_s, parse_s) in runs["metadata", ""][0].items():
            row(name, f"{size:,}", f"{open_s * 1e3:.3f}", f"{parse_s * 1e3:.3f}" if parse_s else "")
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--gib", type=float, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS), help="ingot is always among them")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "compare_checkpoints")
    parser.add_argument("--package", default=str(ROOT / "build/release/python"))
    parser.add_argument("--planning", default=str(ROOT / "build/release/benchmarks/checkpoint/planning_bench"), help="left out where it is not built")
    parser.add_argument("--bytecheckpoint-python")
    parser.add_argument("--patience", type=float, default=300, help="seconds, in all, to wait for compilers to end")
    parser.add_argument("-o", "--output")
    args = parser.parse_args()
    args.only = [name for name in KINDS if name == "ingot" or name in args.only and (name != "bytecheckpoint" or args.bytecheckpoint_python)]
    out = []
    for ranks in args.ranks:
        out += tables(args, ranks, *measure(args, ranks))
    if Path(args.planning).exists():
        out += ["", subprocess.run([args.planning], capture_output=True, text=True, check=True).stdout.rstrip()]
    out += ["", f"Compilers were waited for for {Ranks.waited_s} s; {Ranks.disturbed} of {Ranks.measured} measurements ended while one ran."]
    print("\n".join(out))
    if args.output:
        Path(args.output).write_text("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
