"""Runs that log to MLflow's own server (log.mlflow): it holds what the run directory says, over restarts, kills and the server's death.

Of ./scripts/test --night, which installs the server into .deps/mlflow. Alone:
INGOT_NIGHT=1 INGOT_BINARY=build/release/ingot python3 tests/python/mlflow_server_test.py [CASE...]
"""
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "end_to_end"))
from harness import INGOT, ingot, metrics, run_chosen, wait_for_steps

MLFLOW = Path(__file__).resolve().parents[2] / ".deps" / "mlflow" / "bin" / "mlflow"
# MLflow's names of the fields of metrics.jsonl (docs/run-directory.md).
FIELDS = {"train/loss": "loss", "train/grad_norm": "grad_norm", "train/lr": "lr", "train/tokens": "tokens",
          "train/validation_loss": "validation_loss", "speed/step_ms": "step_ms", "speed/tokens_per_s": "tokens_per_s",
          "speed/tflops": "tflops", "speed/mfu": "mfu", "speed/comm_bytes": "comm_bytes", "memory/memory_peak_bytes": "memory_peak_bytes"}
TIMEOUT_S = 5


class Server:
    """MLflow's server over a database in `folder`; another start goes on with it."""

    def __init__(self, folder):
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.kill()

    def start(self):
        self.folder.mkdir(exist_ok=True)
        call = [MLFLOW, "server", "--backend-store-uri", f"sqlite:///{self.folder}/runs.db", "--host", "127.0.0.1", "--port", str(self.port),
                "--default-artifact-root", self.folder / "artifacts", "--workers", "1"]
        environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
        with open(self.folder / "server.txt", "a") as log:
            self.process = subprocess.Popen(call, stdout=log, stderr=log, start_new_session=True, env=environment)
        deadline = time.time() + 120
        while True:
            assert self.process.poll() is None and time.time() < deadline, (self.folder / "server.txt").read_text()[-3000:]
            try:
                with urllib.request.urlopen(self.url + "/health", timeout=5):
                    return
            except OSError:
                time.sleep(0.1)

    def signal(self, number):
        os.killpg(self.process.pid, number)

    def kill(self):
        if self.process.poll() is None:
            self.signal(signal.SIGKILL)
            self.process.wait()

    def ask(self, path, body=None, **query):
        request = urllib.request.Request(f"{self.url}/api/2.0/mlflow/{path}?{urllib.parse.urlencode(query)}",
                                         headers={"Content-Type": "application/json"}, data=None if body is None else json.dumps(body).encode())
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as failure:
            raise AssertionError(f"{path}: {failure.code} {failure.read()}") from failure

    def run(self, experiment):
        """The experiment's only run: (id, status, parameters)."""
        number = self.ask("experiments/get-by-name", experiment_name=experiment)["experiment"]["experiment_id"]
        [run] = self.ask("runs/search", {"experiment_ids": [number], "max_results": 100})["runs"]
        return run["info"]["run_id"], run["info"]["status"], {p["key"]: p["value"] for p in run["data"]["params"]}

    def history(self, run_id, name):
        """(step, value, timestamp) in the order in which they came."""
        answer = self.ask("metrics/get-history", run_id=run_id, metric_key=name, max_results=20000)
        return [(m["step"], m["value"], m["timestamp"]) for m in answer.get("metrics", [])]


def configured(w, server, experiment, **settings):
    return w.config("mlflow", **{"log.mlflow": server.url, "log.mlflow_experiment": experiment, "log.mlflow_timeout_s": TIMEOUT_S,
                                   "train.validation_every": 4, "train.validation_batches": 1} | settings)


def start(*args):
    return subprocess.Popen([INGOT, *map(str, args)], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def warnings(said):
    return [line for line in said.splitlines() if re.match(r"[0-9:]+ W ", line)]


def settings_of(run):
    """What MLflow should hold of config.toml, as MLflow's texts."""
    def flat(table, prefix=""):
        for key, value in table.items():
            if isinstance(value, dict):
                yield from flat(value, prefix + key + ".")
            elif isinstance(value, list) and value and isinstance(value[0], dict):
                for i, element in enumerate(value):
                    yield from flat(element, f"{prefix}{key}.{i}.")
            else:
                yield prefix + key, value
    return dict(flat(tomllib.loads((run / "config.toml").read_text())))


def is_value(text, value):
    if isinstance(value, str):
        return text == value
    return text == json.dumps(value) if isinstance(value, bool) else text == str(value) or tomllib.loads(f"v = {text}")["v"] == value


def check_metrics(server, run_id, run, redone=0):
    """Every number of every step is MLflow's last of that step; `redone` steps may stand there twice."""
    for name, field in FIELDS.items():
        history = server.history(run_id, name)
        expected = {m["step"]: m[field] for m in metrics(run) if field in m}
        assert {step: value for step, value, _ in sorted(history, key=lambda m: m[2])} == expected, (name, history, expected)
        assert len(expected) <= len(history) <= len(expected) + redone, (name, len(history), len(expected))
    times = {m["step"]: m["time_s"] for m in metrics(run)}
    assert all(abs(stamp / 1000 - times[step]) < 0.002 for step, _, stamp in server.history(run_id, "train/loss")[-3:])


def a_run_is_on_the_server_as_in_its_own_files(w):
    with Server(w.path / "whole-server") as server:
        run = w.path / "whole"
        ingot("train", configured(w, server, "whole run: é/1", **{"log.mlflow_run": "the first"}), "--run-dir", run)
        run_id, status, params = server.run("whole run: é/1")
        assert status == "FINISHED", status
        assert json.loads((run / "mlflow.json").read_text())["run_id"] == run_id
        assert server.ask("runs/get", run_id=run_id)["run"]["info"]["run_name"] == "the first"
        check_metrics(server, run_id, run)
        expected = settings_of(run)
        assert len(expected) > 100 and set(params) == set(expected), set(params) ^ set(expected)
        wrong = {name: (params[name], value) for name, value in expected.items() if not is_value(params[name], value)}
        assert not wrong, wrong


def a_resumed_run_shows_changed_settings_beside_the_first(w):
    with Server(w.path / "resumed-server") as server:
        run, config = w.path / "resumed", configured(w, server, "resumed")
        ingot("train", config, "--run-dir", run)
        first = server.run("resumed")
        # Regression: MLflow refuses a parameter that changes, and up to 99 others of its batch were lost with it.
        _, said = ingot("train", config, "--run-dir", run, "--set", "train.steps=16", "--set", "log.every=2")
        assert not any("MLflow" in warning for warning in warnings(said)), warnings(said)
        run_id, status, params = server.run("resumed")
        assert (run_id, status) == (first[0], "FINISHED")
        changed = {name: value for name, value in params.items() if name not in first[2]}
        assert changed["train.steps.value_2"] == "16" and changed["log.every.value_2"] == "2" and params["train.steps"] == "12", changed
        assert all(name.endswith(".value_2") for name in changed), changed
        check_metrics(server, run_id, run)
        assert [step for step, *_ in server.history(run_id, "train/loss")] == list(range(1, 17))


def a_killed_run_goes_on_as_the_same_one(w):
    with Server(w.path / "killed-server") as server:
        run, config = w.path / "killed", configured(w, server, "killed", **{"train.steps": 40})
        process = start("train", config, "--run-dir", run)
        wait_for_steps(run, 20, process)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        run_id, status, params = server.run("killed")
        assert status == "RUNNING", status
        ingot("train", config, "--run-dir", run)
        assert server.run("killed") == (run_id, "FINISHED", params)
        steps = [step for step, *_ in server.history(run_id, "train/loss")]
        # What was on its way at the kill is lost to MLflow unless those steps are done again.
        assert set(range(1, 11)) | set(range(21, 41)) <= set(steps), steps
        last = {step: value for step, value, _ in server.history(run_id, "train/loss")}
        assert all(last[m["step"]] == m["loss"] for m in metrics(run) if m["step"] in last)


def a_dead_server_costs_a_run_its_metrics_there_and_nothing_else(w):
    with Server(w.path / "dead-server") as server:
        run, config = w.path / "dead", configured(w, server, "dead", **{"train.steps": 150, "checkpoint.every": 50})
        process = start("train", config, "--run-dir", run)
        wait_for_steps(run, 10, process)
        server.kill()
        _, said = process.communicate(timeout=300)
        assert process.returncode == 0, said[-3000:]
        at_once, at_last = [warning for warning in warnings(said) if "MLflow" in warning]
        assert re.search("no answer: .*; the run goes on, these metrics are lost to it", at_once), warnings(said)
        assert "steps were not delivered" in at_last, warnings(said)
        assert [m["step"] for m in metrics(run)] == list(range(1, 151))
        # The same run goes on when the server is back.
        server.start()
        run_id, status, _ = server.run("dead")
        assert status == "RUNNING", status
        ingot("train", config, "--run-dir", run, "--set", "train.steps=160")
        assert server.run("dead")[:2] == (run_id, "FINISHED")
        assert {step for step, *_ in server.history(run_id, "train/loss")} >= set(range(151, 161))


def a_server_that_hangs_does_not_hold_the_run_beyond_the_time_out(w):
    with Server(w.path / "hung-server") as server:
        run, config = w.path / "hung", configured(w, server, "hung", **{"train.steps": 60, "checkpoint.every": 0})
        process = start("train", config, "--run-dir", run)
        wait_for_steps(run, 10, process)
        server.signal(signal.SIGSTOP)
        wait_for_steps(run, 60, process)
        ended = time.time()
        _, said = process.communicate(timeout=300)
        took = time.time() - ended
        server.signal(signal.SIGCONT)
        assert process.returncode == 0 and any("steps were not delivered" in warning for warning in warnings(said)), said[-3000:]
        # A request that is on its way when training ends, and then what is left: the time-out each.
        assert took < 2 * TIMEOUT_S + 10, took


TESTS = [a_run_is_on_the_server_as_in_its_own_files, a_resumed_run_shows_changed_settings_beside_the_first,
         a_killed_run_goes_on_as_the_same_one, a_dead_server_costs_a_run_its_metrics_there_and_nothing_else,
         a_server_that_hangs_does_not_hold_the_run_beyond_the_time_out]

if __name__ == "__main__":
    if not os.environ.get("INGOT_NIGHT") or not MLFLOW.exists():
        print("of ./scripts/test --night, which installs MLflow")
        sys.exit(77)
    run_chosen(TESTS)
