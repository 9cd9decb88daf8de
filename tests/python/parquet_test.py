"""Parquet files, written by pyarrow in many ways, give the bytes and the numbers that the same rows give as JSON lines.

Runs with the Python of .deps/venv: INGOT_BINARY=build/release/ingot .deps/venv/bin/python tests/python/parquet_test.py [CASE...]
"""
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/end_to_end"), str(ROOT / "tests/oracles")]
from harness import INGOT, at_night, ingot, run_chosen
from make_parquet_fixtures import json_lines

TOKENIZER = ROOT / "src/data/testdata/export_bpe.model"
BUILD = Path(INGOT).parent


def texts(count, seed):
    """Of very different lengths, with all that JSON escapes."""
    chance = random.Random(seed)
    parts = ["word", " ", "\n", "\t", '"', "\\", "/", "é", "😀", "\x01", "\x7f", "\u2028", "the quick brown fox "]
    return ["".join(chance.choices(parts, k=int(chance.paretovariate(0.7) * 3) % 5000)) for _ in range(count)]


def tables():
    yield "short", pa.table({"text": ["one", "two", ""], "id": [1, 2, 3]})
    yield "long", pa.table({"id": list(range(3000)), "text": texts(3000, 1)})
    yield "words", pa.table({"text": pa.array(random.Random(2).choices(texts(20, 3), k=4000)).dictionary_encode()})
    yield "large", pa.table({"text": pa.array(texts(500, 4), pa.large_string()), "nested": [[{"a": [i], "b": None if i % 3 else str(i)}] for i in range(500)]})
    yield "bytes", pa.table({"text": pa.array([t.encode() for t in texts(300, 5)], pa.binary())})
    yield "sudden", pa.table({"text": ["a"] * 2000 + ["b" * 3_000_000] * 4 + ["c"] * 2000})


WAYS = {
    "none": {"compression": "none"},
    "snappy": {"compression": "snappy", "row_group_size": 100},
    "gzip": {"compression": "gzip", "use_dictionary": False, "data_page_version": "2.0"},
    "zstd": {"compression": "zstd", "row_group_size": 777, "write_page_checksum": True, "data_page_size": 2000},
    "brotli": {"compression": "brotli", "store_schema": False},
    "delta": {"compression": "lz4", "use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY"}},
}


def output_of(w, file, *flags):
    ingot("data", "tokenize", file, "-o", w.path / "out", "--tokenizer", TOKENIZER, "--overwrite", *flags)
    return [(w.path / f"out.{end}").read_bytes() for end in ("bin", "idx")]


def tokens_are_those_of_json_lines(w):
    """Each table in each way; by day in every third."""
    compared = 0
    for number, (name, table) in enumerate(tables()):
        lines = w.path / f"{name}.jsonl"
        lines.write_text(json_lines(table))
        expected = output_of(w, lines)
        for at, (way, arguments) in enumerate(WAYS.items()):
            if not at_night() and (number + at) % 3:
                continue
            if way == "delta" and pa.types.is_dictionary(table["text"].type):
                continue
            file = w.path / f"{name}_{way}"  # no ending: the beginning tells
            pq.write_table(table, file, **arguments)
            assert output_of(w, file, "--threads", 1 + compared % 3) == expected, (name, way)
            compared += 1
    assert compared == (35 if at_night() else 12), compared


def many_files_become_one_data_set(w):
    one, two = pa.table({"text": texts(50, 6)}), pa.table({"text": texts(70, 7)})
    pq.write_table(one, w.path / "one.parquet")
    (w.path / "two.jsonl").write_text(json_lines(two))
    (w.path / "all.jsonl").write_text(json_lines(pa.concat_tables([one, two])))
    assert output_of(w, w.path / "one.parquet", w.path / "two.jsonl") == output_of(w, w.path / "all.jsonl")


def a_tokenizer_learns_the_same(w):
    table = pa.table({"body": [t for t in texts(400, 8)]})
    pq.write_table(table, w.path / "t.parquet", row_group_size=50)
    (w.path / "t.jsonl").write_text(json_lines(table))
    models = []
    for file in ("t.parquet", "t.jsonl"):
        into = w.path / f"model_{file}.model"
        ingot("data", "train-tokenizer", w.path / file, "--field", "body", "-o", into, "--vocab-size", 400)
        models.append(sorted(f.read_bytes() for f in ([into] if into.is_file() else into.iterdir())))
    assert models[0] == models[1]


def conversations_are_those_of_json_lines(w):
    folder = w.path / "chat"
    folder.mkdir()
    shutil.copy(TOKENIZER, folder / "tokenizer.model")
    (folder / "chat_template.jinja").write_text("{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}")
    chance = random.Random(9)
    say = lambda role: {"role": role, "content": " ".join(chance.choices(["bread", "salt", "water\n", '"x"'], k=5))}
    table = pa.table({"messages": [[say(r) for r in ("user", "assistant") * chance.randint(1, 3)] for _ in range(200)]})
    pq.write_table(table, w.path / "c.parquet", row_group_size=33)
    (w.path / "c.jsonl").write_text(json_lines(table))
    made = []
    for file in ("c.parquet", "c.jsonl"):
        ingot("data", "tokenize", w.path / file, "--chat", "-o", w.path / "chats", "--tokenizer", folder, "--overwrite")
        made.append([(w.path / f"chats.{end}").read_bytes() for end in ("bin", "idx", "mask")])
    assert made[0] == made[1]
    bad = pa.table({"messages": [None] + table["messages"].to_pylist()[:1]})
    pq.write_table(bad, w.path / "bad.parquet")
    _, said = ingot("data", "tokenize", w.path / "bad.parquet", "--chat", "-o", w.path / "bad", "--tokenizer", folder, status=1)
    assert "bad.parquet: row 1: " in said and "mend the row" in said, said


def tasks_have_the_numbers_of_json_lines(w):
    """Multiple choice with examples, and texts: the rows as Parquet and as JSON lines, in all that --results and --items keep."""
    folder = w.path / "model"
    ingot("train", w.config("llama", "llama", **{"train.steps": 3}), "--run-dir", folder, "--no-forecast")
    chance = random.Random(10)
    words = (w.path / "text.txt").read_text().split()
    some = lambda n: " ".join(chance.choices(words, k=n))
    table = pa.table({"question": [some(6) for _ in range(12)], "answers": [[some(2) for _ in range(3)] for _ in range(12)],
                      "gold": pa.array([chance.randrange(3) for _ in range(12)], pa.int8()), "weight": [0.5 * i for i in range(12)],
                      "kind": pa.array(["a", "b", "c"] * 4).dictionary_encode()})
    pq.write_table(table, w.path / "q.parquet", row_group_size=5)
    (w.path / "q.jsonl").write_text(json_lines(table))
    made = {}
    for end in ("parquet", "jsonl"):
        common = f'data = "q.{end}"\nsource = "kind"\nprompt = "{{{{weight}}}}: {{{{question}}}}"\n'
        (w.path / "choice.toml").write_text(common + 'kind = "multiple_choice"\nchoices = ["answers"]\nanswer = "gold"\nshots = 2\n')
        (w.path / "likely.toml").write_text(common + 'kind = "loglikelihood"\ntarget = "{{answers[gold]}}"\n')
        ingot("eval", folder, "--tasks", w.path / "choice.toml", w.path / "likely.toml", "--results", w.path / "r.json", "--items", w.path / "items.jsonl")
        result = json.loads((w.path / "r.json").read_text())
        items = [{k: v for k, v in json.loads(line).items() if k != "row"} for line in (w.path / "items.jsonl").read_text().splitlines()]
        made[end] = [{k: v for k, v in task.items() if "seconds" not in k} for task in result["tasks"]], items
        assert len(items) == 24
    assert made["parquet"] == made["jsonl"], made
    (w.path / "choice.toml").write_text('kind = "multiple_choice"\ndata = "q.parquet"\nprompt = "{{questions}}"\nchoices = ["answers"]\nanswer = "gold"\n')
    _, said = ingot("eval", folder, "--tasks", w.path / "choice.toml", status=1)
    assert "q.parquet: row 1" in said, said


def what_is_missing_is_said(w):
    """The program alone, then with its library and no Arrow, then with Arrow where the message says."""
    file = w.path / "a.parquet"
    pq.write_table(pa.table({"text": ["one", "two"]}), file)
    alone = w.path / "alone"
    alone.mkdir()
    shutil.copy(INGOT, alone)
    (alone / "lib").symlink_to(BUILD / "lib")

    def run(**environment):
        words = [alone / "ingot", "data", "tokenize", file, "-o", w.path / "told", "--tokenizer", TOKENIZER]
        return subprocess.run([str(x) for x in words], capture_output=True, text=True, timeout=60, env=os.environ | environment)

    done = run()
    assert done.returncode == 1 and "a.parquet is a Parquet file, and this ingot was built without libingot_parquet.so: ./scripts/build" in done.stderr, done.stderr
    shutil.copy(BUILD / "libingot_parquet.so", alone)
    subprocess.run(["patchelf", "--set-rpath", "$ORIGIN", str(alone / "libingot_parquet.so")], check=True)
    done = run()
    assert done.returncode == 1 and "set LD_LIBRARY_PATH to the folder of Python's package pyarrow 26" in done.stderr, done.stderr
    assert ".so.2600" in done.stderr, done.stderr
    done = run(LD_LIBRARY_PATH=str(ROOT / ".deps/pyarrow/pyarrow"))
    assert done.returncode == 0, done.stderr
    fifo = w.path / "pipe"
    os.mkfifo(fifo)
    feeder = subprocess.Popen(["sh", "-c", f"cat '{file}' > '{fifo}'"])
    _, said = ingot("data", "tokenize", fifo, "-o", w.path / "piped", "--tokenizer", TOKENIZER, status=1)
    feeder.wait(timeout=20)
    assert "not read from a pipe" in said, said


TESTS = [tokens_are_those_of_json_lines, many_files_become_one_data_set, a_tokenizer_learns_the_same, conversations_are_those_of_json_lines,
         tasks_have_the_numbers_of_json_lines, what_is_missing_is_said]

if __name__ == "__main__":
    if not (BUILD / "libingot_parquet.so").exists():
        print("there is no libingot_parquet.so (./scripts/build)")
        sys.exit(77)
    run_chosen(TESTS)
