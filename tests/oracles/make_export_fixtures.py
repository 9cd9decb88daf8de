#!/usr/bin/env python3
"""Records what transformers' AutoTokenizer makes of folders that ingot exported, for src/data/export_tokenizer_test.cpp.

    ingot data train-tokenizer TEXT --model unigram --vocab-size 600 -o unigram.model     # and again with bpe
    ingot data export-tokenizer unigram.model --output unigram_folder
    python tests/oracles/make_export_fixtures.py unigram_folder unigram.model src/data/testdata/export_unigram

Copies the model to OUT.model and writes the texts, ids and decoded texts to OUT.json. Made with transformers 5.23.0.
"""
import json
import pathlib
import random
import shutil
import sys

from transformers import AutoTokenizer

from make_tokenizer_fixtures import FIXED, random_text


def main():
    folder, model, out = sys.argv[1:4]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rng = random.Random(11)
    texts = FIXED + [random_text(rng) for _ in range(150)]
    texts += ["In the beginning God created the heaven and the earth.\nAnd the earth was without form, and void;\n\n", "The LORD is my shepherd; I shall not want. " * 3]
    cases = []
    for text in texts:
        # Their spellings are taken for the special tokens by transformers, and for text by SentencePiece.
        if any(special in text for special in tokenizer.all_special_tokens):
            continue
        ids = tokenizer(text)["input_ids"]
        cases.append({"text": text, "ids": ids, "decoded": tokenizer.decode(ids)})
    pathlib.Path(out + ".json").write_text(json.dumps(cases, ensure_ascii=True, separators=(",", ":")))
    shutil.copy(model, out + ".model")


if __name__ == "__main__":
    main()
