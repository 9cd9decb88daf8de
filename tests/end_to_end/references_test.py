"""`ingot verify` on every recorded reference: models in fp32, operators and trajectories in fp64; and a damaged one must fail.
References lie in tests/references, and in the folder that INGOT_REFERENCES names, if any. Those of families that ingot does not have
are named in the last line; a reference of which nothing is known fails the test."""
import json
import os
import shutil
import tempfile
from pathlib import Path

from harness import ingot

FOLDERS = [Path(__file__).parent.parent / "references"] + [Path(p) for p in [os.environ.get("INGOT_REFERENCES")] if p]
# By `model_type` of config.json, and by the first word of a trajectory's name.
FAMILIES = ("zaya", "llama", "qwen3", "qwen3_moe", "olmoe", "gemma3_text")
NOT_BUILT = ()


def has_family(name, family, left_out):
    assert family in FAMILIES + NOT_BUILT, f"{name}: nothing is known of the family '{family}'"
    if family in NOT_BUILT:
        left_out.append(name)
    return family in FAMILIES


def verify(kind, of, fixture, *flags):
    report = json.loads(ingot("verify", kind, of, "--fixture", fixture, "--json", *flags)[0])
    assert report["pass"] and report["compared"] > 0, (fixture, report)
    return report["compared"]


def main():
    compared, left_out = 0, []
    for folder in FOLDERS:
        for model in sorted(folder.glob("hf/*")):
            if has_family(f"hf/{model.name}", json.loads((model / "config.json").read_text())["model_type"], left_out):
                compared += verify("model", model, model / "fixture.safetensors")
        for operator in sorted(folder.glob("ops/*")):
            for fixture in sorted(operator.glob("*.safetensors")):
                for dtype in ("fp64", "fp32", "bf16") if operator.name == "linear_attention" else ("fp64",):
                    compared += verify("op", operator.name, fixture, "--dtype", dtype)
        for trajectory in sorted(folder.glob("trajectories/*.safetensors")):
            family = trajectory.name.split("_")[0]
            if has_family(f"trajectories/{trajectory.stem}", family, left_out):
                compared += verify("trajectory", folder / "hf" / family, trajectory)
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
    print(f"ok {compared} tensors compared; left out, of families that are not built: {', '.join(left_out) or 'none'}")


main()
