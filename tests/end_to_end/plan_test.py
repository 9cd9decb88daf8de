"""`ingot plan` and `ingot bench collectives` as a user calls them."""
import json
import os
import resource
import subprocess
import tomllib
from pathlib import Path

from harness import INGOT, Workspace, at_night, cache_with_what_was_measured, expect_error, ingot, json_lines, keep_profiles, metrics, run_chosen_in_scratch

ROOT = Path(__file__).resolve().parents[2]
H100 = ROOT / "configs/clusters/h100-64.json"
NANO = ROOT / "configs/llama-nano.toml"

BF16 = ("--set", "train.precision=bf16")

LLAMA = """
[model]
family = "llama"
layers = {layers}
hidden = {hidden}
vocab_size = 128256
heads = {heads}
kv_heads = 8
head_dim = 128
ffn = {ffn}
tie_embeddings = false
[data]
tokenizer = "x"
seq_len = 8192
[[data.sources]]
path = "x"
[optimizer]
name = "adamw"
[train]
steps = 10
batch_size = {batch}
precision = "bf16"
"""


def config(folder, **sizes):
    path = Path(folder) / "model.toml"
    path.write_text(LLAMA.format(**sizes))
    return path


def plan(*args, status=0):
    return json.loads(ingot("plan", *args, "--json", status=status)[0])


def flags_of(toml):
    for group, values in tomllib.loads(toml).items():
        for key, value in values.items():
            yield from ("--set", f"{group}.{key}={value}")


def search_gives_layouts_that_training_takes(folder):
    model = config(folder, layers=32, hidden=4096, heads=32, ffn=14336, batch=64)
    found = plan("search", model, "--cluster", H100, "--devices", 16, "--top", 3)
    assert found["parameters"] == 8_030_261_248
    assert len(found["layouts"]) == 3 and found["pareto"]
    times = [layout["step_ms"]["total"] for layout in found["layouts"]]
    assert times == sorted(times)
    for layout in found["layouts"]:
        parts = {name: ms for name, ms in layout["step_ms"].items() if name != "total"}
        assert abs(sum(parts.values()) - layout["step_ms"]["total"]) < 1e-6 * layout["step_ms"]["total"]
        assert layout["memory_bytes"]["peak"] <= 80e9
    # The settings that it prints say the same as the search, and divide the model.
    settings = list(flags_of(found["toml"]))
    best = found["layouts"][0]
    again = plan("time", model, "--cluster", H100, "--devices", 16, *settings)
    assert again["layout"] == best["layout"] and abs(again["step_ms"]["total"] / best["step_ms"]["total"] - 1) < 1e-9
    memory = plan("memory", model, "--cluster", H100, "--devices", 16, *settings)
    assert memory["fits"] and max(stage["peak"] for stage in memory["stages"]) == best["memory_bytes"]["peak"]
    # And training takes them.
    settings = list(flags_of(plan("search", NANO, "--cluster", H100, "--devices", 8, *BF16)["toml"]))
    assert "each holds" in ingot("train", NANO, "--dry-run", *settings)[0]


def cpu_seconds_of_processes():
    """Of those that have ended: what another test takes of the machine is not in it."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def search_over_1024_devices_takes_seconds(folder):
    model = config(folder, layers=126, hidden=16384, heads=128, ffn=53248, batch=2048)
    before = cpu_seconds_of_processes()
    few = () if at_night() else ("--set", "data.seq_len=2048")  # by day few ways of sharing a sequence
    found = plan("search", model, "--cluster", H100, "--devices", 1024, *few)
    took = cpu_seconds_of_processes() - before
    assert found["layouts"][0]["memory_bytes"]["peak"] <= 80e9
    # Some machines take four times as long at one hour as at another; what this is for is work that grows with the ranks.
    assert took < 480, f"{took:.1f} s of a core, where a machine with nothing else to do takes 24"


def a_simulated_step_is_the_formulas_one_until_something_disturbs_it(folder):
    model = config(folder, layers=32, hidden=4096, heads=32, ffn=14336, batch=1024)
    one_at_a_time = ("--set", "train.microbatch_size=1", "--mtbf-hours", 0)

    def simulate(*args, devices=64):
        return plan("simulate", model, "--cluster", H100, "--devices", devices, *one_at_a_time, *args)

    def axes(**sizes):
        return [word for name, size in sizes.items() for word in ("--set", f"parallel.{name}={size}")]
    for layout in (axes(), axes(zero=0), axes(zero=2), axes(zero=3), axes(tensor=8), axes(context=4), axes(tensor=4, pipeline=2), axes(tensor=8, pipeline=4),
                   axes(tensor=2, pipeline=8, zero=0), axes(tensor=8, pipeline=4, pipeline_schedule="gpipe"), axes(tensor=8, pipeline=4, pipeline_schedule="zero_bubble"),
                   axes(tensor=8, pipeline=4, pipeline_schedule="interleaved", pipeline_chunks=2)):
        found = simulate(*layout)
        assert abs(found["undisturbed_ms"] / found["predicted_ms"] - 1) < 0.04, (layout, found)
        assert found["step_ms"]["mean"] == found["undisturbed_ms"] and found["ranks"] == 64
    layout = axes(tensor=8, pipeline=4)
    usual = simulate(*layout)["undisturbed_ms"]
    assert 1.2 < simulate(*layout, "--slow", "17=1.5")["step_ms"]["mean"] / usual < 1.55
    uneven = simulate(*layout, "--jitter", 0.02, "--steps", 20)
    assert uneven["step_ms"]["p50"] > usual * 1.01 and uneven["step_ms"]["max"] > uneven["step_ms"]["p50"]
    dead = simulate(*layout, "--fail", "17@1000")
    assert not dead["complete"] and dead["dead_units"] == 1 and dead["waiting_for_stages"] + dead["waiting_for_gradients"] == 7
    wide = simulate(*axes(zero=0), "--set", "train.batch_size=8192", devices=8192)
    narrow = simulate(*axes(zero=0), "--set", "train.batch_size=8192", "--topology", "fat_tree", "--nodes-per-leaf", 1, "--oversubscription", 32, devices=8192)
    assert narrow["step_ms"]["mean"] > wide["step_ms"]["mean"]
    many = plan("simulate", model, "--cluster", H100, "--devices", 102400, "--set", "train.batch_size=102400", "--set", "train.microbatch_size=1", *layout)
    assert many["ranks"] == 102400 and many["events"] > 100_000 and 0.5 < many["run"]["expected_goodput"] < 0.95


def this_machine_is_planned_for(folder):
    os.environ["INGOT_CACHE"] = str(cache_with_what_was_measured(folder))
    few = ("--set", "train.batch_size=4", "--set", "train.microbatch_size=2")
    # Of two ranks it is planned where somebody measured them.
    alone = ingot("plan", "search", NANO, *few)
    assert "ingot bench all --ranks 2" in alone[1] or os.cpu_count() % 2
    keep_profiles(Path(folder) / "cache")
    found = plan("search", NANO, *few)
    assert found["layouts"] and all(layout["parallel"]["data"] == 1 for layout in found["layouts"])
    # The plan of training says the same.
    settings = list(flags_of(found["toml"]))
    forecast = json.loads(ingot("train", NANO, "--dry-run", "--json", *few, *settings)[0])["phases"][0]
    assert abs(forecast["step_ms"]["total"] / found["layouts"][0]["step_ms"]["total"] - 1) < 1e-9
    # Ranks that trained here have measured side by side: they are planned for, too, with their messages.
    if os.cpu_count() % 2:
        return
    with Workspace() as w:
        config = w.config(**{"train.steps": 3, "checkpoint.every": 0, "data.seq_len": 64})
        ingot("launch", "-n", 2, "--", INGOT, "train", config, "--run-dir", w.path / "run")
        lines = metrics(w.path / "run")
        keep_profiles(Path(folder) / "cache")
        planned = plan("time", config, "--devices", 2)
        assert planned["parallel"]["data"] == 2 and planned["step_ms"]["communication_gradients"] > 0
        assert abs(planned["step_ms"]["total"] / lines[-1]["predicted_step_ms"] - 1) < 1e-6, (planned["step_ms"], lines[-1])
        best = plan("search", config)
        assert {layout["parallel"]["data"] for layout in best["layouts"]} == {1, 2}, best["layouts"]
        simulated = plan("simulate", config, "--devices", 2)
        assert abs(simulated["undisturbed_ms"] / simulated["predicted_ms"] - 1) < 0.02, simulated


def a_machine_is_measured_searched_and_trained_on_from_nothing(folder):
    os.environ["INGOT_CACHE"] = str(Path(folder) / "cache")
    table, said = ingot("bench", "all", "--quick", "--ranks", 1, timeout=560)
    assert "within steps" in table and "steps of small models" in said
    (path,) = (Path(folder) / "cache").glob("profile-*.json")
    within = json.loads(path.read_text())["within_steps"]
    for dtype in ("fp32", "bf16"):
        kinds = {e["kind"]: e for e in within if e["dtype"] == dtype}
        assert {"matmul", "attention", "linear_attention", "routing", "norms", "head", "muon", "adamw", "unattributed"} <= set(kinds), kinds
        # Work takes longer in steps than by itself, but not by another order.
        assert 0.3 < kinds["matmul"]["measured_s"] / kinds["matmul"]["predicted_s"] < 5, kinds["matmul"]
        assert kinds["unattributed"]["predicted_s"] == 0 and "gradient_norm" not in kinds
    keep_profiles(Path(folder) / "cache")
    few = ("--set", "train.batch_size=4")
    found = plan("search", NANO, *few)["layouts"][0]
    parts = found["step_ms"]
    assert parts["between"] > 0 and parts["uneven"] == 0 and abs(sum(v for k, v in parts.items() if k != "total") / parts["total"] - 1) < 1e-9, parts
    # Without what was measured within steps the same is predicted to be faster by what it adds.
    profile = json.loads(path.read_text())
    del profile["within_steps"]
    path.write_text(json.dumps(profile))
    raw = plan("search", NANO, *few)["layouts"][0]["step_ms"]
    assert raw["between"] == 0 and raw["matmul"] != parts["matmul"], (raw, parts)
    with Workspace() as w:
        config = w.config(**{"train.steps": 3, "checkpoint.every": 0, "data.seq_len": 64})
        ingot("train", config, "--run-dir", w.path / "run")
        assert all(line["predicted_step_ms"] > 0 for line in metrics(w.path / "run"))


def runs_are_recorded_and_calibrate_later_predictions(folder):
    os.environ["INGOT_CACHE"] = str(cache_with_what_was_measured(folder))
    record = Path(folder) / "cache" / "predictions.jsonl"
    assert "no run has been recorded" in ingot("plan", "errors")[0]
    with Workspace() as w:
        def train(name, *launcher, **settings):
            config = w.config(name, **({"train.steps": 8, "checkpoint.every": 0, "train.validation_every": 0, "log.tensorboard": False} | settings))
            command = ["train", config, "--run-dir", w.path / name]
            _, said = ingot(*launcher, *([INGOT, *command] if launcher else command))
            return config, metrics(w.path / name), said
        for batch in (2, 4, 6):
            config, lines, said = train(f"b{batch}", **{"train.batch_size": batch})
            assert "predictions: step" in said and "peak memory" in said and "calibrated" not in said, said
            assert all("calibrated_step_ms" not in line for line in lines)
            keep_profiles(Path(folder) / "cache")
        entries = json_lines(record)
        assert len(entries) == 3 and [e["steps"] for e in entries] == [6] * 3, entries
        for entry, batch in zip(entries, (2, 4, 6)):
            lines = metrics(w.path / f"b{batch}")
            times = sorted(line["step_ms"] for line in lines[2:])
            assert abs(entry["measured_step_s"] * 1e3 / ((times[2] + times[3]) / 2) - 1) < 1e-6, (entry, times)
            assert abs(entry["predicted_step_s"] * 1e3 / lines[0]["predicted_step_ms"] - 1) < 1e-6
            assert entry["measured_memory_bytes"] == lines[-1]["memory_peak_bytes"] and entry["calibrated_step_s"] == 0
            kept = json.loads((w.path / f"b{batch}" / "predictions.json").read_text())["phases"]
            assert [{k: v for k, v in kept[0].items() if k != "phase"}] == [entry]
        # A fourth run is foretold by the other three, whatever disturbed them; what is raw stays raw.
        for entry in entries:
            entry["foreign_load"] = 0
        record.write_text("".join(json.dumps(e) + "\n" for e in entries) + '{"date": "to')
        config, lines, said = train("b8", **{"train.batch_size": 8})
        factor = sorted(e["measured_step_s"] / e["predicted_step_s"] for e in entries)[1]
        assert abs(lines[0]["calibrated_step_ms"] / (factor * lines[0]["predicted_step_ms"]) - 1) < 1e-6, (lines[0], factor)
        assert "calibrated by 3 earlier runs" in said, said
        assert json.loads(record.read_text().splitlines()[-1])["calibrated_step_s"] * 1e3 == lines[0]["calibrated_step_ms"]
        planned = plan("time", config)
        assert planned["calibrated"]["measured_before"] and planned["calibrated"]["step_ms"]["runs"] == 3, planned["calibrated"]
        assert abs(planned["step_ms"]["total"] / lines[0]["predicted_step_ms"] - 1) < 1e-6
        assert "measured before" in ingot("train", config, "--dry-run")[0]
        groups = json.loads(ingot("plan", "errors", "--json")[0])
        assert groups["unreadable_lines"] == 1 and groups["groups"][0]["step"]["runs"] >= 3, groups
        summary = json.loads(ingot("report", w.path / "b8", "--json")[0])["runs"][0]
        assert summary["calibrated_step_ms"] == lines[-1]["calibrated_step_ms"] and summary["calibrated_step_error"] != summary["step_error"]
        # Attention ends where documents do; how much that saves depends on rates measured at small sizes.
        cut, whole = (plan("time", config, "--set", "data.seq_len=512", "--set", f"data.reset_documents={reset}")["step_ms"]["attention"] for reset in ("true", "false"))
        assert cut != whole, cut
        # The run around the steps: what a checkpoint writes, and that the parts add up.
        config, _, _ = train("saves", **{"checkpoint.every": 4, "train.validation_every": 4})
        run = plan("time", config)["run"]
        written = sum(f.stat().st_size for f in (w.path / "saves" / "checkpoints").rglob("*") if f.is_file()) / 2
        assert run["saved_bytes"] < written < run["saved_bytes"] + (32 << 10) and run["saves"] == 2, (run, written)  # headers and padding besides
        parts = [run[name] or 0 for name in ("steps_s", "validation_s", "saves_s", "data_s", "failures_s")]
        assert abs(sum(parts) / run["total_s"] - 1) < 1e-9 or run["saves_s"] is None, run
        assert run["validation_s"] > 0 and 0 < run["goodput"] < 1
        assert "does not come to an end" in ingot("plan", "time", config, "--mtbf-hours", 1e-9)[0]
        # A record that cannot be written costs a warning, not the run.
        record.unlink()
        record.mkdir()
        _, _, said = train("b9", **{"train.batch_size": 3})
        assert "not calibrated" in said and "will not learn" in said, said
        record.rmdir()
        if os.cpu_count() % 2 == 0 and at_night():  # two ranks are measured first
            train("two", "launch", "-n", 2, "--", **{"train.batch_size": 4})
            last = json.loads(record.read_text().splitlines()[-1])
            assert last["ranks"] == 2 and last["layout"].startswith("data 2") and "x2.json" in last["machine"], last


def what_does_not_fit_ends_with_3(folder):
    model = config(folder, layers=126, hidden=16384, heads=128, ffn=53248, batch=16)
    nothing, _ = ingot("plan", "search", model, "--cluster", H100, "--devices", 8, status=3)
    assert "nothing fits" in nothing and "GiB a device" in nothing
    assert "does not fit" in ingot("plan", "memory", model, "--cluster", H100, "--devices", 8, status=3)[0]
    # The memory of a device may be another than the profile's.
    dense = config(folder, layers=32, hidden=4096, heads=32, ffn=14336, batch=8)
    ingot("plan", "search", dense, "--cluster", H100, "--devices", 8, "--memory-gb", 20, status=3)


def a_mixture_and_a_hybrid_are_planned_too(folder):
    mi300x = ROOT / "configs/clusters/mi300x-8.json"
    # As published for it: no tensor and no expert parallelism on 192 GB. By day the published layout is fastest of three, at night of all.
    alone = plan("time", ROOT / "configs/zaya1-base.toml", "--cluster", mi300x, "--set", "train.microbatch_size=1")
    assert abs(alone["parameters"] / 8.84e9 - 1) < 0.01
    if at_night():
        found = plan("search", ROOT / "configs/zaya1-base.toml", "--cluster", mi300x)
        assert abs(found["parameters"] / 8.84e9 - 1) < 0.01
        assert found["layouts"][0]["parallel"]["tensor"] == 1 and found["layouts"][0]["parallel"]["expert"] == 1, found["layouts"][0]
    for axis in ("tensor", "expert"):
        spread = plan("time", ROOT / "configs/zaya1-base.toml", "--cluster", mi300x, "--set", "train.microbatch_size=1", "--set", f"parallel.{axis}=2")
        assert alone["step_ms"]["total"] < spread["step_ms"]["total"], (axis, alone, spread)
    # Experts that ranks share: even, as a router balances them, and all rows on one rank.
    shared = ("--cluster", mi300x, "--set", "parallel.expert=8", "--set", "train.microbatch_size=1")
    experts = plan("memory", ROOT / "configs/zaya1-base.toml", *shared)["experts"]
    assert experts["even"] < experts["expected"] < experts["bound"], experts
    assert plan("memory", ROOT / "configs/zaya1-base.toml", *shared, "--expert-load", 1)["experts"]["expected"] == experts["even"]
    even, uneven = (plan("time", ROOT / "configs/zaya1-base.toml", *shared, "--expert-load", load)["step_ms"] for load in (1, 2))
    assert uneven["communication_experts"] > 1.6 * even["communication_experts"] and uneven["matmul"] > even["matmul"], (even, uneven)
    assert plan("search", ROOT / "configs/linear-llama-nano.toml", "--cluster", H100, "--devices", 8, *BF16)["layouts"]


def published_models_are_planned(folder):
    # Some seconds each: outside of the night every sixth.
    for path in sorted((ROOT / "configs/published").glob("*.toml"))[::1 if at_night() else 6]:
        assert plan("time", path, "--cluster", H100, "--devices", 64)["tokens_per_s"] > 0, path
    # Several experts for a token.
    several = ("--set", "model.top_k=2", "--set", "train.batch_size=64")
    zaya1 = ROOT / "configs/zaya1-nano.toml"
    one, two = (plan("time", zaya1, "--cluster", H100, "--devices", 8, *BF16, *more, "--set", "train.batch_size=64") for more in ((), several))
    assert two["flops_per_token"] > one["flops_per_token"] and two["parameters"] == one["parameters"]
    expect_error("train", zaya1, "--dry-run", "--set", "model.top_k=9", status=2, words=["model.top_k = 9 is more than model.experts = 8"])


def wrong_calls_say_what_is_wrong(folder):
    model = config(folder, layers=32, hidden=4096, heads=32, ffn=14336, batch=8)
    for args, status, words in (
            (("search", model, "--cluster", H100, "--devices", 12), 2, "nodes of 8"),
            (("search", model, "--cluster", ROOT / "configs/clusters/mi300x-8.json", "--devices", 16), 2, "no network"),
            (("search", model, "--cluster", Path(folder) / "none.json"), 1, "none.json"),
            (("search", Path(folder) / "none.toml", "--cluster", H100), 1, "none.toml"),
            (("search", model, "--memory-gb", 80), 2, "--cluster"),
            (("time", model, "--devices", 512), 1, "ingot bench all --ranks 512"),
            (("time", NANO, "--set", "train.precision=fp64"), 2, "fp64"),
            (("simulate", model, "--cluster", H100, "--slow", "3"), 2, "RANK=FACTOR"),
            (("simulate", model, "--cluster", H100, "--devices", 8, "--fail", "8@3"), 2, "no rank 8 of 8"),
            (("simulate", model, "--cluster", H100, "--nodes-per-leaf", 4), 2, "--topology"),
            (("simulate", model, "--cluster", H100, "--jitter", "-1"), 2, "--jitter"),
            (("search", NANO, "--cluster", H100), 1, "no rates for fp32"),
            (("time", model, "--cluster", H100, "--devices", 8, "--set", "parallel.tensor=3"), 2, "3"),
            (("time", model, "--cluster", NANO), 1, "llama-nano.toml"),
            (("find", model), 2, "find")):
        expect_error("plan", *args, status=status, words=[words])


def collectives_run_as_processes_threads_and_under_a_launcher(folder):
    sweep = ("-b", "1K", "-e", "64K", "-f", "8", "-n", "3", "-w", "1")
    out = Path(folder) / "collectives.json"
    table, _ = ingot("bench", "collectives", "all_reduce", "all_gather", *sweep, "--ranks", 2, "-o", out)
    assert "# Out of bounds values : 0 OK" in table and "busbw" in table
    results = json.loads(out.read_text())
    assert {r["operation"] for r in results["results"]} == {"all_reduce", "all_gather"} and len(results["results"]) == 6
    assert all(curve["ranks"] == 2 and curve["knee_bytes"] > 0 for curve in results["curves"])
    threads = json.loads(ingot("bench", "collectives", "broadcast", *sweep, "--ranks", 3, "--backend", "threads", "-d", "all", "--json")[0])
    assert {r["dtype"] for r in threads["results"]} == {"fp32", "bf16"}
    launched = subprocess.run([INGOT, "launch", "-n", "2", "--", INGOT, "bench", "collectives", "reduce_scatter", *sweep, "--json"], capture_output=True,
                              text=True, timeout=120)
    assert launched.returncode == 0, launched.stderr
    assert len(json.loads(launched.stdout)["results"]) == 3
    for args, words in ((("all_reduse",), "all_reduce"), (("--ranks", 4, "--group-sizes", 3), "groups of 3"), (("-b", "x"), "-b x"), (("-f", "1"), "-f 2"),
                        (("-d", "fp8"), "-d fp8")):
        expect_error("bench", "collectives", *args, status=2, words=[words])


if __name__ == "__main__":
    run_chosen_in_scratch([search_gives_layouts_that_training_takes, search_over_1024_devices_takes_seconds,
                           a_simulated_step_is_the_formulas_one_until_something_disturbs_it, this_machine_is_planned_for,
                           a_machine_is_measured_searched_and_trained_on_from_nothing, runs_are_recorded_and_calibrate_later_predictions, what_does_not_fit_ends_with_3,
                           a_mixture_and_a_hybrid_are_planned_too, published_models_are_planned, wrong_calls_say_what_is_wrong, collectives_run_as_processes_threads_and_under_a_launcher])
