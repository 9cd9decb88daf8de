"""Ranks under launchers that are not ours, for real: torchrun, Open MPI's mpirun, Slurm's srun on a one-node cluster made here; and
two machines as network namespaces. A launcher that this machine lacks, or may not run, is left out with a word."""
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from harness import INGOT, ingot, json_lines, losses, run_chosen, wait_for_steps

LEFT_OUT = 77  # ctest counts it as skipped
ROOT = Path(__file__).resolve().parents[2]


def leave_out(reason):
    print("left out:", reason)
    sys.exit(LEFT_OUT)


def run(*command, timeout=120, **kw):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=timeout, **kw)
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def reference(w):
    """What two ranks of `ingot launch` give."""
    config = w.config(**{"train.steps": 5, "train.threads": 1, "optimizer.newton_schulz_precision": "own"})
    ingot("launch", "-n", 2, "--", INGOT, "train", config, "--no-forecast", "--run-dir", w.path / "own")
    return config, losses(w.path / "own")


def torchrun_starts_ranks(w):
    torchrun = ROOT / ".deps/venv/bin/torchrun"
    if not torchrun.exists():
        leave_out("no torchrun; scripts/test makes .deps/venv")
    config, expected = reference(w)
    run(torchrun, "--no-python", "--nproc-per-node", 2, "--master-port", 29617, INGOT, "train", config, "--no-forecast", "--run-dir", w.path / "torchrun")
    assert losses(w.path / "torchrun") == expected


def mpirun_starts_ranks(w):
    if not shutil.which("mpirun"):
        leave_out("no mpirun (Debian's openmpi-bin)")
    config, expected = reference(w)
    command = ["mpirun", "--oversubscribe", "-n", "2", INGOT, "train", config, "--no-forecast", "--run-dir", w.path / "mpirun"]
    said = run(*command, env=os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"})
    assert "(mpirun)" in said, said
    assert losses(w.path / "mpirun") == expected


class Slurm:
    """A one-node cluster whose daemons and files live in a folder of ours."""

    def __init__(self, folder):
        self.folder, self.host = Path(folder), socket.gethostname().split(".")[0]

    has_munged = False
    daemons = ()

    def __enter__(self):
        try:
            self.start()
        except (AssertionError, OSError, LookupError) as problem:
            leave_out(f"Slurm does not start here: {problem}")
        return self

    def start(self):
        for name in ("ctl", "d"):
            (self.folder / name).mkdir(parents=True)
        if subprocess.run(["pgrep", "-x", "munged"], capture_output=True).returncode != 0:
            key = Path("/etc/munge/munge.key")
            if not key.exists() or key.stat().st_size == 0:
                key.write_bytes(os.urandom(1024))
                shutil.chown(key, "munge")
                key.chmod(0o400)
            Path("/run/munge").mkdir(exist_ok=True)
            shutil.chown("/run/munge", "munge", "munge")
            run("runuser", "-u", "munge", "--", "munged", "--force")
            self.has_munged = True
        (self.folder / "slurm.conf").write_text(
            f"ClusterName=test\nSlurmctldHost={self.host}(127.0.0.1)\nSlurmUser=root\nSlurmctldPort=16817\nSlurmdPort=16818\nAuthType=auth/munge\n"
            f"StateSaveLocation={self.folder}/ctl\nSlurmdSpoolDir={self.folder}/d\nSlurmctldPidFile={self.folder}/ctl.pid\nSlurmdPidFile={self.folder}/d.pid\n"
            f"SlurmctldLogFile={self.folder}/ctl.log\nSlurmdLogFile={self.folder}/d.log\nProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\n"
            f"SelectType=select/cons_tres\nSelectTypeParameters=CR_Core\nMpiDefault=none\nReturnToService=2\nKillWait=3\n"
            f"NodeName={self.host} NodeAddr=127.0.0.1 CPUs={os.cpu_count()} State=UNKNOWN\nPartitionName=all Nodes={self.host} Default=YES State=UP\n")
        self.environment = os.environ | {"SLURM_CONF": str(self.folder / "slurm.conf")}
        self.daemons = [subprocess.Popen([name, "-D"], env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for name in ("slurmctld", "slurmd")]
        deadline = time.time() + 60
        while "idle" not in subprocess.run(["sinfo", "-h"], env=self.environment, capture_output=True, text=True).stdout:
            if time.time() > deadline:
                self.__exit__()
                leave_out("the Slurm daemons did not come up")
            time.sleep(0.2)

    def __exit__(self, *_):
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in self.daemons:
            try:
                daemon.wait(timeout=5)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        if self.has_munged:  # it is a daemon of its own; the next test must not find it while it ends
            subprocess.run(["pkill", "-x", "munged"])
            deadline = time.time() + 10
            while subprocess.run(["pgrep", "-x", "munged"], capture_output=True).returncode == 0 and time.time() < deadline:
                time.sleep(0.05)


def srun_starts_ranks(w):
    if os.geteuid() != 0 or not all(shutil.which(name) for name in ("slurmctld", "slurmd", "srun", "munged", "runuser")):
        leave_out("no Slurm (Debian's slurmctld, slurmd, slurm-client, munge), or not root")
    if os.cpu_count() < 2:
        leave_out("one core")
    config, expected = reference(w)
    with Slurm(w.path / "slurm") as slurm:
        said = run("srun", "-n", 2, INGOT, "train", config, "--no-forecast", "--run-dir", w.path / "srun", env=slurm.environment)
        assert "(srun)" in said, said
        assert losses(w.path / "srun") == expected
        # A rank that dies ends the step; the survivor names it.
        long = w.config("long", **{"train.steps": 100000, "train.threads": 1, "checkpoint.every": 0})
        job = subprocess.Popen(["srun", "-n", "2", INGOT, "train", long, "--no-forecast", "--run-dir", w.path / "dies"], env=slurm.environment, stderr=subprocess.PIPE, text=True)
        wait_for_steps(w.path / "dies", 2, job)
        ranks = subprocess.run(["pgrep", "-f", f"train {long}"], capture_output=True, text=True).stdout.split()
        victim = next(p for p in ranks if b"SLURM_PROCID=1" in Path(f"/proc/{p}/environ").read_bytes().split(b"\0"))
        os.kill(int(victim), signal.SIGKILL)
        _, err = job.communicate(timeout=60)
        assert job.returncode != 0 and f"rank 1 (process {victim}) has died" in err, err


def a_preempted_slurm_job_goes_back_into_the_queue_and_on(w):
    """configs/slurm/train.sbatch: the signal that Slurm sends before the time is up, and the requeue."""
    if os.geteuid() != 0 or not all(shutil.which(name) for name in ("slurmctld", "slurmd", "sbatch", "munged", "runuser")):
        leave_out("no Slurm (Debian's slurmctld, slurmd, slurm-client, munge), or not root")
    config = w.config("queue", **{"train.steps": 400, "train.threads": 1, "train.batch_size": 8, "checkpoint.every": 100000})
    run_dir, log = w.path / "queue", w.path / "job.log"
    with Slurm(w.path / "slurm") as slurm:
        ask = lambda *command: run(*command, env=slurm.environment | {"INGOT": INGOT, "CONFIG": str(config), "RUN": str(run_dir), "RANKS": "1", "OMP_NUM_THREADS": "1"})
        job = ask("sbatch", "--parsable", "--nodes=1", "-o", log, ROOT / "configs/slurm/train.sbatch").strip()

        def wait_for(condition, what):
            deadline = time.time() + 120
            while not condition():
                assert time.time() < deadline, (what, ask("scontrol", "show", "job", job), log.exists() and log.read_text())
                time.sleep(0.05)

        events = lambda: json_lines(run_dir / "events.jsonl") if (run_dir / "events.jsonl").exists() else []
        steps = lambda: (run_dir / "metrics.jsonl").read_text().count("\n") if (run_dir / "metrics.jsonl").exists() else 0
        wait_for(lambda: steps() > 5, "the job does not begin")
        node = ask("squeue", "-h", "-j", job, "-o", "%N").strip()
        excluded = w.path / "queue-nodes" / "excluded"
        excluded.parent.mkdir(exist_ok=True)  # nodes meet there, and this job has one
        excluded.write_text(f"{node}  # 2026-01-02T03:04:05Z: core 3 computes wrongly\n")
        ask("scancel", "--batch", "--signal=TERM", job)
        wait_for(lambda: "JobState=PENDING" in ask("scontrol", "show", "job", job), "it does not go back into the queue")
        stopped = events()[-1]
        assert stopped["event"] == "end" and stopped["why"] == "stop file" and stopped["step"] < 400, events()
        # What the first script exits with would be taken for the second one's.
        wait_for(lambda: subprocess.run(["pgrep", "-f", rf"slurmstepd: \[{job}\."], capture_output=True).returncode != 0, "its first script does not end")
        wait_for(lambda: f"ExcNodeList={node}\n" in ask("scontrol", "show", "job", job), "the node that is not fit is not left out")
        excluded.unlink()
        ask("scontrol", "update", f"JobId={job}", "ExcNodeList=")  # it is mended
        time.sleep(2)  # in the second of its requeue a job is refused: "credential revoked"
        ask("scontrol", "update", f"JobId={job}", "StartTime=now")  # Slurm waits two minutes after a requeue
        wait_for(lambda: "JobState=COMPLETED" in ask("scontrol", "show", "job", job), "it does not end")
        assert [(e["event"], e["step"]) for e in events()] == [("start", 0), ("end", stopped["step"]), ("start", stopped["step"]), ("end", 400)], events()
    alone = w.path / "queue-alone"
    ingot("train", config, "--no-forecast", "--run-dir", alone)
    assert losses(run_dir) == losses(alone)


# Runs a command where the only name server counts questions and answers none.
IN_A_NETWORK_WITHOUT_ANSWERS = """
import pathlib, socket, subprocess, sys
folder, command = pathlib.Path(sys.argv[1]), sys.argv[2:]
(folder / "resolv.conf").write_text("nameserver 127.0.0.1\\noptions timeout:1 attempts:1\\n")
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
subprocess.run(["mount", "--bind", folder / "resolv.conf", "/etc/resolv.conf"], check=True)
name_server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
name_server.bind(("127.0.0.1", 53))
name_server.setblocking(False)

def questions():
    count = 0
    try:
        while name_server.recv(512): count += 1
    except BlockingIOError:
        return count

try: socket.getaddrinfo("name.invalid", 1)
except socket.gaierror: pass
if questions(): print("ready", flush=True)
status = subprocess.run(command).returncode
print(f"exit status {status}, {questions()} questions")
"""


def ranks_meet_where_no_name_server_answers(w):
    """The store of the rendezvous would ask for the name of each address, for its log: ten seconds each where no answer comes."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "unshare", "mount"))):
        leave_out("not root, or no ip, unshare and mount")
    config = w.config(**{"train.steps": 2, "train.threads": 1})
    done = subprocess.run(["unshare", "-n", "-m", sys.executable, "-c", IN_A_NETWORK_WITHOUT_ANSWERS, w.path, INGOT, "launch", "-n", "2", "--", INGOT, "train", config,
                           "--run-dir", w.path / "run", "--no-forecast"], capture_output=True, text=True, timeout=200)
    if "ready" not in done.stdout:
        leave_out("namespaces are not allowed here: " + done.stderr[-200:])
    assert done.stdout.splitlines()[-1] == "exit status 0, 0 questions", done.stdout + done.stderr
    assert len(losses(w.path / "run")) == 2


class Namespaces:
    """Two machines: network namespaces joined by a virtual link. A sleeper holds each; `ip netns` would need mounts, which a container or chroot may not allow."""
    addresses = ["10.97.31.1", "10.97.31.2"]

    def __enter__(self):
        if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "unshare", "nsenter"))):
            leave_out("not root, or no ip, unshare and nsenter")
        self.machines = [subprocess.Popen(["unshare", "-n", "-u", "sh", "-c", f"hostname node{n} && echo ready && exec sleep 600"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                          text=True) for n in (0, 1)]
        if any(machine.stdout.readline() != "ready\n" for machine in self.machines):
            leave_out("network namespaces are not allowed here")
        run("ip", "link", "add", "ia", "netns", self.machines[0].pid, "type", "veth", "peer", "name", "ib", "netns", self.machines[1].pid)
        for node, (link, address) in enumerate(zip(("ia", "ib"), self.addresses)):
            run(*self.inside(node), "ip", "address", "add", f"{address}/24", "dev", link)
            for device in (link, "lo"):
                run(*self.inside(node), "ip", "link", "set", device, "up")
        return self

    def __exit__(self, *_):
        for machine in self.machines:
            machine.kill()

    def inside(self, node):
        return ["nsenter", "-t", str(self.machines[node].pid), "-n", "-u"]

    def cut(self):
        run(*self.inside(0), "ip", "link", "set", "ia", "down")

    def launch(self, node, *command, options):
        words = [*self.inside(node), INGOT, "launch", "-n", "2", *options, "--", *map(str, command)]
        return subprocess.Popen(list(map(str, words)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def two_machines_as_network_namespaces(w):
    """Launchers in namespaces of their own; ranks communicate over TCP. Then one machine is cut off. Without a forecast, for which each of these machines,
    which are not known, would be measured."""
    with Namespaces() as net:
        def start(node, *command, options=()):
            return net.launch(node, *command, options=("--nodes", 2, "--node-rank", node, "--rendezvous", f"{net.addresses[0]}:29500", *options))

        config = w.config(**{"train.steps": 5, "train.threads": 1, "optimizer.newton_schulz_precision": "own"})
        ingot("launch", "-n", 4, "--", INGOT, "train", config, "--no-forecast", "--run-dir", w.path / "one")
        nodes = [start(node, INGOT, "train", config, "--no-forecast", "--run-dir", w.path / "two") for node in (0, 1)]
        said = [node.communicate(timeout=120)[1] for node in nodes]
        assert [node.returncode for node in nodes] == [0, 0], said
        assert "2 machines, shared memory and Gloo" in said[0], said[0]
        for mine, other in zip(losses(w.path / "one"), losses(w.path / "two")):
            assert all(abs(a - b) <= 1e-5 * max(1, abs(a)) for a, b in zip(mine, other)), (mine, other)

        long = w.config("long", **{"train.steps": 100000, "train.threads": 1, "checkpoint.every": 0, "resilience.comm_timeout_s": 3})
        nodes = [start(node, INGOT, "train", long, "--no-forecast", "--run-dir", w.path / "cut", options=("--grace", "20")) for node in (0, 1)]
        wait_for_steps(w.path / "cut", 2, nodes[0])
        net.cut()
        err = nodes[0].communicate(timeout=90)[1]
        assert nodes[0].returncode == 1 and ("3 s (resilience.comm_timeout_s)" in err or "node 1 (node1) is lost" in err), err
        # Without its launcher, and with the store behind a dead link: the other machine's ranks end as well.
        nodes[1].kill()
        nodes[1].communicate()
        deadline = time.time() + 60
        while subprocess.run(["pgrep", "-f", str(w.path / "cut")], stdout=subprocess.DEVNULL).returncode == 0:
            assert time.time() < deadline, "ranks were left behind"
            time.sleep(0.2)


def a_machine_that_is_lost_with_all_that_runs_there_is_done_without(w):
    """The first one, which rank 0 and the ranks' store are on. No packet says so: its link is dead before its processes are."""
    config = w.config("lost", **{"train.steps": 100000, "train.threads": 1, "train.batch_size": 8, "checkpoint.every": 5})
    with Namespaces() as net:
        run_dir = w.path / "lost"
        nodes = [net.launch(node, INGOT, "train", config, "--no-forecast", "--run-dir", run_dir,
                            options=("--nodes", "1:2", "--rendezvous", w.path / "meeting", "--address", net.addresses[node], "--max-restarts", 3)) for node in (0, 1)]
        wait_for_steps(run_dir, 10, nodes[1])
        net.cut()
        first = json.loads(next((w.path / "meeting").glob("round.*")).read_text())["nodes"][0]["host"]
        lost, stays = (nodes[0], nodes[1]) if first == "node0" else (nodes[1], nodes[0])
        namespace = os.readlink(f"/proc/{lost.pid}/ns/net")
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                if os.readlink(f"/proc/{pid}/ns/net") == namespace and b"ingot" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(int(pid), signal.SIGKILL)
            except OSError:  # it has ended, or is another's
                pass
        since = time.time()
        lost.communicate()
        time.sleep(1)  # nothing writes now: its ranks wait for those that are gone
        wait_for_steps(run_dir, len((run_dir / "metrics.jsonl").read_text().splitlines()) + 1, stays)
        print(f"the next step came {time.time() - since:.1f} s after the loss")
        stays.send_signal(signal.SIGTERM)
        _, err = stays.communicate(timeout=60)
        assert stays.returncode == 0 and "is lost: no sign of life" in err and "round 1: 1 node" in err, err
        events = json_lines(run_dir / "events.jsonl")
        events = [e for e in events if e["event"] not in ("straggler", "recovered")]  # as ranks may be beside other tests
        assert [e["event"] for e in events] == ["start", "failure", "restart", "nodes", "start", "end"], events


def a_machine_that_beats_and_cannot_be_reached_is_left_out(w):
    """The link is cut, the folder where both meet is not: ranks would wait for each other until their deadline, and again after each restart."""
    config = w.config("cut", **{"train.steps": 100000, "train.threads": 1, "train.batch_size": 8, "checkpoint.every": 5})
    with Namespaces() as net:
        run_dir = w.path / "cut"
        nodes = [net.launch(node, INGOT, "train", config, "--no-forecast", "--run-dir", run_dir, options=("--nodes", "1:2", "--rendezvous", w.path / "cut-meeting", "--address", net.addresses[node],
                                                                                                          "--max-restarts", 3, "--lease", 1)) for node in (0, 1)]
        wait_for_steps(run_dir, 10, nodes[1])
        time.sleep(2)  # they have asked each other
        net.cut()
        since = time.time()
        first = json.loads(next((w.path / "cut-meeting").glob("round.*")).read_text())["nodes"][0]["host"]
        leaves, stays = (nodes[1], nodes[0]) if first == "node0" else (nodes[0], nodes[1])
        _, err = leaves.communicate(timeout=60)
        assert leaves.returncode == 3 and "this node is left out: the others do not reach it" in err, (leaves.returncode, err)
        count = len((run_dir / "metrics.jsonl").read_text().splitlines())
        wait_for_steps(run_dir, count + 1, stays)
        print(f"the next step came {time.time() - since:.1f} s after the cut")
        stays.send_signal(signal.SIGTERM)
        _, err = stays.communicate(timeout=60)
        assert stays.returncode == 0 and "is alive, and the network between it and others is cut" in err and "round 1: 1 node" in err, err


TESTS = [torchrun_starts_ranks, mpirun_starts_ranks, srun_starts_ranks, a_preempted_slurm_job_goes_back_into_the_queue_and_on, ranks_meet_where_no_name_server_answers,
         two_machines_as_network_namespaces, a_machine_that_is_lost_with_all_that_runs_there_is_done_without,
         a_machine_that_beats_and_cannot_be_reached_is_left_out]

if __name__ == "__main__":
    run_chosen(TESTS)
