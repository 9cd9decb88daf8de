"""`data train-tokenizer --type byte-bpe` beside Hugging Face's BpeTrainer: the same merges in the same order, and the same ids. Runs with the Python of .deps/venv."""
import json
import random
import sys
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "end_to_end")]
from harness import ingot, run_chosen  # noqa: E402


def some_text(seed):
    """Words that come often and rarely, numbers, other scripts, ends of lines of all kinds; runs of one letter, whose merges overlap."""
    draw = random.Random(seed)
    words = ["".join(draw.choice("etaoinshrdlu") for _ in range(draw.randint(1, 9))) for _ in range(400)] + ["aaaa", "aaaaaaa", "été", "наука", "日本語", "12345", "It's", "...", "{}"]
    lines = [" ".join(words[min(int(draw.expovariate(1 / 60)), len(words) - 1)] for _ in range(draw.randint(0, 20))) for _ in range(3000)]
    return draw.choice(["\n", "\n\n", "\r\n"]).join(lines) + "\n"


def merges_are_those_of_hugging_face(w):
    for seed, size, symbols in ((1, 700, []), (2, 1200, ["<think>"]), (3, 400, ["a", "<x>"])):
        text = some_text(seed)
        (w.path / "text.txt").write_text(text, newline="")
        out = w.path / f"tokenizer{seed}"
        ingot("data", "train-tokenizer", w.path / "text.txt", "--type", "byte-bpe", "--vocab-size", size, "--split", "document-per-file", "-o", out, *[x for s in symbols for x in ("--symbol", s)])
        ours = json.loads((out / "tokenizer.json").read_text())
        theirs = Tokenizer(models.BPE())
        pattern = ours["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"]
        theirs.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        trainer = trainers.BpeTrainer(vocab_size=size, min_frequency=2, special_tokens=["<pad>", "<eos>", "<bos>", *symbols], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
        theirs.train_from_iterator([text], trainer)
        model = json.loads(theirs.to_str())["model"]
        assert [list(merge) for merge in model["merges"]] == ours["model"]["merges"], seed
        assert model["vocab"] == ours["model"]["vocab"], seed
        read = Tokenizer.from_file(str(out / "tokenizer.json"))
        assert read.decode(read.encode(text[:5000]).ids) == text[:5000]


def what_cannot_be_is_said(w):
    (w.path / "text.txt").write_text("aaaa bbbb\n" * 50)
    _, err = ingot("data", "train-tokenizer", w.path / "text.txt", "--type", "byte-bpe", "--vocab-size", 4000, "-o", w.path / "t", status=1)
    assert "tokens of byte-level BPE and not 4000: take more text, or a smaller --vocab-size" in err and not (w.path / "t").exists(), err
    _, err = ingot("data", "train-tokenizer", w.path / "text.txt", "--type", "byte-bpe", "--join-digits", "-o", w.path / "t", status=2)
    assert "are of SentencePiece" in err, err


TESTS = [merges_are_those_of_hugging_face, what_cannot_be_is_said]

if __name__ == "__main__":
    run_chosen(TESTS)
