#!/usr/bin/env python3
"""Rules of published corpora (Gopher, C4, FineWeb) beside datatrove's: the same documents through both, decisions compared document by document.

    python3 -m venv /tmp/datatrove && /tmp/datatrove/bin/pip install datatrove==0.10.1 nltk spacy regex
    /tmp/datatrove/bin/python benchmarks/rules_beside_datatrove.py [--documents 4000] [--text FILE] [--show 2]

Documents are paragraphs of the text (without one: the King James Bible of Debian's bible-kjv), most of them spoiled around the limits of the rules. datatrove runs once with
words as ingot has them, between white space (what differs then is the rule), and once with its own, spaCy's; and with the numbers of the papers, where it has others.
"""
import argparse
import json
import os
import random
import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

from datatrove.data import Document
from datatrove.pipeline.filters import C4QualityFilter, FineWebQualityFilter, GopherQualityFilter, GopherRepetitionFilter, c4_filters
from datatrove.pipeline.filters import fineweb_quality_filter, gopher_quality_filter, gopher_repetition_filter

ROOT = Path(__file__).resolve().parent.parent
INGOT = os.environ.get("INGOT_BINARY", str(ROOT / "build/release/ingot"))

# The sets as steps of a recipe, and datatrove's filter with the papers' numbers, of which it has three otherwise.
SETS = {
    "gopher": ('kind = "rules"\nkeep = ["gopher"]', GopherQualityFilter),
    "gopher_repetition": ('kind = "rules"\nkeep = ["gopher_repetition"]', GopherRepetitionFilter),
    "c4": ('kind = "lines"\nkeep = ["c4_lines"]\n[[steps]]\nkind = "rules"\nkeep = ["c4"]', lambda: C4QualityFilter(min_num_sentences=3, min_words_per_line=5)),
    "fineweb": ('kind = "rules"\nkeep = ["fineweb"]', lambda: FineWebQualityFilter(char_duplicates_ratio=0.1, new_line_ratio=1e9)),
}


def spoiled(draw, lines):
    """A document of these lines, with one thing done to it as often as chance says."""
    words, share = " ".join(lines).split(), draw.random()
    few = list(lines)

    def each(change):
        return "\n".join(change(line) if draw.random() < share else line for line in few)
    kind = draw.randrange(19)
    if kind == 0: return " ".join(words[:draw.randint(30, 70)])
    if kind == 1: return each(lambda line: draw.choice(["- ", "* ", "• "]) + line)
    if kind == 2: return each(lambda line: line.rstrip(".;:, ") + draw.choice(["...", "…"]))
    if kind == 3: return " ".join(word + (" #" if draw.random() < share / 4 else "") for word in words)
    if kind == 4: return " ".join(str(draw.randrange(9999)) if draw.random() < share / 2 else word for word in words)
    if kind == 5: return each(lambda line: draw.choice(few[:3]))
    if kind == 6: return "\n\n".join(draw.choice(few[:2]) if draw.random() < share else line for line in few)
    if kind == 7: return " ".join(word + (" and so it was said again" if draw.random() < share / 5 else "") for word in words)
    if kind == 8: return "\n".join(" ".join(words[at:at + draw.randint(2, 8)]) for at in range(0, len(words), 6))
    if kind == 9: return each(lambda line: line.rstrip(".;:,!? "))
    if kind == 10: return each(lambda line: line.replace(" ", " { ", 1) if draw.random() < 0.1 else line)
    if kind == 11: return each(lambda line: draw.choice(["Please enable Javascript to go on here.", "We think that this site uses cookies.", "See our privacy policy for that."]))
    if kind == 12: return each(lambda line: line + " Lorem ipsum dolor sit amet." if draw.random() < 0.1 else line)
    if kind == 13: return each(lambda line: line + " " + "x" * draw.choice([20, 999, 1000, 1001]) + ".")
    if kind == 14: return each(lambda line: line + draw.choice(["[12]", "[edit]", "[citation needed]"]))
    if kind == 15: return each(lambda line: draw.choice(["“" + line + "”", '"' + line + '"', "'" + line + "'", "(" + line + ")"]))
    if kind == 16: return " ".join(word for word in words if word.lower() not in {"the", "of", "and", "to", "that", "be", "with", "have"} or draw.random() < share / 10)
    if kind == 17: return " ".join(word.upper() if draw.random() < share else word for word in words)
    return "\n".join(few)


def documents_of(text, count):
    draw, lines = random.Random(1), [line for line in text.splitlines() if len(line.split()) > 4]
    documents = []
    for _ in range(count):
        at = draw.randrange(len(lines) - 40)
        documents.append(spoiled(draw, lines[at:at + draw.randint(2, 30)]))
    return documents


def of_ingot(documents, steps):
    """Of each document the text that is left, and why it went."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        (work / "in.jsonl").write_text("".join(json.dumps({"id": number, "text": text}) + "\n" for number, text in enumerate(documents)))
        (work / "recipe.toml").write_text(f'folder = "out"\n[[sources]]\nfiles = ["in.jsonl"]\n[[steps]]\n{steps}\n')
        subprocess.run([INGOT, "data", "process", str(work / "recipe.toml")], check=True, capture_output=True)
        packed = b"".join(file.read_bytes() for file in sorted((work / "out").glob("part-*")))
        plain = subprocess.run(["zstd", "-dc"], input=packed, check=True, capture_output=True).stdout
        return {line["id"]: line["text"] for line in map(json.loads, plain.splitlines())}


def of_datatrove(documents, make):
    one, kept, reasons = make(), {}, {}
    for number, text in enumerate(documents):
        document = Document(text=text, id=str(number))
        answer = one.filter(document)
        if answer is True:
            kept[number] = document.text
        else:
            reasons[number] = answer[1]
    return kept, reasons


GOOD = "And so it was, that all of these men stood there with him. He said it. They went to that house, and it was well."


def rules_of(name):
    table = subprocess.run([INGOT, "data", "process", "--rules"], check=True, capture_output=True, text=True).stdout
    block = re.split(r"\n  (?=\S)", table.split(f"\n  {name}, of ")[1])[0]
    return [line.strip() for line in block.splitlines()[1:]]


def why_ingot_removed(documents, name):
    """Of each document the first rule that does not hold, each asked alone; of C4 of the lines or of the whole."""
    reasons = {}
    for part in ("c4_lines", "c4") if name == "c4" else (name,):
        for rule in rules_of(part):
            kind = "lines" if part == "c4_lines" else "rules"
            left = of_ingot([*documents, GOOD * 9 if part == "gopher" else GOOD], f"kind = \"{kind}\"\nkeep = ['{rule}']")
            for number in range(len(documents)):
                if number not in left:
                    reasons.setdefault(number, rule)
    return Counter(reasons.get(number, "several lines") for number in range(len(documents)))


def most(counts):
    return ", ".join(f"{reason} {times}" for reason, times in counts.most_common(5))


def plain_lines(text):
    """Without citations, which datatrove takes out of what it keeps."""
    return [line for line in (c4_filters.CITATION_REGEX.sub("", line).strip() for line in text.split("\n")) if line]


def compare(documents, name, show):
    steps, make = SETS[name]
    ours, (theirs, reasons) = of_ingot(documents, steps), of_datatrove(documents, make)
    both = ours.keys() & theirs.keys()
    kept, gone = [number for number in ours if number not in theirs], [number for number in theirs if number not in ours]
    lines = sum(plain_lines(ours[number]) != plain_lines(theirs[number]) for number in both) if name == "c4" else 0
    alike = 100 * (1 - (len(kept) + len(gone)) / len(documents))
    print(f"| {name} | {len(ours)} | {len(theirs)} | {alike:.2f} % | {len(kept)}: {most(Counter(reasons[number] for number in kept))} | "
          f"{len(gone)}: {most(why_ingot_removed([documents[number] for number in gone], name)) if gone else ''} | {lines} |", flush=True)
    for label, numbers in (("only ingot keeps", kept), ("only datatrove keeps", gone)):
        for number in numbers[:show]:
            print(f"    {label} {number} ({reasons.get(number, '')}): {documents[number]!r:.600}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=4000)
    parser.add_argument("--text")
    parser.add_argument("--show", type=int, default=0)
    options = parser.parse_args()
    text = Path(options.text).read_text() if options.text else subprocess.run(["bible", "-f", "gen1:1-rev22:21"], check=True, capture_output=True, text=True).stdout
    documents = documents_of("\n".join(line.split(" ", 1)[-1] for line in text.splitlines()), options.documents)
    own = gopher_quality_filter.split_into_words
    for title, words in (("words between white space", lambda text, language=None: text.split()), ("datatrove's own words", own)):
        for module in (gopher_quality_filter, gopher_repetition_filter, fineweb_quality_filter):
            module.split_into_words = words
        print(f"\n{title}, {len(documents)} documents\n\n| set | ingot keeps | datatrove keeps | decided alike | ingot alone keeps, for datatrove's reason | datatrove alone keeps, for ingot's reason | both keep, other lines |")
        print("|---|---|---|---|---|---|---|")
        for name in SETS:
            compare(documents, name, options.show)


if __name__ == "__main__":
    main()
