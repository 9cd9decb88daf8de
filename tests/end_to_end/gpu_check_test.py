"""scripts/gpu-check from the pack to the collected files, rehearsed on the emulated device. By day every eighth of each program's tests is run there."""
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ["INGOT_BINARY"]).parent
STAGES = ["doctor", "operators", "layers", "families", "cpu", "repeat", "offload", "graphs", "gemms", "demo", "profile", "iteration"]


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
    run = ("run", "--device", "emulated", "-o", out)
    gpu_check(*run, script=pack / "gpu-check")
    stages = json.loads((out / "stages.json").read_text())
    assert list(stages) == STAGES and all(s["status"] == "passed" for s in stages.values()), stages
    whole = (out / "stages.json").read_text()
    (out / "stages.json").write_text(whole[:20])
    assert "all stages run again" in gpu_check(*run, script=pack / "gpu-check", status=1)
    (out / "stages.json").write_text(whole)
    # Once more: nothing is done again. A stage that had failed is.
    stages["doctor"]["status"] = stages["demo"]["status"] = "failed: status 1"
    (out / "stages.json").write_text(json.dumps(stages))
    one = gpu_check(*run, "--only", "demo", script=pack / "gpu-check", status=1)
    assert "demo         passed  (" in one and "doctor" not in one, one
    again = gpu_check(*run, script=pack / "gpu-check")
    assert again.count("passed before") == len(STAGES) - 1 and "doctor       passed  (" in again, again

    assert "rehearsal" in gpu_check("collect", out, status=1), "what was emulated must not get into benchmarks/"
    gpu_check("collect", out / "results.tar.gz", "-o", files)
    table = next(files.glob("gpu_emulated_*.md")).read_text()
    assert "zaya1-nano-bf16-4-resumed | 2 |" in table
    for word in (*STAGES, "zaya1-nano-fp32-4 | 4 |", "hybrid-moe-nano-fp32-2 | 2 |"):
        assert f"| {word}" in table, f"'{word}' is not in\n{table}"
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


if __name__ == "__main__":
    if not (BUILD / "libingot_cuda.so").exists():
        print("this build was made without --cuda")
        sys.exit(77)
    with tempfile.TemporaryDirectory(prefix="ingot_gpu_check_") as temporary:
        globals()[sys.argv[1]](Path(temporary))
