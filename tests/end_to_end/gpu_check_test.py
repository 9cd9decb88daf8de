"""scripts/gpu-check from the pack to the collected files, rehearsed on the emulated device. By day every eighth of each program's tests is run there."""
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ["INGOT_BINARY"]).parent
PYTHON = ROOT / ".deps/venv/bin/python"  # has torch and transformers, where developers measure beside PyTorch
STAGES = ["doctor", "operators", "fp8", "verify", "families", "models", "kernels", "pytorch", "trace", "others", "layers", "repeat", "offload", "graphs", "gemms", "demo", "profile", "cpu"]
CASES = ["dense-0.5b-bf16-adamw", "zaya-0.5b-bf16-adamw", "dense-3b-bf16-adamw", "dense-3b-fp8-adamw", "dense-0.5b-bf16-muon", "zaya-0.5b-bf16-muon"]
REFERENCES = ["model hf/gemma3_text/fixture.safetensors", "op ops/linear_attention/", "trajectory trajectories/llama_adamw.safetensors", "trajectory trajectories/llama_muon.safetensors"]
OPERATORS = ["rms_norm", "swiglu", "cross_entropy", "split_norm_and_rotate", "split_and_rotate", "linear_attention", "adamw", "muon", "topk_softmax", "round_to_fp8"]


def gpu_check(*args, status=0, script=ROOT / "scripts/gpu-check"):
    part = {} if os.environ.get("INGOT_NIGHT") else {"GTEST_TOTAL_SHARDS": "8", "GTEST_SHARD_INDEX": "0"}
    done = subprocess.run([sys.executable, str(script), *map(str, args)], capture_output=True, text=True, timeout=500, env=os.environ | part)
    assert done.returncode == status, f"status {done.returncode}, not {status}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def a_rehearsal_comes_to_its_end(folder):
    pack, out, files = folder / "pack", folder / "out", folder / "files"
    gpu_check("pack", "--build", BUILD, "-o", pack)
    shutil.rmtree(pack)
    subprocess.run(["tar", "xf", folder / "pack.tar.gz", "-C", folder], check=True)  # what travels
    run = ("run", "--device", "emulated", "-o", out, *(["--python", PYTHON] if PYTHON.exists() else ["--only", *(s for s in STAGES if s != "pytorch")]))
    gpu_check(*run, script=pack / "gpu-check")
    stages = json.loads((out / "stages.json").read_text())
    ran = [s for s in STAGES if s != "pytorch" or PYTHON.exists()]
    assert list(stages) == ran and all(s["status"] == "passed" for s in stages.values()), stages
    whole = (out / "stages.json").read_text()
    (out / "stages.json").write_text(whole[:20])
    assert "all stages run again" in gpu_check(*run, script=pack / "gpu-check", status=1)
    (out / "stages.json").write_text(whole)
    # Once more: nothing is done again. A stage that had failed is.
    stages["doctor"]["status"] = stages["demo"]["status"] = "failed: status 1"
    (out / "stages.json").write_text(json.dumps(stages))
    one = gpu_check(*run[:5], "--only", "demo", script=pack / "gpu-check", status=1)
    assert "demo         passed  (" in one and "doctor" not in one, one
    again = gpu_check(*run, script=pack / "gpu-check")
    assert again.count("passed before") == len(ran) - 1 and "doctor       passed  (" in again, again

    assert "rehearsal" in gpu_check("collect", out, status=1), "what was emulated must not get into benchmarks/"
    gpu_check("collect", out / "results.tar.gz", "-o", files)
    table = next(files.glob("gpu_emulated_*.md")).read_text()
    assert "zaya1-nano-bf16-4-resumed | 2 |" in table
    every = [*ran, "zaya1-nano-fp32-4 | 4 |", "hybrid-moe-nano-fp32-2 | 2 |", *CASES, *REFERENCES, *OPERATORS, "newton_schulz_of_gemms | bf16 |", "matmul | "]
    every += [f"{model} | {precision} | 3 |" for model in ("llama-nano", "zaya1-nano") for precision in ("bf16", "fp8", "fp8_block")]
    for word in every:
        assert f"\n| {word}" in table, f"'{word}' is not in\n{table}"
    rows = lambda name: [cell.strip() for cell in re.search(rf"^\| {re.escape(name)} \|.*$", table, re.M)[0].split("|")[1:-1]]
    for case in CASES:  # every figure is there but those that the first alone has, and PyTorch's
        figures = rows(case)
        assert len(figures) == 14 and all(figures[n] for n in (1, 4, 5, 6, 7, 8, 9)), figures
        assert float(figures[6]) <= float(figures[5]) <= float(figures[7]), figures
    assert all(rows(CASES[0])[12:]) and float(rows(CASES[0])[13]) > 0, rows(CASES[0])
    if PYTHON.exists():
        assert all(rows(case)[2] and float(rows(case)[3]) > 0 for case in CASES[:2]), table
    assert not any(rows(case)[3] for case in CASES[2:])
    for family in ("qwen3", "granite", "gpt_oss"):  # in 16 bits, beside the CPU in 32
        assert 0 < float(rows(f"{family}-bf16-2")[8]) < 0.1, table
    spans = json.loads(gzip.decompress(next(files.glob("*_trace.json.gz")).read_bytes()))["traceEvents"]
    assert len(spans) > 500 and all(span["dur"] >= 0 for span in spans)
    assert json.loads(next(files.glob("*_profile.json")).read_text())["memory"]


def wrong_calls_say_what_is_wrong(folder):
    assert "no pack" in gpu_check("run", "-o", folder / "out", status=1)
    assert not (folder / "out").exists()
    assert "no libingot_cuda.so" in gpu_check("pack", "--build", folder, "-o", folder / "pack", status=1)
    (folder / "thesis").mkdir()
    (folder / "thesis/chapter.tex").write_text("years of work")
    assert "something else in it" in gpu_check("pack", "--build", BUILD, "-o", folder / "thesis", status=1)
    assert (folder / "thesis/chapter.tex").exists()
    assert "choose from doctor" in gpu_check("run", "--only", "docter", status=2).replace("'", "")
    assert "cannot be read" in gpu_check("collect", folder / "nothing.tar.gz", status=1)
    with tarfile.open(folder / "other.tar.gz", "w:gz") as tar:
        tar.add(__file__, "a.py")
    assert "no stages.json" in gpu_check("collect", folder / "other.tar.gz", status=1)


def a_stage_has_its_time_and_what_others_left(folder):
    """With programs that only wait: a stage that takes too long ends, is named, and leaves those behind it theirs."""
    pack, out = folder / "pack", folder / "out"
    (pack / "bin").mkdir(parents=True)
    (pack / "version.txt").write_text("none\n")
    shutil.copy(ROOT / "scripts/gpu-check", pack)
    for program in ("ingot", "kernels_test", "optim_test"):
        (pack / "bin" / program).write_text("#!/bin/sh\n" + ("sleep 600 & wait\n" if program == "kernels_test" else "echo {}\n"))
        (pack / "bin" / program).chmod(0o755)
    text = gpu_check("run", "--device", "emulated", "-o", out, "--only", "doctor", "operators", "--minutes", 8 / 60, script=pack / "gpu-check", status=1)
    stages = json.loads((out / "stages.json").read_text())
    assert stages["doctor"]["status"] == "passed", text
    assert re.fullmatch(r"failed: more than \d+ s; 1 of 2 commands had no time", stages["operators"]["status"]) and stages["operators"]["seconds"] < 20, stages
    assert "operators" in tarfile.open(out / "results.tar.gz").extractfile("stages.json").read().decode()


if __name__ == "__main__":
    if not (BUILD / "libingot_cuda.so").exists():
        print("this build was made without --cuda")
        sys.exit(77)
    with tempfile.TemporaryDirectory(prefix="ingot_gpu_check_") as temporary:
        globals()[sys.argv[1]](Path(temporary))
