"""What nvcc says of the GPU's kernels (src/gpu/rows.cu): none may spill or take more registers than half of a multiprocessor's
threads leave it. With --table it prints all of them."""
import re
import sys
from pathlib import Path

MOST_REGISTERS = 128  # 512 threads of them fill a multiprocessor's 65,536


def figures(text):
    """[(kernel, architecture, registers, bytes spilled)]"""
    found = []
    for part in text.split("Compiling entry function")[1:]:
        name, architecture = re.search(r"'(\w+)' for '(\w+)'", part).groups()
        kernel = re.search(r"wave\d+\d\d([A-Z]\w+?)EEvT0_", name) or re.search(r"(\w+)", name)
        spilled = sum(map(int, re.findall(r"(\d+) bytes spill", part)))
        found.append((kernel[1], architecture, int(re.search(r"Used (\d+) registers", part)[1]), spilled))
    return found


def main(path, *options):
    if not Path(path).exists():
        print("no nvcc built the GPU's kernels here")
        return 77
    all_figures = figures(Path(path).read_text())
    assert all_figures, f"{path} names no kernel"
    if options:
        print("\n".join(f"{kernel:60} {architecture:7} {registers:4} registers {spilled:5} bytes spilled" for kernel, architecture, registers, spilled in sorted(all_figures)))
    bad = [f for f in all_figures if f[2] > MOST_REGISTERS or f[3] > 0]
    assert not bad, f"these spill, or take more than {MOST_REGISTERS} registers: {bad}"
    print(f"{len(all_figures)} kernels, at most {max(f[2] for f in all_figures)} registers, none spills")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
