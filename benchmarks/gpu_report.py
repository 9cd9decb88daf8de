"""What a visit to a GPU brought back, as files under benchmarks/: the page, the machine's profile and the trace. scripts/gpu-check collect calls it."""
import datetime
import gzip
import json
import re
import statistics
import sys
import tarfile
from pathlib import Path

import kernel_rooflines

WARMUP = 3  # steps that no figure counts


def steps_of(text):
    return [entry for line in text.splitlines() if "step_ms" in (entry := json.loads(line))]


def quantile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def shown(value, form):
    """Nothing where there is no figure."""
    return "" if value is None else format(value, form)


def over(a, b):
    return a / b if a and b else None


class Results:
    def __init__(self, source):
        self.files = {}
        source = source / "results.tar.gz" if source.is_dir() else source
        try:
            with tarfile.open(source) as tar:
                for member in tar.getmembers():
                    if member.isfile() and "/" not in member.name and member.size < 64 << 20:
                        self.files[member.name] = tar.extractfile(member).read().decode(errors="replace")
        except (OSError, tarfile.TarError) as problem:
            sys.exit(f"{source} cannot be read: {problem}")
        if "stages.json" not in self.files:
            sys.exit(f"{source} is no archive of gpu-check: it has no stages.json")
        self.runs = {name.removesuffix(".jsonl").removeprefix("run-"): steps for name, text in sorted(self.files.items())
                     if name.endswith(".jsonl") and (steps := steps_of(text))}

    def json(self, name, otherwise={}):
        try:
            return json.loads(self.files[name])
        except (KeyError, ValueError):
            return otherwise

    def device(self):
        names = re.findall(r"Product Name\s*:\s*(.+)|\|\s+\d+\s+(NVIDIA [\w -]+?)\s{2,}", self.files.get("doctor.log", ""))
        return next((a or b for a, b in names), "emulated").strip()

    def stages(self):
        yield "| stage | outcome | s |\n|---|---|---|"
        for name, stage in self.json("stages.json").items():
            yield f"| {name} | {stage['status']} | {stage['seconds']:.0f} |"

    def peers(self):
        """Tokens per second of PyTorch by case, the fastest of its variants."""
        best = {}
        for case, rate in re.findall(r"^\| (\S+) PyTorch [^|]*\| ([\d,]+) \|", self.files.get("pytorch.md", ""), re.M):
            best[case] = max(best.get(case, 0), float(rate.replace(",", "")))
        return best

    def models(self):
        names = [name for name in self.runs if name.startswith("model-")]
        if not names:
            return
        peers = {case.replace("/", "-"): rate for case, rate in self.peers().items()}
        yield ("\n## Models\n\nOf each run's steps without the first three. MFU is of the fastest GEMM that was measured; the plan is the program's own, made before the "
               "run; a checkpoint's stall is what training waited for it; PyTorch is the fastest of its variants.\n")
        yield "| model | tokens/s | PyTorch | ratio | MFU | ms a step | p10 | p90 | planned ms | peak MiB | planned MiB | peak / plan | checkpoint GB | stall ms |"
        yield "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"
        for name in names:
            steps, case = self.runs[name], name.removeprefix("model-")
            counted, last = steps[WARMUP:] or steps, steps[-1]
            ms, mfu = [e["step_ms"] for e in counted], statistics.median(e.get("mfu") or 0 for e in counted)
            rate, peer = statistics.median(e["tokens_per_s"] for e in counted), peers.get(case)
            peak, planned = last["memory_peak_bytes"] / 2**20, (last.get("predicted_memory_bytes") or 0) / 2**20
            saves = [e for line in self.files.get(f"run-{name}.checkpoints", "").splitlines() if (e := json.loads(line))["kind"] == "save"]
            saved = f"{saves[-1]['bytes'] / 1e9:.3f} | {1e3 * max(e['stall_s'] for e in saves):.1f}" if saves else " | "
            yield (f"| {case} | {rate:,.0f} | {shown(peer, ',.0f')} | {shown(over(rate, peer), '.2f')} | {100 * mfu:.1f} % | {statistics.median(ms):.1f} | {quantile(ms, 0.1):.1f} "
                   f"| {quantile(ms, 0.9):.1f} | {last.get('predicted_step_ms') or 0:.1f} | {peak:,.0f} | {planned:,.0f} | {shown(over(peak, planned), '.3f')} | {saved} |")

    def fp8(self):
        names = [name for name in self.runs if name.startswith("fp8-")]
        if not names:
            return
        yield "\n## FP8\n\nThe same steps in 16 and in 8 bits.\n"
        yield "| model | precision | steps | first loss | last loss | farthest from bf16 | ms a step | bf16 / it |\n|---|---|---|---|---|---|---|---|"
        for name in names:
            model, precision = re.fullmatch(r"fp8-(.+)-(bf16|fp8|fp8_block)", name).groups()
            own, wide = self.runs[name], self.runs.get(f"fp8-{model}-bf16", [])
            ms = [statistics.median(e["step_ms"] for e in (steps[WARMUP:] or steps)) if steps else None for steps in (own, wide)]
            farthest = max((abs(a["loss"] - b["loss"]) for a, b in zip(own, wide)), default=None)
            yield (f"| {model} | {precision} | {len(own)} | {own[0]['loss']:.4f} | {own[-1]['loss']:.4f} | {shown(farthest, '.1e')} | {ms[0]:.1f} "
                   f"| {shown(over(ms[1], ms[0]), '.2f')} |")

    def references(self):
        found = self.json("verify.json", [])
        if not found:
            return
        yield "\n## References\n\n`ingot verify` on the device; the largest difference is over the largest magnitude of its tensor.\n"
        yield "| reference | tensors | outcome | largest difference |\n|---|---|---|---|"
        for one in found:
            outcome = "passed" if one["pass"] else f"FAILED: {', '.join(one['failed'][:3]) or 'no report'}"
            yield f"| {one['name']} | {one['compared']} | {outcome} | {shown(one['worst'], '.1e')} |"

    def kernels(self):
        profile = self.json("kernels.json")
        if profile.get("kernels"):
            yield "\n## Kernels beside what bounds them\n"
            yield from kernel_rooflines.kernels(profile)

    def step(self):
        report = self.json("iteration.json")
        if not report.get("kinds"):
            return
        yield f"\n## A step taken apart\n\nzaya1-nano in bf16, {statistics.median(report['plain_ms']):.1f} ms a step, watched {report['step_ms']:.1f}.\n"
        yield "| work | ms | predicted |\n|---|---|---|"
        for kind in report["kinds"]:
            if kind["ms"] > 0:
                yield f"| {kind['kind']} | {kind['ms']:.2f} | {shown(kind['predicted_ms'], '.2f')} |"

    def difference_from_cpu(self, name):
        found = re.fullmatch(r"(.+)-(?:fp32|bf16)-(\d+)", name)
        on_cpu = found and self.runs.get(f"{found[1]}-fp32-{found[2]}-cpu")
        return f"{max(abs(own['loss'] - cpu['loss']) for own, cpu in zip(self.runs[name], on_cpu)):.1e}" if on_cpu else ""

    def other_runs(self):
        yield "\n## Runs\n\nThe last column is the largest difference of a loss from that of the same steps on the CPU in fp32.\n"
        yield "| run | steps | first loss | last loss | ms a step | predicted | tokens/s | peak MiB | from the CPU |\n|---|---|---|---|---|---|---|---|---|"
        for name, steps in self.runs.items():
            if name.startswith(("model-", "fp8-")):
                continue
            counted, last = steps[WARMUP:] or steps, steps[-1]
            yield (f"| {name} | {len(steps)} | {steps[0]['loss']:.4f} | {last['loss']:.4f} | {statistics.median(e['step_ms'] for e in counted):.1f} "
                   f"| {last.get('predicted_step_ms') or 0:.1f} | {statistics.median(e['tokens_per_s'] for e in counted):,.0f} | {last['memory_peak_bytes'] / 2**20:,.0f} "
                   f"| {self.difference_from_cpu(name)} |")

    def lines(self):
        yield f"# {self.device()}, ingot {self.files.get('version.txt', '?').strip()}\n\nMade by `./scripts/gpu-check`; medians of a run's steps without the first three.\n"
        for part in (self.stages, self.models, self.fp8, self.references, self.kernels, self.step, self.other_runs):
            yield from part()
        if "pytorch.md" in self.files:
            yield "\n## Beside PyTorch\n\n" + self.files["pytorch.md"]
        for name, stage in self.json("stages.json").items():
            if stage["status"].startswith("failed"):
                tail = "\n    ".join(self.files.get(f"{name}.log", "").splitlines()[-15:])
                yield f"\n## {name}: {stage['status']}\n\n    {tail}"


def write(source, folder):
    results = Results(source)
    if results.device() == "emulated" and not folder:
        sys.exit("this was a rehearsal on the emulated device: name a folder with -o, benchmarks/ is for what ran on a GPU")
    folder = folder or Path(__file__).resolve().parent
    name = re.sub(r"[^a-z0-9]+", "-", results.device().lower()).strip("-")
    stem = f"gpu_{name}_{datetime.date.today()}"
    folder.mkdir(parents=True, exist_ok=True)
    made = {".md": ("\n".join(results.lines()) + "\n").encode()}
    if "profile.json" in results.files:
        made["_profile.json"] = results.files["profile.json"].encode()
    if "trace.json" in results.files:
        made["_trace.json.gz"] = gzip.compress(results.files["trace.json"].encode(), mtime=0)
    for ending, content in made.items():
        (folder / f"{stem}{ending}").write_bytes(content)
        print(folder / f"{stem}{ending}")
