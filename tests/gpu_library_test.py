"""libingot_cuda.so finds all that it calls, in torch's library for GPUs and in libingot.so: loaded here, where there is no GPU to use."""
import os
import subprocess
import sys
from pathlib import Path

BUILD = Path(os.environ["INGOT_BINARY"]).parent
PYTHON = Path(__file__).resolve().parents[1] / ".deps/venv/bin/python"
LOAD = f"""
import ctypes, torch
ctypes.CDLL("{BUILD}/libingot.so", mode=ctypes.RTLD_GLOBAL | 2)
library = ctypes.CDLL("{BUILD}/libingot_cuda.so", mode=2)  # 2: every symbol now
print(library.ingot_make_nccl_backend is not None)
"""

if not (BUILD / "libingot_cuda.so").exists() or not PYTHON.exists():
    print("there is no libingot_cuda.so (./scripts/build --cuda), or no torch for GPUs in .deps/venv")
    sys.exit(77)
done = subprocess.run([str(PYTHON), "-c", LOAD], capture_output=True, text=True, timeout=120)
assert done.returncode == 0 and done.stdout.strip() == "True", done.stderr
