"""ingot sweep: grids, halving, being killed, and what it says of wrong files."""
import json
import os
import signal
import subprocess
import time

from harness import INGOT, expect_error, ingot, json_lines, metrics, run_chosen


def definition(w, config, name="s", extra="", **values):
    """Writes a sweep's file over learning rates and returns its path."""
    values = {"config": str(config), "at_once": 2, "threads": 1} | values
    text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
    path = w.path / f"{name}.toml"
    path.write_text(text + (extra or '[[settings]]\nname = "optimizer.lr"\nvalues = ["1e-4", "3e-3", "1e-2"]\n'))
    return path


def results(folder):
    return json_lines(folder / "sweep.jsonl")[1:]


def a_grid_is_run_and_ranked(w):
    config = w.config(**{"train.validation_every": 6, "train.validation_batches": 2})
    file = definition(w, config, extra='[[settings]]\nname = "optimizer.lr"\nlow = 1e-4\nhigh = 1e-2\npoints = 2\n'
                                       '[[settings]]\nname = "optimizer.name"\nvalues = ["muon", "adamw"]\n')
    listed, _ = ingot("sweep", file, "--dry-run")
    assert listed.count("optimizer.name=adamw") == 2 and not (w.path / "sweeps").exists(), listed
    out, err = ingot("sweep", file, "--dir", w.path / "sweep", "--json")
    report = json.loads(out)
    assert [t["result"]["status"] for t in report["trials"]] == ["done"] * 4, report
    for trial in report["trials"]:
        run = w.path / "sweep" / "runs" / trial["trial"]
        last = metrics(run)[-1]
        assert last["step"] == 12 and last["validation_loss"] == trial["result"]["metric"], (last, trial)
        assert last["lr"] > 0 and last["predicted_step_ms"] == 0 and not (run / "checkpoints").exists()
    best = min(report["trials"], key=lambda t: t["result"]["metric"])
    assert report["best"] == best["trial"] and best["settings"]["optimizer.lr"] == "0.01", report
    page = (w.path / "sweep" / "report.html").read_text()
    assert all(word in page for word in ("Parallel coordinates", "optimizer.lr", f"The best is {best['trial']}", "<polyline"))
    assert "cores for" in err
    # A run alone gives the same numbers.
    ingot("train", config, "--run-dir", w.path / "alone", "--set", "train.threads=1", "--set", "checkpoint.every=0",
          *(arg for key, value in best["settings"].items() for arg in ("--set", f"{key}={value}")), "--no-forecast")
    assert metrics(w.path / "alone")[-1]["validation_loss"] == best["result"]["metric"]
    ingot("report", w.path / "sweep", "-o", w.path / "again.html")
    assert "Parallel coordinates" in (w.path / "again.html").read_text()
    # What is done is not done again; another sweep does not go into the same folder.
    before = results(w.path / "sweep")
    ingot("sweep", file, "--dir", w.path / "sweep")
    assert results(w.path / "sweep") == before
    expect_error("sweep", definition(w, config, name="other"), "--dir", w.path / "sweep", status=2, words=["another sweep", "--dir"])


def halving_lets_the_best_go_on_with_the_numbers_of_whole_runs(w):
    config = w.config(**{"train.steps": 12})
    rates = '[[settings]]\nname = "optimizer.lr"\nvalues = ["1e-5", "1e-4", "3e-3", "1e-2"]\n'
    whole = definition(w, config, name="whole", extra=rates, metric="loss", average=3, keep_checkpoints=True)
    ingot("sweep", whole, "--dir", w.path / "whole")
    assert all((w.path / "whole" / "runs" / f"00{i}" / "checkpoints" / "step_00000012").exists() for i in range(4))
    halved = definition(w, config, name="halved", extra=rates, metric="loss", average=3, rungs=["3", "6"], keep=0.5)
    ingot("sweep", halved, "--dir", w.path / "halved")
    steps = {r["trial"]: r["step"] for r in results(w.path / "halved")}
    assert sorted(steps.values()) == [3, 3, 6, 12], steps
    best = max(steps, key=steps.get)
    assert [(m["step"], m["loss"]) for m in metrics(w.path / "halved" / "runs" / best)] == \
        [(m["step"], m["loss"]) for m in metrics(w.path / "whole" / "runs" / best)]
    assert not list((w.path / "halved" / "runs").glob("*/checkpoints")), "what does not go on keeps no checkpoints"


def a_killed_sweep_goes_on(w):
    config = w.config(**{"train.steps": 30})
    file = definition(w, config, metric="loss", extra='[[settings]]\nname = "train.seed"\nvalues = ["1", "2", "3", "4", "5", "6"]\n')
    expected = w.path / "expected"
    ingot("sweep", file, "--dir", expected)
    for how in (signal.SIGKILL, signal.SIGTERM):
        folder = w.path / how.name
        process = subprocess.Popen([INGOT, "sweep", str(file), "--dir", str(folder)], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        deadline = time.time() + 120
        while not (folder / "sweep.jsonl").exists() or len(results(folder)) < 2:
            assert process.poll() is None and time.time() < deadline, process.communicate()
            time.sleep(0.01)
        process.send_signal(how)
        _, err = process.communicate(timeout=60)
        assert (process.returncode == 0 and "the same command goes on" in err) if how == signal.SIGTERM else process.returncode == -9, (process.returncode, err)
        done = results(folder)
        assert len(done) < 6, done
        with open(folder / "sweep.jsonl", "a") as file_:
            file_.write('{"trial": "0')  # torn
        ingot("sweep", file, "--dir", folder)
        lines = [json.loads(line) for line in (folder / "sweep.jsonl").read_text().splitlines() if line != '{"trial": "0'][1:]
        assert lines[:len(done)] == done
        assert {r["trial"]: r["metric"] for r in lines} == {r["trial"]: r["metric"] for r in results(expected)}


def what_goes_wrong_is_said(w):
    config = w.config()
    expect_error("sweep", w.path / "none.toml", status=2, words=["none.toml", "does not exist"])
    expect_error("sweep", definition(w, config, metric="validation_loss"), "--dir", w.path / "a", status=2, words=["does not validate", "train.validation_every"])
    wrong = '[[settings]]\nname = "optimizer.lrr"\nvalues = ["1"]\n'
    expect_error("sweep", definition(w, config, metric="loss", extra=wrong), status=2, words=["optimizer.lrr", "optimizer.lr"])
    expect_error("sweep", definition(w, config, metric="loss", rungs=["20"]), status=2, words=["rungs has '20'"])
    assert not (w.path / "a").exists()
    # One that diverges or fails is named; the others go on.
    nan = '[[settings]]\nname = "optimizer.lr"\nvalues = ["1e-3", "10"]\n'
    diverging = definition(w, config, metric="loss", extra=nan, set=["model.init_std=10", "resilience.nonfinite=stop", "optimizer.clip=0", "optimizer.name=adamw"])
    ingot("sweep", diverging, "--dir", w.path / "nan")
    ranks = '[[settings]]\nname = "parallel.zero"\nvalues = ["0", "1"]\n'
    ingot("sweep", definition(w, config, metric="loss", ranks=2, at_once=1, extra=ranks), "--dir", w.path / "ranks")
    assert [r["status"] for r in results(w.path / "ranks")] == ["done", "done"]


TESTS = [a_grid_is_run_and_ranked, halving_lets_the_best_go_on_with_the_numbers_of_whole_runs, a_killed_sweep_goes_on, what_goes_wrong_is_said]

if __name__ == "__main__":
    run_chosen(TESTS)
