"""`ingot verify` on every recorded reference: models in fp32, operators and trajectories in fp64; and a damaged one must fail.
References lie in tests/references, and in the folder that INGOT_REFERENCES names, if any."""
import json
import os
import shutil
import tempfile
from pathlib import Path

from harness import ingot

FOLDERS = [Path(__file__).parent.parent / "references"] + [Path(p) for p in [os.environ.get("INGOT_REFERENCES")] if p]
FAMILIES = ("zaya", "llama", "qwen3", "olmoe")


def main():
    compared = 0
    for folder in FOLDERS:
        for model in sorted(folder.glob("hf/*")):
            if model.name.startswith(FAMILIES):
                report = json.loads(ingot("verify", "model", model, "--fixture", model / "fixture.safetensors", "--json")[0])
                assert report["pass"], report
                compared += report["compared"]
            else:
                print("no family of ingot:", model.name)
        for operator in ("muon", "adamw"):
            for fixture in sorted(folder.glob(f"ops/{operator}/*.safetensors")):
                compared += json.loads(ingot("verify", "op", operator, "--fixture", fixture, "--json")[0])["compared"]
        for fixture in sorted(folder.glob("ops/linear_attention/*.safetensors")):
            for dtype in ("fp64", "fp32", "bf16"):
                compared += json.loads(ingot("verify", "op", "linear_attention", "--fixture", fixture, "--dtype", dtype, "--json")[0])["compared"]
        for trajectory in sorted(folder.glob("trajectories/llama*.safetensors")):
            out, _ = ingot("verify", "trajectory", folder / "hf" / "llama", "--fixture", trajectory, "--json")
            compared += json.loads(out)["compared"]
    assert compared > 300, compared

    # A weight that is off by a little is noticed: status 3.
    model = FOLDERS[0] / "hf" / "zaya"
    broken = Path(tempfile.mkdtemp(prefix="ingot_reference_"))
    shutil.copy(model / "config.json", broken)
    data = bytearray((model / "model.safetensors").read_bytes())
    data[-2] ^= 0x20  # in the exponent of the last number
    (broken / "model.safetensors").write_bytes(data)
    ingot("verify", "model", broken, "--fixture", model / "fixture.safetensors", status=3)
    shutil.rmtree(broken)

    # So is a file of another operator, by name: status 2.
    fixture = FOLDERS[0] / "ops" / "linear_attention" / "basic.safetensors"
    _, log = ingot("verify", "op", "muon", "--fixture", fixture, status=2)
    assert "records the operator 'linear_attention'" in log, log
    print("ok", compared, "tensors compared")


main()
