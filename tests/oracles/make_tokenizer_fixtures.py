#!/usr/bin/env python3
"""Records what Hugging Face's own `tokenizers` makes of texts, for src/data/hugging_face/tokenizer_test.cpp.

    python tests/oracles/make_tokenizer_fixtures.py src/data/testdata            # the committed fixtures
    python tests/oracles/make_tokenizer_fixtures.py /tmp/more --texts 3000 --seed 7   # more of the same, while developing

Each file holds a small tokenizer of one family, texts, and for each text the ids without and with special tokens and the
decoded text. Made with tokenizers 0.23.3.
"""
import argparse
import json
import pathlib
import random
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

CORPUS = [
    "In the beginning there was a small corpus, and it was without form; the words were few and they were often the same words.",
    "She's sure that they'll say it's what we've seen: he'd walked, I'm walking, you're walked over, isn't that so?",
    "def encode(text):\n    return [token for token in text.split(' ') if token]\n\n\nfor i in range(1000):\n\tprint(i, 2024, 3.14159)\n",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. Le cœur déçu mais l'âme plutôt naïve, Louÿs rêva.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю. Η γρήγορη αλεπού. 敏捷的棕色狐狸跳过懒狗。色は匂へど散りぬるを 我が世誰ぞ 常ならむ",
    "한국어 문장도 조금 있습니다. हिन्दी में एक वाक्य। نص عربي قصير. טקסט קצר בעברית. 😀 👩‍👩‍👧 🏳️‍🌈 ½ ² ³ ٣٤٥",
] * 6

FIXED = [
    "", " ", "  ", "\n", "a", " a", "a ", "Hello world", "  Hello   world  ", "\n\n\n", " \n \t ", "a\r\nb", "It's SHE'S 'S 's 'ſ we'LL", "123456 7 1.5e10 ½²③",
    "▁", "▁▁a ▁ b", "a▁b", "<0x41>", "<s>", "x</s>y", " <s> a", "<s><s>", "the\u00a0same\u3000words\u2028line\u0085next", "\u180e \u200b\u200d\u200c\ufeff",
    "e\u0301 \u00e9 \u212b \u1e9b\u0323 \ufb01 \uac00 \u1100\u1161", "İI ıi ẞß Σς Kk", "\U0001F600\U0001F1E9\U0001F1EA👩‍👩‍👧", "مرحبا שלום हिन्दी", "\x00\x01\x7f", "the words were few " * 5,
    "[NOTE]", "x [NOTE] y", "bigword big bigger _big_ big", "  <lefty>  x  <righty>  y", "Café CAFÉ", "a" * 70, " " * 40 + "x", "don't\tstop\n\n  now", "$+<=>^`|~!?;:—«»",
]


def random_text(rng):
    pools = [
        lambda: rng.choice("the words were few and often same walking corpus beginning".split()),
        lambda: rng.choice(["'s", "'T", "'ll", "'", "n't", "."," ,", "!?", "...", "—", "$", "_", "(x)", "[NOTE]", "<s>", "</s>", "<lefty>", "<righty>", "big", "<0x0A>", "▁"]),
        lambda: rng.choice([" ", "  ", "   ", "\n", "\n\n", "\t", "\r\n", " \n", "\u00a0", "\u3000", "\u2009", "\u0085", "\u2028", "\u180e", "\u200b", "\u200d"]),
        lambda: str(rng.randrange(10 ** rng.randrange(1, 8))),
        lambda: chr(rng.randrange(0x20, 0x7F)),
        lambda: chr(rng.randrange(0xA0, 0x250)),
        lambda: chr(rng.choice([rng.randrange(0x300, 0x370), rng.randrange(0x370, 0x530), rng.randrange(0x5D0, 0x700), rng.randrange(0x900, 0xE00)])),
        lambda: chr(rng.choice([rng.randrange(0x1E00, 0x2200), rng.randrange(0x2460, 0x2600), rng.randrange(0x3040, 0x3100), rng.randrange(0x4E00, 0x5000), rng.randrange(0xAC00, 0xAD00), rng.randrange(0xFB00, 0xFFE0)])),
        lambda: chr(rng.randrange(0x1F300, 0x1F650)),
        lambda: chr(rng.randrange(0x1, 0x30000)),
    ]
    text = "".join(rng.choice(pools)() for _ in range(rng.randrange(1, 24)))
    # Characters that Python's Unicode does not know may be letters in newer tables; surrogates are no text.
    return "".join(c for c in text if unicodedata.category(c) not in ("Cn", "Cs"))


def train(tokenizer, trainer):
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def gpt2():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    return train(t, trainers.BpeTrainer(vocab_size=520, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))


def gpt2_prefix_space():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    t.decoder = decoders.ByteLevel()
    t = train(t, trainers.BpeTrainer(vocab_size=400, special_tokens=["<s>", "</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    t.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0))
    return t


def split_bytes(pattern, normalizer=None, ignore_merges=False):
    t = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer:
        t.normalizer = normalizer
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    return train(t, trainers.BpeTrainer(vocab_size=520, special_tokens=["<s>", "</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))


def llama3():
    t = split_bytes(LLAMA3, ignore_merges=True)
    t.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 0)])])
    return t


def qwen():
    t = split_bytes(QWEN, normalizers.NFC())
    t.add_tokens([AddedToken("[NOTE]", normalized=False), AddedToken("words were", normalized=True)])
    return t


def byte_pieces():
    return ["<pad>", "</s>", "<s>", "<unk>"] + [f"<0x{b:02X}>" for b in range(256)]


def with_bytes(tokenizer, **options):
    """The trained BPE with byte tokens in front, as SentencePiece lays its vocabularies out."""
    trained = json.loads(tokenizer.to_str())["model"]
    pieces = byte_pieces()
    for token, _ in sorted(trained["vocab"].items(), key=lambda item: item[1]):
        if token not in pieces:
            pieces.append(token)
    merges = [tuple(m) for m in trained["merges"]]
    return Tokenizer(models.BPE({p: i for i, p in enumerate(pieces)}, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True, **options))


def gemma():
    base = Tokenizer(models.BPE())
    base.normalizer = normalizers.Replace(" ", "▁")
    base.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    t = with_bytes(train(base, trainers.BpeTrainer(vocab_size=500, limit_alphabet=120)))
    t.normalizer = normalizers.Replace(" ", "▁")
    t.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    t.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 2)])
    t.add_special_tokens(["<pad>", "</s>", "<s>", "<unk>"])
    t.add_tokens([AddedToken("\n\n", normalized=False), AddedToken("[NOTE]", normalized=False)])
    return t


def llama2():
    base = Tokenizer(models.BPE())
    base.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    t = with_bytes(train(base, trainers.BpeTrainer(vocab_size=500, limit_alphabet=90)))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    t.post_processor = processors.TemplateProcessing(single="<s> $A </s>", pair="<s> $A </s> $B", special_tokens=[("<s>", 2), ("</s>", 1)])
    t.add_special_tokens(["</s>", "<s>", "<unk>"])
    return t


def unigram_pieces(vocab_size):
    t = Tokenizer(models.Unigram())
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    train(t, trainers.UnigramTrainer(vocab_size=vocab_size, unk_token="<unk>", special_tokens=["<unk>"]))
    return [tuple(entry) for entry in json.loads(t.to_str())["model"]["vocab"]]


def unigram_bytes():
    learnt = [entry for entry in unigram_pieces(420) if entry[0] != "<unk>"]
    vocab = [(p, 0.0) for p in byte_pieces()] + learnt
    t = Tokenizer(models.Unigram(vocab, unk_id=3, byte_fallback=True))
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=True)
    t.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first")])
    t.add_special_tokens(["</s>", "<s>"])
    t.add_tokens([AddedToken("[NOTE]", normalized=False)])
    return t


def unigram_unknown():
    t = Tokenizer(models.Unigram(unigram_pieces(400), unk_id=0, byte_fallback=False))
    t.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip()])
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    t.decoder = decoders.Metaspace(prepend_scheme="always")
    return t


def whole_text_unigram():
    learnt = [entry for entry in unigram_pieces(420) if entry[0] != "<unk>"]
    t = Tokenizer(models.Unigram([(p, 0.0) for p in byte_pieces()] + learnt, unk_id=3, byte_fallback=True))
    t.normalizer = normalizers.Replace(" ", "▁")
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    t.add_special_tokens(["<pad>", "</s>", "<s>"])
    return t


def words():
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    t.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()])
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.Punctuation()])
    t = train(t, trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>", "<s>"], limit_alphabet=60))
    t.add_tokens([AddedToken("big", single_word=True), AddedToken("<lefty>", lstrip=True), AddedToken("<righty>", rstrip=True, normalized=False), AddedToken("CAFÉ", normalized=True)])
    return t


def affixes():
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=False, end_of_word_suffix="</w>", continuing_subword_prefix="##"))
    t.normalizer = normalizers.NFKD()
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.Digits(), pre_tokenizers.Split(Regex("[aeiou]"), "merged_with_next", invert=False)])
    return train(t, trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>"], limit_alphabet=80, end_of_word_suffix="</w>", continuing_subword_prefix="##"))


def behaviours():
    t = Tokenizer(models.BPE(unk_token="<unk>"))
    t.normalizer = normalizers.Sequence([normalizers.Replace(Regex("^w"), "W"), normalizers.Replace(Regex("e$"), "E")])
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(" ", "removed"), pre_tokenizers.Split(Regex(r"\w+"), "contiguous", invert=True), pre_tokenizers.Split(Regex("t|x*"), "merged_with_previous"), pre_tokenizers.CharDelimiterSplit("o")])
    return train(t, trainers.BpeTrainer(vocab_size=330, special_tokens=["<unk>"]))


FAMILIES = [gpt2, gpt2_prefix_space, llama3, qwen, gemma, llama2, unigram_bytes, unigram_unknown, whole_text_unigram, words, affixes, behaviours]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--texts", type=int, default=60, help="random texts besides the fixed ones")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(arguments.seed)
    texts = FIXED + [random_text(rng) for _ in range(arguments.texts)]
    for family in FAMILIES:
        tokenizer = family()
        cases = []
        for text in texts:
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            special = tokenizer.encode(text, add_special_tokens=True).ids
            cases.append({"text": text, "ids": ids, "special": special, "decoded": tokenizer.decode(ids)})
        out = {"tokenizer": json.loads(tokenizer.to_str()), "cases": cases}
        path = arguments.folder / f"tokenizer_{family.__name__}.json"
        path.write_text(json.dumps(out, ensure_ascii=True, separators=(",", ":")))
        print(path, path.stat().st_size)


if __name__ == "__main__":
    main()
