"""`.tiktoken` files give the ids and texts that OpenAI's tiktoken gives, on texts that are hard on tokenizers.

Runs with the Python of .deps/venv: INGOT_BINARY=build/release/ingot .deps/venv/bin/python tests/python/tiktoken_test.py [CASE...]
"""
import base64
import json
import random
import sys
from pathlib import Path

import tiktoken
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/end_to_end")]
from harness import run_chosen
from tiktoken_ext import openai_public
from tokenizer_texts import LANGUAGES, as_oracle_sees, message, results, sources, texts

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN = LLAMA3.replace("{1,3}", "")


def official(name, monkey={}):
    """Pattern and special tokens as the package has them; its ranks would have to be fetched."""
    kept = openai_public.load_tiktoken_bpe
    openai_public.load_tiktoken_bpe = lambda *_, **__: monkey
    try:
        found = getattr(openai_public, name)()
    finally:
        openai_public.load_tiktoken_bpe = kept
    return found["pat_str"], found["special_tokens"]


def trained_ranks(size):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.train_from_iterator(sources(1.5) + LANGUAGES * 40, trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    printable = [*range(33, 127), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    byte_of = {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in printable)}
    return {bytes(byte_of[c] for c in token): id for token, id in tokenizer.get_vocab().items()}


def write_ranks(path, ranks):
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in sorted(ranks.items(), key=lambda item: item[1])))


def compare(w, path, pattern, ranks, special, many):
    oracle = tiktoken.Encoding("oracle", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)
    seen = set()
    for text, (ids, with_special, back) in zip(many, results(path, w.path, many)):
        text = as_oracle_sees(text)
        expected = oracle.encode(text, allowed_special="all")
        assert ids == expected, (path.name, text[:300], ids[:50], expected[:50])
        assert with_special == ids
        kept = [id for id in ids if id not in special.values()]
        assert back.decode() == oracle.decode(kept), (path.name, text[:300], back[:300])
        seen.update(ids)
    assert len(seen) > 500 and seen & set(special.values()), len(seen)


def published_encodings_agree(w):
    ranks = trained_ranks(8000)
    for name in ("cl100k_base", "o200k_base", "p50k_base", "r50k_base"):
        pattern, special = official(name)
        write_ranks(w.path / name / f"{name}.tiktoken", ranks)
        compare(w, w.path / name / f"{name}.tiktoken", pattern, ranks, special, texts(2 if name == "cl100k_base" else 1, len(name), special))


def folders_of_qwen_and_llama_agree(w):
    ranks = trained_ranks(6000)
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"] + [f"<|extra_{i}|>" for i in range(205)]
    special = {name: 6000 + i for i, name in enumerate(names)}
    write_ranks(w.path / "qwen" / "qwen.tiktoken", ranks)
    compare(w, w.path / "qwen", QWEN, ranks, special, texts(1, 8, names[:6]))
    # As many ranks as Llama 3 has: tokens behind the trained ones are random pairs of them.
    rng, tokens = random.Random(4), list(ranks)
    while len(ranks) < 128_000:
        ranks.setdefault(rng.choice(tokens)[:9] + rng.choice(tokens)[:9], len(ranks))
    reserved = [f"<|reserved_special_token_{i}|>" for i in range(251)]
    names = ["<|begin_of_text|>", "<|end_of_text|>", *reserved[:4], "<|start_header_id|>", "<|end_header_id|>", reserved[4], "<|eot_id|>", *reserved[5:]]
    write_ranks(w.path / "llama" / "tokenizer.model", ranks)
    compare(w, w.path / "llama", LLAMA3, ranks, {name: 128_000 + i for i, name in enumerate(names)}, texts(1, 9, names[:8]))


KIMI = "|".join([
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])


def patterns_beside_the_file_agree(w):
    """Kimi's, with differences of classes, in a folder as it is published."""
    ranks = trained_ranks(5000)
    write_ranks(w.path / "kimi" / "tiktoken.model", ranks)
    (w.path / "kimi" / "tokenizer_config.json").write_text(json.dumps({"pattern": KIMI, "added_tokens_decoder": {"5000": {"content": "[BOS]"}, "5001": {"content": "<|im_end|>"}}}))
    compare(w, w.path / "kimi", KIMI, ranks, {"[BOS]": 5000, "<|im_end|>": 5001}, texts(1, 10, ["[BOS]", "<|im_end|>"]))


def vocabularies_of_any_order_agree(w):
    """Ranks that no training gives: random tokens in random order, many with several ways to be put together, and many with none."""
    rng = random.Random(6)
    for number in range(12):
        letters = "ab" if number % 2 else "abcde "
        tokens = {"".join(rng.choices(letters, k=rng.randrange(2, 7))).encode() for _ in range(60)} | {"é".encode(), "中".encode(), b"\xa9x"}
        order = [bytes([b]) for b in range(256)] + sorted(tokens)
        rng.shuffle(order)
        ranks, special = {token: rank * 2 for rank, token in enumerate(order)}, {"<|x|>": 1, "<|x|>y": 9999}
        path = w.path / f"any{number}" / "mine.tiktoken"
        write_ranks(path, ranks)
        pattern = r"[^ ]+| +"
        (path.parent / "tiktoken.json").write_text(json.dumps({"pattern": pattern, "special_tokens": special}))
        many = ["".join(rng.choices([*letters, "é", "中", "<|x|>", "<|x|>y"], weights=[20] * len(letters) + [1, 1, 1, 1], k=int(rng.paretovariate(0.6)) % 400)).encode() for _ in range(800)]
        oracle = tiktoken.Encoding("oracle", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)
        for text, (ids, _, _) in zip(many, results(path, w.path, many)):
            assert ids == oracle.encode(text.decode(), allowed_special="all"), (number, text)


def what_is_wrong_is_said(w):
    write_ranks(w.path / "unknown" / "mine.tiktoken", {bytes([b]): b for b in range(256)})
    said = message(w.path / "unknown", w.path)
    assert "no known encoding" in said and "tiktoken.json" in said, said
    (w.path / "unknown" / "mine.tiktoken").write_text("IQ== 0\nIg== x\n")
    assert "mine.tiktoken line 2: 'x' is not a rank" in message(w.path / "unknown", w.path)


run_chosen([published_encodings_agree, folders_of_qwen_and_llama_agree, patterns_beside_the_file_agree, vocabularies_of_any_order_agree, what_is_wrong_is_said])
