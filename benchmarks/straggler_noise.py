#!/usr/bin/env python3
"""Whether noise that all ranks meet alike makes ingot name one of them, and after how many steps one that is slower for real is named.

    python3 benchmarks/straggler_noise.py [--minutes 60] [--seed 1] [--block-s 60] [--batch-size 512] [-o TABLE.md]

Four ranks train a small model for as long as it takes, with a learning rate so low that its numbers stay as they are. Blocks alternate: *noise* alone; *noise and a slow
rank*; *quiet* and a slow rank. Noise comes and goes by chance, in processes of its own, of at most three kinds at once: a busy loop on each processor, memory that is filled
page by page, files written and synced, and SIGSTOPs of 50 to 500 ms (the limit of a hang is 10 s) that go round over all ranks. A slow rank, another one in each block, is
stopped for a share of each 6 ms that makes its own part of a step 1.3 times that of the others; the share is found before, in quiet. What it came to is told by the times
that `ingot launch --page` serves.

Counted: what events.jsonl says. Named in noise alone, or another rank than the slow one, is wrong by this script's book; hangs, divergences, failures and spikes always
are. `named by its times` are those whose own part, by the page, was 1.2 times the others' median in the five seconds around it: the machine did that to the rank.
"""
import argparse
import contextlib
import http.client
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

from recovery_beside_torchrun import Job, free_port, lines_of, processor, spread

ROOT = Path(__file__).resolve().parent.parent
from harness import INGOT, Workspace  # noqa: E402  (the path that recovery_beside_torchrun has added)

RANKS, HANG_S, DRY_S, SLICE_S, SLOWER, TRIED_STEPS, BISECTIONS = 4, 10, 120, 0.006, 1.3, 60, 5
NOISE = {
    "processors": "while True: pass",
    "memory": "import time\nwhile True:\n  m = bytearray({bytes})\n  for i in range(0, len(m), 4096): m[i] = 1\n  time.sleep(0.2)",
    "disk": "import os, tempfile\nblock = os.urandom(1 << 20)\nwhile True:\n  with tempfile.TemporaryFile(dir={folder!r}) as f:\n    for _ in range(64): f.write(block)\n    f.flush(); os.fsync(f.fileno())",
}


def ignore_missing():
    return contextlib.suppress(ProcessLookupError)


class Slowed(threading.Thread):
    """Takes a share of a process's time away until told to end."""

    def __init__(self, pid, share):
        super().__init__(daemon=True)
        self.pid, self.share, self.ends = pid, share, threading.Event()
        self.start()

    def run(self):
        with ignore_missing():
            while not self.ends.is_set():
                os.kill(self.pid, signal.SIGSTOP)
                time.sleep(SLICE_S * self.share)
                os.kill(self.pid, signal.SIGCONT)
                time.sleep(SLICE_S * (1 - self.share))

    def end(self):
        self.ends.set()
        self.join()


class Noise(threading.Thread):
    """Comes and goes until told to end. `pids` are the ranks' processes."""

    def __init__(self, rng, pids, folder):
        super().__init__(daemon=True)
        self.rng, self.pids, self.folder, self.ends, self.deck, self.stops = rng, pids, folder, threading.Event(), [], 0
        self.start()

    def programs(self, kind):
        available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        text = NOISE[kind].format(bytes=min(available // 4, 2 << 30), folder=str(self.folder))
        return [subprocess.Popen([sys.executable, "-c", text]) for _ in range(os.cpu_count() if kind == "processors" else 1)]

    def stop_one(self):
        """Ranks in turn, in an order of chance."""
        self.deck = self.deck or self.rng.sample(self.pids, len(self.pids))
        pid = self.deck.pop()
        with ignore_missing():
            os.kill(pid, signal.SIGSTOP)
            try:
                self.ends.wait(self.rng.uniform(0.05, 0.5))
            finally:
                os.kill(pid, signal.SIGCONT)
        self.stops += 1

    def run(self):
        while not self.ends.is_set():
            kinds = self.rng.sample([*NOISE, "stops"], self.rng.randint(0, 3))
            programs = [p for kind in kinds if kind in NOISE for p in self.programs(kind)]
            until = time.monotonic() + self.rng.uniform(1, 8)
            while time.monotonic() < until and not self.ends.is_set():
                if "stops" in kinds:
                    self.stop_one()
                self.ends.wait(self.rng.uniform(0.1, 1.5))
            for program in programs:
                program.kill()
                program.wait()

    def end(self):
        self.ends.set()
        self.join()


class Training(Job):
    def __init__(self, workspace, folder, batch_size):
        super().__init__(folder)
        self.run, self.port = folder / "run", free_port()
        config = workspace.config(folder.name, "llama", **{"train.steps": 100000000, "train.batch_size": batch_size, "train.microbatch_size": 4, "train.threads": 1,
                                                           "optimizer.lr": 1e-6, "checkpoint.every": 500, "checkpoint.keep": 2})
        self.launch([INGOT, "launch", "-n", RANKS, "--hang", HANG_S, "--page", f"127.0.0.1:{self.port}", "--", INGOT, "train", config, "--no-forecast", "--run-dir", self.run])
        self.wait_for(lambda: self.step() >= 40, "step 40")
        # A rank's process is that with its RANK: nobody is started again here.
        self.pids = self.wait_for(self.processes, "a page with all ranks")

    def processes(self):
        with contextlib.suppress(OSError, http.client.HTTPException, KeyError):
            return [int(self.page()["ingot_rank_process"][rank]) for rank in range(RANKS)]
        return None

    def page(self):
        """{metric: {rank: value}}, of the steps' times the own part."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as answer:
            text, found = answer.read().decode(), {}
        for name, labels, value in re.findall(r'^(\w+)\{([^}]*)\} (\S+)$', text, re.M):
            labels = dict(re.findall(r'(\w+)="([^"]*)"', labels))
            if "rank" in labels and labels.get("part", "own") == "own":
                found.setdefault(name, {})[int(labels["rank"])] = float(value)
        return found

    def check(self):
        if self.launchers[0].poll() is not None:
            raise RuntimeError("the launcher has ended: " + (self.folder / "log").read_text(errors="replace")[-2000:])

    def own_s(self):
        """By rank, of the last steps; nothing where the page does not answer, as under much noise."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self.page().get("ingot_rank_step_seconds", {})
        return {}

    def step(self):
        with contextlib.suppress(FileNotFoundError, OSError):
            with open(self.run / "metrics.jsonl", "rb") as file:
                file.seek(0, os.SEEK_END)
                file.seek(max(0, file.tell() - 65536))
                if len(lines := file.read().split(b"\n")) > 1 and lines[-2]:
                    return json.loads(lines[-2])["step"]
        return 0

    def events(self):
        return lines_of(self.run / "events.jsonl")


def ratio(own_s, rank):
    return own_s[rank] / statistics.median(value for other, value in own_s.items() if other != rank)


class Block:
    """Some seconds of one kind, and what was seen in them."""

    def __init__(self, training, kind, slow, seconds, share, noise):
        self.kind, self.slow, self.first_step, self.loads, self.ratios, self.looks = kind, slow, training.step(), [], [], []
        before = len(training.events())
        slowed = Slowed(training.pids[slow], share) if slow is not None else None
        try:
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                time.sleep(0.5)
                self.look(training)
        finally:
            if slowed:
                slowed.end()
        self.last_step, self.seconds = training.step(), seconds
        self.events = training.events()[before:]

    def look(self, training):
        training.check()
        own_s = training.own_s()
        self.loads.append(os.getloadavg()[0])
        if len(own_s) == RANKS:
            self.looks.append((time.time(), own_s))
            if self.slow is not None:
                self.ratios.append(ratio(own_s, self.slow))

    def named(self):
        return [e for e in self.events if e["event"] == "straggler"]

    def is_by_its_times(self, event):
        return any(abs(at - event["time_s"]) < 5 and ratio(own_s, event["rank"]) >= 1.2 for at, own_s in self.looks)

    def steps_until_named(self):
        return next((e["step"] - self.first_step for e in self.named() if e["rank"] == self.slow), None)


def share_for(training, rank):
    """That makes it SLOWER, in quiet, by bisection: processes that stand still leave their processor to others, and catch up."""
    low, high = 0.05, 0.9
    for _ in range(BISECTIONS):
        share = (low + high) / 2
        slowed = Slowed(training.pids[rank], share)
        try:
            begun, seen, deadline = training.step(), [], time.monotonic() + DRY_S
            training.wait_for(lambda: training.step() >= begun + TRIED_STEPS / 3, "steps of a slow rank")
            while training.step() < begun + TRIED_STEPS and time.monotonic() < deadline:
                training.check()
                own_s = training.own_s()
                seen += [ratio(own_s, rank)] if len(own_s) == RANKS else []
                time.sleep(0.1)
        finally:
            slowed.end()
        low, high = (share, high) if statistics.median(seen or [SLOWER]) < SLOWER else (low, share)
    return (low + high) / 2


KINDS = {"noise": "noise alone", "slow": "noise and a slow rank", "quiet": "quiet and a slow rank"}


def measure(args, training, folder, after_a_block):
    rng, blocks = random.Random(args.seed), []
    share = share_for(training, 1)
    print(f"stopped for {share:.2f} of the time a rank is {SLOWER} times as slow", file=sys.stderr, flush=True)
    ends = time.monotonic() + 60 * args.minutes
    while time.monotonic() < ends:
        for kind in ("noise", "slow", "noise", "quiet"):
            if time.monotonic() >= ends:
                break
            noise = Noise(rng, training.pids, folder) if kind != "quiet" else None
            try:
                blocks.append(Block(training, kind, None if kind == "noise" else rng.randrange(RANKS), args.block_s, share, noise))
            finally:
                if noise:
                    noise.end()
            after_a_block(blocks, share)
            time.sleep(2)  # whoever was slow is as fast as the others again
    return blocks, share


def step_ms(blocks):
    """As a mean over all blocks."""
    return 1e3 * sum(block.seconds for block in blocks) / max(1, sum(block.last_step - block.first_step for block in blocks))


def table(args, blocks, share):
    minutes = sum(block.seconds for block in blocks) / 60
    out = [f"`python3 benchmarks/straggler_noise.py --minutes {args.minutes:g} --seed {args.seed} --block-s {args.block_s:g} --batch-size {args.batch_size}`, {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}, "
           f"{processor()}, {os.cpu_count()} cores; {minutes:.1f} minutes in blocks; a step took {step_ms(blocks):.0f} ms. A slow rank is stopped for {share:.2f} of each {1e3 * SLICE_S:.0f} ms.", "",
           "| blocks | how many | steps | named: the slow rank | steps until named: median (range) | slower by the page: median (range) | named: others | of them by its times "
           "| hangs, divergences, failures | spikes | load: median (range) |", "|" + "---|" * 11]
    for kind, words in KINDS.items():
        if not (mine := [block for block in blocks if block.kind == kind]):
            continue
        named = [steps for block in mine if (steps := block.steps_until_named()) is not None]
        others = [(block, event) for block in mine for event in block.named() if event["rank"] != block.slow]
        count = lambda *events: sum(e["event"] in events for block in mine for e in block.events)
        ratios = [r for block in mine for r in block.ratios]
        loads = [load for block in mine for load in block.loads]
        slow = (f"{len(named)} of {len(mine)}", spread(named, ".0f") if named else "", spread(ratios, ".2f")) if kind != "noise" else ("", "", "")
        out.append(f"| {words} | {len(mine)} | {sum(block.last_step - block.first_step for block in mine)} | {slow[0]} | {slow[1]} | {slow[2]} | {len(others)} | "
                   f"{sum(block.is_by_its_times(event) for block, event in others)} | {count('hang', 'failure', 'gave_up')} | {count('spike')} | {spread(loads, '.1f')} |")
    said = [f"- {KINDS[block.kind]}{f', rank {block.slow} slow' if block.slow is not None else ''}: step {e['step']}, {e['what']}{'' if block.is_by_its_times(e) else ' (not by the page)'}"
            for block in blocks for e in block.named() if e["rank"] != block.slow]
    said += [f"- {KINDS[block.kind]}: {e['event']}: {e.get('what', '')}" for block in blocks for e in block.events if e["event"] in ("hang", "failure", "gave_up", "spike")]
    return "\n".join(out + (["", "What was named, but for the slow rank:", ""] + said if said else [])) + "\n"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--block-s", type=float, default=60, help="seconds of a block (default 60)")
    parser.add_argument("--batch-size", type=int, default=512, help="sequences of 48 tokens, which a step's time is in proportion to (default 512)")
    parser.add_argument("-o", "--output", type=Path, metavar="TABLE.md")
    args = parser.parse_args()
    if args.minutes <= 0 or args.block_s < 1:
        parser.error("--minutes is above 0, and --block-s at least 1")
    if args.batch_size < 16 or args.batch_size % 16:
        parser.error("--batch-size is a multiple of 16: four ranks, microbatches of four")
    return args


def main():
    args = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # through what ends the processes

    def keep(blocks, share):
        if args.output:
            args.output.write_text(table(args, blocks, share))
    with Workspace() as workspace, tempfile.TemporaryDirectory() as scratch:
        training = Training(workspace, workspace.path / "training", args.batch_size)
        try:
            blocks, share = measure(args, training, Path(scratch), keep)
        finally:
            training.end()
    print(table(args, blocks, share))


if __name__ == "__main__":
    main()
