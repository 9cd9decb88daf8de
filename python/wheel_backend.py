"""Builds the wheel of ingot_checkpoint for the Python that asks (PEP 517). It compiles in build/wheel-<tag>; with the setting build-folder it
packs the module that lies built there. No backend from PyPI: the sources are beside this folder, and CMake knows them."""
import base64
import hashlib
import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
NAME = "ingot_checkpoint"
TAG = "cp{0}{1}-cp{0}{1}-{2}".format(*sys.version_info[:2], re.sub(r"[-.]", "_", sysconfig.get_platform()))
VERSION = re.search(r"project\(ingot VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())[1]
ABOUT = f"{NAME}-{VERSION}.dist-info"


def get_requires_for_build_wheel(config_settings=None):
    return [] if "build-folder" in (config_settings or {}) else ["nanobind==3.1.0"]


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    (Path(metadata_directory) / ABOUT).mkdir()
    for name, content in about_files().items():
        (Path(metadata_directory) / name).write_bytes(content)
    return ABOUT


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    settings = config_settings or {}
    if settings.keys() - {"build-folder"}:
        raise ValueError(f"unknown settings {sorted(settings)}; there is build-folder, a CMake build with ingot_checkpoint_python in it")
    module = built_module(Path(settings["build-folder"]) if settings else compiled())
    files = {f"{NAME}/{source.name}": source.read_bytes() for source in sorted((HERE / NAME).glob("*.py"))}
    files |= {f"{NAME}/{library.name}": library.read_bytes() for library in (module, *sorted(module.parent.glob("lib*.so*")))}
    files |= about_files()
    record = f"{ABOUT}/RECORD"
    files[record] = ("".join(f"{name},sha256={digest(content)},{len(content)}\n" for name, content in files.items()) + f"{record},,\n").encode()
    wheel = f"{NAME}-{VERSION}-{TAG}.whl"
    with zipfile.ZipFile(Path(wheel_directory) / wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name)  # of 1980: the same files make the same wheel
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o100644 << 16
            archive.writestr(entry, content)
    return wheel


def compiled():
    folder = ROOT / "build" / f"wheel-{TAG}"
    jobs = os.environ.get("INGOT_JOBS", str(os.cpu_count()))
    subprocess.run(["cmake", "--preset", "release", "-B", folder, "-DINGOT_TESTS=OFF", "-DINGOT_PYTHON=ON", f"-DINGOT_PYTHON_EXECUTABLE={sys.executable}"],
                   cwd=ROOT, check=True)
    subprocess.run(["cmake", "--build", folder, "--target", "ingot_checkpoint_python", "-j", jobs], check=True)
    return folder


def built_module(folder):
    module = folder.resolve() / "python" / NAME / ("_core" + sysconfig.get_config_var("EXT_SUFFIX"))
    if not module.exists():
        raise FileNotFoundError(f"no {module}: build the target ingot_checkpoint_python with {sys.executable}, or leave build-folder out")
    return module


def about_files():
    metadata = (f"Metadata-Version: 2.1\nName: {NAME.replace('_', '-')}\nVersion: {VERSION}\n"
                "Summary: Checkpoints of PyTorch state dicts: saved by many ranks into one folder, loaded under any layout\n"
                f"Requires-Python: ==3.{sys.version_info[1]}.*\nRequires-Dist: torch\nRequires-Dist: numpy\n"
                "Description-Content-Type: text/markdown\n\n" + (HERE / "README.md").read_text())
    files = {"METADATA": metadata.encode(), "WHEEL": f"Wheel-Version: 1.0\nGenerator: ingot\nRoot-Is-Purelib: false\nTag: {TAG}\n".encode()}
    files |= {name: (ROOT / name).read_bytes() for name in ("LICENSE", "NOTICE")}
    return {f"{ABOUT}/{name}": content for name, content in files.items()}


def digest(content):
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
