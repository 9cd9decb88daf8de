#!/usr/bin/env python3
"""Rates of byte-level tokenizers on one thread: ingot beside tokenizers, tiktoken and, where they are installed, kitoken and fastokens.

    .deps/venv/bin/python benchmarks/tokenizer_rates.py [--rounds 7] [--megabytes 4] [--folder FOLDER] [-o TABLE.md]

Three vocabularies with the patterns of GPT-2 (50k), Llama 3 (128k) and Qwen (151k), cut from one that is trained here on the sources of
the installed Python packages (kept in --folder). Two texts: ordinary (the packages' descriptions, licences and documentation), and words
of which none comes twice in the whole run, halves of ordinary words put together. Each round takes other documents, so that what is
kept are words and not texts; one round before warms. In each round every program has its turn, beginning with another one. Seconds are
of CPU time. The tables say the median of the rounds and their range, and the median of how many times as fast ingot was in the same
round. What gives another number of ids than ingot is marked.
"""
import argparse
import json
import os
import random
import re
import statistics
import struct
import subprocess
import sys
import time
from pathlib import Path

os.environ |= {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
import tiktoken
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

ROOT = Path(__file__).resolve().parent.parent
EXERCISE = os.environ.get("TOKENIZER_EXERCISE", str(ROOT / "build/release/tests/tokenizer_exercise"))
PACKAGES = Path(tiktoken.__file__).parents[1]
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN = LLAMA3.replace("{1,3}", "")
MIB = 1 << 20


def files(endings, megabytes):
    size, texts = 0, []
    for path in sorted(PACKAGES.rglob("*")):
        if path.suffix in endings or path.name in endings:
            if path.is_file() and path.stat().st_size < 400_000:
                texts.append(path.read_text(errors="replace"))
                size += len(texts[-1])
        if size > megabytes * 1e6:
            break
    return [text for text in texts if text]


def trained(folder):
    """The largest of the three; the others are its beginning."""
    path = folder / "trained.json"
    if not path.exists():
        print("training (some minutes) ...", flush=True)
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = byte_level(QWEN)
        texts = files((".py",), 400)
        random.Random(1).shuffle(texts)
        tokenizer.train_from_iterator(texts[:len(texts) // 5], trainers.BpeTrainer(
            vocab_size=151_643, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
        tokenizer.save(str(path))
    return json.loads(path.read_text())["model"]


def byte_level(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def vocabularies(folder):
    """(name, pattern, tokenizer.json, tiktoken's encoding) of each."""
    model = trained(folder)
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    alphabet = {character: byte for byte, character in zip(bytes_in_order(), (token for token in tokens[:256]))}
    for name, size, pattern in (("GPT-2, 50k", 50_257, GPT2), ("Llama 3, 128k", 128_000, LLAMA3), ("Qwen, 151k", 151_643, QWEN)):
        cut = tokens[:size]
        tokenizer = Tokenizer(models.BPE({token: id for id, token in enumerate(cut)}, [tuple(m) for m in model["merges"][:len(cut) - 256]], ignore_merges=pattern == LLAMA3))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False) if pattern == GPT2 else byte_level(pattern)
        if pattern == QWEN:
            tokenizer.normalizer = normalizers.NFC()
        path = folder / f"{size}.json"
        tokenizer.save(str(path))
        ranks = {bytes(alphabet[c] for c in token): id for id, token in enumerate(cut)}
        yield f"{name} ({len(cut):,} tokens)", pattern, path, tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})


def bytes_in_order():
    """The byte of each of the first 256 tokens: the trainer sorts GPT-2's alphabet."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return printable + [b for b in range(256) if b not in printable]


def words_once(ordinary, megabytes, parts):
    """Lists of documents in which no word comes twice."""
    draw = random.Random(2)
    words = sorted({word for text in ordinary for word in re.findall("[A-Za-z]{4,12}", text)})
    seen, lists = set(), []
    for _ in range(parts):
        documents, size = [], 0
        while size < megabytes * 1e6:
            line = []
            while len(line) < 800:
                first, second = draw.choice(words), draw.choice(words)
                word = first[:draw.randint(2, len(first))] + second[draw.randint(1, len(second) - 2):].lower()
                if word not in seen:
                    seen.add(word)
                    line.append(word)
            documents.append(" ".join(line))
            size += len(documents[-1])
        lists.append(documents)
    return lists


class Ingot:
    def __init__(self, path, folder):
        self.folder, self.written = folder, set()
        self.process = subprocess.Popen([EXERCISE, str(path), "rate"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, texts):
        path = self.folder / f"texts_{id(texts)}"
        if path not in self.written:
            self.written.add(path)
            path.write_bytes(b"".join(struct.pack("<I", len(text.encode())) + text.encode() for text in texts))
        print(path, file=self.process.stdin, flush=True)
        seconds, count = self.process.stdout.readline().split()
        return float(seconds), int(count)


def timed(encode):
    def run(texts):
        start = time.process_time()
        count = encode(texts)
        return time.process_time() - start, count
    return run


def programs(path, encoding, folder):
    tokenizer = Tokenizer.from_file(str(path))
    found = {"ingot": Ingot(path, folder),
             "tokenizers": timed(lambda texts: sum(len(e.ids) for e in tokenizer.encode_batch_fast(texts, add_special_tokens=False))),
             "tiktoken": timed(lambda texts: sum(len(encoding.encode_ordinary(text)) for text in texts))}
    try:
        from kitoken import Kitoken
        kitoken = Kitoken.from_tokenizers_file(str(path))
        found["kitoken"] = timed(lambda texts: sum(len(kitoken.encode(text)) for text in texts))
    except ImportError:
        print("kitoken is not installed", file=sys.stderr)
    try:
        import fastokens
        fast = fastokens.Tokenizer.from_file(str(path))
        found["fastokens"] = timed(lambda texts: sum(len(fast.encode(text)) for text in texts))
    except ImportError:
        print("fastokens is not installed", file=sys.stderr)
    return found


def measured(runs, lists, rounds):
    """MiB/s of each program in each round; the first round is not counted."""
    rates, counts = {name: [] for name in runs}, {name: [] for name in runs}
    for turn in range(rounds + 1):
        texts = lists[turn]
        size = sum(len(text.encode()) for text in texts)
        order = list(runs)
        order = order[turn % len(order):] + order[:turn % len(order)]
        for name in order:
            seconds, count = runs[name](texts)
            counts[name].append(count)
            if turn > 0:
                rates[name].append(size / seconds / MIB)
    return rates, counts


def rows(vocabulary, text, rates, counts):
    for name, each in rates.items():
        ratio = statistics.median(ours / theirs for ours, theirs in zip(rates["ingot"], each))
        mark = "" if counts[name] == counts["ingot"] else " (other ids)"
        yield f"| {vocabulary} | {text} | {name}{mark} | {statistics.median(each):.1f} ({min(each):.1f}–{max(each):.1f}) | {ratio:.1f} |"


def main():
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--rounds", type=int, default=7)
    flags.add_argument("--megabytes", type=float, default=0.8, help="of each text in each round")
    flags.add_argument("--folder", type=Path, default=ROOT / "build/tokenizer_rates")
    flags.add_argument("-o", "--output", type=Path)
    options = flags.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    ordinary = files(("METADATA", ".md", ".rst", ".txt"), options.megabytes * (options.rounds + 1))
    random.Random(3).shuffle(ordinary)
    parts = options.rounds + 1
    texts = {"ordinary": [ordinary[part::parts] for part in range(parts)], "no word twice": words_once(ordinary, options.megabytes, parts)}
    table = ["| vocabulary | text | program | MiB/s (range) | ingot is as fast, times |", "|---|---|---|---|---|"]
    print("\n".join(table), flush=True)
    for vocabulary, _, path, encoding in vocabularies(options.folder):
        runs = programs(path, encoding, options.folder)
        for text, lists in texts.items():
            for row in rows(vocabulary, text, *measured(runs, lists, options.rounds)):
                print(row, flush=True)
                table.append(row)
    for left in options.folder.glob("texts_*"):
        left.unlink()
    if options.output:
        options.output.write_text("\n".join(table) + "\n")


if __name__ == "__main__":
    main()
