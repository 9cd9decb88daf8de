#!/usr/bin/env python3
"""What the watching that is always on costs of a step: heartbeats, flight recorder, straggler times, spike watch, and the launcher's looks.

    cmake --build build/release --target ingot libingot.so watching_bench
    python3 benchmarks/watching_cost.py [--steps 60] [--ranks 2] [--callgrind] [-o TABLE.md]

None of it has a switch, so it is counted: calls of a step (a rank is killed, and the flight recorders of the others, which they write then, hold the operations of whole steps) times the
processor's ns of a call (watching_bench), over the processor's time that a rank takes for a step; and the processor's time of the launcher. All of it is
processor's time, which a busy machine changes less than time; the median step in ms stands beside it. --callgrind runs the ranks under valgrind, twice, for FEWER steps and for MORE: the
difference has no start in it, of the watching's functions and of whole steps (Trainer::take_step). Two models: one as small as in tests, whose steps are the shortest there are, and one of 3 million parameters.
"""
import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

from recovery_beside_torchrun import Job, children_of, lines_of, processor

ROOT = Path(__file__).resolve().parent.parent
from harness import INGOT, Workspace  # noqa: E402  (the path that recovery_beside_torchrun has added)

MODELS = {
    "small": {"train.batch_size": 4},
    "larger": {"model.layers": 4, "model.hidden": 256, "model.heads": 8, "model.kv_heads": 4, "model.head_dim": 32, "model.ffn": 768, "data.seq_len": 256, "train.batch_size": 16,
               "train.microbatch_size": 4},
}
# What is called, by the name that callgrind has of it.
WATCHING = (r"ingot::comm::Ledger::(?:start|finish|finish_when|set_step|step)\b|ingot::comm::Heartbeat::(?:set_collective|set_message|add_data|Waiting::~?Waiting)\b"
            r"|ingot::train::SpikeWatch::take|ingot::comm::describe")
STEP = "ingot::train::Trainer::take_step"
FEWER, MORE = 3, 8  # steps under callgrind


class Training(Job):
    """Of a model over some ranks, until it is ended. `before` stands before the program of each rank."""

    def __init__(self, args, workspace, name, before=(), *flags):
        super().__init__(workspace.path / f"{name}-{len(list(workspace.path.iterdir()))}")
        self.run = self.folder / "run"
        config = workspace.config(self.folder.name, "llama", **{"train.steps": 1000000, "train.threads": 1, "checkpoint.every": 0} | MODELS[name])
        self.launch([INGOT, "launch", "-n", args.ranks, "--hang", 0 if before else 60, "--grace", 20, "--", *before, INGOT, "train", config, "--no-forecast", "--run-dir", self.run, *flags])

    def metrics(self):
        return lines_of(self.run / "metrics.jsonl")


def processor_s(pid):
    ticks = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def operations(folder):
    """Of a step of a rank: the median over the whole steps in its flight recorder."""
    for path in folder.rglob("ledger-rank-*.json"):
        steps = [entry["step"] for entry in json.loads(path.read_text())["entries"]]
        whole = [steps.count(step) for step in set(steps) - {steps[0], steps[-1]}]
        if len(whole) >= 3:
            return statistics.median(whole)
    return None


def of_steps(args, workspace, name):
    """What a training run of this model says: ms of a step, ms of a rank's processor time for it, operations of a step, ms of the launcher's processor time a second."""
    job = Training(args, workspace, name)
    try:
        job.wait_for(lambda: len(job.metrics()) >= 10, "step 10")
        launcher, ranks = job.launchers[0].pid, children_of(job.launchers[0].pid)
        spent_s = lambda: (processor_s(launcher), sum(map(processor_s, ranks)), time.monotonic())
        before, begun = spent_s(), len(job.metrics())
        job.wait_for(lambda: len(job.metrics()) >= begun + args.steps, f"{args.steps} more steps")
        of_launcher_s, of_ranks_s, seconds = (after - then for after, then in zip(spent_s(), before))
        steps = job.metrics()[begun:]
        os.kill(ranks[-1], signal.SIGKILL)
        job.launchers[0].wait(60)
        return {"step_ms": statistics.median(line["step_ms"] for line in steps), "processor_ms": 1e3 * of_ranks_s / len(ranks) / len(steps), "operations": operations(job.run),
                "launcher": 1e3 * of_launcher_s / seconds}
    finally:
        job.end()


def instructions(args, workspace, name, steps):
    """(of watching, of whole steps) of rank 0. Functions count with what they call; of a function's lines the first is all of it, the others are the files that it is inlined from."""
    out = workspace.path / f"callgrind-{name}-{steps}"
    out.mkdir()
    job = Training(args, workspace, name, ["env", "LD_BIND_NOW=1", "valgrind", "-q", "--tool=callgrind", f"--callgrind-out-file={out}/%q{{RANK}}"], "--stop-after", steps)
    try:
        job.launchers[0].wait(3600)
    finally:
        job.end()
    text = subprocess.run(["callgrind_annotate", "--inclusive=yes", "--threshold=100", "--tree=none", "--auto=no", str(out / "0")], capture_output=True, text=True, check=True).stdout
    watching, whole = {}, 0
    for count, function in re.findall(r"^\s*([\d,]+) (?:\([^)]*\) +)?(.*)$", text, re.M):
        if function.startswith(("=>", "<")):  # of its callers and callees, once more
            continue
        number = int(count.replace(",", ""))
        if STEP in function:
            whole = max(whole, number)
        elif called := re.search(WATCHING, function):
            watching[called.group()] = max(watching.get(called.group(), 0), number)
    if not whole:
        raise RuntimeError(f"callgrind has no {STEP}: {(job.folder / 'log').read_text(errors='replace')[-2000:]}")
    return sum(watching.values()), whole


def by_callgrind(args, workspace, name):
    """(of watching, of a whole step), of a step."""
    fewer, more = (instructions(args, workspace, name, steps) for steps in (FEWER, MORE))
    return [(b - a) / (MORE - FEWER) for a, b in zip(fewer, more)]


def table(args, calls, found, counted):
    per = {kind: sum(call["ns"] for call in calls if call["per"] == kind) for kind in ("operation", "step", "look")}
    out = [f"`python3 benchmarks/watching_cost.py --steps {args.steps} --ranks {args.ranks}{' --callgrind' if args.callgrind else ''}`, {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}, "
           f"{processor()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}.", "",
           "| call | of each | ns of the processor's time |", "|---|---|---|"]
    out += [f"| {call['what']} | {call['per']} | {call['ns']:.0f} |" for call in calls]
    out += ["", "| model | step: median ms | a rank's processor time: ms a step | operations of a step | watching of a rank: µs a step | of its step | launcher: ms of processor time a second |", "|---|---|---|---|---|---|---|"]
    for name, of in found.items():
        us = (of["operations"] * per["operation"] + per["step"]) / 1e3
        out.append(f"| {name} | {of['step_ms']:.1f} | {of['processor_ms']:.1f} | {of['operations']:.0f} | {us:.1f} | {us / 10 / of['processor_ms']:.3f} % | {of['launcher']:.1f} |")
    if counted:
        out += ["", "| model | instructions of a step of rank 0 | of them watching | |", "|---|---|---|---|"]
        for name, (watching, whole) in counted.items():
            out.append(f"| {name} | {whole:,.0f} | {watching:,.0f} | {100 * watching / whole:.3f} % |")
    return "\n".join(out) + "\n"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--models", type=lambda text: text.split(","), default=list(MODELS), help=", ".join(MODELS))
    parser.add_argument("--callgrind", action="store_true", help="count instructions, too (minutes; wants valgrind)")
    parser.add_argument("--bench", type=Path, default=ROOT / "build/release/benchmarks/comm/watching_bench")
    parser.add_argument("-o", "--output", type=Path, metavar="TABLE.md")
    args = parser.parse_args()
    if unknown := set(args.models) - set(MODELS):
        parser.error(f"unknown models: {', '.join(sorted(unknown))}; there are {', '.join(MODELS)}")
    if args.steps < 1 or args.ranks < 2:
        parser.error("--steps is above 0, and --ranks at least 2")
    if not args.bench.exists():
        parser.error(f"there is no {args.bench}: cmake --build build/release --target watching_bench")
    return args


def main():
    args = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # through what ends the jobs
    calls = [json.loads(line) for line in subprocess.run([args.bench], capture_output=True, text=True, check=True).stdout.splitlines()]
    found, counted = {}, {}
    with Workspace() as workspace:
        for name in args.models:
            found[name] = of_steps(args, workspace, name)
        if args.callgrind:
            counted = {name: by_callgrind(args, workspace, name) for name in args.models}
    said = table(args, calls, found, counted)
    if args.output:
        args.output.write_text(said)
    print(said)


if __name__ == "__main__":
    main()
