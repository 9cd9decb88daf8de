"""`ingot bench gemm`, `attention`, `memory`, `storage` and `iteration` as a user calls them."""
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from harness import INGOT, Workspace, cache_with_what_was_measured, expect_error, ingot

ROOT = Path(__file__).resolve().parents[2]
KINDS = {"matmul", "attention", "linear_attention", "norms", "activations", "embedding", "head", "routing", "recomputation", "gradient_norm",
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
        process = subprocess.Popen([INGOT, "bench", "storage", str(folder), "--size", "512M", "--seconds", "1", "--json"], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        deadline = time.time() + 60
        while not any(folder.glob("ingot-bench-storage-*/file-*")):
            assert process.poll() is None and time.time() < deadline, process.communicate()
            time.sleep(0.01)
        time.sleep(0.5)
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
            for kind in ("matmul", "norms", "embedding", "head", "gradient_norm", "adamw", extra):
                assert kinds[kind]["ms"] > 0, (name, more, kind)
            assert (kinds["recomputation"]["ms"] > 0) == ("train.recompute=full" in more), (name, more)
            assert (kinds["muon"]["ms"] > 0) == ("optimizer.name=adamw" not in more), (name, more)
            assert kinds["matmul"]["predicted_ms"] > 0 and kinds["data"]["predicted_ms"] is None
            print(name, *more, f"unattributed {100 * kinds['unattributed']['share']:.2f} %, overhead {100 * report['overhead']:.1f} %", flush=True)


def iterations_take_the_runs_data_and_leave_nothing(w):
    (w.path / "tmp").mkdir()
    config = w.config("iteration")
    text = ingot("bench", "iteration", config, "--steps", 2, env=os.environ | {"TMPDIR": str(w.path / "tmp")})[0]
    assert "matmul" in text and "unattributed" in text and "watching costs" in text and "routing and dispatch" in text, text
    assert not list((w.path / "tmp").iterdir())
    report = json.loads(ingot("bench", "iteration", config, "--steps", 2, "--set", "train.precision=fp64", "--json")[0])
    kinds = check_sums(report)
    assert kinds["matmul"]["predicted_ms"] is None and kinds["unattributed"]["share"] < 0.4, kinds  # of a step of some milliseconds


def iterations_of_ranks_say_how_they_differ(w):
    config = w.config("ranks")
    for layout in (("parallel.zero=2",), ("parallel.tensor=2",), ("parallel.pipeline=2", "train.microbatch_size=1")):
        out = ingot("launch", "-n", 2, "--", "ingot", "bench", "iteration", config, "--steps", 2, "--json", *[part for s in layout for part in ("--set", s)])[0]
        report = json.loads(out)
        kinds = check_sums(report)
        assert report["ranks"] == 2 and kinds["communication"]["ms"] > 0, layout
        for entry in kinds.values():
            assert entry["least_rank_ms"] <= entry["ms"] <= entry["most_rank_ms"] + 1e-9, entry
        # Beside another test a rank waits for a core, which shows between operators and in the ranges around them; operators have a kind.
        nameless = [o for o in report["operators"] if o["kind"] == "unattributed" and "::" in o["name"] and not o["name"].startswith("autograd::engine")]
        assert sum(o["self_ms"] for o in nameless) < 0.15 * report["step_ms"], (layout, kinds["unattributed"], nameless[:8])
    out = ingot("launch", "-n", 2, "--", "ingot", "bench", "iteration", config, "--steps", 1)[0]
    assert "all of 2 ranks" in out and out.count("watching costs") == 1, out


def gemms_are_swept_by_exact_shape(w):
    out = w.path / "gemm.json"
    call = ("bench", "gemm", "--quick", "--dtype", "fp32", "--m", "16,24", "--n", "32", "--k", "8,1K", "--kinds", "plain,batched,grouped",
            "--groups", "2,4", "--imbalance", "1,1.5")
    profile = json.loads(ingot(*call, "--json", "-o", out)[0])
    assert json.loads(out.read_text()) == profile and "--imbalance 1,1.5" in profile["commands"][0], profile["commands"]
    seen = [(p["kind"], p["pass"], p["m"], p["n"], p["k"], p.get("groups"), p.get("imbalance")) for p in profile["gemm"]]
    layers = [(m, 32, k) for m in (16, 24) for k in (8, 1024)]
    linear = {"forward": lambda m, n, k: (m, n, k), "grad_input": lambda m, n, k: (m, k, n), "grad_weight": lambda m, n, k: (n, k, m)}
    batched = linear | {"grad_weight": lambda m, n, k: (k, n, m)}
    wanted = [("plain", name, *sizes(*layer), None, None) for name, sizes in linear.items() for layer in layers]
    wanted += [("batched", name, *sizes(*layer), groups, None) for name, sizes in batched.items() for layer in layers for groups in (2, 4)]
    wanted += [("grouped", name, *sizes(*layer), groups, imbalance) for name, sizes in linear.items() for layer in layers for groups in (2, 4) for imbalance in (1, 1.5)]
    assert len(seen) == len(wanted) and set(seen) == set(wanted), set(seen) ^ set(wanted)
    assert all(p["flops_per_s"] > 0 for p in profile["gemm"])
    # A page has maps of them, and the table their sizes.
    ingot("report", out)
    page = out.with_suffix(".html").read_text()
    assert "grouped forward, 4 groups, load imbalance 1.5" in page and "batched grad weight, 2 groups" in page
    text = ingot("bench", "gemm", "--quick", "--dtype", "bf16", "--m", 16, "--n", 8, "--k", 8, "--groups", 2, "--passes", "forward")[0]
    assert [line.split()[1] for line in text.splitlines() if line.startswith("bf16")] == ["batched", "grouped"], text


def attention_is_swept_and_says_what_bounds_it(w):
    out = w.path / "attention.json"
    call = ("bench", "attention", "--quick", "--dtype", "fp32", "--seq", "64,256", "--heads", "4", "--kv-heads", "1,4", "--head-dim", "16", "--window", "0,128", "--batch", "1,2")
    report = json.loads(ingot(*call, "--json", "-o", out)[0])
    shapes = {(a["batch"], a["seq"], a["heads"], a["kv_heads"], a["head_dim"], a.get("window", 0)) for a in report["attention"]}
    assert shapes == {(batch, seq, 4, kv, 16, window) for batch in (1, 2) for kv in (1, 4) for seq, window in ((64, 0), (256, 0), (256, 128))}, shapes
    [balance] = report["balance"]
    peak = max(p["flops_per_s"] for p in report["gemm"])
    [triad] = [m for m in report["memory"] if m["operation"] == "triad"]
    assert abs(balance["flops_per_byte"] - peak / triad["bytes_per_s"]) < 1e-9 * balance["flops_per_byte"]
    for row in balance["attention"]:  # pair by pair
        pairs = sum(min(query + 1, row["window"] or row["seq"]) for query in range(row["seq"]))
        intensity = 4 * pairs * 4 / (2 * row["seq"] * (4 + row["kv_heads"]) * 4)
        assert abs(row["flops_per_byte"] - intensity) < 1e-9 * intensity, row
        assert row["bound"] == ("memory" if intensity < balance["flops_per_byte"] else "compute"), row
    # (seq + 1) 4 / ((4 + kv) 4 bytes) reaches the balance there.
    for turn in balance["turns"]:
        if turn["window"] == 0:
            wanted = max(1, balance["flops_per_byte"] * (4 + turn["kv_heads"]) - 1)
            assert abs(turn["seq"] - wanted) < 1e-6 * wanted, turn
    text = ingot(*call)[0]
    assert text.count("sequence length") == 4 and "fp32 balance: " in text and "bound by" in text, text
    # What --json says beside the profile does not keep it from being one.
    (w.path / "whole.json").write_text(json.dumps(report))
    for profile in ("attention.json", "whole.json"):
        ingot("report", w.path / profile)
        page = (w.path / profile).with_suffix(".html").read_text()
        assert 'FLOPs per byte"' in page and "window 128, batch 2" in page
    assert "balance" not in json.loads(out.read_text())


def memory_is_read_and_written_at_sizes_of_choice(w):
    text, err = ingot("bench", "memory", "--quick", "--sizes", "4K,1M", "--json")
    rates = json.loads(text)["memory"]
    on_cpu = json.loads(text)["device"] == "cpu"
    assert ("no GPU" in err) == on_cpu, err
    streams = {"copy", "scale", "add", "triad", "dot", "read", "write"}
    assert {(r["operation"], r["bytes"]) for r in rates if r["operation"] in streams} == {(o, b) for o in streams for b in (4096, 1 << 20)}
    assert all(r["bytes_per_s"] > 0 for r in rates) and (not on_cpu or len(rates) == 14)


def an_interrupted_sweep_keeps_what_it_has(w):
    process = subprocess.Popen([INGOT, "bench", "attention", "--dtype", "fp32", "--seq", "256,512,1024,2048,4096", "--heads", "4,8", "--head-dim", "32,64,128",
                                "--batch", "1,2,3,4", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    err = process.stderr.readline()  # of the progress bar, some seconds after the start: 122 measurements in three rounds
    assert " of 366 " in err, err
    process.send_signal(signal.SIGINT)
    out, more = process.communicate(timeout=60)
    assert process.returncode == 1 and "what was measured is kept" in more, (process.returncode, err + more)
    report = json.loads(out)
    assert 0 < len(report["attention"]) < 120 and report["balance"][0]["attention"], report


def a_clearly_faster_library_is_taken_and_kept(w):
    cache = cache_with_what_was_measured(w.path)
    for path in cache.glob("profile-*.json"):
        profile = json.loads(path.read_text())
        profile.pop("libraries", None)
        path.write_text(json.dumps(profile))
    env = os.environ | {"INGOT_CACHE": str(cache)}
    race = ("bench", "gemm", "--libraries", "--quick", "--dtype", "fp32", "--m", 16, "--n", 32, "--k", "32,64")
    text, err = ingot(*race, env=env)
    if "none has to be chosen" in err:
        return  # a torch without oneDNN
    assert "default" in text and "onednn" in text and "over all of these" in text, text
    [path] = cache.glob("profile-*.json")
    measured = json.loads(path.read_text())["libraries"]
    libraries = {r["library"] for r in measured}
    assert {"default", "onednn"} <= libraries <= {"default", "ingot", "blas", "onednn"}, libraries
    assert {(r["library"], r["pass"]) for r in measured} == {(name, p) for name in libraries for p in ("forward", "grad_input", "grad_weight")}
    assert len(measured) == 6 * len(libraries) and all(r["low_flops_per_s"] <= r["flops_per_s"] <= r["high_flops_per_s"] for r in measured)

    def remember(ratio):
        """What the cache has as oneDNN's rates, over those of others, without doubt."""
        profile = json.loads(path.read_text())
        profile["foreign_load"] = 0  # or it would be measured again once the machine is idle
        for r in profile["libraries"]:
            r["flops_per_s"] = r["low_flops_per_s"] = r["high_flops_per_s"] = 1e11 * (ratio if r["library"] == "onednn" else 1)
        path.write_text(json.dumps(profile))

    def train(name, *more, steps=4, config=w.config("libraries")):
        run = w.path / name
        err = ingot("train", config, "--run-dir", run, "--no-forecast", "--set", f"train.steps={steps}", *more, env=env)[1]
        return err, (run / "config.toml").read_text()

    remember(2)
    err, config = train("fast")
    assert "matmuls go through onednn: " in err and " % faster than the default library" in err and 'gemm_backend = "onednn"' in config, err
    usual, config = train("asked", "--set", "train.gemm_backend=default")
    assert "go through" not in usual and 'gemm_backend = "default"' in config, usual
    # The profile changes its mind; runs do not.
    remember(0.5)
    err, config = train("fast", steps=8)
    assert "matmuls go through onednn, as from the start of this run" in err and 'gemm_backend = "onednn"' in config, err
    err, config = train("slow", steps=8)
    assert "go through" not in err and 'gemm_backend = "default"' in config, err
    checkpoint = max((w.path / "fast/checkpoints").glob("step_*"))
    err, config = train("branch", "--resume", checkpoint, steps=9)
    assert "matmuls go through onednn, as from the start" in err and 'gemm_backend = "onednn"' in config, err
    remember(2)
    err, config = train("slow", steps=9)
    assert "go through" not in err and 'gemm_backend = "default"' in config, err
    expect_error("train", w.config("wrong", **{"train.gemm_backend": "cublas"}), "--run-dir", w.path / "wrong", "--set", "train.device=cpu", status=2, words=["cublas", "default", "onednn"])
    expect_error("train", w.config("wrong", **{"train.gemm_backend": "onednnn"}), "--run-dir", w.path / "wrong", status=2, words=["train.gemm_backend", "onednn"])
    # It is of plain GEMMs, and measuring one dtype again replaces what was known of it.
    expect_error("bench", "gemm", "--libraries", "--groups", 4, status=2, words=["--libraries is of plain GEMMs"])
    ingot("bench", "gemm", "--libraries", "--quick", "--dtype", "fp32", "--m", 8, "--n", 8, "--k", 8, env=env)
    assert {r["m"] for r in json.loads(path.read_text())["libraries"]} == {8}


def wrong_sweeps_say_what_is_right(w):
    gemm, attention = ("bench", "gemm"), ("bench", "attention")
    expect_error(*gemm, "--m", "0", status=2, words=["--m 0", "nearest", "is 1"])
    expect_error(*gemm, "--k", "-5", status=2, words=["--k"])
    expect_error(*gemm, "--n", "12x", status=2, words=["--n 12x", "64,512,4K"])
    expect_error(*gemm, "--n", "9" * 30, status=2, words=["--n 999"])
    expect_error(*gemm, "--m", "1T", "--n", "1T", status=2, words=["memory", "smaller --m, --n, --k"])
    expect_error(*gemm, "--kinds", "grouped,batch", status=2, words=["--kinds batch", "did you mean 'batched'"])
    expect_error(*gemm, "--passes", "grad_weights", status=2, words=["did you mean 'grad_weight'"])
    expect_error(*gemm, "--groups", "4", "--imbalance", "6", status=2, words=["--imbalance 6", "nearest is 4"])
    expect_error(*gemm, "--imbalance", "nan", status=2, words=["--imbalance"])
    expect_error(*gemm, "--kinds", "plain", "--groups", "4", status=2, words=["--groups is of batched and grouped"])
    expect_error(*gemm, "--group", "4", status=2, words=["did you mean '--groups'"])
    expect_error(*gemm, "--m", ",".join(map(str, range(1, 200))), "--n", ",".join(map(str, range(1, 200))), status=2, words=["give fewer values"])
    expect_error(*attention, "--heads", "12", "--kv-heads", "5", status=2, words=["--kv-heads 5", "nearest that does is 4"])
    expect_error(*attention, "--seq", "1K", "--window", "4K", status=2, words=["--window", "nearest is 1023"])
    expect_error(*attention, "--window", "-1", status=2, words=["--window"])
    expect_error(*attention, "--seq", "1T", status=2, words=["memory", "smaller --seq"])
    expect_error("bench", "memory", "--sizes", "1", status=2, words=["--sizes 1", "is 4"])
    expect_error("bench", "memory", "--sizes", "100T", status=2, words=["memory", "smaller --sizes"])


if __name__ == "__main__":
    TESTS = (storage_is_measured_and_leaves_nothing, storage_is_judged_by_a_runs_data, an_interrupted_measurement_keeps_what_it_has_and_cleans_up,
             wrong_calls_say_what_is_wrong, iterations_of_the_shipped_models_are_attributed, iterations_take_the_runs_data_and_leave_nothing,
             iterations_of_ranks_say_how_they_differ, gemms_are_swept_by_exact_shape, attention_is_swept_and_says_what_bounds_it,
             memory_is_read_and_written_at_sizes_of_choice, an_interrupted_sweep_keeps_what_it_has,
             a_clearly_faster_library_is_taken_and_kept, wrong_sweeps_say_what_is_right)
    from harness import run_chosen
    run_chosen(TESTS)
