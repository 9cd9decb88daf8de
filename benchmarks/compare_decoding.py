#!/usr/bin/env python3
"""Tokens per second of ingot, llama.cpp and transformers with one model, in turn, on this machine.

    .deps/venv/bin/python benchmarks/compare_decoding.py [--ingot fp32 bf16 int8 int4] [--rounds 5] [-o TABLE.md]

The model is a Llama of 94 M parameters (vocabulary 4,096) with random weights, so that its weights are read from memory and not from a cache. It
is saved as a Hugging Face folder, which ingot and transformers read, and exported by `ingot checkpoint export-gguf` for llama.cpp in F32, BF16
and Q8_0; llama.cpp itself makes Q4_0 of the first. Measured: 128 tokens after a prompt of 16 for one text and for 16 at once, the first token
after prompts of 512 and 2,048. Each side is a process that keeps its model: ingot's is `ingot serve`, asked over HTTP; of `ingot generate` the
decoding of one text is shown besides. Sides take turns within a round, the order turns with the round. A measurement waits for idle cores, and
what other programs took of the cores during it is counted: beyond a tenth of a core it is marked as disturbed. Read bandwidth is measured in each
round by `ingot bench memory`, with as many threads.

llama.cpp is llama-cpp-python from .deps/llama_cpp (./scripts/test --night), or wherever --peer-python finds it; build it for this machine's
instructions, as that script's flags leave AVX-512 out. Without it, or with --sides, the others are compared.
"""
import argparse
import json
import os
import random
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHAPE = dict(hidden_size=1024, intermediate_size=2304, num_hidden_layers=8, num_attention_heads=16, num_key_value_heads=16, vocab_size=4096,
             max_position_embeddings=4096, tie_word_embeddings=True, bos_token_id=None, eos_token_id=None, pad_token_id=None)
TASKS = {  # name: (tokens of a prompt, new tokens, texts at once)
    "decode": (16, 128, 1),
    "prompt 512": (512, 1, 1),
    "prompt 2048": (2048, 1, 1),
    "batch 16": (16, 128, 16),
}
# Kinds of weights: of ingot the flags, of the others their name, and nominal bytes of a weight.
KINDS = {
    "fp32": dict(ingot="--dtype fp32", gguf="F32", transformers="float32", bytes=4.0),
    "bf16": dict(ingot="--dtype bf16", gguf="BF16", transformers="bfloat16", bytes=2.0),
    "int8": dict(ingot="--weights int8", gguf="Q8_0", bytes=34 / 32),
    "int4": dict(ingot="--weights int4", gguf="Q4_0", bytes=18 / 32),
}
SIDES = ["ingot serve", "ingot generate", "llama.cpp", "transformers"]
BUSY_CORES = 0.1  # of other programs


# ---- what runs in the peers' processes: a task a line, its seconds a line ----

class LlamaCpp:
    def __init__(self, path, threads):
        sys.path.append(str(ROOT / ".deps" / "llama_cpp"))
        import llama_cpp
        import numpy
        self.api, self.numpy = llama_cpp, numpy
        self.quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self.quiet, None)
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
        assert self.model, f"llama.cpp does not take {path}"
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max, params.kv_unified = 4096, 2048, 512, 16, True
        params.n_threads = params.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        self.vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.batch = llama_cpp.llama_batch_init(2048, 0, 16)

    def decode(self, tokens):
        """[(id, position, text, whether its logits are wanted)] -> ids of the likeliest."""
        b = self.batch
        b.n_tokens = len(tokens)
        for i, (token, position, text, wanted) in enumerate(tokens):
            b.token[i], b.pos[i], b.n_seq_id[i], b.seq_id[i][0], b.logits[i] = token, position, 1, text, wanted
        assert self.api.llama_decode(self.context, b) == 0
        row = lambda i: self.numpy.ctypeslib.as_array(self.api.llama_get_logits_ith(self.context, i), (self.vocab,))
        return [int(row(i).argmax()) for i, (_, _, _, wanted) in enumerate(tokens) if wanted]

    def run(self, prompts, new):
        self.api.llama_memory_clear(self.api.llama_get_memory(self.context), True)
        start = time.perf_counter()
        prompt = [(token, at, text, at == len(ids) - 1) for text, ids in enumerate(prompts) for at, token in enumerate(ids)]
        likeliest = self.decode(prompt)
        texts = [likeliest]
        for step in range(new - 1):
            likeliest = self.decode([(token, len(prompts[text]) + step, text, True) for text, token in enumerate(likeliest)])
            texts.append(likeliest)
        return time.perf_counter() - start, [list(ids) for ids in zip(*texts)]


class Transformers:
    def __init__(self, path, threads, dtype):
        import torch
        import transformers
        transformers.logging.set_verbosity_error()
        torch.set_num_threads(threads)
        self.torch = torch
        self.model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype)).eval()

    def run(self, prompts, new):
        ids = self.torch.tensor(prompts)
        start = time.perf_counter()
        with self.torch.inference_mode():
            if new == 1:
                out = self.model(ids, use_cache=True, logits_to_keep=1).logits[:, -1:].argmax(-1)
            else:
                out = self.model.generate(ids, attention_mask=self.torch.ones_like(ids), max_new_tokens=new, min_new_tokens=new, do_sample=False)[:, ids.shape[1]:]
        return time.perf_counter() - start, out.tolist()


def peer(which, path, threads, dtype):
    side = LlamaCpp(path, threads) if which == "llama.cpp" else Transformers(path, threads, dtype)
    print("ready", flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        print(json.dumps(side.run(task["prompts"], task["new"])), flush=True)


def quantize(source, target):
    """llama.cpp's own Q4_0."""
    sys.path.append(str(ROOT / ".deps" / "llama_cpp"))
    import llama_cpp
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.nthread = llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0, 2
    sys.exit(llama_cpp.llama_model_quantize(source.encode(), target.encode(), params))


# ---- sides as this process sees them ----

class PeerProcess:
    def __init__(self, python, which, path, threads, dtype=""):
        self.process = subprocess.Popen([python, __file__, "--as", which, str(path), str(threads), dtype], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL)
        if self.process.stdout.readline().strip() != "ready":
            raise RuntimeError(f"{which} does not start with {path}")

    def run(self, prompts, new):
        self.process.stdin.write(json.dumps({"prompts": prompts, "new": new}) + "\n")
        self.process.stdin.flush()
        seconds, ids = json.loads(self.process.stdout.readline())
        return seconds, ids

    def pids(self):
        return [self.process.pid]


class IngotServer:
    def __init__(self, program, model, flags, threads):
        self.process = subprocess.Popen([program, "serve", str(model), "--port", "0", *shlex.split(flags)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                        text=True, env=os.environ | {"OMP_NUM_THREADS": str(threads)})
        said = ""
        while not (found := re.search(r"answers at (http://[0-9.]+:[0-9]+)/v1", said)):
            line = self.process.stderr.readline()
            if not line:
                raise RuntimeError(f"ingot serve {flags}: {said.strip()}")
            said += line
        self.url = found.group(1) + "/v1/completions"

    def run(self, prompts, new):
        body = {"prompt": prompts, "max_tokens": new, "temperature": 0, "ignore_eos": True}
        request = urllib.request.Request(self.url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        start = time.perf_counter()
        with urllib.request.urlopen(request) as answer:
            said = json.load(answer)
        seconds = time.perf_counter() - start
        made = said["usage"]["completion_tokens"]
        assert made == new * len(prompts), f"ingot made {made} tokens"
        return seconds, None

    def pids(self):
        return [self.process.pid]


class IngotGenerate:
    """A process for each text; it counts the tokens' time itself, without loading."""

    def __init__(self, program, model, flags, threads):
        self.call = [program, "generate", "--model", str(model), *shlex.split(flags), "--json"]
        self.env = os.environ | {"OMP_NUM_THREADS": str(threads)}

    def run(self, prompts, new):
        text = "abcdefghijklmnopqrstuvwxyz"[:len(prompts[0])]
        done = subprocess.run([*self.call, "--prompt", text, "--tokens", str(new)], env=self.env, capture_output=True, text=True, check=True)
        said = json.loads(done.stdout)
        assert len(said["ids"]) == new, said
        return new / said["tokens_per_s"], said["ids"]

    def pids(self):
        return []


# ---- how busy the machine is with others ----

TICK = os.sysconf("SC_CLK_TCK")


def busy_s():
    """Seconds that all cores were not idle."""
    user, nice, system, idle, wait, *rest = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:])
    return (user + nice + system + sum(rest[:3])) / TICK


def own_s(pids):
    """CPU seconds of this process, of its children that ended, and of these."""
    total = sum(os.times()[:4])
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        total += (int(fields[11]) + int(fields[12])) / TICK
    return total


class Watch:
    """Cores that other programs take."""

    def __init__(self, pids):
        self.pids = pids
        self.start()

    def start(self):
        self.at, self.busy, self.own = time.perf_counter(), busy_s(), own_s(self.pids)

    def foreign_cores(self):
        elapsed = max(time.perf_counter() - self.at, 1e-6)
        return max(0.0, (busy_s() - self.busy - (own_s(self.pids) - self.own)) / elapsed)


def wait_for_idle(pids, patience_s):
    """Until others left the cores for half a second, or patience ends; whether they did."""
    end = time.perf_counter() + patience_s
    while True:
        watch = Watch(pids)
        time.sleep(0.5)
        if watch.foreign_cores() <= BUSY_CORES:
            return True
        if time.perf_counter() > end:
            return False
        time.sleep(1)


# ---- the model ----

def make_model(folder, shape):
    import torch
    import transformers
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape))
    model.save_pretrained(folder)
    # A token for each byte: what a server needs to show text.
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    characters = {b: chr(b) for b in visible} | {b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in visible)}
    tokenizer = {"version": "1.0", "added_tokens": [], "normalizer": None,
                 "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}, "post_processor": None,
                 "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
                 "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                           "fuse_unk": False, "byte_fallback": False, "vocab": {c: b for b, c in characters.items()}, "merges": []}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return sum(p.numel() for p in model.parameters())


def bandwidth(program, threads):
    done = subprocess.run([program, "bench", "memory", "--sizes", "256M", "--dtype", "fp32", "--json"], capture_output=True, text=True,
                          env=os.environ | {"OMP_NUM_THREADS": str(threads)})
    if done.returncode:
        raise RuntimeError(done.stderr)
    return next(m["bytes_per_s"] for m in json.loads(done.stdout)["memory"] if m["operation"] == "read")


def start_sides(o, scratch, model):
    """{(side, kind): what runs it}; what does not start is said and left out."""
    sides = {}

    def add(side, kind, make):
        try:
            sides[side, kind] = make()
            print(f"started {side} {kind}", file=sys.stderr, flush=True)
        except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
            print(f"{side} {kind} is left out: {error}", file=sys.stderr, flush=True)

    for entry in o.ingot if "ingot" in o.sides else []:
        kind, _, flags = entry.partition("=")
        flags = flags or KINDS[kind]["ingot"]
        add("ingot serve", kind, lambda: IngotServer(o.program, model, flags, o.threads))
        if ("ingot serve", kind) in sides:
            add("ingot generate", kind, lambda: IngotGenerate(o.program, model, flags, o.threads))
    for kind in o.kinds if "llama.cpp" in o.sides else []:
        file = scratch / f"{KINDS[kind]['gguf']}.gguf"

        def make():
            if kind == "int4":
                whole = scratch / "F32.gguf"
                if not whole.exists():
                    subprocess.run([o.program, "checkpoint", "export-gguf", str(model), "-o", str(whole), "--dtype", "fp32"], check=True, capture_output=True)
                subprocess.run([o.peer_python, __file__, "--quantize", str(whole), str(file)], check=True, capture_output=True)
            elif not file.exists():
                subprocess.run([o.program, "checkpoint", "export-gguf", str(model), "-o", str(file), "--dtype", {"int8": "q8_0"}.get(kind, kind)], check=True,
                               capture_output=True)
            return PeerProcess(o.peer_python, "llama.cpp", file, o.threads)
        add("llama.cpp", kind, make)
    for kind in o.kinds if "transformers" in o.sides else []:
        if dtype := KINDS[kind].get("transformers"):
            add("transformers", kind, lambda: PeerProcess(o.peer_python, "transformers", model, o.threads, dtype))
    return sides


def measure(o, sides, samples, rates, texts):
    """samples: {(task, side, kind): [(seconds, whether others disturbed)]}; rates: bandwidths, alike; texts: greedy ids of the first decode."""
    pids = [pid for side in sides.values() for pid in side.pids()]
    for round_ in range(o.rounds + 1):  # the first one warms up
        calm = wait_for_idle(pids, o.patience)
        watch = Watch(pids)
        rate = bandwidth(o.program, o.threads)
        if round_:
            rates.append((rate, not calm or watch.foreign_cores() > BUSY_CORES))
        for task in o.tasks:
            length, new, texts_at_once = TASKS[task]
            rng = random.Random(round_ * 1000 + length)
            prompts = [[rng.randrange(SHAPE["vocab_size"]) for _ in range(length)] for _ in range(texts_at_once)]
            order = list(sides)
            order = order[round_ % len(order):] + order[:round_ % len(order)]
            for key in order:
                if key[0] == "ingot generate" and task != "decode":
                    continue
                calm = wait_for_idle(pids, o.patience)
                watch.start()
                seconds, ids = sides[key].run(prompts, new)
                disturbed = not calm or watch.foreign_cores() > BUSY_CORES
                if round_:
                    samples.setdefault((task, *key), []).append((seconds, disturbed))
                elif task == "decode" and ids and key[0] != "ingot generate":
                    texts[key] = ids[0]
            print(f"round {round_ or 'of warming up'}: {task}", file=sys.stderr, flush=True)


def spread(values, digits=1):
    return f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f}–{max(values):,.{digits}f})"


def report(o, samples, rates, parameters):
    calm = lambda pairs: [x for x, disturbed in pairs if not disturbed] or [x for x, _ in pairs]
    rate = statistics.median(calm(rates))
    disturbed = sum(d for pairs in samples.values() for _, d in pairs)
    count = sum(len(pairs) for pairs in samples.values())
    lines = [f"{parameters / 1e6:.1f} M parameters, {o.threads} threads, {o.rounds} rounds after one of warming up; medians and ranges of tokens/s. Read bandwidth "
             f"{spread([x / 1e9 for x in calm(rates)])} GB/s.",
             f"{disturbed} of {count} measurements were disturbed by other programs (more than {BUSY_CORES} cores, or no idle cores within {o.patience} s)"
             f"{'; where a row has others, they are left out' if disturbed else ''}.", ""]
    for task in (task for task in o.tasks if any(key[0] == task for key in samples)):
        length, new, texts = TASKS[task]
        tokens = new * texts if new > 1 else length
        is_decoding = new > 1 and texts == 1
        head = ["weights", "side", "tokens/s", "of llama.cpp", "of transformers"] + (["GB/s of weights (nominal)", "of the bandwidth"] if is_decoding else []) + ["disturbed"]
        lines += [f"### {task}: " + (f"{new} tokens after {length}, {texts} at once" if new > 1 else f"the first token after {length}"), "",
                  "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
        median = {key[1:]: statistics.median([tokens / s for s in calm(pairs)]) for key, pairs in samples.items() if key[0] == task}
        for kind in KINDS:
            for key, pairs in sorted(samples.items(), key=lambda item: SIDES.index(item[0][1])):
                if key[0] != task or key[2] != kind:
                    continue
                own = median[key[1:]]
                against = lambda side: f"{own / median[side, kind]:.2f}" if (side, kind) in median and side != key[1] else ""
                cells = [kind, key[1], spread([tokens / s for s in calm(pairs)]), against("llama.cpp"), against("transformers")]
                if is_decoding:
                    read = parameters * KINDS[kind]["bytes"] * own
                    cells += [f"{read / 1e9:.1f}", f"{100 * read / rate:.0f} %"]
                lines.append("| " + " | ".join(cells + [f"{sum(d for _, d in pairs)} of {len(pairs)}"]) + " |")
        lines.append("")
    return "\n".join(lines)


def main():
    if sys.argv[1:2] == ["--as"]:
        return peer(sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5])
    if sys.argv[1:2] == ["--quantize"]:
        return quantize(*sys.argv[2:4])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ingot", nargs="*", default=["fp32", "bf16"], metavar="KIND[=FLAGS]",
                        help=f"ingot's weights: of {', '.join(KINDS)}; FLAGS in place of those of the kind")
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(KINDS), help="the peers' weights")
    parser.add_argument("--sides", nargs="*", default=["ingot", "llama.cpp", "transformers"], choices=["ingot", "llama.cpp", "transformers"])
    parser.add_argument("--tasks", nargs="*", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--patience", type=float, default=60, help="seconds that a measurement waits for idle cores")
    parser.add_argument("--program", default=str(ROOT / "build/release/ingot"))
    parser.add_argument("--peer-python", default=sys.executable, help="a Python that has llama_cpp and transformers")
    parser.add_argument("-o", "--output")
    o = parser.parse_args()
    for entry in o.ingot:
        if entry.partition("=")[0] not in KINDS:
            parser.error(f"--ingot {entry}: the kinds are {', '.join(KINDS)}")
    os.environ["OMP_NUM_THREADS"] = str(o.threads)
    with tempfile.TemporaryDirectory(prefix="ingot_decoding_") as folder:
        scratch = Path(folder)
        parameters = make_model(scratch / "model", SHAPE)
        sides = start_sides(o, scratch, scratch / "model")
        if not sides:
            sys.exit("no side started")
        samples, rates, texts = {}, [], {}
        try:
            measure(o, sides, samples, rates, texts)
        except KeyboardInterrupt:
            print("interrupted: what was measured until then", file=sys.stderr)
        finally:
            for side in sides.values():
                if process := getattr(side, "process", None):
                    process.kill()
                    process.wait()
    if not rates:
        sys.exit("nothing was measured")
    if len({json.dumps(ids) for (_, kind), ids in texts.items() if kind == "fp32"}) > 1:
        print("note: llama.cpp's and transformers' greedy texts in fp32 part somewhere", file=sys.stderr)
    table = report(o, samples, rates, parameters)
    print(table)
    if o.output:
        Path(o.output).write_text(table)


main()
