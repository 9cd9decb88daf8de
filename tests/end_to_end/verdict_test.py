"""`ingot bench verdict`, `ingot bench all --check` and `ingot report` of profiles as a user calls them: profiles made by hand, a fake fleet."""
import json
import os
import re
import subprocess
import time
from pathlib import Path

from harness import INGOT, expect_error, ingot, run_chosen_in_scratch

ROOT = Path(__file__).resolve().parents[2]
H100 = "NVIDIA H100 80GB HBM3"


def profile(host="node001", gemm=750e12, triad=2.9e12):
    """A machine profile with what floors look at, and a little of everything else."""
    sizes = [(8192, 8192, 8192, gemm), (64, 128, 256, gemm / 50), (64, 256, 128, gemm / 60), (128, 128, 128, gemm / 40), (128, 256, 256, gemm / 30)]
    return {"format": "ingot machine profile", "version": 2, "host": host, "cpu": "a CPU", "device": "cuda:0", "cores": 8, "threads": 8, "ranks": 1,
            "torch": "2.11.0", "program": "x", "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "quick": False, "foreign_load": 0.0,
            "commands": ["ingot bench all"], "operation_s": 1e-5,
            "gemm": [{"dtype": "bf16", "kind": "plain", "pass": "forward", "m": m, "n": n, "k": k, "flops_per_s": rate} for m, n, k, rate in sizes],
            "attention": [{"dtype": "bf16", "batch": 1, "seq": seq, "heads": 8, "kv_heads": 8, "head_dim": 64, "forward_s": seq * seq * 1e-11,
                           "backward_s": seq * seq * 3e-11} for seq in (256, 1024)],
            "memory": [{"operation": "triad", "bytes": 2**p, "bytes_per_s": triad * (3 if p < 24 else 1)} for p in (16, 20, 24, 28)],
            "kernels": [{"name": "swiglu", "dtype": "bf16", "rows": 1024, "width": 1024, "count": 1, "forward_s": 1e-5, "backward_s": 2e-5}],
            "storage": [], "collectives": [{"operation": "all_reduce", "dtype": "bf16", "placement": "neighbours", "ranks": 8, "groups": 1, "bytes": 2**p,
                             "seconds": 2e-5 + 2**p * 1.75 / 430e9} for p in (10, 20, 30)]}


def write(path, value):
    Path(path).write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def a_profile_is_judged_by_floors_or_by_an_earlier_one(folder):
    good, slow = write("good.json", profile()), write("slow.json", profile(triad=2.0e12))
    text, _ = ingot("bench", "verdict", good, "--device-name", H100)
    assert "node001 passes: 3 of 5 checks against the floors of NVIDIA H100 SXM" in text and "not measured: host to device" in text, text
    verdict = json.loads(ingot("bench", "verdict", slow, "--device-name", H100, "--json", status=3)[0])["verdict"]
    assert not verdict["pass"] and [c["name"] for c in verdict["checks"] if c["status"] == "fail"] == ["triad"], verdict
    assert all(c["source"] for c in verdict["checks"])
    # By an earlier profile, within the tolerance or not.
    worse = write("worse.json", profile(gemm=750e12 * 0.85))
    ingot("bench", "verdict", good, "--baseline", good)
    ingot("bench", "verdict", worse, "--baseline", good, status=3)
    assert "80 % of the profile of node001" in ingot("bench", "verdict", worse, "--baseline", good, "--tolerance", 20)[0]
    # Floors of one's own.
    floors = json.loads((ROOT / "configs/floors/h100.json").read_text())
    floors["checks"][0]["fraction"] = 0.99
    own = write("own.json", floors)
    assert "bf16 GEMM 95 % of its floor" in ingot("bench", "verdict", good, "--floors", own, "--device-name", H100, status=3)[0]
    other = write("other.json", profile() | {"threads": 4})
    for args, status, words in (((good,), 2, ["no floors for", "--baseline"]), ((good, "--floors", own, "--baseline", good), 2, ["give one"]),
                                ((good, "--floors", own, "--device-name", "AMD EPYC"), 2, ["AMD EPYC", "--device-name"]),
                                ((other, "--baseline", good), 2, ["with 8 threads", "with 4"]), ((write("b.json", "{"), "--device-name", H100), 1, ["b.json is not JSON"]),
                                ((good, "--slurm"), 2, ["no folder of verdicts"]), (("none.json",), 2, ["none.json"])):
        expect_error("bench", "verdict", *args, status=status, words=words)


def expanded(hosts):
    """Slurm's own form, as its manual describes it."""
    names = []
    for before, _, ranges in re.findall(r"([^,\[\]]+)(\[([^\]]*)\])?", hosts):
        for part in ranges.split(",") if ranges else [None]:
            if part is None:
                names.append(before)
                continue
            low, _, high = part.partition("-")
            names += [before + str(value).zfill(len(low)) for value in range(int(low), int(high or low) + 1)]
    return names


def a_fleet_is_gathered(folder):
    verdicts = Path("verdicts")
    for i in range(1, 11):
        rates = {3: {"triad": 2.0e12}, 7: {"gemm": 676e12}}.get(i, {"gemm": 780e12 + i * 1e10})
        ingot("bench", "verdict", write("p.json", profile(f"node{i:03}", **rates)), "--device-name", H100, "--verdicts", verdicts, status=3 if i == 3 else 0)
    assert sorted(p.name for p in verdicts.iterdir()) == [f"node{i:03}.json" for i in range(1, 11)]
    old = json.loads((verdicts / "node005.json").read_text()) | {"date": "2020-01-01T00:00:00Z"}
    write(verdicts / "node005.json", old)
    write(verdicts / "node006.json", (verdicts / "node006.json").read_text()[:-30])
    write("nodes.txt", "node[001-011] # the rack\n")
    lists = ("--expect", "nodes.txt", "--pass-list", "good.txt", "--fail-list", "bad.txt")
    text, _ = ingot("bench", "verdict", verdicts, *lists, status=3)
    for host, state in (("node003", "fail"), ("node005", "stale"), ("node006", "broken"), ("node007", "outlier"), ("node011", "missing")):
        assert re.search(rf"^{host} +{state} ", text, re.M), (host, state, text)
    bad = ["node003", "node005", "node006", "node007", "node011"]
    good = [f"node{i:03}" for i in range(1, 12) if f"node{i:03}" not in bad]
    assert Path("good.txt").read_text().split() == good and Path("bad.txt").read_text().split() == bad
    text, _ = ingot("bench", "verdict", verdicts, *lists, "--slurm", status=3)
    assert "--nodelist=node[001-002,004,008-010]\n" in text and "--exclude=node[003,005-007,011]\n" in text, text
    assert expanded(Path("good.txt").read_text().strip()) == good and expanded(Path("bad.txt").read_text().strip()) == bad
    found = json.loads(ingot("bench", "verdict", verdicts, *lists, "--json", status=3)[0])
    assert found["passing"] == good and found["failing"] == bad and not found["pass"]
    assert {check["name"]: check["nodes"] for check in found["checks"]}["triad"] == 7
    # The same nodes without the bad ones are a fleet that passes; without --expect nobody is missing.
    for host in bad[:-1]:
        (verdicts / f"{host}.json").unlink()
    ingot("bench", "verdict", verdicts)
    assert "6 nodes pass" in ingot("bench", "verdict", verdicts, "--expect", "good.txt")[0]
    Path("empty").mkdir()
    expect_error("bench", "verdict", "empty", status=1, words=["--verdicts"])
    expect_error("bench", "verdict", verdicts, "--expect", write("odd.txt", "node[1-"), status=1, words=["does not close"])
    expect_error("bench", "verdict", verdicts, "--expect", write("blank.txt", "# nobody\n"), status=2, words=["names no host"])


def a_node_is_measured_and_judged_slow(folder):
    env = os.environ | {"INGOT_CACHE": str(Path("cache").absolute())}
    expect_error_env = subprocess.run([INGOT, "bench", "all", "--quick", "--check"], capture_output=True, text=True, timeout=60, env=env)
    assert expect_error_env.returncode == 2 and "no earlier profile" in expect_error_env.stderr, "which is known before anything is measured"
    ingot("bench", "memory", "--quick", "-o", "memory.json", env=env)
    before = json.loads(Path("memory.json").read_text())
    for entry in before["memory"]:
        entry["bytes_per_s"] *= 1000
    write("fast.json", before)
    out, _ = ingot("bench", "all", "--quick", "--dtype", "fp32", "--check", "--baseline", "fast.json", "--verdicts", "verdicts", "-o", "now.json", "--json", status=3,
                   timeout=800, env=env)
    verdict = json.loads(out)["verdict"]
    assert {c["name"]: c["status"] for c in verdict["checks"]} == {"triad": "fail", "memory, median": "fail"}, verdict
    assert json.loads(Path("verdicts", f"{verdict['host']}.json").read_text()) == verdict
    assert "verdict" not in json.loads(Path("now.json").read_text()), "a profile stays one"
    ingot("bench", "verdict", "now.json", "--baseline", "now.json")


def a_node_is_fit_or_says_why_not(folder):
    folder = Path(folder)
    excluded = folder / "excluded"
    named = {"env": os.environ | {"SLURMD_NODENAME": "node7"}}
    out, _ = ingot("doctor", "--fit", "--json", "--seconds", "0.2", "--folder", folder, "--exclusion-list", excluded, **named)
    fit = json.loads(out)
    assert fit["node"] == "node7" and fit["fit"] and fit["reasons"] == [] and not excluded.exists() and fit["seconds"] < 60, fit
    assert re.match(r"\d+ cores: [1-9]\d* products in fp32 and bf16", fit["looked_at"][0]), fit
    known, absent = {c["name"] for c in fit["counters"]}, " ".join(fit["absent"])
    for name, words in (("memory_corrected", "memory errors: no"), ("throttled", "throttling of the CPU: no"), ("celsius", "temperatures: no"), ("memory_kills", "processes killed")):
        assert (name in known) != (words in absent), (name, fit)
    out, _ = ingot("doctor", "--fit", "--seconds", "0.1", "--folder", folder / "nowhere", "--folder", "/proc", "--exclusion-list", excluded, status=3, **named)
    assert out.startswith(f"node7 is not fit: {folder}/nowhere: ") and "; /proc: " in out, out
    assert re.fullmatch(r"node7  # \S+Z: .*nowhere.*\n", excluded.read_text()), excluded.read_text()
    assert not list(folder.glob(".ingot-fit*")), list(folder.iterdir())
    refused = subprocess.run([INGOT, "launch", "-n", "1", "--exclusion-list", excluded, "--", "true"], capture_output=True, text=True, timeout=60, **named)
    assert refused.returncode == 3 and "has node7 among the nodes to be without" in refused.stderr, refused
    taken = subprocess.run([INGOT, "launch", "-n", "1", "--exclusion-list", excluded, "--check-node", "--", "true"], capture_output=True, text=True, timeout=60)
    assert taken.returncode == 0, taken
    expect_error("doctor", "--seconds", "2", status=2, words=["--fit"])


def profiles_make_a_page(folder):
    write("a.json", profile("node<b>1</b>"))
    write("b.json", profile(triad=1.0e12) | {"torch": "2.12.0"})
    ingot("report", "a.json")
    page = Path("a.html").read_text()
    assert "node&lt;b&gt;1&lt;/b&gt;" in page and "<b>1</b>" not in page and page.count("<figure") >= 6
    found = json.loads(ingot("report", "a.json", "b.json", "-o", "c.html", "--json")[0])
    assert found["warnings"] == ["versions of torch differ: 2.11.0 and 2.12.0"]
    memory = next(s for s in found["sections"] if s["section"] == "memory")
    assert abs(memory["median_ratio"] - 1 / 2.9) < 1e-9 and memory["count"] == 4
    assert abs(found["differences"][0]["ratio"] - 1 / 2.9) < 1e-9
    assert "Machines compared" in Path("c.html").read_text()
    assert abs(found["machines"][0]["collectives"][0]["latency_s"] / 2e-5 - 1) < 1e-6
    text = Path("a.json").read_text()
    for bad, words in ((text[:-5], "not JSON"), (text.replace('"version": 2', '"version": 7'), "version 7"), (text.replace("1e-05", "NaN", 1), "not JSON"),
                       (text.replace("1e-05", "-1", 1), "number"), (text.replace("1e-05", "1e300", 1), "number"), (text.replace("a CPU", "x" * 5000), "cpu")):
        assert bad != text
        write("bad.json", bad)
        expect_error("report", "bad.json", status=1, words=["bad.json", words])
        assert not Path("bad.html").exists()
    write("runs.json", {"mode": "measured"})
    expect_error("report", "a.json", "runs.json", status=2, words=["runs.json", "one kind"])
    expect_error("report", "a.json", "a.json", "a.json", status=2, words=["two machines"])
    expect_error("report", "a.json", "-o", "a.json", status=2, words=["-o PAGE.html"])


if __name__ == "__main__":
    run_chosen_in_scratch([a_profile_is_judged_by_floors_or_by_an_earlier_one, a_fleet_is_gathered, a_node_is_measured_and_judged_slow, a_node_is_fit_or_says_why_not, profiles_make_a_page])
