"""`ingot verify` on every recorded reference: models in fp32, operators and trajectories in fp64, linear attention in fp32 and bf16 too (by day in one of them); and a damaged one must fail.
References lie in tests/references, and in the folder that INGOT_REFERENCES names, if any. Those of families that ingot does not have
are named in the last line; a reference of which nothing is known fails the test."""
import filecmp
import json
import os
import shutil
import tempfile
from pathlib import Path

from harness import at_night, ingot

FOLDERS = [Path(__file__).parent.parent / "references"] + [Path(p) for p in [os.environ.get("INGOT_REFERENCES")] if p]
# By `model_type` of config.json, and by the first word of a trajectory's name.
FAMILIES = ("zaya", "llama", "qwen3", "qwen3_moe", "olmoe", "gemma3_text")
NOT_BUILT = ()


def has_family(name, family, left_out):
    assert family in FAMILIES + NOT_BUILT, f"{name}: nothing is known of the family '{family}'"
    if family in NOT_BUILT:
        left_out.append(name)
    return family in FAMILIES


def is_copy(path):
    """Whether the first folder has the same file, or a folder of the same files: it is not verified a second time."""
    for folder in FOLDERS[1:]:
        if folder not in path.parents:
            continue
        files = [p for p in [path, *path.rglob("*")] if p.is_file()]
        first = [FOLDERS[0] / p.relative_to(folder) for p in files]
        return all(there.is_file() and filecmp.cmp(here, there, shallow=False) for here, there in zip(files, first))
    return False


def verify(kind, of, fixture, *flags):
    report = json.loads(ingot("verify", kind, of, "--fixture", fixture, "--json", *flags)[0])
    assert report["pass"] and report["compared"] > 0, (fixture, report)
    return report["compared"]


def main():
    compared, left_out = 0, []
    for folder in FOLDERS:
        for model in sorted(folder.glob("hf/*")):
            if not is_copy(model) and has_family(f"hf/{model.name}", json.loads((model / "config.json").read_text())["model_type"], left_out):
                compared += verify("model", model, model / "fixture.safetensors")
        for operator in sorted(folder.glob("ops/*")):
            for number, fixture in enumerate(f for f in sorted(operator.glob("*.safetensors")) if not is_copy(f)):
                dtypes = ("fp32", "bf16") if operator.name == "linear_attention" else ()
                for dtype in ("fp64", *(dtypes if at_night() else dtypes[number // 2 % 2:][:1])):
                    compared += verify("op", operator.name, fixture, "--dtype", dtype)
        for trajectory in sorted(folder.glob("trajectories/*.safetensors")):
            family = trajectory.name.split("_")[0]
            if not is_copy(trajectory) and has_family(f"trajectories/{trajectory.stem}", family, left_out):
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
