"""`ingot bench storage` and `ingot bench iteration` as a user calls them."""
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from harness import INGOT, Workspace, expect_error, ingot

ROOT = Path(__file__).resolve().parents[2]
KINDS = {"products", "attention", "linear_attention", "norms", "activations", "embedding", "head", "routing", "recomputation", "gradient_norm",
         "adamw", "muon", "communication", "data", "elementwise", "watching", "unattributed"}


def fresh(w, name):
    folder = w.path / name
    folder.mkdir()
    (folder / "mine").write_text("stays")
    return folder


def expect_untouched(folder):
    assert [p.name for p in folder.iterdir()] == ["mine"] and (folder / "mine").read_text() == "stays", list(folder.iterdir())


def storage_is_measured_and_leaves_nothing(w):
    folder = fresh(w, "storage")
    out = w.path / "storage.json"
    report = json.loads(ingot("bench", "storage", folder, "--size", "16M", "--seconds", 0.05, "--writers", "1,2", "--json", "-o", out)[0])
    expect_untouched(folder)
    assert report["format"] == "ingot storage benchmark" and report["complete"] and report == json.loads(out.read_text())
    rates = report["results"]
    assert {r["operation"] for r in rates} == {"checkpoint_write", "sequential_write", "sequential_read", "random_write", "random_read", "create",
                                               "open_read", "unlink"}
    assert {r["writers"] for r in rates} == {1, 2}
    assert {r["direct"] for r in rates} == ({False} if report["direct_refusal"] else {False, True})
    for r in rates:
        assert r["operations"] > 0 and 0 < r["p50_s"] <= r["p99_s"] and r["seconds"] > 0, r
        assert abs(r["operations_per_s"] - r["operations"] / r["seconds"]) < 1e-6 * r["operations_per_s"], r
    # The folder may be given by a flag or be the present one, and the table is for people.
    text = ingot("bench", "storage", "--quick", "--seconds", 0.01, "--folder", folder)[0]
    assert "sequential write" in text and "p99" in text, text
    assert "random read" in ingot("bench", "storage", "--size", "16M", "--seconds", 0.01, cwd=folder)[0]
    expect_untouched(folder)


def storage_is_judged_by_a_runs_data(w):
    folder = fresh(w, "loading")
    quick = ("--quick", "--seconds", 0.02, "--json")
    # The paper's ZAYA1: 64 MiB, 16,384 pages and 6,554 sigma reads a second at 2.5 s; its data is simulated, four-byte ids by the vocabulary.
    zaya1 = ("--config", ROOT / "configs/zaya1-base.toml", "--set", "data.seq_len=4096", "--set", "train.batch_size=4096", "--step-s", 2.5)
    loading = json.loads(ingot("bench", "storage", folder, *zaya1, *quick)[0])["data_loading"]
    expect_untouched(folder)
    assert loading["simulated"] and loading["token_bytes"] == 4 and loading["batch_size"] == 4096 and loading["seq_len"] == 4096
    rows = loading["by_scatter"]
    assert [row["scatter"] for row in rows] == [1, 2, 4, 8, loading["scatter"]]
    for row in rows:
        assert abs(row["reads_per_iteration"] - 16384 * row["scatter"]) < 1e-6
        assert abs(row["required_reads_per_s"] - 6553.6 * row["scatter"]) < 1e-6
        assert abs(row["break_even_s"] - row["reads_per_iteration"] / loading["reads_per_s"]) < 1e-9
    assert loading["scatter"] == 1.25, loading  # five pages for the four that a sample fills: the last target lies on the next one
    # A run's own data, packed: a sample of 48 two-byte tokens is less than a page and lies on one or more.
    for packing, least in (("stream", 1), ("best_fit", 1)):
        config = w.config("packed_" + packing, **{"data.packing": packing})
        loading = json.loads(ingot("bench", "storage", folder, "--config", config, *quick)[0])["data_loading"]
        assert not loading["simulated"] and loading["token_bytes"] == 2 and loading["samples"] > 100
        assert loading["pages_per_sample"] >= least and loading["scatter"] > 10
        assert (loading["pieces_per_sample"] == 1) == (packing == "stream"), loading
    text = ingot("bench", "storage", folder, *zaya1, "--quick", "--seconds", 0.02)[0]
    assert "this run's" in text and ("storage keeps up" in text or "storage is the limit" in text), text


def an_interrupted_measurement_keeps_what_it_has_and_cleans_up(w):
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        folder = fresh(w, f"interrupted{int(number)}")
        process = subprocess.Popen([INGOT, "bench", "storage", str(folder), "--size", "64M", "--seconds", "0.3", "--json"], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        deadline = time.time() + 60
        while not any(folder.glob("ingot-bench-storage-*/file-*")):
            assert process.poll() is None and time.time() < deadline, process.communicate()
            time.sleep(0.01)
        time.sleep(1)
        process.send_signal(number)
        process.send_signal(number)  # an impatient user
        out, err = process.communicate(timeout=60)
        assert process.returncode == 1, (process.returncode, err)
        report = json.loads(out)
        assert not report["complete"] and report["results"], report
        expect_untouched(folder)


def wrong_calls_say_what_is_wrong(w):
    folder = fresh(w, "wrong")
    bench = ("bench", "storage")
    expect_error(*bench, folder, "--size", "4000G", status=2, words=["free", "smaller --size"])
    expect_error(*bench, folder / "missing", status=2, words=["is not a folder"])
    expect_error(*bench, folder, "--blocks", "1000", status=2, words=["--blocks", "multiple of 4K"])
    expect_error(*bench, folder, "--writers", "0", status=2, words=["--writers"])
    expect_error(*bench, folder, "--size", "many", status=2, words=["--size many"])
    expect_error(*bench, folder, "--size", "1M", status=2, words=["16.0 MiB"])
    expect_error(*bench, folder, "--config", folder / "c.toml", status=1, words=["c.toml"])
    # A limit on the size of files ends it with a message, not by a signal.
    limited = subprocess.run(["bash", "-c", f"ulimit -f 8192; {INGOT} bench storage {folder} --size 64M --writers 1"], capture_output=True, text=True)
    assert limited.returncode == 1 and "File too large" in limited.stderr, limited
    config = w.config("no_data")
    text = config.read_text().replace(str(w.path / "tokens"), str(w.path / "nothing"))
    config.write_text(text)
    expect_error("bench", "iteration", config, status=2, words=["nothing.idx", "--random-data"])
    expect_error("bench", "iteration", config, "--random-data", "--set", "parallel.tensor=2", status=2, words=["parallel"])
    expect_untouched(folder)


def of_kind(report):
    return {entry["kind"]: entry for entry in report["kinds"]}


def check_sums(report):
    kinds = of_kind(report)
    assert set(kinds) == KINDS, set(kinds) ^ KINDS
    for entry in kinds.values():
        assert abs(entry["forward_ms"] + entry["backward_ms"] + entry["rest_ms"] - entry["ms"]) < 1e-6, entry
    assert abs(sum(entry["ms"] for entry in kinds.values()) - report["step_ms"]) < 1e-6 * report["step_ms"]
    assert abs(sum(report["watched_ms"]) / len(report["watched_ms"]) - report["step_ms"]) < 1e-6 * report["step_ms"]
    assert len(report["watched_ms"]) == len(report["plain_ms"]) == report["steps"]
    return kinds


def iterations_of_the_shipped_models_are_attributed(w):
    """The watch knows nearly everything that the configurations in configs/ do."""
    toggles = (("--set", "train.recompute=full"), ("--set", "train.precision=bf16"), ("--set", "optimizer.name=adamw", "--set", "train.microbatch_size=2"))
    for name, extra, also in (("llama-nano", "attention", ()), ("linear-llama-nano", "linear_attention", ()), ("zaya1-nano", "routing", toggles)):
        for more in ((), *also):
            report = json.loads(ingot("bench", "iteration", ROOT / f"configs/{name}.toml", "--random-data", "--steps", 1, "--json", *more)[0])
            kinds = check_sums(report)
            assert kinds["unattributed"]["share"] < 0.05, (name, more, kinds["unattributed"], [o for o in report["operators"] if o["kind"] == "unattributed"][:8])
            for kind in ("products", "norms", "embedding", "head", "gradient_norm", "adamw", extra):
                assert kinds[kind]["ms"] > 0, (name, more, kind)
            assert (kinds["recomputation"]["ms"] > 0) == ("train.recompute=full" in more), (name, more)
            assert (kinds["muon"]["ms"] > 0) == ("optimizer.name=adamw" not in more), (name, more)
            assert kinds["products"]["predicted_ms"] > 0 and kinds["data"]["predicted_ms"] is None
            print(name, *more, f"unattributed {100 * kinds['unattributed']['share']:.2f} %, overhead {100 * report['overhead']:.1f} %", flush=True)


def iterations_take_the_runs_data_and_leave_nothing(w):
    (w.path / "tmp").mkdir()
    config = w.config("iteration")
    text = ingot("bench", "iteration", config, "--steps", 2, env=os.environ | {"TMPDIR": str(w.path / "tmp")})[0]
    assert "products" in text and "unattributed" in text and "watching costs" in text and "routing and dispatch" in text, text
    assert not list((w.path / "tmp").iterdir())
    report = json.loads(ingot("bench", "iteration", config, "--steps", 2, "--set", "train.precision=fp64", "--json")[0])
    kinds = check_sums(report)
    assert kinds["products"]["predicted_ms"] is None and kinds["unattributed"]["share"] < 0.4, kinds  # of a step of some milliseconds


def iterations_of_ranks_say_how_they_differ(w):
    config = w.config("ranks")
    for layout in (("parallel.zero=2",), ("parallel.tensor=2",), ("parallel.pipeline=2", "train.microbatch_size=1")):
        out = ingot("launch", "-n", 2, "--", "ingot", "bench", "iteration", config, "--steps", 2, "--json", *[part for s in layout for part in ("--set", s)])[0]
        report = json.loads(out)
        kinds = check_sums(report)
        assert report["ranks"] == 2 and kinds["communication"]["ms"] > 0, layout
        for entry in kinds.values():
            assert entry["least_rank_ms"] <= entry["ms"] <= entry["most_rank_ms"] + 1e-9, entry
        assert kinds["unattributed"]["share"] < 0.15, (layout, kinds["unattributed"], [o for o in report["operators"] if o["kind"] == "unattributed"][:8])
    out = ingot("launch", "-n", 2, "--", "ingot", "bench", "iteration", config, "--steps", 1)[0]
    assert "all of 2 ranks" in out and out.count("watching costs") == 1, out


if __name__ == "__main__":
    TESTS = (storage_is_measured_and_leaves_nothing, storage_is_judged_by_a_runs_data, an_interrupted_measurement_keeps_what_it_has_and_cleans_up,
             wrong_calls_say_what_is_wrong, iterations_of_the_shipped_models_are_attributed, iterations_take_the_runs_data_and_leave_nothing,
             iterations_of_ranks_say_how_they_differ)
    from harness import run_chosen
    run_chosen(TESTS)
