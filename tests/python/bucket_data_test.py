"""Texts in a bucket of moto's server, cleaned by a recipe, tokenised and trained on. Needs $INGOT_BINARY; runs with the Python of .deps/venv."""
import bz2
import gzip
import http.server
import json
import os
import random
import sys
import threading
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "end_to_end")]
os.environ.setdefault("OBJECT_STORE_EXERCISE", "unused")

import boto3  # noqa: E402
from bucket_checkpoints_test import account  # noqa: E402
from faulty_store import ID, REGION, SECRET, FaultyStore, answers, close, reset  # noqa: E402
from harness import ingot, losses, make_text, run_chosen  # noqa: E402
from object_store_test import Moto  # noqa: E402

QUESTION = "Which of the four candles in the kitchen window did Anna light before she took the ladder into the garden"
RECIPE = """
folder = "clean"
skip_bad = true
[[sources]]
name = "web"
files = ["s3://bucket/web/*.jsonl.*"]
[[sources]]
name = "books"
files = ["s3://bucket/books/book.txt"]
split = "paragraph"
[[steps]]
kind = "language"
languages = ["en"]
[[steps]]
kind = "rules"
keep = ["words >= 8", "replaced_characters <= 0.01"]
[[steps]]
kind = "contamination"
files = ["s3://bucket/eval/questions.jsonl"]
field = "question"
[[steps]]
kind = "duplicates"
[[steps]]
kind = "near_duplicates"
[[steps]]
kind = "personal_data"
"""


def dirty(paragraphs):
    """Lines of JSON: the paragraphs, and dirt between them that must go, or be masked."""
    draw = random.Random(1)
    lines = []
    for number, text in enumerate(paragraphs):
        lines.append({"id": f"p{number}", "text": text if number % 10 else text + " Write to anna@example.org about it."})
        kind = number % 6
        if kind == 0:
            lines.append({"id": "again", "text": paragraphs[draw.randrange(number + 1)]})
        elif kind == 1:
            lines.append({"id": "near", "text": text.replace("the", "THE", 1) + "!"})
        elif kind == 2:
            lines.append({"id": "short", "text": "too short"})
        elif kind == 3:
            lines.append({"id": "german", "text": "Das Haus am Ende der Straße steht leer, seit der alte Mann an die Küste gezogen ist und nicht mehr zurückkommt."})
        elif kind == 4:
            lines.append({"id": "leak", "text": f"{text} {QUESTION}? {text}"})
    return lines


def a_recipe_takes_dirty_texts_from_a_bucket_to_batches(w):
    make_text(w.path / "text", 300)
    paragraphs = [p.strip() for p in (w.path / "text").read_text().split("\n\n") if len(p.split()) > 20]
    lines = dirty(paragraphs)
    as_json = [json.dumps(line).encode() for line in lines]
    as_json[7:7] = [b'{"text": 1}', b"no json"]
    third = len(as_json) // 3
    with Moto() as moto:
        client = boto3.client("s3", endpoint_url=moto.url, aws_access_key_id=ID, aws_secret_access_key=SECRET, region_name=REGION)
        objects = {"web/a.jsonl.gz": gzip.compress(b"\n".join(as_json[:third]) + b"\n"), "web/b.jsonl.bz2": bz2.compress(b"\n".join(as_json[third:]) + b"\n"),
                   "web/readme.md": b"not of the pattern", "eval/questions.jsonl": json.dumps({"question": QUESTION}).encode(),
                   "books/book.txt": "\n\n".join(paragraphs[:20]).encode() + b"\n\nThe last paragraph of this book has some bytes that no one could read \xff and goes on for a while."}
        for key, content in objects.items():
            client.put_object(Bucket="bucket", Key=key, Body=content)
        (w.path / "recipe.toml").write_text(RECIPE)
        report = json.loads(ingot("data", "process", w.path / "recipe.toml", "--json", env=account(moto))[0])
        removed = {step["kind"]: {reason: of["documents"] for reason, of in step["removed"].items()} for step in report["steps"]}
        dirt = [line["id"] for line in lines]
        assert report["bad_lines"] == 2 and report["invalid_utf8"] == 1, report
        assert removed["language"].get("de") == dirt.count("german"), removed
        assert removed["rules"].get("not words >= 8", 0) + removed["language"].get("unknown", 0) == dirt.count("short"), removed
        assert removed["contamination"] == {"text of questions.jsonl": dirt.count("leak")}, removed
        # Copies of paragraphs with an address of their own are near ones, too.
        gone = removed["duplicates"]["duplicate"] + removed["near_duplicates"]["near duplicate"]
        assert gone == dirt.count("again") + dirt.count("near") + 20, (removed, dirt.count("again"), dirt.count("near"))
        assert report["steps"][5]["changed"] == {"masked: email": sum(line["id"].startswith("p") and "anna@" in line["text"] for line in lines)}, report["steps"][5]
        for part in report["files"]:
            client.put_object(Bucket="bucket", Key=f"clean/{part}", Body=(w.path / "clean" / part).read_bytes())
        ingot("data", "train-tokenizer", "s3://bucket/clean/*.zst", "-o", w.path / "tokenizer", "--vocab-size", 384, env=account(moto))
        told = json.loads(ingot("data", "tokenize", "s3://bucket/clean/*.zst", "--tokenizer", w.path / "tokenizer", "-o", w.path / "clean/tokens", "--json", env=account(moto))[0])
        assert told["documents"] == sum(source["kept_documents"] for source in report["sources"]), (told, report["sources"])
    config = w.config("clean", **{"data.tokenizer": str(w.path / "tokenizer")})
    config.write_text(config.read_text().replace(str(w.path / "tokens"), str(w.path / "clean/tokens")))
    ingot("train", config, "--run-dir", w.path / "run", "--no-forecast")
    assert len(losses(w.path / "run")) == 12


def what_a_store_fails_at_is_tried_again_and_nothing_is_lost(w):
    lines = b"".join(json.dumps({"id": number, "text": f"document {number}"}).encode() + b"\n" for number in range(20000))
    (w.path / "recipe.toml").write_text('folder = "out"\n[[sources]]\nfiles = ["s3://bucket/a.jsonl"]\n')
    with FaultyStore() as store:
        store.put("a.jsonl", lines)
        for act in (answers(503, "SlowDown"), close, reset, answers(500, "InternalError")):
            store.fail(act, 1, lambda request: request.command == "GET")
        report = json.loads(ingot("data", "process", w.path / "recipe.toml", "--json", env=account(store))[0])
        assert not store.faults and report["sources"][0]["kept_documents"] == 20000, (store.faults, report)
        store.fail(answers(403, "AccessDenied"), 1000, lambda request: True)
        _, err = ingot("data", "process", w.path / "recipe.toml", "-o", w.path / "none", env=account(store), status=1)
        assert "HTTP 403" in err and "these keys may not do that" in err, err
        assert not (w.path / "none").exists()


class Ranges(http.server.BaseHTTPRequestHandler):
    """A file behind ranges, whose first answers fail."""
    content, faults = b"", []

    def do_GET(self):
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "/text.jsonl.gz")
            self.end_headers()
        elif self.faults:
            self.send_response(self.faults.pop())
            self.end_headers()
        else:
            first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
            body = self.content[first:last + 1]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{first + len(body) - 1}/{len(self.content)}")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_):
        pass


def texts_of_a_web_server_are_read(w):
    Ranges.content = gzip.compress(b"".join(json.dumps({"text": f"document {number}"}).encode() + b"\n" for number in range(5000)))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Ranges) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        (w.path / "recipe.toml").write_text(f'folder = "web"\n[[sources]]\nfiles = ["{url}/moved"]\nformat = "jsonl"\n')
        Ranges.faults = [503, 500]
        report = json.loads(ingot("data", "process", w.path / "recipe.toml", "--json", env=os.environ | {"NO_PROXY": "*"})[0])
        assert report["sources"][0]["kept_documents"] == 5000 and not Ranges.faults, report
        server.shutdown()


TESTS = [texts_of_a_web_server_are_read, a_recipe_takes_dirty_texts_from_a_bucket_to_batches, what_a_store_fails_at_is_tried_again_and_nothing_is_lost]

if __name__ == "__main__":
    run_chosen(TESTS)
