#!/usr/bin/env python3
"""From SIGKILL of one of four ranks to the next new step: ingot beside torchrun and torchft, a small model on this machine.

    python3 -m venv .deps/recovery && .deps/recovery/bin/pip install torch==2.11.0 torchft==0.2.0 numpy
    python3 benchmarks/recovery_beside_torchrun.py [--rounds 3] [--kills 2] [--systems ingot,torchft,…] [-o TABLE.md]

A round starts each system's job, kills one of its ranks --kills times (each after ten more steps), and ends it; every other round in the opposite order. So
what else the machine does meets all alike. A new step is one above all that were done before the job goes on; a job's own records say when: ingot's metrics.jsonl
and events.jsonl, of the others what recovery_ranks.py writes. All have a thread a rank, a global batch of four sequences of 48 tokens, AdamW, and save each step.

torchrun has its defaults but for --standalone and --max-restarts; its processes are all started anew. torchft goes on with three replica groups, and takes the
fourth in again: its next step is of three quarters of the batch, so both times are given. It saves nothing, has a lighthouse with --join_timeout_ms 1000, and each group
a torchrun of its own; once with its DistributedDataParallel, and once with the same all-reduce through its Manager.
"""
import argparse
import contextlib
import json
import os
import platform
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
os.environ.setdefault("INGOT_BINARY", str(ROOT / "build/release/ingot"))
sys.path.insert(0, str(ROOT / "tests/end_to_end"))
sys.dont_write_bytecode = True
from harness import INGOT, Workspace  # noqa: E402  (the path above)

RANKS, STEPS_BETWEEN, DEADLINE_S = 4, 10, 240
SYSTEMS = {  # name: what it is
    "ingot-spare": "ingot, `--spares 1`, steps in memory",
    "ingot": "ingot, a new process for the one that died, steps in memory",
    "ingot-disk": "ingot, a new process for the one that died, steps on disk",
    "ingot-new": "ingot, all processes anew, steps in memory",
    "torchrun": "torchrun, DDP, torch.save on disk",
    "torchrun-dcp": "torchrun, DDP, DCP's async_save on disk",
    "torchft": "torchft, four replica groups, Manager.allreduce",
    "torchft-ddp": "torchft, four replica groups, its DistributedDataParallel",
}


def lines_of(path):
    """Of a file that may be written at this moment."""
    with contextlib.suppress(FileNotFoundError):
        text = path.read_text()
        return [json.loads(line) for line in text[:text.rfind("\n") + 1].splitlines()]
    return []


def children_of(pid):
    return [int(p) for p in subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True).stdout.split()]


def descendants_of(pid):
    found = children_of(pid)
    return found + [p for child in found for p in descendants_of(child)]


def environment_of(pid):
    with contextlib.suppress(OSError):
        return dict(word.split(b"=", 1) for word in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if b"=" in word)
    return {}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Job:
    """Some launchers, and what they write. `folder` is its own."""

    def __init__(self, folder):
        self.folder, self.launchers = folder, []
        folder.mkdir()

    def launch(self, command, **environment):
        with open(self.folder / "log", "ab") as log:
            self.launchers.append(subprocess.Popen(list(map(str, command)), stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
                                                   env=os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "GLOO_SOCKET_IFNAME": "lo"} | environment))

    def wait_for(self, condition, what):
        deadline = time.monotonic() + DEADLINE_S
        while not (found := condition()):
            words = "\n".join((self.folder / "log").read_text(errors="replace").splitlines()[-15:])
            if any(launcher.poll() is not None for launcher in self.launchers):
                raise RuntimeError(f"a launcher has ended before {what}:\n{words}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"{what} did not come within {DEADLINE_S} s:\n{words}")
            time.sleep(0.02)
        return found

    def end(self):
        for launcher in reversed(self.launchers):
            launcher.send_signal(signal.SIGTERM)
        for launcher in reversed(self.launchers):
            with contextlib.suppress(subprocess.TimeoutExpired):
                launcher.wait(20)
            for pid in (*descendants_of(launcher.pid), launcher.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            launcher.wait()


class Ingot(Job):
    def __init__(self, args, name, folder, workspace):
        super().__init__(folder)
        self.run, self.spares = folder / "run", int(name == "ingot-spare")
        where = {"checkpoint.every": 1, "checkpoint.keep": 2} if name == "ingot-disk" else {"checkpoint.every": 0, "checkpoint.memory_every": 1}
        config = workspace.config(folder.name, "llama", **{"train.steps": 1000000, "train.threads": 1} | where)
        program = ["env", INGOT] if name == "ingot-new" else [INGOT]  # of a program that is not ingot nobody stays
        self.launch([INGOT, "launch", "-n", RANKS, "--max-restarts", 100, "--spares", self.spares, "--", *program, "train", config, "--no-forecast", "--run-dir", self.run])

    def steps(self):
        return [(m["time_s"], m["step"], RANKS) for m in lines_of(self.run / "metrics.jsonl")]

    def starts(self):
        return [e["time_s"] for e in lines_of(self.run / "events.jsonl") if e["event"] == "start"]

    def processes(self):
        """Oldest first, rank 0 among them, once all are there and a spare, if any, which is the youngest, has loaded the program and sleeps."""
        found = children_of(self.launchers[0].pid)
        is_idle = lambda p: Path(f"/proc/{p}/stat").read_text().rsplit(")", 1)[1].split()[0] == "S" and "libingot" in Path(f"/proc/{p}/maps").read_text()
        with contextlib.suppress(OSError):
            if len(found) == RANKS + self.spares and all(map(is_idle, found[RANKS:])):
                return found[:RANKS]
        return None

    def end(self):
        super().end()
        with contextlib.suppress(FileNotFoundError):  # a run that is told to end keeps its steps in memory
            shutil.rmtree(f"/dev/shm/ingot-{json.loads((self.run / 'run.json').read_text())['id']}")

    def recovery(self, killed_s):
        """(seconds to the next new step, to the same with all ranks, steps repeated), or nothing yet."""
        return after_a_start(self, killed_s)


def after_a_start(job, killed_s):
    if not (again := [s for s in job.starts() if s > killed_s]):
        return None
    steps = job.steps()
    before = max(step for at, step, _ in steps if at < again[-1])
    after = [(at, step) for at, step, _ in steps if at >= again[-1]]
    new = [at - killed_s for at, step in after if step > before]
    return (new[0], new[0], before + 1 - after[0][1]) if new else None


class Torchrun(Job):
    def __init__(self, args, name, folder, workspace):
        super().__init__(folder)
        kind = {"torchrun": "torch.save", "torchrun-dcp": "dcp"}[name]
        self.launch([args.python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", RANKS, "--max-restarts", 100,
                     ROOT / "benchmarks/recovery_ranks.py", kind, folder], TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")  # else Gloo meets the store of before

    def lines(self, field):
        return [line for line in lines_of(self.folder / "steps-0.jsonl") if field in line]

    def steps(self):
        return [(line["time_s"], line["step"], line["ranks"]) for line in self.lines("step")]

    def starts(self):
        return [line["time_s"] for line in self.lines("start")]

    def processes(self):
        found = {int(rank): p for p in descendants_of(self.launchers[0].pid) if (rank := environment_of(p).get(b"RANK"))}
        return [found[rank] for rank in range(RANKS)] if len(found) == RANKS else None

    recovery = after_a_start


class Torchft(Job):
    def __init__(self, args, name, folder, workspace):
        super().__init__(folder)
        port = free_port()
        self.launch([Path(args.python).with_name("torchft_lighthouse"), "--min_replicas", 2, "--join_timeout_ms", 1000, "--bind", f"[::]:{port}"])
        for group in range(RANKS):
            self.launch([args.python, "-m", "torch.distributed.run", "--master-addr", "127.0.0.1", "--master-port", free_port(), "--nproc-per-node", 1, "--max-restarts", 100,
                         ROOT / "benchmarks/recovery_ranks.py", name, folder],
                        REPLICA_GROUP_ID=str(group), NUM_REPLICA_GROUPS=str(RANKS), TORCHFT_LIGHTHOUSE=f"http://localhost:{port}")

    def lines(self, field):
        return sorted(((line["time_s"], line) for group in range(RANKS) for line in lines_of(self.folder / f"steps-{group}.jsonl") if field in line), key=lambda pair: pair[0])

    def steps(self):
        return [(at, line["step"], line["ranks"]) for at, line in self.lines("step")]

    def processes(self):
        steps = self.steps()
        found = [[p for p in descendants_of(launcher.pid) if b"RANK" in environment_of(p)] for launcher in self.launchers[1:]]
        return [of_group[0] for of_group in found] if steps and steps[-1][2] == RANKS and all(found) else None

    def recovery(self, killed_s):
        """Others may end the step under way with what the dead one had sent; later steps are of fewer ranks, or come after a start."""
        steps, started_s = self.steps(), min((at for at, _ in self.lines("start") if at > killed_s), default=float("inf"))
        later = [(at, step, ranks) for at, step, ranks in steps if at > killed_s and (ranks < RANKS or at > started_s)]
        if not later:
            return None
        before = max(step for at, step, _ in steps if at < later[0][0])
        new = [at for at, step, _ in later if step > before]
        whole = [at for at, step, ranks in later if step > before and ranks == RANKS and at > started_s]
        return (new[0] - killed_s, whole[0] - killed_s, max(0, before + 1 - min(step for _, step, _ in later))) if whole else None


def kind_of(name):
    return Ingot if name.startswith("ingot") else Torchft if name.startswith("torchft") else Torchrun


def measure(args, name, folder, workspace):
    """Kills of one job: (next new step s, with all ranks s, steps repeated, load)."""
    job, found = kind_of(name)(args, name, folder, workspace), []
    try:
        for number in range(args.kills):
            done = len(job.steps())
            job.wait_for(lambda: len(job.steps()) >= done + STEPS_BETWEEN, f"{STEPS_BETWEEN} more steps")
            processes = job.wait_for(job.processes, "a process of each rank")
            load, killed_s = os.getloadavg()[0], time.time()
            os.kill(processes[2 - number % 2], signal.SIGKILL)
            found.append((*job.wait_for(lambda: job.recovery(killed_s), "the next new step"), load))
            print(f"{name}: {found[-1][0]:.2f} s, all ranks {found[-1][1]:.2f} s, {found[-1][2]} steps repeated, load {load:.1f}", file=sys.stderr, flush=True)
    finally:
        job.end()
    return found


def spread(values, form):
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def processor():
    return next((line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), platform.processor())


def versions(args):
    said = [subprocess.run([INGOT, "--version"], capture_output=True, text=True).stdout.strip()]
    if any(not name.startswith("ingot") for name in args.systems):
        ask = "from importlib.metadata import version as v, PackageNotFoundError\nfor p in ('torch', 'torchft'):\n  try: print(p, v(p))\n  except PackageNotFoundError: pass"
        said += subprocess.run([args.python, "-c", ask], capture_output=True, text=True).stdout.splitlines()
    return ", ".join(said)


def table(args, found, failed):
    rows = [f"`python3 benchmarks/recovery_beside_torchrun.py --rounds {args.rounds} --kills {args.kills} --systems {','.join(args.systems)}`, {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}, "
            f"{processor()}, {os.cpu_count()} cores. {versions(args)}.", "",
            "| system | kills | next new step: median s (range) | with all ranks | steps repeated | load of the machine |", "|---|---|---|---|---|---|"]
    for name in args.systems:
        if times := found[name]:
            new, whole, repeated, load = zip(*times)
            rows.append(f"| {SYSTEMS[name]} | {len(times)} | {spread(new, '.2f')} | {'the same' if new == whole else spread(whole, '.2f')} | {spread(repeated, '.0f')} | {spread(load, '.1f')} |")
        if failed[name]:
            rows.append(f"| {SYSTEMS[name]} | *failed {len(failed[name])} times*: {failed[name][0].splitlines()[0]} | | | | |")
    return "\n".join(rows) + "\n"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kills", type=int, default=2, help="in a job (default 2)")
    parser.add_argument("--systems", type=lambda text: text.split(","), default=list(SYSTEMS), help=", ".join(SYSTEMS))
    parser.add_argument("--python", default=str(ROOT / ".deps/recovery/bin/python"), help="with torch and torchft")
    parser.add_argument("-o", "--output", type=Path, metavar="TABLE.md")
    args = parser.parse_args()
    if unknown := set(args.systems) - set(SYSTEMS):
        parser.error(f"unknown systems: {', '.join(sorted(unknown))}; there are {', '.join(SYSTEMS)}")
    if args.rounds < 1 or args.kills < 1:
        parser.error("--rounds and --kills are above 0")
    if any(not name.startswith("ingot") for name in args.systems) and not Path(args.python).exists():
        parser.error(f"there is no {args.python}: make it as the first lines of --help say, or choose --systems without torchrun and torchft")
    return args


def main():
    args = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # through what ends the jobs
    found, failed = {name: [] for name in args.systems}, {name: [] for name in args.systems}
    with Workspace() as workspace:
        for number in range(args.rounds):
            for name in args.systems[::-1 if number % 2 else 1]:
                try:
                    found[name] += measure(args, name, workspace.path / f"{name}-{number}", workspace)
                except RuntimeError as problem:
                    failed[name].append(str(problem))
                    print(f"{name}: {problem}", file=sys.stderr, flush=True)
            if args.output:  # what there is so far
                args.output.write_text(table(args, found, failed))
    print(table(args, found, failed))
    return 1 if any(failed.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
