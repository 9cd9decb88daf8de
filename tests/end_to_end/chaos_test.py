"""scripts/chaos in short: a fixed seed over the kinds of faults that any machine permits; and that it sees what is wrong, and leaves nothing."""
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from harness import INGOT, run_chosen_in_scratch

CHAOS = Path(__file__).resolve().parents[2] / "scripts/chaos"
KINDS = "kill,again,stop,slow,drain,job,damage,memory,node,meeting,store"


def start(scratch, *args, binary=INGOT):
    return subprocess.Popen([sys.executable, "-B", str(CHAOS), *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            env=os.environ | {"TMPDIR": scratch, "INGOT_BINARY": str(binary)})


def chaos(scratch, *args, status=0, **more):
    process = start(scratch, *args, **more)
    said, _ = process.communicate(timeout=600)
    assert process.returncode == status, (process.returncode, said)
    return said


def processes_in(folder):
    return subprocess.run(["pgrep", "-f", f"{folder}/"], capture_output=True, text=True).stdout.split()


def every_kind_of_fault_is_survived(scratch):
    table = Path(scratch) / "table.md"
    said = chaos(scratch, "--kinds", KINDS, "--faults", len(KINDS.split(",")), "--seed", 1, "-o", table)
    lines = [json.loads(line) for line in table.with_suffix(".jsonl").read_text().splitlines()]
    planned = [fault["kind"] for line in lines for fault in line.get("schedule", {}).get("faults", [])]
    struck = [line for line in lines if "kind" in line]
    assert sorted(set(planned)) == sorted(KINDS.split(",")), planned
    assert [line["kind"] for line in struck] == planned, said
    assert sum(line["restarts"] for line in struck) >= len(planned) / 2, struck
    assert f"| all | {len(struck)} | {len(struck)} |" in table.read_text(), table.read_text()
    assert sorted(p.name for p in Path(scratch).iterdir()) == ["table.jsonl", "table.md"] and not processes_in(scratch)


def a_full_disk_is_survived(scratch):
    said = chaos(scratch, "--kinds", "space", "--faults", 1)
    assert re.search(r"\| space \| ([1-9]) \| \1 \|", said), said


def plan_in(said, run):
    plan = re.search(rf" run {run} \w+: \[.*", said)
    return plan and plan[0]


def the_same_seed_is_the_same_schedule(scratch):
    """Of which --only takes one run, at once. That a second run is planned alike behind a first one is in a_killed_call_has_its_table_and_is_resumed."""
    plans = []
    for more, run in ((("--faults", 9), 1), (("--only", 1), 1), (("--only", 2), 2), (("--only", 2), 2)):
        process = start(scratch, "--kinds", "slow,kill", "--seed", 5, *more)
        for line in process.stdout:
            if plan := plan_in(line, run):
                plans.append(plan)
                break
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert len(plans) == 4 and plans[0] == plans[1] and plans[2] == plans[3], plans


def a_curve_that_changes_is_seen_and_its_run_kept(scratch):
    """A program that goes on with another learning rate."""
    cheat = Path(scratch) / "cheat"
    cheat.write_text(f'#!/bin/bash\nrun=${{@: -1}}\nif [ "$1" = train ] && [ -e "$run/metrics.jsonl" ]; then exec {INGOT} "$@" --set optimizer.lr=0.01; fi\nexec {INGOT} "$@"\n')
    cheat.chmod(0o755)
    said = chaos(scratch, "--kinds", "job", "--faults", 1, "--seed", 2, binary=cheat, status=1)
    wrong = re.search(r"WRONG in run 1 \(\w+\): step \d+: \(loss, gradient norm\) .*, undisturbed .*\n  kept: (\S+)\n  again: \./scripts/chaos --seed 2 --kinds job --ranks 3 --only 1", said)
    assert wrong and (Path(wrong[1]) / "run/metrics.jsonl").exists(), said
    assert not processes_in(scratch)


def an_interrupt_leaves_nothing(scratch):
    started, said = time.monotonic(), []
    process = start(scratch, "--kinds", "slow,kill", "--faults", 100)
    for line in process.stdout:
        said.append(line)
        if "next new step" in line:
            break
    process.send_signal(signal.SIGINT)
    since = time.monotonic()
    rest, _ = process.communicate(timeout=60)
    took = time.monotonic() - since
    assert process.returncode == 130 and took < 20, (process.returncode, since - started, took, "".join(said), rest)
    assert not processes_in(scratch) and not list(Path(scratch).iterdir()), list(Path(scratch).iterdir())


def a_killed_call_has_its_table_and_is_resumed(scratch):
    """SIGKILL of chaos itself, in its second run: the table has the first one, and --resume ends what is left and does the second one again."""
    table, call = Path(scratch) / "table.md", ("--kinds", "kill,slow", "--seed", 1, "--faults", 4, "-o", Path(scratch) / "table.md")
    process, plan = start(scratch, *call), None
    for line in process.stdout:
        plan = plan or plan_in(line, 2)
        if " run 2 " in line and " step " in line:
            break
    process.kill()
    process.communicate(timeout=60)
    first = re.search(r"1 runs\n\n(?:.*\n)*\| all \| (\d+) \| \1 \|", table.read_text())
    assert first, table.read_text()
    left = [p for p in Path(scratch).iterdir() if p.name.startswith("ingot_chaos_")]
    said = chaos(scratch, *call, "--resume")
    assert plan and plan == plan_in(said, 2) and not re.search(r" run 1 \w+: ", said), said
    both = re.search(r"\d runs\n\n(?:.*\n)*\| all \| (\d+) \| \1 \|", table.read_text())
    assert both and int(both[1]) >= 4 > int(first[1]), table.read_text()
    assert len(left) == 1 and sorted(p.name for p in Path(scratch).iterdir()) == ["table.jsonl", "table.md"] and not processes_in(scratch)
    assert "is of ./scripts/chaos --seed 1 --kinds kill,slow --ranks 3" in chaos(scratch, "--kinds", "kill", "--seed", 1, "-o", table, "--resume", status=1)


def wrong_calls_say_what_is_wrong(scratch):
    assert "no fault is called 'flood'" in chaos(scratch, "--kinds", "kill,flood", status=2)
    assert "at least 2" in chaos(scratch, "--ranks", 1, status=2)
    assert "above 0" in chaos(scratch, "--faults", 0, status=2)
    assert "there is no" in chaos(scratch, "-o", Path(scratch) / "none.md", "--resume", status=1)


TESTS = [every_kind_of_fault_is_survived, a_full_disk_is_survived, the_same_seed_is_the_same_schedule, a_curve_that_changes_is_seen_and_its_run_kept,
         an_interrupt_leaves_nothing, a_killed_call_has_its_table_and_is_resumed, wrong_calls_say_what_is_wrong]

if __name__ == "__main__":
    run_chosen_in_scratch(TESTS)
