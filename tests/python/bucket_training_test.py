"""Training straight from .bin/.idx in buckets and on web servers. Needs $INGOT_BINARY; runs with the Python of .deps/venv."""
import array
import http.server
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "end_to_end")]
os.environ.setdefault("OBJECT_STORE_EXERCISE", "unused")

import boto3  # noqa: E402
from bucket_checkpoints_test import account  # noqa: E402
from faulty_store import ID, REGION, SECRET  # noqa: E402
from harness import INGOT, ingot, launch, losses, run_chosen, wait_for_steps  # noqa: E402
from object_store_test import Moto  # noqa: E402

BLOCK = 256 << 10


def write_tokens(prefix, tokens, seed):
    """A data set of random ids in documents of random lengths, several blocks long."""
    draw = random.Random(seed)
    lengths = []
    while sum(lengths) < tokens:
        lengths.append(min(draw.randint(1, 2000), tokens - sum(lengths)))
    Path(f"{prefix}.bin").write_bytes(array.array("H", list(draw.randbytes(tokens))).tobytes())
    begins = [0]
    for length in lengths:
        begins.append(begins[-1] + length)
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(lengths), len(lengths) + 1) + struct.pack(f"<{len(lengths)}i", *lengths)
    index += struct.pack(f"<{len(lengths)}q", *(2 * begin for begin in begins[:-1])) + struct.pack(f"<{len(lengths) + 1}q", *range(len(lengths) + 1))
    Path(f"{prefix}.idx").write_bytes(index)


class Web(http.server.BaseHTTPRequestHandler):
    """Files of a folder by ranges; `faults` of a hundred answers are late, cut, wrong or refused."""
    protocol_version = "HTTP/1.1"
    folder, faults, draw, done, version = None, 0, random.Random(5), [], "1"

    def do_GET(self):
        path = self.folder / self.path[1:]
        if not path.exists():
            self.send_response(404)
            self.send_header("Content-Length", "0")
            return self.end_headers()
        content = path.read_bytes()
        first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        body, whole = content[first:last + 1], len(content)
        fault = self.draw.choice(["late", "cut", "short", "whole", "refused", "gone", "text"]) if self.draw.randrange(100) < self.faults else None
        if fault == "text" and len(body) == 1:
            fault = "late"  # whoever answers so when a file is opened knows no ranges
        self.done.append((self.path, first, len(body), fault))
        if fault == "late":
            time.sleep(self.draw.random())
        if fault == "refused":
            self.send_response(self.draw.choice([500, 502, 503, 429]))
            self.send_header("Content-Length", "0")
            return self.end_headers()
        if fault == "gone":
            self.close_connection = True
            return self.connection.close()
        if fault == "text":
            body = b"<html>please log in to the wireless network</html>"
        self.send_response(200 if fault == "text" else 206)
        if fault != "text":
            self.send_header("Content-Range", f"bytes {first}-{first + len(body) - 1}/{whole + (7 if fault == 'whole' else 0)}")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{self.version}"')
        self.end_headers()
        if fault in ("cut", "short"):
            self.close_connection = True
            return self.wfile.write(body[:len(body) * 2 // 3])
        self.wfile.write(body)

    def handle(self):
        try:
            super().handle()
        except OSError:
            pass

    def log_message(self, *_):
        pass


class WebServer:
    def __init__(self, folder, faults=0):
        Web.folder, Web.faults, Web.done, Web.version = folder, faults, [], "1"

    def __enter__(self):
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Web)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        return self

    def __exit__(self, *_):
        self.server.shutdown()


def config_of(w, name, source, **settings):
    config = w.config(name, "llama", **({"train.steps": 30, "train.batch_size": 12, "data.seq_len": 512, "data.cache": str(w.path / "cache" / name), "checkpoint.every": 10} | settings))
    config.write_text(config.read_text().replace(str(w.path / "tokens"), source))
    return config


def trained(w, name, source, env=None, **settings):
    ingot("train", config_of(w, name, source, **settings), "--run-dir", w.path / name, "--no-forecast", env=(env or os.environ) | {"NO_PROXY": "*"})
    return losses(w.path / name)


def a_faulty_web_server_trains_as_the_disk_does(w):
    write_tokens(w.path / "large", 12_000_000, 1)
    expected = trained(w, "local", str(w.path / "large"))
    with WebServer(w.path, faults=30) as web:
        assert trained(w, "web", f"{web.url}/large") == expected
        faults = [fault for _, _, _, fault in Web.done if fault]
        assert len(faults) > 5 and len(set(faults)) > 2, Web.done
        Web.done.clear()
        assert trained(w, "again", f"{web.url}/large", **{"data.cache": str(w.path / "cache/web")}) == expected
        fetched = sum(size for path, _, size, _ in Web.done if path.endswith(".bin"))
        assert fetched < 2 * BLOCK, f"{fetched} bytes were fetched again, though they are kept"


def two_ranks_that_are_killed_go_on_from_a_bucket_or_from_the_disk(w):
    write_tokens(w.path / "large", 8_000_000, 2)
    settings = {"train.steps": 60, "checkpoint.every": 5, "train.reproducible": True, "train.microbatch_size": 2, "train.threads": 1}
    launch(2, "train", config_of(w, "disk", str(w.path / "large"), **settings), "--run-dir", w.path / "disk", "--no-forecast")
    expected = losses(w.path / "disk")
    with Moto() as moto:
        client = boto3.client("s3", endpoint_url=moto.url, aws_access_key_id=ID, aws_secret_access_key=SECRET, region_name=REGION)
        for suffix in (".bin", ".idx"):
            client.upload_file(str(w.path / f"large{suffix}"), "bucket", f"data/large{suffix}")
        config = config_of(w, "bucket", "s3://bucket/data/large", **settings)
        words = ["train", str(config), "--run-dir", str(w.path / "bucket"), "--no-forecast"]
        for steps in (12, 25):
            process = subprocess.Popen([INGOT, "launch", "-n", "2", "--", INGOT, *words], env=account(moto), stdout=subprocess.DEVNULL,
                                       stderr=subprocess.PIPE, text=True, start_new_session=True)
            wait_for_steps(w.path / "bucket", steps, process)
            os.killpg(process.pid, signal.SIGKILL)
            subprocess.run(["pkill", "-9", "-f", str(config)])
            process.wait()
        shutil.rmtree(w.path / "cache/bucket")
        ingot("launch", "-n", 2, "--", INGOT, *words, env=account(moto))
        assert losses(w.path / "bucket") == expected
        # The same tokens from the disk go on where those of the bucket ended.
        half = config_of(w, "half", "s3://bucket/data/large", **settings)
        ingot("launch", "-n", 2, "--", INGOT, "train", half, "--run-dir", w.path / "half", "--no-forecast", "--set", "train.steps=30", "--set", "optimizer.schedule=constant", env=account(moto))
    straight = config_of(w, "straight", str(w.path / "large"), **settings)
    launch(2, "train", straight, "--run-dir", w.path / "straight", "--no-forecast", "--set", "optimizer.schedule=constant")
    moved = config_of(w, "moved", str(w.path / "large"), **settings)
    launch(2, "train", moved, "--run-dir", w.path / "half", "--no-forecast", "--set", "optimizer.schedule=constant")
    assert losses(w.path / "half") == losses(w.path / "straight")


def what_cannot_be_read_is_said(w):
    write_tokens(w.path / "large", 12_000_000, 3)
    with WebServer(w.path) as web:
        env = os.environ | {"NO_PROXY": "*"}
        _, err = ingot("train", config_of(w, "missing", f"{web.url}/nothing"), "--run-dir", w.path / "missing", "--no-forecast", env=env, status=1)
        assert f"{web.url}/nothing.idx" in err and "HTTP 404" in err, err
        out, _ = ingot("data", "inspect", f"{web.url}/large", env=env | {"INGOT_CACHE": str(w.path / "cache")})
        assert "12,000,000" in out or "12000000" in out, out
        whole = (w.path / "large.bin").read_bytes()
        (w.path / "large.bin").write_bytes(whole[:-2])
        _, err = ingot("train", config_of(w, "short", f"{web.url}/large"), "--run-dir", w.path / "short", "--no-forecast", env=env, status=1)
        assert "large.bin has 23999998 bytes, but" in err and "large.idx describes 24000000" in err, err
        (w.path / "large.bin").write_bytes(whole)
        config = config_of(w, "changed", f"{web.url}/large", **{"train.steps": 2000})
        process = subprocess.Popen([INGOT, "train", str(config), "--run-dir", str(w.path / "changed"), "--no-forecast"], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        wait_for_steps(w.path / "changed", 1, process)
        Web.version = "2"  # another file under the same name, while it is read
        _, err = process.communicate(timeout=120)
        assert process.returncode == 1 and "large.bin" in err and "changed" in err, (process.returncode, err[-2000:])


TESTS = [a_faulty_web_server_trains_as_the_disk_does, two_ranks_that_are_killed_go_on_from_a_bucket_or_from_the_disk, what_cannot_be_read_is_said]

if __name__ == "__main__":
    run_chosen(TESTS)
