"""Runs that log to a project of Trackio (log.trackio), read by Trackio itself: its command line and its Python interface.

Runs with the Python of .deps/venv: INGOT_BINARY=build/release/ingot .deps/venv/bin/python tests/python/trackio_test.py [CASE...]
"""
import json
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "end_to_end"))
from harness import INGOT, ingot, metrics, run_chosen, wait_for_steps

PROJECT = "trial"


def trackio(folder, *args):
    """What Trackio's command line answers, in JSON."""
    call = [sys.executable, "-m", "trackio.cli", *args, "--project", PROJECT, "--json"]
    done = subprocess.run(call, env=os.environ | {"TRACKIO_DIR": str(folder)}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, (args, done.stdout, done.stderr)
    return json.loads(done.stdout)


def python(folder, code):
    """What a program that uses Trackio prints."""
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | {"TRACKIO_DIR": str(folder)}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def history(folder, run, name):
    """(step, value) of each row, in Trackio's order."""
    return [(row["step"], row["value"]) for row in trackio(folder, "get", "metric", "--run", run, "--metric", name)["values"]]


def configured(w, folder, **settings):
    return w.config("trackio", **{"log.trackio": PROJECT, "log.trackio_folder": str(folder), "train.validation_every": 4,
                                  "train.validation_batches": 1} | settings)


def trackio_shows_what_the_run_directory_holds(w):
    folder = w.path / "shown-projects"
    ingot("train", configured(w, folder), "--no-forecast", "--run-dir", w.path / "a-run")
    assert [run["name"] if isinstance(run, dict) else run for run in trackio(folder, "list", "runs")["runs"]] == ["a-run"]
    lines = metrics(w.path / "a-run")
    for name, field in {"train/loss": "loss", "train/validation_loss": "validation_loss", "speed/step_ms": "step_ms"}.items():
        assert history(folder, "a-run", name) == [(m["step"], m[field]) for m in lines if field in m], name
    config = json.loads(python(folder, f"import json, trackio; print(json.dumps(trackio.Api().runs({PROJECT!r})[0].config))"))
    settings = tomllib.loads((w.path / "a-run" / "config.toml").read_text())
    for group, name in (("train", "steps"), ("train", "precision"), ("model", "family"), ("optimizer", "lr"), ("log", "tensorboard")):
        assert config[f"{group}.{name}"] == settings[group][name], (group, name)


def a_killed_run_goes_on_with_each_step_once(w):
    folder, run = w.path / "killed-projects", w.path / "killed"
    config = configured(w, folder, **{"train.steps": 40, "log.trackio_run": "the one"})
    process = subprocess.Popen([INGOT, "train", str(config), "--no-forecast", "--run-dir", str(run)], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    wait_for_steps(run, 20, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    # Trackio looks while the run is dead, and leaves its own tables behind.
    assert len(history(folder, "the one", "train/loss")) >= 10
    ingot("train", config, "--no-forecast", "--run-dir", run)
    assert history(folder, "the one", "train/loss") == [(m["step"], m["loss"]) for m in metrics(run)]


def runs_of_trackios_own_stand_beside(w):
    folder = w.path / "shared-projects"
    own = (f"import trackio; trackio.init(project={PROJECT!r}, name='by hand', config={{'a': 1}})\n"
           "for step in range(1, 4): trackio.log({'train/loss': 1.0 / step}, step=step)\n"
           "trackio.finish()")
    python(folder, own)
    ingot("train", configured(w, folder), "--no-forecast", "--run-dir", w.path / "beside")
    python(folder, own.replace("by hand", "later"))
    ingot("train", configured(w, folder), "--no-forecast", "--run-dir", w.path / "beside", "--set", "train.steps=16")
    for run in ("by hand", "later"):
        assert history(folder, run, "train/loss") == [(1, 1.0), (2, 0.5), (3, 1 / 3)], run
    assert [step for step, _ in history(folder, "beside", "train/loss")] == list(range(1, 17))


TESTS = [trackio_shows_what_the_run_directory_holds, a_killed_run_goes_on_with_each_step_once, runs_of_trackios_own_stand_beside]

if __name__ == "__main__":
    run_chosen(TESTS)
