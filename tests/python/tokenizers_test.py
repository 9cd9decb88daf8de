"""tokenizer.json files of every family give the ids and texts that Hugging Face's tokenizers gives, on texts that are hard on them.

Runs with the Python of .deps/venv: INGOT_BINARY=build/release/ingot .deps/venv/bin/python tests/python/tokenizers_test.py [CASE...]
"""
import struct
import sys
import unicodedata
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/end_to_end")]
from harness import run_chosen
from tokenizer_texts import LANGUAGES, as_oracle_sees, message, results, sources, texts

TRAINING = sources(1.5) + LANGUAGES * 40
BERT_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def trained(tokenizer, trainer):
    tokenizer.train_from_iterator(TRAINING, trainer)
    return tokenizer


def compare(w, name, tokenizer, many, decoded=True):
    folder = w.path / name
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    ids_seen = set()
    expected = tokenizer.encode_batch([as_oracle_sees(text) for text in many], add_special_tokens=False)
    for text, oracle, (ids, special, back) in zip(many, expected, results(folder, folder, many)):
        text = as_oracle_sees(text)
        assert ids == oracle.ids, (name, text[:300], ids[:50], oracle.ids[:50])
        if len(text) < 500:
            assert special == tokenizer.encode(text).ids, (name, text)
        if decoded and len(text) < 5000:
            assert back.decode() == tokenizer.decode(ids), (name, text, back.decode(), tokenizer.decode(ids))
        ids_seen.update(ids)
    assert len(ids_seen) > 50, (name, len(ids_seen))


# Hugging Face's tables of forms, punctuation, accents and control characters are of an older Unicode: what they do not know is left out.
def known(many):
    clean = normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=False, strip_accents=True, lowercase=False)
    split = pre_tokenizers.Punctuation()

    def is_known(c):
        kind = unicodedata.category(c)
        if normalizers.NFKD().normalize_str(c) != unicodedata.normalize("NFKD", c):
            return False
        if kind[0] == "P":
            return len(split.pre_tokenize_str(f"a{c}b")) == 3
        return kind not in ("Mn", "Cf") or not clean.normalize_str(c)
    used = {c for text in many for c in as_oracle_sees(text)}
    new = {c for c in used if not is_known(c)}
    assert len(new) < len(used) / 50, (len(new), len(used))
    return [text for text in many if not new & set(as_oracle_sees(text))]


def wordpiece_tokenizers_agree(w):
    many = known(texts(2, 1, BERT_SPECIAL))
    forms = [dict(lowercase=True), dict(lowercase=False), dict(lowercase=True, strip_accents=False), dict(lowercase=False, strip_accents=True),
             dict(clean_text=False, lowercase=True), dict(handle_chinese_chars=False)]
    for number, form in enumerate(forms):
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=[100, 12][number % 2]))
        tokenizer.normalizer = normalizers.BertNormalizer(**form)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece(cleanup=number % 2 == 0)
        trained(tokenizer, trainers.WordPieceTrainer(vocab_size=4000, special_tokens=BERT_SPECIAL, show_progress=False))
        cls, sep = (tokenizer.token_to_id(token) for token in ("[CLS]", "[SEP]"))
        tokenizer.post_processor = processors.BertProcessing(("[SEP]", sep), ("[CLS]", cls)) if number % 2 else processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", cls), ("[SEP]", sep)])
        compare(w, f"wordpiece_{number}", tokenizer, many if number < 2 else many[-6000:])


CL100K = r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"""
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
MARKS = LLAMA3.replace(r"]?\p{L}+", r"]?[\p{L}\p{M}]+").replace("{1,3}", "").replace(r"[^\s\p{L}", r"[^\s\p{L}\p{M}")


def byte_level(*before, **how):
    return pre_tokenizers.Sequence([*before, pre_tokenizers.ByteLevel(**({"add_prefix_space": False, "use_regex": False} | how))])


def byte_level_tokenizers_agree(w):
    split = pre_tokenizers.Split
    many = known(texts(2, 5, ["<|end|>"]))
    forms = {
        "gpt2": (pre_tokenizers.ByteLevel(add_prefix_space=False), None, False),
        "prefix": (pre_tokenizers.ByteLevel(add_prefix_space=True), normalizers.NFKC(), False),
        "llama3": (byte_level(split(Regex(LLAMA3), "isolated")), None, True),
        "qwen": (byte_level(split(Regex(LLAMA3.replace("{1,3}", "")), "isolated")), normalizers.NFC(), False),
        "marks": (byte_level(split(Regex(MARKS), "isolated")), normalizers.NFD(), False),
        "removed": (byte_level(split(Regex(LLAMA3), "removed", invert=True)), normalizers.NFKD(), True),
        "cl100k": (byte_level(split(Regex(CL100K), "isolated")), None, True),
        "scripts": (byte_level(split(Regex(r"\p{Han}+|[\p{Hiragana}\p{Katakana}]+|\p{^Greek}"), "isolated")), None, False),
        "several": (byte_level(split(Regex(r"\p{N}{1,3}"), "isolated"), split(Regex("[一-龥぀-ゟ゠-ヿ]+"), "isolated"), pre_tokenizers.Punctuation(), use_regex=True), None, False),
    }
    for name, (pre_tokenizer, normalizer, ignore_merges) in forms.items():
        tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizer, decoders.ByteLevel()
        if normalizer:
            tokenizer.normalizer = normalizer
        trained(tokenizer, trainers.BpeTrainer(vocab_size=6000, special_tokens=["<|end|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
        compare(w, f"bytes_{name}", tokenizer, many if name in ("gpt2", "llama3") else many[-4000:])


def other_prefixes_and_word_lists_agree(w):
    many = known(texts(1, 2, ["<unk>"]))
    for number, split in enumerate([pre_tokenizers.Whitespace(), pre_tokenizers.WhitespaceSplit(), pre_tokenizers.FixedLength(length=4),
                                    pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation(), pre_tokenizers.Digits(True)])]):
        words = Tokenizer(models.WordLevel(unk_token="<unk>"))
        words.pre_tokenizer, words.normalizer = split, normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), normalizers.Lowercase()])
        compare(w, f"words_{number}", trained(words, trainers.WordLevelTrainer(vocab_size=5000, special_tokens=["<unk>"], show_progress=False)), many[-3000:])
        pieces = Tokenizer(models.WordPiece(unk_token="<unk>", continuing_subword_prefix="@@"))
        pieces.pre_tokenizer, pieces.decoder = split, decoders.WordPiece(prefix="@@", cleanup=False)
        trained(pieces, trainers.WordPieceTrainer(vocab_size=3000, special_tokens=["<unk>"], continuing_subword_prefix="@@", show_progress=False))
        compare(w, f"pieces_{number}", pieces, many[-3000:])


def decoders_agree(w):
    many = texts(0.5, 3)[:3000]
    for name, decoder, affix in [("bpe", decoders.BPEDecoder(suffix="</w>"), "</w>"), ("ctc", decoders.CTC(pad_token="e", word_delimiter_token="t"), ""),
                                 ("ctc_raw", decoders.CTC(pad_token=" ", word_delimiter_token="|", cleanup=False), "")]:
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix=affix))
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.WhitespaceSplit(), decoder
        trained(tokenizer, trainers.BpeTrainer(vocab_size=2000, special_tokens=["<unk>"], end_of_word_suffix=affix, show_progress=False))
        compare(w, f"decoder_{name}", tokenizer, many)


def character_map(rules):
    """A double-array trie of `rules`, laid out by trying offsets: what SentencePiece compiles, from its format alone."""
    texts_bytes, offsets = b"", {}
    for key, value in rules.items():
        offsets[key] = len(texts_bytes)
        texts_bytes += value + b"\0"
    units, taken = [0] * 65536, {0}

    def place(node, entries):
        labels = sorted({key[0] if key else 0 for key in entries})
        offset = next(o for o in range(1, 32768) if not any((node ^ o ^ label) in taken for label in labels))
        taken.update(node ^ offset ^ label for label in labels)
        units[node] |= offset << 10
        for label in labels:
            child = node ^ offset ^ label
            if label == 0:
                units[node] |= 1 << 8
                units[child] = 1 << 31 | entries[b""]
            else:
                units[child] |= label
                place(child, {key[1:]: value for key, value in entries.items() if key and key[0] == label})
    place(0, {key: offsets[key] for key in rules})
    size = 1024 * -(-(max(taken) + 256) // 1024)
    return struct.pack(f"<I{size}I", 4 * size, *units[:size]) + texts_bytes


def compiled_normalisation_agrees(w):
    rules = {}
    for code in [*range(0xA0, 0x250), *range(0x300, 0x310), *range(0x1E00, 0x1F00), *range(0x2460, 0x2480), *range(0xFB00, 0xFB07), *range(0xFF01, 0xFF5F), 0x3000]:
        folded = unicodedata.normalize("NFKC", chr(code))
        if folded != chr(code) and folded.isprintable():
            rules[chr(code).encode()] = folded.encode()
    rules |= {"e\u0301".encode(): "é".encode(), b"\t": b" ", b"\r": b"", "😀".encode(): b":)", "\u0302\u0301".encode(): b"^"}
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.Precompiled(character_map(rules)), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    trained(tokenizer, trainers.UnigramTrainer(vocab_size=2000, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False))
    compare(w, "precompiled", tokenizer, texts(1, 4))


def what_is_not_supported_is_named(w):
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.UnicodeScripts()
    tokenizer.save(str(w.path / "scripts.json"))
    said = message(w.path / "scripts.json", w.path)
    assert "pre-tokenizer 'UnicodeScripts' is not supported" in said, said


run_chosen([wordpiece_tokenizers_agree, byte_level_tokenizers_agree, other_prefixes_and_word_lists_agree, decoders_agree, compiled_normalisation_agrees, what_is_not_supported_is_named])
