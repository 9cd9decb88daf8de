"""scripts/gpu-kernels: what it judges by, then by day one target of each vendor, at night all. Skipped (77) where a vendor's compiler is missing."""
import importlib.machinery
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parent.parent / "scripts/gpu-kernels"
BY_DAY = ["--only", "sm_90a", "--only", "gfx942"]

loader = importlib.machinery.SourceFileLoader("gpu_kernels", str(SCRIPT))
sys.dont_write_bytecode = True
script = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_kernels", loader))
loader.exec_module(script)

# Occupancy by hand: of registers, of shared memory, of the size of blocks and of their number. A warp's registers go by 256.
assert script.fitting("sm_90a", 256, 32, 0) == 1
assert script.fitting("sm_90a", 256, 128, 0) == 0.25
assert script.fitting("sm_90a", 256, 129, 0) == 0.125  # 136 x 256 registers a block: one fits
assert script.fitting("sm_90a", 1024, 33, 0) == 0.5
assert script.fitting("sm_90a", 64, 16, 0) == 1 and script.fitting("sm_90a", 32, 16, 0) == 0.5
assert script.fitting("sm_90a", 256, 32, 48 << 10) == 0.5 and script.fitting("sm_80", 256, 32, 48 << 10) == 0.375

good = script.figures(256, 64, 0, 1024, 0.5)
kept = {"A": good, "B": script.figures(None, 64, 0, 0, 0.5)}
judged = lambda **change: list(script.worse("sm_90a", {**kept, "A": good | change}, kept))
assert judged() == [] and judged(registers=63, occupancy=1.0) == []
assert judged(registers=65) == ["A on sm_90a: registers was 64 and is 65"]
assert judged(occupancy=0.375) == ["A on sm_90a: occupancy was 0.5 and is 0.375"]
assert len(judged(spilled=8)) == 2 and len(judged(occupancy=0.125)) == 2
assert list(script.worse("sm_90a", {"A": good}, kept)) == ["B on sm_90a is in kernel_figures.json and no longer made: --write takes it out"]
assert list(script.worse("sm_90a", {**kept, "C": good}, kept)) == ["C on sm_90a is not in kernel_figures.json: --write puts it there"]
assert list(script.worse("sm_90a", {"A": good}, None)) == []  # of another compiler

sys.exit(subprocess.run([sys.executable, "-B", SCRIPT, *([] if os.environ.get("INGOT_NIGHT") else BY_DAY)]).returncode)
