"""The same texts in every format, from every place that files may lie in: `data tokenize` and `data process` make the same of them (the first table of "What is read from
where", docs/data.md). Runs with the Python of .deps/venv."""
import bz2
import gzip
import http.server
import json
import os
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/end_to_end")]
os.environ.setdefault("OBJECT_STORE_EXERCISE", "unused")

import boto3  # noqa: E402
from bucket_checkpoints_test import account  # noqa: E402
from faulty_store import ID, REGION, SECRET  # noqa: E402
from harness import INGOT, ingot, run_chosen  # noqa: E402
from object_store_test import Moto  # noqa: E402

TOKENIZER = ROOT / "src/data/testdata/export_bpe.model"
TEXTS = [f"Document {number} says that {number * 7919 % 1000} is its number." for number in range(3000)]
HAS_PARQUET = (Path(INGOT).parent / "libingot_parquet.so").exists()


def files(folder):
    """{what the table calls a format: file}, all of the same documents."""
    lines = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()
    made = {"plain text": ("plain.txt", "\n".join(TEXTS).encode() + b"\n"), "JSON lines": ("lines.jsonl", lines), "JSON lines, gzip": ("packed.jsonl.gz", gzip.compress(lines)),
            "JSON lines, zstd": ("packed.jsonl.zst", pa.compress(lines, codec="zstd", asbytes=True)), "JSON lines, bzip2": ("packed.jsonl.bz2", bz2.compress(lines))}
    for name, content in made.values():
        (folder / name).write_bytes(content)
    if HAS_PARQUET:
        pq.write_table(pa.table({"text": TEXTS}), folder / "table.parquet")
        made["Parquet"] = ("table.parquet", (folder / "table.parquet").read_bytes())
    return {format_: folder / name for format_, (name, _) in made.items()}


class Ranges(http.server.BaseHTTPRequestHandler):
    """Ranges of the files of a folder."""
    folder = None

    def do_GET(self):
        file = self.folder / self.path[1:]
        if not file.is_file():
            return self.send_error(404)
        content = file.read_bytes()
        first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        body = content[first:last + 1]
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{first + len(body) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def tokens_of(w, name, env):
    ingot("data", "tokenize", name, "-o", w.path / "out", "--tokenizer", TOKENIZER, "--split", "line", "--overwrite", env=env)
    return (w.path / "out.bin").read_bytes() + (w.path / "out.idx").read_bytes()


def processed(w, names, env):
    recipe = w.path / "recipe.toml"
    recipe.write_text("folder = \"clean\"\n" + "".join(f'[[sources]]\nfiles = ["{name}"]\nsplit = "line"\n' for name in names))
    report = json.loads(ingot("data", "process", recipe, "-o", w.path / f"clean{len(list(w.path.glob('clean*')))}", "--json", env=env)[0])
    return [source["kept_bytes"] for source in report["sources"]]


def every_format_is_read_from_every_store(w):
    folder = w.path / "texts"
    folder.mkdir()
    made = files(folder)
    with Moto() as moto, http.server.ThreadingHTTPServer(("127.0.0.1", 0), Ranges) as server:
        Ranges.folder = folder
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client = boto3.client("s3", endpoint_url=moto.url, aws_access_key_id=ID, aws_secret_access_key=SECRET, region_name=REGION)
        for file in made.values():
            client.put_object(Bucket="bucket", Key=f"texts/{file.name}", Body=file.read_bytes())
        env = account(moto) | {"NO_PROXY": "*"}
        names = {"local": str, "pattern": lambda file: str(file.parent / f"{file.name[:-1]}*"), "http": lambda file: f"http://127.0.0.1:{server.server_address[1]}/{file.name}",
                 "s3": lambda file: f"s3://bucket/texts/{file.name}", "s3 pattern": lambda file: f"s3://bucket/texts/{file.name[:-1]}*"}
        expected = tokens_of(w, made["JSON lines"], env)
        size = len("".join(TEXTS).encode())
        for store, name in names.items():
            for format_, file in made.items():
                assert tokens_of(w, name(file), env) == expected, (store, format_)
            assert processed(w, [name(file) for file in made.values()], env) == [size] * len(made), store
        if HAS_PARQUET:  # its copy has no name, and what is wrong is said of the URL
            client.put_object(Bucket="bucket", Key="texts/cut.parquet", Body=made["Parquet"].read_bytes()[:-9])
            (w.path / "copies").mkdir()
            _, err = ingot("data", "tokenize", "s3://bucket/texts/cut.parquet", "-o", w.path / "none", "--tokenizer", TOKENIZER, env=env | {"TMPDIR": str(w.path / "copies")}, status=1)
            assert "s3://bucket/texts/cut.parquet" in err and "/proc/" not in err, err
            assert not list((w.path / "copies").iterdir())
        for store in ("http", "s3"):  # what is written lies on disks
            _, err = ingot("data", "tokenize", made["JSON lines"], "-o", names[store](w.path / "out"), "--tokenizer", TOKENIZER, env=env, status=2)
            assert "is a URL: name a file on a disk" in err, err
        (w.path / "recipe.toml").write_text(f'folder = "s3://bucket/clean"\n[[sources]]\nfiles = ["{made["JSON lines"]}"]\n')
        assert "is a URL: name a folder on a disk" in ingot("data", "process", w.path / "recipe.toml", env=env, status=2)[1]
        server.shutdown()


TESTS = [every_format_is_read_from_every_store]

if __name__ == "__main__":
    run_chosen(TESTS)
