"""Runs over several ranks that are disturbed: killed, stopped, slow, damaged, called twice. Without forecasts, for which each layout would be measured."""
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time
import urllib.request
from pathlib import Path

from harness import INGOT, at_night, close, events, ingot, json_lines, launch, losses, metrics, run_chosen, wait_for_steps


def process_of(launcher, rank):
    """The process of a rank: a child of the launcher with that RANK in its environment, which it has from its exec on."""
    deadline = time.time() + 10
    while time.time() < deadline:
        for pid in subprocess.run(["pgrep", "-P", str(launcher)], capture_output=True, text=True).stdout.split():
            try:
                if f"RANK={rank}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    return int(pid)
            except (FileNotFoundError, ProcessLookupError):  # it has just ended
                pass
        time.sleep(0.01)
    raise AssertionError(f"no process of rank {rank}")


def troubles(run):
    """Without ranks that were slow for a while, as they may be beside other tests."""
    return [e for e in events(run) if e["event"] not in ("straggler", "recovered")]


def a_killed_rank_is_named_and_the_job_goes_on_bit_equal(w):
    """Whatever the ranks share: in the middle of gradients, weights, messages of a pipeline, keys on their way, tokens at experts.
    By day gradients, a pipeline and experts."""
    config = w.config("killed", **{"train.steps": 20, "train.batch_size": 6})
    layouts = [(3, 0, 2, []), (2, 0, 5, ["parallel.pipeline=2", "train.microbatch_size=1"]), (2, 0, 11, ["parallel.expert=2"])]
    if at_night():
        layouts += [(3, 1, 8, ["parallel.zero=3"]), (2, 1, 13, ["parallel.tensor=2"]), (2, 1, 7, ["parallel.context=2"]), (2, 1, 9, ["parallel.tensor_sequence=2"])]
    for ranks, victim, step, changes in layouts:
        name = changes[0] if changes else "data"
        flags = [word for change in changes for word in ("--set", change)]
        whole, run = w.path / f"whole-{name}", w.path / f"killed-{name}"
        launch(ranks, "train", config, "--no-forecast", "--run-dir", whole, *flags)
        process = subprocess.Popen([INGOT, "launch", "-n", str(ranks), "--max-restarts", "1", "--", INGOT, "train", config, "--no-forecast", "--run-dir", run, *flags],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        wait_for_steps(run, step, process)
        killed = process_of(process.pid, victim)
        os.kill(killed, signal.SIGKILL)
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, (name, err)
        assert f"first failure: rank {victim} (process {killed}) was ended by signal 9" in err, (name, err)
        for rank in set(range(ranks)) - {victim}:
            assert re.search(rf"^\[{rank}\].* E .*rank {victim} \(process {killed}\) has died", err, re.M), (name, err)
        assert losses(run) == losses(whole), name
        ingot("checkpoint", "diff", run, whole)


def survivors_of_a_lost_rank_stay_and_a_spare_takes_its_place(w):
    """From SIGKILL of one of four ranks to the next new step, with every step in memory: the other processes are the same ones."""
    config = w.config("stay", **{"train.steps": 1000000, "train.threads": 1, "checkpoint.every": 0, "checkpoint.memory_every": 1, "checkpoint.memory_folder": str(w.path)})
    curves = []
    for spares in (0, 1):
        run = w.path / f"stay-{spares}"
        process = subprocess.Popen([INGOT, "launch", "-n", "4", "--max-restarts", "3", "--spares", str(spares), "--", INGOT, "train", config, "--no-forecast", "--run-dir", run],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for number in range(2):
            wait_for_steps(run, len(metrics(run)) + 10 if number else 10, process)
            deadline = time.time() + 30
            while len(processes := children_of(process.pid)) < 4 + spares or not are_idle(processes[4:]):
                assert process.poll() is None and time.time() < deadline, (processes, process.communicate())
                time.sleep(0.05)
            starts = lambda: sum(e["event"] == "start" for e in events(run))
            newest, started = metrics(run)[-1]["step"], starts()
            victim = processes[2 - number]
            os.kill(victim, signal.SIGKILL)
            killed = time.time()
            while starts() == started or metrics(run)[-1]["step"] <= newest + 1:  # rank 0 may still write down the step under way
                assert process.poll() is None and time.time() < killed + 30, process.communicate()
                time.sleep(0.002)
            took = time.time() - killed
            print(f"{spares} spares: the next new step {took:.2f} s after SIGKILL of one of four ranks")
            assert took < 20
            assert set(processes) - {victim} <= set(children_of(process.pid)), "a rank that has lost another one has ended"
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0 and err.count("3 in the same process") == 2, err
        assert err.count("resumed from the memory of the machines") == 2, err
        curves.append(losses(run))
    launch(4, "train", config, "--no-forecast", "--run-dir", w.path / "whole", "--stop-after", min(map(len, curves)), "--set", "checkpoint.memory_every=0")
    for curve in curves:
        assert curve[:min(map(len, curves))] == losses(w.path / "whole")
    _, err = launch(2, "train", config, "--no-forecast", "--run-dir", w.path / "none", options=("--spares", "1"), status=2)
    assert "--max-restarts above 0" in err, err


def children_of(launcher):
    """Oldest first."""
    return list(map(int, subprocess.run(["pgrep", "-P", str(launcher)], capture_output=True, text=True).stdout.split()))


def are_idle(processes):
    """Spares that have loaded the program, and sleep."""
    return all("S" == Path(f"/proc/{p}/stat").read_text().rsplit(")", 1)[1].split()[0] and "libingot" in Path(f"/proc/{p}/maps").read_text() for p in processes)


def a_run_goes_on_from_the_memory_of_its_machines(w):
    """A rank dies between two checkpoints on disk: the job goes on from the step that lies in memory. Then everything dies and a rank's memory is
    lost: the copy of another rank is taken, by other ranks."""
    config = w.config("memory", **{"train.steps": 150, "train.batch_size": 6, "train.precision": "fp64", "checkpoint.every": 140,
                                   "checkpoint.memory_every": 1, "checkpoint.memory_folder": str(w.path), "checkpoint.memory_peer": "always"})
    whole, run = w.path / "whole-memory", w.path / "memory-run"
    launch(3, "train", config, "--no-forecast", "--run-dir", whole, "--set", "checkpoint.memory_every=0")

    def start(ranks, *flags, restarts):
        return subprocess.Popen([INGOT, "launch", "-n", str(ranks), "--max-restarts", str(restarts), "--", INGOT, "train", config, "--no-forecast", "--run-dir", run, *flags],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def resumed(text):
        found = re.search(r"resumed from the memory of the machines, \S* \(step (\d+)\)", text)
        assert found, text
        return int(found[1])

    def wait_for_memory(after):
        """Until all ranks have a step after this one."""
        deadline = time.time() + 60
        while len(steps := {f.parent.name: int(f.name[5:]) for f in w.path.glob("ingot-*/rank_*/step_*")}) < 3 or min(steps.values()) <= after:
            assert process.poll() is None and time.time() < deadline, process.communicate()
            time.sleep(0.01)
        return min(steps.values())

    process = start(3, restarts=1)
    reached = wait_for_memory(after=2)
    os.kill(process_of(process.pid, 1), signal.SIGKILL)
    wait_for_memory(after=reached + 10)
    for rank in range(3):
        try:
            os.kill(process_of(process.pid, rank), signal.SIGKILL)
        except (ProcessLookupError, AssertionError):
            pass
    _, err = process.communicate(timeout=120)
    first = resumed(err)
    assert process.returncode == 1 and first >= reached, err
    memory = next(w.path.glob("ingot-*"))
    # Between a new one's appearance and the end of the old one a rank has both.
    assert not list((run / "checkpoints").glob("step_*")) and len({f.parent for f in memory.glob("rank_*/step_*")}) == 3
    shutil.rmtree(memory / "rank_00001")
    process = start(2, "--set", "parallel.zero=3", restarts=0)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0 and first < resumed(err) < 140, err
    close(losses(run), losses(whole), 1e-9)
    assert not list(w.path.glob("ingot-*")), "memory is given back at the end"
    loads = [(s["step"], s["path"]) for s in json_lines(run / "checkpoints.jsonl") if s["kind"] == "load"]
    assert len(loads) == 2 and all(str(memory) in path for _, path in loads), loads


def memory_has_the_next_where_the_newest_on_disk_is_damaged(w):
    config = w.config("next", **{"train.steps": 1000000, "checkpoint.every": 100, "checkpoint.memory_every": 90, "checkpoint.memory_folder": str(w.path), "train.threads": 1})
    run = w.path / "next-run"
    process = subprocess.Popen([INGOT, "train", config, "--no-forecast", "--run-dir", run], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    newest, deadline = run / "checkpoints/step_00000100", time.time() + 120
    while not (newest / "metadata.bin").exists():
        assert process.poll() is None and time.time() < deadline, process.communicate()
        time.sleep(0.001)
    process.kill()
    process.communicate()
    assert len(losses(run)) < 180, "too late: memory has a later step"
    for data in newest.glob("data_*.bin"):
        content = data.read_bytes()
        data.write_bytes(content[:4096] + bytes(byte ^ 1 for byte in content[4096:]))  # tensors, behind a header that is sound
    _, err = ingot("train", config, "--no-forecast", "--run-dir", run, "--stop-after", 120)
    assert "looking for an older checkpoint" in err and re.search(r"resumed from the memory of the machines, \S* \(step 90\)", err), err
    assert [step for step, *_ in losses(run)] == list(range(1, 121))
    ingot("checkpoint", "verify", newest)  # saved again


def a_damaged_checkpoint_is_passed_over_by_all_ranks(w):
    """One flipped bit in the newest: all ranks go back to the one before it, say so, and the curve goes on as it was."""
    config = w.config("damaged", **{"train.steps": 12, "train.batch_size": 6, "train.precision": "fp64", "checkpoint.every": 4, "checkpoint.keep": 3})
    run = w.path / "damaged"
    launch(2, "train", config, "--no-forecast", "--run-dir", run)
    curve = losses(run)
    saves = json_lines(run / "checkpoints.jsonl")
    assert [s["step"] for s in saves] == [4, 8, 12] and all(s["ok"] and s["kind"] == "save" and len(s["ranks"]) == 2 for s in saves), saves
    assert [s["planned"] for s in saves] == [True, False, False], "the plan is made once"
    for rank in (r for s in saves for r in s["ranks"]):
        assert abs(rank["gb_per_s"] * 1e9 * (rank["write_s"] + rank["sync_s"]) / rank["bytes"] - 1) < 1e-6, rank
    inside = [s["step"] for m in metrics(run) for s in m.get("checkpoints", [])]
    assert inside == [4, 8], inside  # the last one ended after the last step's line
    data = run / "checkpoints" / "step_00000012" / "data_00001.bin"
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 16
    data.write_bytes(content)
    said = "".join(launch(3, "train", config, "--no-forecast", "--run-dir", run, "--set", "parallel.zero=3"))
    assert "data_00001.bin" in said and "looking for an older checkpoint" in said and "step_00000008 (step 8)" in said, said
    close(losses(run), curve, 1e-9)
    loads = [s for s in json_lines(run / "checkpoints.jsonl") if s["kind"] == "load"]
    assert len(loads) == 1 and loads[0]["step"] == 8 and len(loads[0]["ranks"]) == 3, loads
    needed = sum(f.stat().st_size for f in (run / "checkpoints" / "step_00000008").glob("data_*"))
    read = sum(r["read_bytes"] for r in loads[0]["ranks"])
    assert read <= needed < 1.1 * read, (read, needed)


def without_restarts_the_job_ends_within_seconds(w):
    config = w.config("ends", **{"train.steps": 100000, "checkpoint.every": 0})
    process = subprocess.Popen([INGOT, "launch", "-n", "2", "--", INGOT, "train", config, "--no-forecast", "--run-dir", w.path / "ends"], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    wait_for_steps(w.path / "ends", 3, process)
    os.kill(process_of(process.pid, 1), signal.SIGKILL)
    started = time.time()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1 and time.time() - started < 5, (time.time() - started, err)


def a_stopped_rank_is_named_at_the_time_out(w):
    config = w.config("stopped", **{"train.steps": 100000, "checkpoint.every": 0, "resilience.comm_timeout_s": 2})
    process = subprocess.Popen([INGOT, "launch", "-n", "2", "--grace", "3", "--", INGOT, "train", config, "--no-forecast", "--run-dir", w.path / "stopped"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for_steps(w.path / "stopped", 3, process)
    os.kill(process_of(process.pid, 1), signal.SIGSTOP)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1, err
    assert re.search(r"^\[0\].* E .*step \d+: rank 1 \(process \d+\) did not come within 2 s \(resilience.comm_timeout_s\)", err, re.M), err


def a_stopped_rank_is_found_by_the_launcher_and_the_job_goes_on_bit_equal(w):
    """Long before the others give up waiting for it."""
    config = w.config("hangs", **{"train.steps": 40, "train.batch_size": 6, "checkpoint.every": 5})
    whole, run = w.path / "whole-hangs", w.path / "hangs"
    launch(3, "train", config, "--no-forecast", "--run-dir", whole)
    process = subprocess.Popen([INGOT, "launch", "-n", "3", "--max-restarts", "1", "--hang", "1", "--", INGOT, "train", config, "--no-forecast", "--run-dir", run],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for_steps(run, 8, process)
    stopped = process_of(process.pid, 1)
    os.kill(stopped, signal.SIGSTOP)
    since = time.time()
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    found = re.search(rf"first failure: rank 1 \(process {stopped}\) hangs in step (\d+): its process is stopped .*silent for ([0-9.]+) s", err)
    assert found and int(found[1]) >= 8, err
    happened = troubles(run)
    assert [e["event"] for e in happened] == ["start", "hang", "restart", "start", "end"], happened
    assert happened[1]["rank"] == 1 and happened[1]["step"] == int(found[1]) and happened[1]["time_s"] - since < 2.5, (since, happened)
    assert happened[3]["step"] % 5 == 0 and happened[4]["step"] == 40, happened
    assert losses(run) == losses(whole)
    ingot("checkpoint", "diff", run, whole)


class Slowed:
    """Takes a share of a process's time away, in slices of a few milliseconds, while it lives."""

    def __init__(self, pid, share):
        self.pid, self.share, self.ends = pid, share, threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.ends.is_set():
            os.kill(self.pid, signal.SIGSTOP)
            time.sleep(0.006 * self.share)
            os.kill(self.pid, signal.SIGCONT)
            time.sleep(0.006 * (1 - self.share))

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *_):
        self.ends.set()
        self.thread.join()


def a_slow_rank_is_named_and_so_is_its_recovery(w):
    """By what it takes for its own part: the other one waits for it, and takes as long."""
    config = w.config("slow", **{"train.steps": 1000000, "train.batch_size": 16, "checkpoint.every": 0})
    run = w.path / "slow"
    process = subprocess.Popen([INGOT, "launch", "-n", "2", "--", INGOT, "train", config, "--no-forecast", "--run-dir", run], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})

    def wait_for(kind):
        """Until that is the last that was said of it: on a busy machine it may have been slow before."""
        deadline = time.time() + 120
        while not (said := [e for e in events(run) if e["event"] in ("straggler", "recovered") and e["rank"] == 1]) or said[-1]["event"] != kind:
            assert process.poll() is None and time.time() < deadline, (kind, events(run), process.poll() is not None and process.communicate())
            time.sleep(0.01)
        return said[-1]

    wait_for_steps(run, 40, process)
    begun = metrics(run)[-1]["step"]
    with Slowed(process_of(process.pid, 1), 0.6):
        slow = wait_for("straggler")
    assert re.fullmatch(r"rank 1 takes [0-9.]+ ms of computing a step, the others [0-9.]+ ms \(medians of 16 steps\)(; others use .*)?", slow["what"]), slow
    print(f"named after {slow['step'] - begun} steps: {slow['what']}")
    wait_for("recovered")
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0 and slow["what"] in err and "rank 1 is as fast as the others again" in err, err


def nodes_are_lost_come_and_go_and_the_curve_stays(w):
    """Launchers that meet in a folder, a node each. The first is killed with all that runs there; a new one comes; one is asked to go; at last all are."""
    config = w.config("nodes", **{"train.steps": 1000000, "train.batch_size": 12, "train.microbatch_size": 2, "train.threads": 1, "train.reproducible": True,
                               "parallel.zero": 1, "checkpoint.every": 5, "checkpoint.keep": 2})
    run, meeting = w.path / "nodes", w.path / "meeting"

    def start():
        return subprocess.Popen([INGOT, "launch", "-n", "1", "--nodes", "2:3", "--rendezvous", meeting, "--address", "127.0.0.1", "--grace", "5", "--max-restarts", "5", "--",
                                 INGOT, "train", config, "--no-forecast", "--run-dir", run], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})

    def wait_for_nodes(count, times):
        deadline = time.time() + 90
        while len(found := [e for e in events(run) if e["event"] == "nodes" and e["nodes"] == count]) < times:
            for node in nodes:
                assert node.poll() is None and time.time() < deadline, (events(run), [n.communicate() for n in nodes if n.poll() is not None])
            time.sleep(0.02)
        at = metrics(run)[-1]["step"]
        wait_for_steps(run, len(metrics(run)) + 3, nodes[0])
        return found[-1], at

    nodes = [start()]
    deadline = time.time() + 60
    while not (meeting / "node.0").exists():  # it is the first
        assert nodes[0].poll() is None and time.time() < deadline, nodes[0].communicate()
        time.sleep(0.01)
    nodes += [start(), start()]
    wait_for_steps(run, 10, nodes[0])
    first = nodes.pop(0)
    rank = process_of(first.pid, 0)
    for pid in (first.pid, rank):
        os.kill(pid, signal.SIGKILL)
    lost = time.time()
    first.communicate()
    wait_for_nodes(2, 1)
    print(f"without the lost node after {time.time() - lost:.1f} s")
    said = [e["what"] for e in events(run) if e["event"] == "failure"]
    assert len(said) == 1 and re.search("is lost: no sign of life for|exited with status 1|lost another rank: .* has died", said[0]), said
    nodes.append(start())
    wait_for_nodes(3, 1)
    going = nodes.pop(0)
    going.send_signal(signal.SIGTERM)
    _, err = going.communicate(timeout=60)
    assert going.returncode == 0, err
    wait_for_nodes(2, 2)
    for node in nodes:
        node.send_signal(signal.SIGTERM)
    for node in nodes:
        _, err = node.communicate(timeout=60)
        assert node.returncode == 0, err
    curve = losses(run)
    ingot("train", config, "--no-forecast", "--run-dir", w.path / "alone", "--stop-after", len(curve))
    assert losses(w.path / "alone") == curve, (losses(w.path / "alone"), curve)


def a_spare_node_waits_with_the_program_loaded(w):
    """Of three nodes two are wanted. The third one's rank is there before it is needed, in the process that then takes the lost one's place."""
    config = w.config("standby", **{"train.steps": 1000000, "train.batch_size": 12, "train.threads": 1, "train.reproducible": True, "train.microbatch_size": 2, "checkpoint.every": 5, "checkpoint.keep": 2})
    run, meeting = w.path / "standby", w.path / "standby-meeting"
    command = [INGOT, "launch", "-n", "1", "--nodes", "2:2", "--rendezvous", meeting, "--address", "127.0.0.1", "--grace", "5", "--lease", "1", "--max-restarts", "5", "--",
               INGOT, "train", config, "--no-forecast", "--run-dir", run]
    start = lambda: subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    nodes = [start(), start()]
    wait_for_steps(run, 10, nodes[0])
    spare = start()
    deadline = time.time() + 60
    while not (standing := children_of(spare.pid)) or not are_idle(standing):
        assert spare.poll() is None and time.time() < deadline, (standing, spare.poll())
        time.sleep(0.02)
    assert len(standing) == 1, standing
    starts = lambda: sum(e["event"] == "start" for e in events(run))
    newest, started = metrics(run)[-1]["step"], starts()
    for pid in (nodes[1].pid, *children_of(nodes[1].pid)):
        os.kill(pid, signal.SIGKILL)
    lost = time.time()
    while starts() == started or metrics(run)[-1]["step"] <= newest + 1:
        assert spare.poll() is None and time.time() < lost + 60, spare.communicate()
        time.sleep(0.002)
    print(f"the next new step {time.time() - lost:.2f} s after the node was lost, with a lease of 1 s")
    assert children_of(spare.pid) == standing
    nodes[1].communicate()
    for node in (nodes[0], spare):
        node.send_signal(signal.SIGTERM)
    for node in (nodes[0], spare):
        _, err = node.communicate(timeout=60)
        assert node.returncode == 0, err
    curve = losses(run)
    ingot("train", config, "--no-forecast", "--run-dir", w.path / "standby-alone", "--stop-after", len(curve))
    assert losses(w.path / "standby-alone") == curve


def the_same_failure_in_the_same_step_is_not_tried_a_third_time(w):
    config = w.config("again", **{"train.steps": 100, "checkpoint.every": 0, "model.init_std": 0, "model.norm_eps": 0, "resilience.nonfinite": "stop"})
    run = w.path / "again"
    _, err = launch(2, "train", config, "--no-forecast", "--run-dir", run, options=("--max-restarts", "5"), status=1)
    assert re.search(r"not started again: step (\d+) failed twice in the same way", err), err
    happened = troubles(run)
    assert [e["event"] for e in happened] == ["start", "failure", "restart", "start", "failure", "bisected", "gave_up"], happened
    assert [t["passed"] for t in happened[5]["trials"]] == [False] * 3 and "in each of these ways" in happened[5]["what"], happened[5]
    assert happened[1]["step"] == happened[4]["step"] > 0 and any("NaN or Inf" in line for line in happened[1]["last_lines"]), happened


def a_failure_that_goes_with_a_node_is_tried_on_another_and_that_node_left_out(w):
    """Each node reads the data from a disk of its own, and one disk gives other bytes: a failure that neither a restart nor other ranks there get over."""
    config = w.config("own", **{"model.family": "llama", "train.steps": 6, "train.batch_size": 12, "train.threads": 1, "train.reproducible": True, "train.microbatch_size": 2, "checkpoint.every": 0})
    config.write_text(config.read_text().replace(str(w.path / "tokens"), "tokens"))
    run, meeting = w.path / "own", w.path / "own-meeting"
    nodes = []
    for name in ("sound", "damaged"):
        (w.path / name).mkdir()
        for file in w.path.glob("tokens.*"):
            shutil.copy(file, w.path / name)
        if name == "damaged":
            tokens = w.path / name / "tokens.bin"
            tokens.write_bytes(b"\xff" * tokens.stat().st_size)
        nodes.append(subprocess.Popen([INGOT, "launch", "-n", "1", "--nodes", "1:2", "--rendezvous", meeting, "--address", "127.0.0.1", "--grace", "5", "--max-restarts", "5", "--exclusion-list", w.path / "excluded", "--",
                                       INGOT, "train", config, "--no-forecast", "--run-dir", run], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=w.path / name))
    sound, damaged = ([*node.communicate(timeout=200), node.returncode] for node in nodes)
    assert damaged[2] == 3 and sound[2] == 0, (sound, damaged)
    tried = next(e for e in events(run) if e["event"] == "bisected")
    assert [t["trial"] for t in tried["trials"]] == ["as it was, comparing replicas", "each rank on the next node", "in fp32"] and not any(t["passed"] for t in tried["trials"]), tried
    assert "it goes with the node, and not with the data" in tried["what"] and "is left out" in tried["what"], tried
    for err in (sound[1], damaged[1]):
        assert tried["what"] in err, err
    assert sum(e["event"] == "restart" and e["why"] == tried["what"] for e in events(run)) == 1, events(run)
    assert "it goes with the node" in (w.path / "excluded").read_text()
    ingot("train", config, "--no-forecast", "--run-dir", w.path / "own-alone", cwd=w.path / "sound")
    assert losses(w.path / "own-alone") == losses(run)


def a_second_job_on_a_run_directory_is_told_who_has_it(w):
    """Whatever it shares: the directory, or only the folder of checkpoints. When the first one has gone, it may come."""
    config = w.config("shared", **{"train.steps": 100000, "checkpoint.folder": str(w.path / "shared-checkpoints"), "resilience.run_lock_wait_s": 0.2})
    process = subprocess.Popen([INGOT, "train", config, "--no-forecast", "--run-dir", w.path / "shared"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for_steps(w.path / "shared", 2, process)
    for run in (w.path / "shared", w.path / "shared-2"):
        _, err = launch(2, "train", config, "--no-forecast", "--run-dir", run, options=("--max-restarts", "3"), status=2)
        assert f"is in use by process {process.pid} on " in err and "--run-dir" in err and "starting all ranks again" not in err, err
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    ingot("train", config, "--no-forecast", "--run-dir", w.path / "shared", "--stop-after", 5)


def flip_a_bit_of(pid, row):
    """In every copy of these bytes in the process's own memory; how many there are."""
    found = 0
    os.kill(pid, signal.SIGSTOP)
    try:
        with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                span, access, *_ = line.split()
                begin, end = (int(x, 16) for x in span.split("-"))
                if access != "rw-p" or end - begin > 1 << 30:  # shared, or only reserved
                    continue
                try:
                    memory.seek(begin)
                    data = memory.read(end - begin)
                except (OSError, ValueError):  # what the kernel keeps to itself
                    continue
                at = data.find(row)
                while at >= 0:
                    memory.seek(begin + at)
                    memory.write(bytes([row[0] ^ 1]))
                    found += 1
                    at = data.find(row, at + 1)
    finally:
        os.kill(pid, signal.SIGCONT)
    return found


def a_flipped_bit_in_the_memory_of_a_rank_ends_the_run(w):
    """From outside, into a row of the embedding, which a learning rate of 0 leaves as it is; ZeRO's gathers would undo it or bring it to all ranks."""
    config = w.config("flipped", family="llama", **{"train.steps": 1, "optimizer.lr": 0, "checkpoint.every": 1})
    ingot("train", config, "--no-forecast", "--run-dir", w.path / "before")
    ingot("checkpoint", "export-hf", w.path / "before", "-o", w.path / "weights", "--dtype", "fp32")
    raw = (w.path / "weights" / "model.safetensors").read_bytes()
    head = 8 + int.from_bytes(raw[:8], "little")
    begin = head + json.loads(raw[8:head])["model.embed_tokens.weight"]["data_offsets"][0]
    row = raw[begin + 7 * 128:begin + 8 * 128]
    run = w.path / "flipped"
    process = subprocess.Popen([INGOT, "launch", "-n", "3", "--", INGOT, "train", config, "--no-forecast", "--run-dir", run, "--set", "train.steps=100000", "--set", "train.batch_size=6",
                                "--set", "checkpoint.every=0", "--set", "resilience.check_replicas_every=2", "--set", "parallel.zero=0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env=os.environ | {"INGOT_CPU_ALLOCATOR": "system"})  # no pool in a reserve of terabytes
    wait_for_steps(run, 5, process)
    assert flip_a_bit_of(process_of(process.pid, 1), row) > 0, "the row is nowhere in the rank's memory"
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1, (process.returncode, err)
    for words in (r"step \d+: ranks that hold the same weights differ, first in \S*embed\S* \(", "on ranks 0 and 2, ", "against them stands rank 1 on ",
                  r"Copies agreed after step \d+: the run may go on from a checkpoint"):
        assert re.search(words, err), (words, err)
    # With restarts: what was saved with the wrong copy, be it which it may, is not what the run goes on from.
    run = w.path / "flipped-and-on"
    process = subprocess.Popen([INGOT, "launch", "-n", "2", "--max-restarts", "1", "--", INGOT, "train", config, "--no-forecast", "--run-dir", run, "--set", "train.steps=100000",
                                "--set", "train.batch_size=6", "--set", "checkpoint.memory_every=1", "--set", "checkpoint.keep=99", "--set", "resilience.check_replicas_every=30", "--set", "parallel.zero=0"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"INGOT_CPU_ALLOCATOR": "system"})
    wait_for_steps(run, 35, process)
    assert flip_a_bit_of(process_of(process.pid, 0), row) > 0, "the row is nowhere in the rank's memory"
    deadline = time.time() + 60
    while not (found := [e for e in events(run) if e["event"] == "restart"]):
        assert process.poll() is None and time.time() < deadline, process.communicate()
        time.sleep(0.05)
    agreed = int(re.search(r"Copies agreed after step (\d+)", [e for e in events(run) if e["event"] == "failure"][0]["what"] + "".join(e["last_lines"][-1] for e in events(run) if e["event"] == "failure"))[1])
    while not [e for e in events(run) if e["event"] == "start" and e["step"] > 1]:
        assert process.poll() is None and time.time() < deadline, process.communicate()
        time.sleep(0.05)
    assert [e["step"] for e in events(run) if e["event"] == "start"] == [0, agreed], (events(run), agreed)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    ingot("checkpoint", "export-hf", run, "-o", w.path / "weights-after", "--dtype", "fp32")
    assert (w.path / "weights-after" / "model.safetensors").read_bytes() == raw, "the run went on with the wrong bit"


def known_product_row(row, size=256):
    """Of kernels/known_answer.h in fp32, by the formulas there."""
    left = [(row * 7 + k * 11 + row * k % 13) % 17 - 8 for k in range(size)]
    right = lambda k, column: (k * 5 + column * 3 + k * column % 11) % 17 - 8
    return struct.pack(f"<{size}f", *(sum(left[k] * right(k, column) for k in range(size)) for column in range(size)))


def a_machine_that_computes_wrongly_is_left_out(w):
    """What its rank knows of a product is changed, from outside: to the rank the machine multiplies wrongly. The other node goes on, and the list keeps the first one away."""
    config = w.config("wrong", **{"train.steps": 1000000, "train.threads": 1, "train.batch_size": 4, "checkpoint.every": 5, "checkpoint.keep": 2, "resilience.known_answer_every": 3})
    run, meeting = w.path / "wrong", w.path / "wrong-meeting"

    def start(name):
        return subprocess.Popen([INGOT, "launch", "-n", "1", "--nodes", "1:2", "--rendezvous", meeting, "--address", "127.0.0.1", "--max-restarts", "3", "--check-node", "--",
                                 INGOT, "train", config, "--no-forecast", "--run-dir", run], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env=os.environ | {"OMP_NUM_THREADS": "1", "SLURMD_NODENAME": name, "INGOT_CPU_ALLOCATOR": "system"})

    good, bad = start("node-good"), start("node-bad")
    wait_for_steps(run, 5, good)
    rank = int(subprocess.run(["pgrep", "-P", str(bad.pid)], capture_output=True, text=True).stdout)
    assert flip_a_bit_of(rank, known_product_row(5)) > 0, "the product is nowhere in the rank's memory"
    _, err = bad.communicate(timeout=60)
    assert bad.returncode == 3 and re.search(r"computes wrongly, after step \d+: \d+ of 65536 numbers of a product in Float are wrong, the first at \[5, 0\]", err), (bad.returncode, err)
    assert "this node is left out" in err, err
    told = [e for e in events(run) if e["event"] == "excluded"]
    assert len(told) == 1 and told[0]["node"] == "node-bad", events(run)
    assert re.fullmatch(r"node-bad  # \S+: rank \d on \S+ computes wrongly.*\n", (meeting / "excluded").read_text()), (meeting / "excluded").read_text()
    wait_for_steps(run, metrics(run)[-1]["step"] + 5, good)
    again = start("node-bad")
    _, err = again.communicate(timeout=60)
    assert again.returncode == 3 and "has node-bad among the nodes to be without" in err, (again.returncode, err)
    good.send_signal(signal.SIGTERM)
    _, err = good.communicate(timeout=60)
    assert good.returncode == 0, err


def a_job_is_drained_over_http_and_its_events_are_told(w):
    config = w.config("page", **{"train.steps": 1000000, "checkpoint.every": 1000000})
    run, told = w.path / "page", w.path / "told"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([INGOT, "launch", "-n", "2", "--page", f"127.0.0.1:{port}", "--on-event", f"echo \"$INGOT_EVENT\" >>{told}", "--",
                                INGOT, "train", config, "--no-forecast", "--run-dir", run], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for_steps(run, 5, process)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as page:
        text = page.read().decode()
    steps = dict(re.findall(r'^ingot_rank_step\{rank="(\d)"\} (\d+)$', text, re.M))
    assert set(steps) == {"0", "1"} and all(int(s) >= 4 for s in steps.values()) and "ingot_launch_nodes 1" in text, text
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/drain", data=b"", timeout=5) as page:
        assert "save, and end" in page.read().decode()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0 and "asked by 127.0.0.1 to save and end" in err, err
    assert int(max((run / "checkpoints").glob("step_*")).name[5:]) == metrics(run)[-1]["step"]
    assert [json.loads(line)["event"] for line in told.read_text().splitlines()] == [e["event"] for e in events(run)], told.read_text()
    _, err = launch(1, "train", config, "--run-dir", run, options=("--page", "nowhere"), status=2)
    assert "--page nowhere has no port; write HOST:PORT" in err, err


def a_signal_to_the_launcher_saves_and_exits_0(w):
    config = w.config("signal", **{"train.steps": 100000, "checkpoint.every": 50000})
    for number in (signal.SIGINT, signal.SIGTERM):
        run = w.path / f"signal-{number}"
        process = subprocess.Popen([INGOT, "launch", "-n", "2", "--", INGOT, "train", config, "--no-forecast", "--run-dir", run], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        wait_for_steps(run, 3, process)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert len(list((run / "checkpoints").iterdir())) == 1, err


TESTS = [a_killed_rank_is_named_and_the_job_goes_on_bit_equal, survivors_of_a_lost_rank_stay_and_a_spare_takes_its_place, a_run_goes_on_from_the_memory_of_its_machines,
         memory_has_the_next_where_the_newest_on_disk_is_damaged, a_damaged_checkpoint_is_passed_over_by_all_ranks, without_restarts_the_job_ends_within_seconds, a_stopped_rank_is_named_at_the_time_out,
         a_stopped_rank_is_found_by_the_launcher_and_the_job_goes_on_bit_equal, a_slow_rank_is_named_and_so_is_its_recovery, nodes_are_lost_come_and_go_and_the_curve_stays, a_spare_node_waits_with_the_program_loaded,
         the_same_failure_in_the_same_step_is_not_tried_a_third_time,
         a_failure_that_goes_with_a_node_is_tried_on_another_and_that_node_left_out, a_second_job_on_a_run_directory_is_told_who_has_it, a_flipped_bit_in_the_memory_of_a_rank_ends_the_run,
         a_machine_that_computes_wrongly_is_left_out,
         a_job_is_drained_over_http_and_its_events_are_told, a_signal_to_the_launcher_saves_and_exits_0]

if __name__ == "__main__":
    run_chosen(TESTS)
