"""The wheel of ingot_checkpoint, packed from the built module, installed into a fresh environment that has torch, saves and loads. Runs with the
Python of .deps/venv; arguments: the build folder. Nothing is downloaded."""
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "python"
OF_EVERY_SYSTEM = {"libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2"}

PROGRAM = """
import sys, warnings
from pathlib import Path
warnings.filterwarnings("ignore")
import torch
import torch.distributed.checkpoint as dcp
import ingot_checkpoint as ic
assert Path(ic.__file__).is_relative_to(sys.prefix), ic.__file__
folder = Path(sys.argv[1])
state = {"w": torch.arange(1000.0), "step": 3}
path = ic.save(folder, 3, state)["path"]
dcp.save(state, storage_writer=ic.StorageWriter(folder / "step_4"))
for load in (lambda mine: ic.load(path, mine), lambda mine: dcp.load(mine, storage_reader=ic.StorageReader(folder / "step_00000004"))):
    mine = {"w": torch.zeros(1000), "step": 0}
    load(mine)
    assert torch.equal(mine["w"], state["w"]) and mine["step"] == 3, mine
print("saved and loaded")
"""


def ran(*command, **environment):
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=120, env=inherited | environment)
    assert done.returncode == 0, f"{command}: status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def pip(*arguments):
    return ran(sys.executable, "-m", "pip", *arguments, PIP_NO_INDEX="1", PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_NO_CACHE_DIR="1")


def packed(build, folder):
    pip("wheel", PACKAGE, "--no-deps", "--config-settings", f"build-folder={build}", "-w", folder)
    wheel, = folder.glob("*.whl")
    return wheel


def main(build):
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        wheel = packed(build, folder / "wheels")
        assert packed(build, folder / "again").read_bytes() == wheel.read_bytes(), "the same files make another wheel"
        names = zipfile.ZipFile(wheel).namelist()
        sources = {f"ingot_checkpoint/{source.name}" for source in (PACKAGE / "ingot_checkpoint").glob("*.py")}
        assert sources <= set(names), names
        ran(sys.executable, "-m", "venv", "--without-pip", folder / "venv")
        python = folder / "venv/bin/python"
        pip("--python", python, "install", "--no-deps", wheel)
        site = Path(ran(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
        (site / "torch_of_the_tests.pth").write_text(next(path for path in sys.path if path.endswith("site-packages")) + "\n")
        module, = (site / "ingot_checkpoint").glob("_core*.so")
        inside = {library.name for library in module.parent.glob("lib*")}
        dynamic = ran("readelf", "-d", module)
        needed = {line.split("[")[1].split("]")[0] for line in dynamic.splitlines() if "(NEEDED)" in line}
        assert needed <= OF_EVERY_SYSTEM | inside and "Library runpath: [$ORIGIN]" in dynamic, dynamic
        assert "saved and loaded" in ran(python, "-c", PROGRAM, folder / "checkpoints")
        print(f"ok {wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, links {' '.join(sorted(needed))}")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
