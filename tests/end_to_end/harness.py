"""What the end-to-end tests share: running the program as a user would, and a small text to train on. Standard library only."""
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

INGOT = os.environ.get("INGOT_BINARY") or sys.exit("INGOT_BINARY is not set")


def at_night():
    """Whether the long versions of tests are wanted (scripts/test --night)."""
    return bool(os.environ.get("INGOT_NIGHT"))


def ingot(*args, status=0, timeout=300, **kw):
    """Runs the program, asserts its exit status and returns (stdout, stderr)."""
    done = subprocess.run([INGOT, *map(str, args)], capture_output=True, text=True, timeout=timeout, **kw)
    assert done.returncode == status, f"ingot {' '.join(map(str, args))}: status {done.returncode}, not {status}\n{done.stdout}\n{done.stderr}"
    return done.stdout, done.stderr


def launch(ranks, *args, options=(), status=0, timeout=300):
    """The same over several ranks of this machine; `options` are the launcher's."""
    return ingot("launch", "-n", ranks, *options, "--", INGOT, *args, status=status, timeout=timeout)


def close(a, b, tolerance):
    """Two curves, point by point."""
    assert len(a) == len(b), (len(a), len(b))
    for left, right in zip(a, b):
        for x, y in zip(left, right):
            assert abs(x - y) <= tolerance * max(1, abs(x)), (left, right)


def expect_error(*args, status, words):
    """The call fails with this status and its message holds every one of the words."""
    _, err = ingot(*args, status=status)
    for word in words:
        assert word in err, f"ingot {' '.join(map(str, args))}: '{word}' is not in the message:\n{err}"
    assert "Exception raised from" not in err and "terminate called" not in err, err
    return err


def make_text(path, paragraphs=400, seed=1):
    """English-like text with structure worth learning; the same for the same arguments."""
    rng = random.Random(seed)
    names = "Anna Ben Clara David Eva Frank Greta Henry Iris Jonas Karla Leo Mina Nils Olga Paul Quinn Rosa Simon Tilda Ulrich Vera Walter".split()
    verbs = "sees takes makes finds loves sells buys carries paints breaks hides mends washes brings borrows steals follows measures".split()
    things = "bread light stone water gold wood bottle candle mirror window ladder hammer kitchen garden mountain river forest picture".split()
    with open(path, "w", encoding="utf-8") as file:
        for _ in range(paragraphs):
            for _ in range(rng.randint(2, 6)):
                file.write(f"{rng.choice(names)} {rng.choice(verbs)} the {rng.choice(things)} and {rng.choice(verbs)} the {rng.choice(things)}. ")
            file.write("\n\n")


def end_processes_of(parent):
    """What a failed test has started and not ended would run on beside the tests after it. Parents first: launchers restart their ranks."""
    for pid in map(int, subprocess.run(["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True).stdout.split()):
        try:
            os.kill(pid, signal.SIGSTOP)
            end_processes_of(pid)
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:  # ps itself, or it has just ended
            pass


class Workspace:
    """A temporary folder with a tokenizer and tokens; removed at the end unless a test failed."""

    def __init__(self):
        self.path = Path(tempfile.mkdtemp(prefix="ingot_e2e_"))

    def __enter__(self):
        make_text(self.path / "text.txt")
        ingot("data", "train-tokenizer", self.path / "text.txt", "-o", self.path / "tokenizer", "--vocab-size", 384)
        ingot("data", "tokenize", self.path / "text.txt", "-o", self.path / "tokens", "--tokenizer", self.path / "tokenizer")
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            shutil.rmtree(self.path, ignore_errors=True)
        else:
            print("left:", self.path)
            end_processes_of(os.getpid())

    def config(self, name="c", family="zaya1", extra="", **settings):
        """Writes a configuration of a tiny model and returns its path."""
        values = {"model.family": family, "model.layers": 2, "model.hidden": 32, "model.vocab_size": 384, "model.heads": 4, "model.kv_heads": 2,
                  "model.head_dim": 8, "model.ffn": 48, "model.experts": 4, "model.expert_ffn": 24, "model.router_hidden": 16,
                  "data.seq_len": 48, "data.tokenizer": str(self.path / "tokenizer"), "data.validation_fraction": 0.1, "train.steps": 12,
                  "train.batch_size": 4, "optimizer.warmup_steps": 2, "checkpoint.every": 3, "checkpoint.keep": 3, "log.tensorboard": False} | settings
        groups = {}
        for key, value in values.items():
            group, _, leaf = key.partition(".")
            groups.setdefault(group, []).append(f"{leaf} = {json.dumps(value)}")
        text = "".join(f"[{group}]\n" + "\n".join(lines) + "\n" for group, lines in groups.items())
        text += f"[[data.sources]]\npath = {json.dumps(str(self.path / 'tokens'))}\n" + extra
        path = self.path / f"{name}.toml"
        path.write_text(text)
        return path


def cache_with_what_was_measured(folder):
    """A cache of the test's own, in `folder`, with what tests/measure_this_machine_first has measured of one rank."""
    measured, cache = Path(os.environ.get("INGOT_CACHE", folder)), Path(folder) / "cache"
    cache.mkdir()
    for path in measured.glob(f"profile-*-{os.cpu_count()}.json"):
        shutil.copy(path, cache)
    keep_profiles(cache)
    return cache


def keep_profiles(cache):
    """What was measured beside another test would be measured anew as soon as the machine is idle: predictions would change between two calls."""
    for path in cache.glob("profile-*.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"foreign_load": 0}))


def json_lines(path, patience_s=2):
    """A run may be at work on the file: a line that is being written, or cut away by a restart as it is read, is read again."""
    deadline = time.time() + patience_s
    while True:
        try:
            return [json.loads(line) for line in Path(path).read_text().splitlines()]
        except json.JSONDecodeError as broken:
            if time.time() > deadline:
                raise AssertionError(f"{path} stays unreadable: {broken} in {broken.doc[:80]!r}")
            time.sleep(0.005)


def metrics(run_dir):
    return json_lines(Path(run_dir) / "metrics.jsonl")


def events(run_dir):
    return json_lines(Path(run_dir) / "events.jsonl")


def losses(run_dir):
    """(step, loss, gradient norm) of every step, exact."""
    return [(m["step"], m["loss"], m["grad_norm"]) for m in metrics(run_dir)]


def wait_for_steps(run_dir, steps, process, limit=300):
    """Until that many steps stand in the metrics; the process must not end before. One that is late is ended, and says what it was at."""
    path, deadline = Path(run_dir) / "metrics.jsonl", time.time() + limit
    while True:
        ended = process.poll() is not None  # asked first: the last steps may be written and the process end in between
        if path.exists() and path.read_text().count("\n") >= steps:
            return
        assert not ended, process.communicate()
        if time.time() > deadline:
            process.kill()
            raise AssertionError(f"step {steps} did not come within {limit} s: {process.communicate()}")
        time.sleep(0.005)


def chosen_of(tests):
    if unknown := set(sys.argv[1:]) - {t.__name__ for t in tests}:
        sys.exit(f"no test here is called {', '.join(sorted(unknown))}")
    return [t for t in tests if t.__name__ in sys.argv[1:]] or tests


def run_chosen(tests):
    """Runs the tests named on the command line, or all, in one workspace."""
    chosen = chosen_of(tests)
    with Workspace() as workspace:
        for test in chosen:
            started = time.time()
            test(workspace)
            print(f"ok {test.__name__} ({time.time() - started:.1f} s)", flush=True)


def run_chosen_in_scratch(tests):
    """Runs the tests named on the command line, or all, each in an empty folder of its own, whose path it gets."""
    for test in chosen_of(tests):
        started = time.time()
        with tempfile.TemporaryDirectory() as scratch:
            os.chdir(scratch)
            test(scratch)
            os.chdir("/")
        print(f"ok {test.__name__} ({time.time() - started:.1f} s)", flush=True)
