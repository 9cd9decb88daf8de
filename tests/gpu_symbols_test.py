"""Each function that the program looks for in the GPU's library is there, and each that is there is looked for.

A name that is missing is no error for the program: operators do the same, slower. So nobody would notice."""
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = Path(os.environ["INGOT_BINARY"]).parent
# What looks for functions: kernels by their symbol (kernels/row_kernel.h), others by device/gpu_library.h.
LOOKS = re.compile(r"\b(run_rows|run_and_sum_rows|takes_rows|runs_rows|(?:find_)?gpu_function)\b")
NAME = re.compile(r'"(ingot_\w+)"')
EXPORTED = re.compile(r"\b(ingot_\w+)\(")


def sources(folder, *endings):
    return [f for ending in endings for f in sorted(folder.rglob(f"*{ending}")) if not f.name.endswith("_test.cpp")]


def looked_up():
    """{name: file}, of all sources that look for functions, and of all in kernels/, some of which only have the names."""
    found = {}
    for file in sources(ROOT / "src", ".cpp", ".h"):
        text = file.read_text()
        if file.is_relative_to(ROOT / "src/gpu") or not (file.is_relative_to(ROOT / "src/kernels") or LOOKS.search(text)):
            continue
        found.update((name, file.relative_to(ROOT)) for name in NAME.findall(text))
    return found


def left_out(exported):
    """Of sources of the library that were not compiled, for want of nvcc or of cuBLASLt's header: none of what they export is there."""
    names = set()
    for file in sources(ROOT / "src/gpu", ".cpp"):
        own = set(EXPORTED.findall(file.read_text()))
        if own and not own & exported:
            names |= own
    return names


def exported_by(library):
    lines = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout.splitlines()
    return {line.split()[-1] for line in lines if line.split()[-1].startswith("ingot_")}


libraries = [file for file in (BUILD / "libingot_cuda.so", BUILD / "libingot_hip.so") if file.exists()]
if not libraries:
    print("no library for GPUs was built (./scripts/build --cuda)")
    sys.exit(77)
wanted = looked_up()
assert len(wanted) > 40, f"only {len(wanted)} names were found in the sources: look at LOOKS and NAME"
wrong = []
for library in libraries:
    exported = exported_by(library)
    missing = wanted.keys() - exported - left_out(exported)
    wrong += [f"{library.name} does not export {name}, which {wanted[name]} looks for" for name in sorted(missing)]
    wrong += [f"nobody looks for {name} of {library.name}" for name in sorted(exported - wanted.keys())]
for line in wrong:
    print(line, file=sys.stderr)
sys.exit(1 if wrong else 0)
