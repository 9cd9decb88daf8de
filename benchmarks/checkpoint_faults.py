#!/usr/bin/env python3
"""What a load does with a damaged checkpoint: ingot beside torch.save, safetensors, torch.distributed.checkpoint and bytecheckpoint.

    .deps/venv/bin/python benchmarks/checkpoint_faults.py [--trials 100] [--saves 30] [--seed 1] [--systems ingot,dcp,…] [-o TABLE.md]
        [--bytecheckpoint-python PYTHON]   a Python with bytecheckpoint==0.0.2 and torch==2.5.0, which it wants; left out without

State: 11 MiB in eight tensors of seven dtypes, any bits, cut by rows over two ranks (processes over Gloo), and five plain values. torch.save and
safetensors have no ranks: each rank writes a file of its rows under the tensors' names, and the load puts the rows together and checks names and
shapes as load_state_dict does. Loads are one process; torch.load is called with weights_only=True. --trials are for damage, --saves for saves that
are disturbed: killed (SIGKILL of both ranks at a random moment) or on a full disk (RLIMIT_FSIZE at a random size, on a random rank or on both, so
that write() fails with EFBIG), by ranks that have saved elsewhere before. Such a save has an older checkpoint beside it ("next step") or under the
same path ("same path"). Afterwards the newest checkpoint is loaded: the one that ingot_checkpoint.latest or bytecheckpoint's tracker file names,
else that of the highest step.

Everything loaded is compared bit for bit with what both saves had. A trial's outcome:
  wrong     loads without an error, but not what was saved (or a mixture of two saves)
  crash     the loading process dies, or hangs for DEADLINE_S
  lost      after a disturbed save: nothing loads any more, or a save that raised nothing is not there
  unclear   an exception that names no file and no tensor of the checkpoint
  clear     an exception that names one; after a disturbed save the older checkpoint still loads
  right     what was saved; after a disturbed save the old or the new state as a whole
A trial follows from the seed, its system, its kind and its number. SIGKILL does not lose the page cache: this is no test of a power cut.
"""
import argparse
import collections
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from checkpoint_fault_ranks import DEADLINE_S, NEW, OLD, RANKS, SHAPES, SYSTEMS

ROOT = Path(__file__).resolve().parent.parent
PAGE = 4096
OUTCOMES = ("wrong", "crash", "lost", "unclear", "clear", "right")


# ---- damage: each takes random numbers, the checkpoint, an older one and the system, and says what it did ----

def files_of(path):
    return sorted(one for one in path.rglob("*") if one.is_file())


def contents_of(path):
    return {str(file.relative_to(path)): file.read_bytes() for file in files_of(path)}


def flip_a_bit(dice, path, old, system):
    file = dice.choice(files_of(path))
    content = bytearray(file.read_bytes())
    place, bit = dice.randrange(len(content)), dice.randrange(8)
    content[place] ^= 1 << bit
    file.write_bytes(content)
    return [file], f"bit {bit} of byte {place} of {len(content)}"


def truncate(dice, path, old, system):
    file = dice.choice(files_of(path))
    size = file.stat().st_size
    length = dice.randrange(size)
    os.truncate(file, length)
    return [file], f"{length} of {size} bytes left"


def remove(dice, path, old, system):
    file = dice.choice(files_of(path))
    file.unlink()
    return [file], "removed"


def zero_a_page(dice, path, old, system):
    while True:
        file = dice.choice(files_of(path))
        content = bytearray(file.read_bytes())
        page = dice.randrange(-(-len(content) // PAGE)) * PAGE
        if any(content[page:page + PAGE]):
            break
    content[page:page + PAGE] = bytes(len(content[page:page + PAGE]))
    file.write_bytes(content)
    return [file], f"page at {page} of {len(content)} bytes"


def take_an_old_file(dice, path, old, system):
    while True:
        file = dice.choice(files_of(path))
        before = old / file.relative_to(path)
        if before.read_bytes() != file.read_bytes():
            shutil.copyfile(before, file)
            return [file], "of the older checkpoint"


def swap_ranks(dice, path, old, system):
    pairs = [[path / name.format(rank) for rank in range(RANKS)] for name in system.rank_files]
    pair = dice.choice([(a, b) for a, b in pairs if a.read_bytes() != b.read_bytes()])
    contents = [file.read_bytes() for file in pair]
    for file, content in zip(pair, reversed(contents)):
        file.write_bytes(content)
    return pair, "swapped"


DAMAGE = {"one flipped bit": flip_a_bit, "a truncated file": truncate, "a missing file": remove, "a zeroed page of 4 KiB": zero_a_page,
          "a file of an older checkpoint": take_an_old_file, "two ranks' files swapped": swap_ranks}
SAVES = {"killed, next step": ("kill", NEW), "killed, same path": ("kill", OLD), "full disk, next step": ("limit", NEW), "full disk, same path": ("limit", OLD)}
KINDS = [*DAMAGE, *SAVES]


# ---- trials ----

class Peer:
    """A process for one system."""

    def __init__(self, args, name):
        self.system = SYSTEMS[name]
        python = args.bytecheckpoint_python if name == "bytecheckpoint" else sys.executable
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": "",
                       "PYTHONPATH": args.package, "PYTHONWARNINGS": "ignore", "PYTHONDONTWRITEBYTECODE": "1", "BYTECHECKPOINT_LOG_LEVEL": "ERROR"}
        command = [python, str(Path(__file__).with_name("checkpoint_fault_ranks.py")), name]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)

    def ask(self, do, **order):
        self.process.stdin.write(json.dumps({"do": do, **order}, default=str) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def ask_to_save(self, folder, step, content, **disturbance):
        """After a save to another folder by the same processes."""
        with tempfile.TemporaryDirectory(dir=folder.parent) as warm:
            return self.ask("save", folder=folder, warm=warm, step=step, content=content, **disturbance)

    def save(self, folder, step, content):
        """One that nothing disturbs; how long it takes."""
        results = self.ask_to_save(folder, step, content)
        assert all("seconds" in result for result in results), f"a save that nothing disturbs: {results}"
        return max(result["seconds"] for result in results)

    def end(self):
        self.process.stdin.close()
        self.process.wait(20)


Trial = collections.namedtuple("Trial", "outcome detail notes")


def judged(result, allowed, names):
    """(outcome, what to tell, which content) of a load."""
    if "status" in result:
        return "crash", f"the load ended with {result['status']}", None
    if "error" in result:
        return ("clear" if any(name in result["error"] for name in names) else "unclear"), f"{result['type']}: {result['error']}", None
    whole = [int(content) for content, differs in result["differs"].items() if not differs and int(content) in allowed]
    if whole:
        return "right", "", whole[0]
    differs = result["differs"][str(NEW)]
    return "wrong", "without an error: " + "; ".join(f"{name}: {what}" for name, what in differs.items()), None


class Trials:
    """All trials of one system."""

    def __init__(self, args, name, folder):
        self.args, self.name, self.folder, self.peer = args, name, folder, Peer(args, name)
        self.system = self.peer.system
        self.place = self.system.place
        shutil.rmtree(folder, ignore_errors=True)
        self.pristine, self.copy, self.old_alone = folder / "pristine", self.place(folder / "copy", NEW), folder / "old"
        self.old_alone.mkdir(parents=True)
        self.pristine.mkdir()
        self.versions = self.peer.ask("versions")
        self.peer.save(self.old_alone, OLD, OLD)
        self.peer.save(self.pristine, OLD, OLD)
        self.seconds = statistics.median(self.peer.save(self.pristine, NEW, NEW) for _ in range(3))
        for content in (OLD, NEW):
            result = self.peer.ask("load", path=self.place(self.pristine, content))
            assert judged(result, [content], [])[0] == "right", f"{name}, undamaged: {result}"
        files = files_of(self.place(self.pristine, NEW))
        self.largest = max(file.stat().st_size for file in files)
        self.names = [*SHAPES, *(file.name for file in files)]
        shutil.copytree(self.place(self.pristine, NEW), self.copy)
        assert name != "ingot" or not self.is_found_by_verify(), "an undamaged checkpoint is damaged for verify"

    def run(self, kind, number):
        dice = random.Random(f"{self.args.seed} {self.name} {kind} {number}")
        return self.damaged(DAMAGE[kind], dice) if kind in DAMAGE else self.disturbed(*SAVES[kind], dice)

    def damaged(self, damage, dice):
        source = self.place(self.pristine, NEW)
        touched, what = damage(dice, self.copy, self.place(self.pristine, OLD), self.system)
        outcome, detail, _ = judged(self.peer.ask("load", path=self.copy), [NEW], self.names)
        notes = []
        if self.name == "ingot":
            notes.append("found by verify" if self.is_found_by_verify() else "not found by verify")
        for file in touched:
            shutil.copyfile(source / file.relative_to(self.copy), file)
        return Trial(outcome, f"{' and '.join(str(file.relative_to(self.copy)) for file in touched)}, {what}: {detail}", notes)

    def is_found_by_verify(self):
        command = [self.args.program, "checkpoint", "verify", str(self.copy)]
        status = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=DEADLINE_S).returncode
        assert status in (0, 3), f"{' '.join(command)}: status {status}"
        return status == 3

    def disturbed(self, how, step, dice):
        folder = self.folder / "disturbed"
        shutil.copytree(self.old_alone, folder)
        order, what = {}, ""
        if how == "kill":
            order["kill_after_s"] = dice.uniform(0, 1.1 * self.seconds)
            what = f"killed after {order['kill_after_s'] * 1e3:.1f} ms"
        else:
            limit, hit = dice.randrange(self.largest), dice.choice([[0], [1], [0, 1]])
            order["limits"] = [limit if rank in hit else None for rank in range(RANKS)]
            what = f"no file beyond {limit} bytes on rank {' and '.join(map(str, hit))}"
        results = self.peer.ask_to_save(folder, step, NEW, **order)
        is_saved = all("seconds" in result for result in results)
        notes = ["saved before that" if is_saved else "killed while it saved"] if how == "kill" else ["raised nothing" if is_saved else "the save raised"]
        notes += ["left its files"] if how == "kill" and not is_saved and contents_of(folder) != contents_of(self.old_alone) else []
        notes += ["another rank still waited"] if how == "limit" and any("status" in result for result in results) else []
        outcome, detail, content = self.resumed(folder)
        if outcome in ("clear", "unclear"):
            older = judged(self.peer.ask("load", path=self.place(folder, OLD)), [OLD], self.names)[0] if step == NEW else ""
            outcome = outcome if older == "right" else "lost"
        if outcome == "right":
            notes.append("new" if content == NEW else "old")
            outcome = "lost" if is_saved and content == OLD else outcome
        shutil.rmtree(folder)
        return Trial(outcome, f"{what}: {detail}", notes)

    def resumed(self, folder):
        """What a run would go on from."""
        found = self.peer.ask("newest", folder=folder)
        if "path" not in found:
            return judged(found, [], self.names)
        if found["path"] is None:
            return "lost", "nothing was found", None
        return judged(self.peer.ask("load", path=found["path"]), [OLD, NEW], self.names)

    def end(self):
        for file in files_of(self.place(self.pristine, NEW)):
            assert file.read_bytes() == (self.copy / file.relative_to(self.place(self.pristine, NEW))).read_bytes(), "a trial left its damage"
        self.peer.end()
        shutil.rmtree(self.folder)


def measure(args, after_a_system=lambda found, versions: None):
    """({system: {kind: trials}}, {system: versions})."""
    found, versions = {}, {}
    counts = {kind: args.trials if kind in DAMAGE else args.saves for kind in args.kinds}
    started, told, done, total = time.monotonic(), 0, 0, sum(counts.values()) * len(args.systems)
    for name in args.systems:
        trials = Trials(args, name, args.folder / name.replace(".", "_"))
        versions[name], found[name] = trials.versions, {}
        for kind, count in counts.items():
            found[name][kind] = []
            for number in range(count):
                found[name][kind].append(trials.run(kind, number))
                done += 1
                now = time.monotonic()
                if now - told > 10 or done == total:
                    told = now
                    print(f"{name}, {kind}: {done} of {total} trials, about {(now - started) / done * (total - done):.0f} s left", file=sys.stderr, flush=True)
        trials.end()
        after_a_system(found, versions)
    return found, versions


# ---- tables ----

def counted(trials):
    counts = collections.Counter(trial.outcome for trial in trials)
    return ", ".join(f"**{counts[outcome]} {outcome}**" if outcome in ("wrong", "crash", "lost") else f"{counts[outcome]} {outcome}"
                     for outcome in OUTCOMES if counts[outcome])


def noted(trials):
    counts = collections.Counter(note for trial in trials for note in trial.notes)
    return ", ".join(f"{count} {note}" for note, count in counts.items())


def tables(args, found):
    out = []

    def table(title, kinds, cell):
        out.extend(["", title, "", "| " + " | ".join(["", *found]) + " |", "| " + " | ".join(["---"] * (len(found) + 1)) + " |"])
        out.extend("| " + " | ".join([kind, *(cell(found[name][kind]) for name in found)]) + " |" for kind in kinds)
    table("## Outcomes", args.kinds, counted)
    disturbed = [kind for kind in args.kinds if kind in SAVES]
    if disturbed:
        table("## Disturbed saves: how they ended, and which state was loaded", disturbed, noted)
    if "ingot" in found and (damages := [kind for kind in args.kinds if kind in DAMAGE]):
        out += ["", "## `ingot checkpoint verify` on the same damage", ""]
        out += [f"- {kind}: {noted(found['ingot'][kind])}" for kind in damages]
    out += ["", "## The first of each outcome", ""]
    for name in found:
        for kind in args.kinds:
            for outcome in OUTCOMES[:-1]:
                if of_these := [trial for trial in found[name][kind] if trial.outcome == outcome]:
                    text = " ".join(of_these[0].detail.replace(str(args.folder), "FOLDER").split())
                    out.append(f"- {name}, {kind}, {outcome}: `{text[:300].replace('`', chr(39))}`")
    return out


def arguments(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=100, help="of each kind of damage")
    parser.add_argument("--saves", type=int, default=30, help="of each kind of disturbed save")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--systems", type=lambda text: text.split(","), default=list(SYSTEMS))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "checkpoint_faults", help="is emptied")
    parser.add_argument("--package", default=str(ROOT / "build/release/python"))
    parser.add_argument("--program", default=str(ROOT / "build/release/ingot"))
    parser.add_argument("--bytecheckpoint-python")
    parser.add_argument("-o", "--output")
    args = parser.parse_args(words)
    if unknown := set(args.systems) - set(SYSTEMS):
        parser.error(f"unknown systems: {', '.join(sorted(unknown))}")
    args.systems = [name for name in args.systems if name != "bytecheckpoint" or args.bytecheckpoint_python]
    return args


def main():
    args = arguments()

    def write(found, versions):
        told = ". ".join(f"{name}: {text}" for name, text in versions.items())
        out = [f"Seed {args.seed}, {args.trials} trials of each kind of damage, {args.saves} of each disturbed save. {told}.", *tables(args, found)]
        if args.output:
            Path(args.output).write_text("\n".join(out) + "\n")
        return "\n".join(out)
    print(write(*measure(args, write)))


if __name__ == "__main__":
    main()
