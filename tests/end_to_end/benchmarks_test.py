"""The benchmarks of recovery, noise and watching in short: they end with a table, count right, and leave nothing."""
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

from harness import INGOT, run_chosen_in_scratch

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))


def benchmark(scratch, name, *args, status=0):
    """Its table, or what it says of a wrong call."""
    table = Path(scratch) / "table.md"
    done = subprocess.run([sys.executable, "-B", str(BENCHMARKS / name), *map(str, args), "-o", str(table)], capture_output=True, text=True, timeout=280,
                          env=os.environ | {"TMPDIR": scratch, "INGOT_BINARY": str(INGOT)})
    assert done.returncode == status, (done.returncode, done.stdout, done.stderr)
    assert not subprocess.run(["pgrep", "-f", f"{scratch}/"], capture_output=True, text=True).stdout, "processes are left"
    return table.read_text() if status == 0 else done.stderr


def rows(table):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("| ")]


def recovery_is_timed_from_the_kill_to_the_next_new_step(scratch):
    table = rows(benchmark(scratch, "recovery_beside_torchrun.py", "--systems", "ingot-spare,ingot-disk", "--rounds", 1, "--kills", 1))
    assert [row[1] for row in table[1:]] == ["1", "1"], table
    for row in table[1:]:
        assert 0 < float(row[2].split()[0]) < 60 and row[3] == "the same", row


def what_counts_as_a_new_step(scratch):
    """Of records that are made up: killed at 10 s, the step under way ends at 10.1 s, the job goes on from step 6 at 12 s."""
    import recovery_beside_torchrun as recovery
    steps = [(9.0, 7, 4), (10.1, 8, 4), (12.2, 7, 4), (12.3, 8, 4), (12.5, 9, 4)]
    job = SimpleNamespace(starts=lambda: [1.0, 12.0], steps=lambda: steps)
    assert recovery.after_a_start(job, 10.0) == (2.5, 2.5, 2)
    assert recovery.after_a_start(SimpleNamespace(starts=lambda: [1.0], steps=lambda: steps), 10.0) is None
    # Of torchft: three ranks go on, the fourth starts at 13 s and is in again with step 11; the step under way is no new one.
    folder = Path(scratch) / "torchft"
    folder.mkdir()
    lines = [{"step": 8, "ranks": 4, "time_s": 9.0}, {"step": 9, "ranks": 4, "time_s": 10.1}, {"step": 10, "ranks": 3, "time_s": 11.0}, {"step": 11, "ranks": 4, "time_s": 14.0}]
    (folder / "steps-0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    torchft = SimpleNamespace(folder=folder)
    torchft.lines = lambda field: recovery.Torchft.lines(torchft, field)
    torchft.steps = lambda: recovery.Torchft.steps(torchft)
    assert recovery.Torchft.recovery(torchft, 10.0) is None, "the fourth has not come back"
    (folder / "steps-1.jsonl").write_text('{"start": 0, "time_s": 13.0}\n')
    assert recovery.Torchft.recovery(torchft, 10.0) == (1.0, 4.0, 0)


def noise_comes_and_goes_and_what_is_named_is_counted(scratch):
    table = benchmark(scratch, "straggler_noise.py", "--minutes", 0.1, "--block-s", 2, "--batch-size", 16)
    found = {row[0]: row for row in rows(table)}
    assert int(found["noise alone"][1]) >= 1 and int(found["noise alone"][2]) >= 1, table
    assert re.fullmatch(r"\d of \d", found["noise and a slow rank"][3]), table
    assert all(row[8] == "0" for name, row in found.items() if "rank" in name or "alone" in name), table


def watching_is_counted_by_calls_and_operations(scratch):
    bench = Path(scratch) / "bench"
    bench.write_text('#!/bin/sh\necho \'{"what": "a call", "per": "operation", "ns": 1000.0}\'\necho \'{"what": "another", "per": "step", "ns": 500.0}\'\n')
    bench.chmod(0o755)
    table = rows(benchmark(scratch, "watching_cost.py", "--models", "small", "--steps", 5, "--bench", bench))
    small = next(row for row in table if row[0] == "small")
    assert int(small[3]) >= 2 and float(small[4]) == int(small[3]) + 0.5, table
    assert abs(float(small[5].split()[0]) - float(small[4]) / 10 / float(small[2])) < 0.02, table


def a_run_with_a_profile_starts_at_once(scratch):
    """Of the machine that the tests measured. Wanted is a second on an idle machine; here others build and test beside it."""
    table = rows(benchmark(scratch, "start_up.py", "--rounds", 1))
    assert len(table) >= 5, table
    for row in table[1:5]:
        assert 0.05 < float(row[2]) < 60 and float(row[4]) < float(row[2]), row


def floors(*args):
    return subprocess.run([sys.executable, "-B", str(BENCHMARKS / "kernel_floors.py"), *map(str, args)], capture_output=True, text=True, timeout=800,
                          env=os.environ | {"INGOT_BINARY": str(INGOT)})


def kernels_keep_their_rates(scratch):
    """The profile that the tests' machine was given first; measured again where that is below."""
    profiles = list(Path(os.environ.get("INGOT_CACHE", scratch)).glob(f"profile-*-{len(os.sched_getaffinity(0))}.json"))
    done = floors(*(("--profile", profiles[0]) if len(profiles) == 1 else ()))
    print(done.stdout)
    if done.returncode == 77:
        sys.exit(77)
    assert done.returncode == 0, done.stdout + done.stderr


def a_kernel_that_became_slower_is_named(scratch):
    rate = lambda **of: {"kind": "plain", "dtype": "fp32", "pass": "forward", **of}
    kernel = lambda seconds: {"name": "swiglu", "dtype": "fp32", "rows": 64, "width": 64, "forward_s": seconds, "forward_bytes": 4e6, "backward_s": 1e-3, "backward_bytes": 8e6}
    profile = {"memory": [{"operation": "triad", "bytes": 1 << 26, "bytes_per_s": 1e10}], "gemm": [rate(flops_per_s=2e11), {**rate(flops_per_s=1e11), "pass": "grad_input"}],
               "attention": [{"dtype": "fp32", "batch": 1, "seq": 128, "heads": 4, "head_dim": 32, "forward_s": 1e-4, "backward_s": 2e-4}], "kernels": [kernel(1e-3)]}
    path, file = Path(scratch) / "profile.json", Path(scratch) / "floors.json"

    def judged(seconds, *more):
        path.write_text(json.dumps(profile | {"kernels": [kernel(seconds)]}))
        return floors("--profile", path, "--tries", 1, "--floors", file, *more)

    assert judged(1e-3).returncode == 77, "no floors for this kind of CPU"
    done = judged(1e-3, "--record")
    [shares] = json.loads(file.read_text()).values()
    assert done.returncode == 0 and shares == {"swiglu fp32 forward over triad": 0.4, "swiglu fp32 backward over triad": 0.8, "gemm fp32 forward": 1.0, "gemm fp32 grad_input": 0.5,
                                               "attention fp32 forward": 0.211, "attention fp32 backward": 0.264}, shares
    assert judged(1.16e-3).returncode == 0
    slower = judged(1.2e-3)
    assert slower.returncode == 3 and "swiglu fp32 forward over triad: 0.333" in slower.stdout and "backward" not in slower.stdout, slower


def a_kernel_is_held_against_what_it_follows(scratch):
    """Three measurements between which memory, but not arithmetic, doubles its speed: one kernel goes with it, one does not. One that does not and
    reaches most of the memory's speed has no floor: another day it will go with it."""
    program, file = Path(scratch) / "ingot", Path(scratch) / "floors.json"
    kernel = lambda name, seconds, moved=4e6: {"name": name, "dtype": "fp32", "rows": 64, "width": 64, "forward_s": seconds, "forward_bytes": moved}
    for number in range(3):
        speed = 1 + number / 2
        profile = {"memory": [{"operation": "triad", "bytes": 1 << 26, "bytes_per_s": 1e10 * speed}], "attention": [],
                   "gemm": [{"kind": "plain", "dtype": "fp32", "pass": "forward", "flops_per_s": 2e11}], "kernels": [kernel("join", 1e-3 / speed), kernel("router", 1e-3), kernel("norm", 1e-3, 12e6)]}
        (Path(scratch) / f"{number + 1}.json").write_text(json.dumps(profile))
    program.write_text(f"""#!/bin/sh
case "$2" in all) echo >>{scratch}/calls; cp {scratch}/$(wc -l <{scratch}/calls).json "$5" ;; *) echo '{{}}' ;; esac
""")
    program.chmod(0o755)
    done = subprocess.run([sys.executable, "-B", str(BENCHMARKS / "kernel_floors.py"), "--record", "--floors", str(file)], capture_output=True, text=True,
                          env=os.environ | {"INGOT_BINARY": str(program)})
    assert done.returncode == 0, done.stderr
    [shares] = json.loads(file.read_text()).values()
    assert shares == {"gemm fp32 forward": 1.0, "join fp32 forward over triad": 0.4, "router fp32 forward over gemm": 0.02}, shares


def wrong_calls_say_what_is_wrong(scratch):
    assert "unknown systems: gloo; there are ingot-spare" in benchmark(scratch, "recovery_beside_torchrun.py", "--systems", "gloo", status=2)
    assert "make it as the first lines of --help say" in benchmark(scratch, "recovery_beside_torchrun.py", "--python", "/none/python", status=2)
    assert "multiple of 16" in benchmark(scratch, "straggler_noise.py", "--batch-size", 9, status=2)
    assert "--target watching_bench" in benchmark(scratch, "watching_cost.py", "--bench", "/none/bench", status=2)


TESTS = [recovery_is_timed_from_the_kill_to_the_next_new_step, what_counts_as_a_new_step, noise_comes_and_goes_and_what_is_named_is_counted,
         watching_is_counted_by_calls_and_operations, a_run_with_a_profile_starts_at_once, kernels_keep_their_rates, a_kernel_that_became_slower_is_named,
         a_kernel_is_held_against_what_it_follows, wrong_calls_say_what_is_wrong]

if __name__ == "__main__":
    run_chosen_in_scratch(TESTS)
