#!/usr/bin/env python3
"""Trains vocabularies with ingot, Hugging Face's tokenizers and SentencePiece on the same text: seconds, and bytes of text for each token of text that none has seen.

    python3 -m venv /tmp/trainers && /tmp/trainers/bin/pip install tokenizers==0.23.3 sentencepiece==0.2.3
    /tmp/trainers/bin/python benchmarks/train_tokenizers.py [--megabytes 32] [--vocab-size 16384] [--rounds 3] [--folder /usr]

The text is what lies in the folder as .txt, .md, .rst, .py and documentation, by file; every tenth file is held out. Whole processes, by turns; one thread where a trainer lets it be said.
"""
import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INGOT = os.environ.get("INGOT_BINARY", str(ROOT / "build/release/ingot"))
ENDINGS = {".txt", ".md", ".rst", ".py"}

PEERS = {
    "tokenizers byte-level BPE": """
import sys
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers
text, out, size, pattern = sys.argv[1:]
made = Tokenizer(models.BPE())
made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
made.train([text], trainers.BpeTrainer(vocab_size=int(size), min_frequency=2, special_tokens=["<pad>", "<eos>", "<bos>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
made.save(out)
""",
    "sentencepiece unigram": """
import sys
import sentencepiece
text, out, size, _ = sys.argv[1:]
sentencepiece.SentencePieceTrainer.train(input=text, model_prefix=out, vocab_size=int(size), model_type="unigram", byte_fallback=True, normalization_rule_name="identity", add_dummy_prefix=False,
    remove_extra_whitespaces=False, split_digits=True, allow_whitespace_only_pieces=True, num_threads=4, minloglevel=4, input_sentence_size=0, max_sentence_length=10**6, character_coverage=0.9995)
""",
}
PEERS["sentencepiece bpe"] = PEERS["sentencepiece unigram"].replace('"unigram"', '"bpe"')
OURS = {"ingot byte-bpe": "byte-bpe", "ingot unigram": "unigram", "ingot bpe": "bpe"}


def texts_of(folder, megabytes):
    train, held, size = [], [], 0
    for number, path in enumerate(sorted(Path(folder).rglob("*"))):
        if path.suffix in ENDINGS and path.is_file() and 1000 < path.stat().st_size < 400_000:
            text = path.read_text(errors="replace").replace("\0", "")
            (held if len(train) > 9 * (len(held) + 1) else train).append(text)
            size += len(text.encode())
        if size > megabytes * 1e6:
            break
    return "\n".join(train), "\n".join(held)


def run(words):
    """Seconds, and seconds of processors, of a process."""
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter() - start, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def bytes_a_token(folder, held, size):
    """As ingot reads the tokenizer, and of documents that are lines."""
    out = subprocess.run([INGOT, "data", "tokenize", str(held), "-o", f"{folder}/held", "--tokenizer", str(folder), "--split", "document-per-file", "--overwrite", "--no-eos", "--json"],
                         check=True, capture_output=True, text=True).stdout
    return size / json.loads(out)["tokens"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=32)
    parser.add_argument("--vocab-size", type=int, default=16384)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", default="/usr")
    options = parser.parse_args()
    pattern = (ROOT / "src/data/train_byte_bpe.h").read_text().split('R"(', 1)[1].split(')";', 1)[0]
    with tempfile.TemporaryDirectory() as work:
        work = Path(work)
        train, held = texts_of(options.folder, options.megabytes)
        (work / "train.txt").write_text(train)
        (work / "held.txt").write_text(held)
        size, found, density = len(held.encode()), {}, {}
        for _ in range(options.rounds):
            for number, name in enumerate([*OURS, *PEERS]):
                out = work / str(number)
                if name in OURS:
                    words = [INGOT, "data", "train-tokenizer", str(work / "train.txt"), "--type", OURS[name], "--vocab-size", str(options.vocab_size), "--split", "document-per-file",
                             "--max-bytes", str(1 << 33), "--max-sentences", str(1 << 33), *([] if OURS[name] == "byte-bpe" else ["--whitespace-pieces"]), "-o", str(out)]
                else:
                    out.mkdir(exist_ok=True)
                    result = out / ("tokenizer.json" if "tokenizers" in name else "tokenizer")
                    words = [sys.executable, "-c", PEERS[name], str(work / "train.txt"), str(result), str(options.vocab_size), pattern]
                found.setdefault(name, []).append(run(words))
                density[name] = bytes_a_token(out, work / "held.txt", size)
        print(f"{len(train.encode()) / 1e6:.1f} MB of text, {options.vocab_size} tokens; {size / 1e6:.1f} MB held out\n")
        print("| trainer | s | of processors, s | bytes a token |\n|---|---|---|---|")
        for name, runs in found.items():
            cells = [f"{statistics.median(values):.2f} ({min(values):.2f}–{max(values):.2f})" for values in zip(*runs)]
            print(f"| {name} | {' | '.join(cells)} | {density[name]:.3f} |")


if __name__ == "__main__":
    main()
