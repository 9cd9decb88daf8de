"""scripts/gpu-kernels: by day for one target of each vendor, at night for all. Skipped (77) where there is no compiler."""
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parent.parent / "scripts/gpu-kernels"
BY_DAY = ["--only", "sm_90a", "--only", "gfx942"]

sys.exit(subprocess.run([sys.executable, "-B", SCRIPT, *([] if os.environ.get("INGOT_NIGHT") else BY_DAY)]).returncode)
