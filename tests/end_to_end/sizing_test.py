"""`ingot plan size` and `ingot plan moe-width` as a user calls them, on to `ingot plan search`, `ingot plan time` and `ingot train --dry-run`."""
import json
import os
import re
import tomllib
from pathlib import Path

from harness import expect_error, ingot, run_chosen_in_scratch

ROOT = Path(__file__).resolve().parents[2]
CLUSTERS = ROOT / "configs/clusters"
H100, MI300X = CLUSTERS / "h100-64.json", CLUSTERS / "mi300x-8.json"
ZAYA1 = ROOT / "configs/zaya1-base.toml"


def plan(*args, status=0):
    return json.loads(ingot("plan", *args, "--json", status=status)[0])


def profile(folder, host="elsewhere", **changes):
    """A machine whose GEMMs depend on nothing but m, and of which no neighbouring shapes were measured."""
    sizes = (64, 256, 1024, 4096)
    gemm = [{"dtype": d, "kind": "plain", "pass": p, "m": m, "n": n, "k": k, "flops_per_s": 1e12 * m / (m + 64)}
            for d in ("fp32", "bf16") for p in ("forward", "grad_input", "grad_weight") for m in sizes for n in sizes for k in sizes]
    attention = [{"dtype": d, "batch": 1, "seq": s, "heads": 4, "kv_heads": 2, "head_dim": h, "forward_s": 2e-9 * s * s * h / 64, "backward_s": 4e-9 * s * s * h / 64}
                 for d in ("fp32", "bf16") for s in (128, 1024) for h in (64, 128)]
    memory = [{"operation": "triad", "bytes": 1 << 26, "bytes_per_s": 5e10}]
    value = {"format": "ingot machine profile", "version": 2, "ranks": 1, "collectives": [], "storage": [], "host": host, "cpu": "a CPU", "device": "cpu", "cores": 2, "threads": 2, "torch": "2.11.0",
             "program": "-", "date": "2026-01-01T00:00:00Z", "quick": False, "foreign_load": 0.0, "commands": ["by hand"], "gemm": gemm, "attention": attention,
             "memory": memory, "kernels": [], "operation_s": 3e-6} | changes
    path = Path(folder) / "profile.json"
    path.write_text(json.dumps(value))
    return path


def what_size_writes_is_planned_and_trained(folder):
    for name, cluster, args in (("dense", H100, ("--params", "8B", "--devices", 16)), ("mixture", MI300X, ("--family", "moe", "--active", "300M"))):
        toml = Path(folder) / f"{name}.toml"
        sized = plan("size", "--cluster", cluster, *args, "-o", toml)
        assert toml.read_text() == sized["toml"]
        devices = ("--cluster", cluster) + (("--devices", 16) if name == "dense" else ())
        chosen, train = sized["chosen"], tomllib.loads(sized["toml"])["train"]
        # plan time, which knows nothing of sizing, predicts the same step of what was written, and plan memory the same peak.
        again = plan("time", toml, *devices)
        assert again["parameters"] == chosen["parameters"] and again["tokens_per_step"] == sized["training"]["batch_size"] * 4096
        assert abs(again["step_ms"]["total"] / chosen["step_ms"] - 1) < 1e-6, (again["step_ms"]["total"], chosen["step_ms"])
        assert abs(again["mfu"] / chosen["mfu"] - 1) < 1e-6
        memory = plan("memory", toml, *devices)
        assert memory["fits"] and max(stage["peak"] for stage in memory["stages"]) == chosen["memory_bytes"]
        # No layout of the search is worse than the one by data parallelism alone.
        best = plan("search", toml, *devices)["layouts"][0]
        assert best["step_ms"]["total"] <= chosen["step_ms"] * 1.02, (best["step_ms"]["total"], chosen["step_ms"])
        # Days are tokens over the predicted rate.
        training = sized["training"]
        assert abs(training["days"] - training["tokens"] / chosen["tokens_per_s"] / 86400) < 1e-6 * training["days"]
        assert train["steps"] == training["steps"]
        text = ingot("train", toml, "--dry-run")[0]
        assert "parameters" in text and "peak" in text
        text, _ = ingot("plan", "size", "--cluster", cluster, *args)
        for words in ("no shape was measured", "[assumed]", "[modelled]", "<- chosen", "[model]"):
            assert words in text, (words, text)
        assert "[measured]" not in text


def a_measured_profile_is_told_from_a_cluster(folder):
    file = profile(folder)
    sized = plan("size", "--profile", file, "--params", "30M", "--memory-gb", 16, "--seq", 256)
    assert sized["device"]["is_measured"] and sized["device"]["devices"] == 1
    bases = {rule["name"]: rule["basis"] for rule in sized["rules"]}
    assert bases["depth and width"] == "measured" and bases["widths are multiples of"] == "assumed", bases  # its table is a grid
    assert abs(sized["chosen"]["parameters"] / 30e6 - 1) < 0.15
    # With neighbouring sizes in the table the multiple is measured: half as fast where 32 does not divide n.
    near = [{"dtype": "bf16", "kind": "plain", "pass": "forward", "m": 512, "n": n, "k": 1024, "flops_per_s": 1e12 if n % 32 == 0 else 5e11}
            for n in (1999, 2000, 2001, 2008, 2016, 2024, 2032, 2048, 2056, 2080, 2112)]
    value = json.loads(file.read_text())
    value["gemm"] += near
    file.write_text(json.dumps(value))
    sized = plan("size", "--profile", file, "--params", "30M", "--memory-gb", 16, "--seq", 256, "--dtype", "bf16", "--vocab", 5001)
    rule = sized["rules"][0]
    assert rule["basis"] == "measured" and rule["value"] == "32" and len(rule["numbers"]) == 6, rule
    model = tomllib.loads(sized["toml"])["model"]
    assert all(model[key] % 32 == 0 for key in ("hidden", "ffn", "vocab_size")) and model["vocab_size"] == 5024
    widths = plan("moe-width", "--hidden", 512, "--layers", 4, "--profile", file, "--memory-gb", 16, "--experts", "1,4", "--top-k", "1,2", "--vocab", 1024)
    assert widths["device"]["is_measured"] and len(widths["choices"]) == 4


def this_machine_is_measured_first(folder):
    cache = os.environ | {"INGOT_CACHE": folder}
    for verb in (("size", "--params", "10M"), ("moe-width", ZAYA1)):
        _, err = ingot("plan", *verb, status=1, env=cache)
        assert "ingot bench all" in err and "--cluster" in err, err


def zaya1_lies_where_its_parameters_put_it(folder):
    page = Path(folder) / "width.html"
    text, _ = ingot("plan", "moe-width", ZAYA1, "--cluster", MI300X, "--experts", "4,16", "--top-k", 1, "-o", page)
    assert "<- the configuration" in text and "is dominated" in text and "is on the front" in text
    html = page.read_text()
    assert html.count("<figure") == 2 and "1 of 16 experts, width 2048, the configuration" in html and "http" not in re.sub("<script>.*?</script>", "", html, flags=re.S).replace("http-equiv", "")
    found = plan("moe-width", ZAYA1, "--cluster", MI300X)
    base, *others = found["choices"]
    assert base["is_base"] and (base["experts"], base["top_k"], base["expert_ffn"]) == (16, 1, 2048)
    assert abs(base["parameters"] / 8.84e9 - 1) < 0.01 and abs(base["active_parameters"] / 0.76e9 - 1) < 0.02
    for one in others:
        # To half a multiple of 64 of the width: 40 layers, three matrices of 2048, six FLOPs each.
        assert abs(one["flops_per_token"] - base["flops_per_token"]) <= 6 * 40 * 3 * 2048 * 32 * one["top_k"] * 1.0001, one
    # A dense model of the same FLOPs trains faster and answers no slower; of as many parameters none does.
    by = {(entry["latency"], entry["counts_parameters"]): entry for entry in found["configuration"]}
    assert by["decode", False]["is_dominated"] and by["decode", False]["tokens_per_s_gain"] >= 1 and by["decode", False]["latency_gain"] >= 1
    assert not by["decode", True]["is_dominated"] and not by["prefill", True]["is_dominated"]
    # The step is the one that plan time predicts, which looks at this configuration alone.
    settings = ("--set", f"train.microbatch_size={base['microbatch_size']}", "--set", f"parallel.zero={base['zero']}")
    assert abs(plan("time", ZAYA1, "--cluster", MI300X, *settings)["step_ms"]["total"] / base["step_ms"] - 1) < 1e-6
    # The weights of a token by hand: 754 M active and the head, 2 bytes each; keys and values of 40 layers, two heads of 128, 4,096 tokens and its own.
    assert base["decode"]["cache_bytes"] == 40 * 2 * 2 * 128 * 4097 * 2
    assert abs(base["decode"]["weight_bytes"] / (2 * (base["active_parameters"] + 262272 * 2048)) - 1) < 0.03
    assert base["decode"]["memory_ms"] * 1e-3 >= (base["decode"]["weight_bytes"] + base["decode"]["cache_bytes"]) / 4.33e12
    active = plan("moe-width", ZAYA1, "--cluster", MI300X, "--equal", "active", "--experts", "16,64", "--top-k", "1,2", "--multiple", 1)
    for one in active["choices"]:
        assert abs(one["active_parameters"] / base["active_parameters"] - 1) < 1e-4, one


def wrong_calls_say_what_is_wrong(folder):
    broken = Path(folder) / "broken.json"
    broken.write_text('{"format": "ingot machine profile", "version": 2}')
    other = profile(folder)
    size = ("size", "--cluster", MI300X)
    for args, status, words in (
            (size, 2, "--params"),
            ((*size, "--params", "8X"), 2, "--params 8X"),
            ((*size, "--params", "nan"), 2, "--params nan"),
            ((*size, "--params", "-8B"), 2, "--params"),
            ((*size, "--flops", "1e31"), 2, "--flops 1e31"),
            ((*size, "--params", "8B", "--active", "1B"), 2, "--active"),
            ((*size, "--params", "8B", "--family", "sparse"), 2, "sparse"),
            ((*size, "--params", "8B", "--dtype", "fp32"), 1, "no rates for fp32"),
            ((*size, "--params", "8B", "--devices", 16), 2, "no network"),
            ((*size, "--params", "8B", "--profile", other), 2, "--profile"),
            (("size", "--profile", broken, "--params", "8B"), 1, "broken.json"),
            (("size", "--profile", other, "--params", "30M"), 2, "--memory-gb"),
            (("size", "--profile", other, "--params", "30M", "--memory-gb", 16, "--devices", 2), 2, "--cluster"),
            (("size", "--cluster", ZAYA1, "--params", "8B"), 1, "zaya1-base.toml"),
            (("moe-width", "--cluster", MI300X), 2, "--hidden"),
            (("moe-width", ZAYA1, "--hidden", 2048, "--cluster", MI300X), 2, "not both"),
            (("moe-width", "--hidden", 1000, "--cluster", MI300X), 2, "multiple of 256"),
            (("moe-width", ROOT / "configs/llama-nano.toml", "--cluster", MI300X), 2, "no experts"),
            (("moe-width", ZAYA1, "--cluster", MI300X, "--experts", 0), 2, "--experts"),
            (("moe-width", ZAYA1, "--cluster", MI300X, "--equal", "cost"), 2, "cost"),
            (("moe-width", ZAYA1, "--cluster", H100, "--devices", 24), 2, "do not divide")):
        expect_error("plan", *args, status=status, words=[words])
    # What does not fit is said, and ends with 3.
    text, _ = ingot("plan", *size, "--params", "3B", "--memory-gb", 1, status=3)
    assert "plan search" in text and "does not fit" in text
    ingot("plan", "moe-width", ZAYA1, "--cluster", MI300X, "--memory-gb", 20, "--experts", 16, "--top-k", 1, status=3)


if __name__ == "__main__":
    run_chosen_in_scratch([what_size_writes_is_planned_and_trained, a_measured_profile_is_told_from_a_cluster, this_machine_is_measured_first,
                           zaya1_lies_where_its_parameters_put_it, wrong_calls_say_what_is_wrong])
