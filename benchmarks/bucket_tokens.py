#!/usr/bin/env python3
"""Reads a token data set from a web server as `ingot data diff` does, document by document, beside a plain ranged download of the same file.

    python3 benchmarks/bucket_tokens.py [--mib 512] [--rounds 5] [--mbit 1000]

A server of this machine, in another process, sends ranges of files by sendfile (moto's copies the whole object for each range, and would be what is measured). By turns: 16
threads that fetch ranges of 2 MiB with one connection each and throw them away (plain), the data set through an empty cache (cold), through the cache that this left (kept), and
from the disk (local). --mbit is the rate of the server's network, over all connections; 0 = that of the loopback.
"""
import argparse
import http.client
import http.server
import multiprocessing
import os
import random
import statistics
import struct
import subprocess
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
os.environ.setdefault("INGOT_BINARY", str(ROOT / "build/release/ingot"))

INGOT, RANGE, CHUNK, THREADS = os.environ["INGOT_BINARY"], 2 << 20, 256 << 10, 16


def write_tokens(prefix, size_bytes):
    """Documents of 1 to 4095 random tokens of two bytes."""
    draw, lengths, left = random.Random(1), [], size_bytes // 2
    while left:
        lengths.append(min(draw.randint(1, 4095), left))
        left -= lengths[-1]
    with open(f"{prefix}.bin", "wb") as file:
        for _ in range(size_bytes >> 20):
            file.write(draw.randbytes(1 << 20))
    begins = [0]
    for length in lengths:
        begins.append(begins[-1] + 2 * length)
    count = len(lengths)
    Path(f"{prefix}.idx").write_bytes(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, count, count + 1) + struct.pack(f"<{count}i", *lengths)
                                      + struct.pack(f"<{count}q", *begins[:-1]) + struct.pack(f"<{count + 1}q", *range(count + 1)))


class Ranges(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    folder, rate, free_at, lock = None, 0, 0, threading.Lock()

    def wait_for(self, size):
        """Until the network is free for so many bytes."""
        with self.lock:
            begin = max(time.monotonic(), Ranges.free_at)
            Ranges.free_at = begin + size / self.rate
        time.sleep(max(0, begin - time.monotonic()))

    def do_GET(self):
        try:
            file = open(self.folder / self.path[1:], "rb")
        except FileNotFoundError:
            self.send_response(404)
            self.send_header("Content-Length", "0")
            return self.end_headers()
        with file:
            size = os.fstat(file.fileno()).st_size
            first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
            last = min(last, size - 1)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
            self.send_header("Content-Length", str(last - first + 1))
            self.send_header("ETag", '"1"')
            self.end_headers()
            self.wfile.flush()
            step = CHUNK if self.rate else last - first + 1
            for at in range(first, last + 1, step):
                size = min(step, last + 1 - at)
                if self.rate:
                    self.wait_for(size)
                self.connection.sendfile(file, at, size)

    def log_message(self, *_):
        pass


def serve(folder, mbit, pipe):
    Ranges.folder, Ranges.rate = folder, mbit * 1e6 / 8
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Ranges)
    pipe.send(server.server_address[1])
    server.serve_forever()


def plain_s(port, size_bytes):
    """Every thread has a connection, and takes the next range."""
    offsets, lock, start = iter(range(0, size_bytes, RANGE)), threading.Lock(), time.monotonic()

    def work():
        connection = http.client.HTTPConnection("127.0.0.1", port)
        while True:
            with lock:
                offset = next(offsets, None)
            if offset is None:
                return connection.close()
            connection.request("GET", "/tokens.bin", headers={"Range": f"bytes={offset}-{min(offset + RANGE, size_bytes) - 1}"})
            answer = connection.getresponse()
            assert answer.status == 206 and len(answer.read()) == min(RANGE, size_bytes - offset)

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.monotonic() - start


def diff_s(a, b, env):
    start = time.monotonic()
    done = subprocess.run([INGOT, "data", "diff", str(a), str(b)], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return time.monotonic() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mbit", type=float, default=1000)
    options = parser.parse_args()
    times = {"plain": [], "cold": [], "kept": [], "local": []}
    with tempfile.TemporaryDirectory(prefix="ingot_bucket_tokens_") as folder:
        folder = Path(folder)
        write_tokens(folder / "tokens", options.mib << 20)
        here, there = multiprocessing.Pipe()
        server = multiprocessing.Process(target=serve, args=(folder, options.mbit, there), daemon=True)
        server.start()
        port = here.recv()
        for number in range(options.rounds):
            env = os.environ | {"INGOT_CACHE": str(folder / f"cache{number}"), "NO_PROXY": "*"}
            times["plain"].append(plain_s(port, options.mib << 20))
            times["local"].append(diff_s(folder / "tokens", folder / "tokens", env))
            times["cold"].append(diff_s(f"http://127.0.0.1:{port}/tokens", folder / "tokens", env))
            times["kept"].append(diff_s(f"http://127.0.0.1:{port}/tokens", folder / "tokens", env))
            subprocess.run(["rm", "-r", str(folder / f"cache{number}")], check=True)
        server.terminate()
    print(f"{options.mib} MiB, {options.rounds} rounds\n\n| | median s | range s | MiB/s |\n|---|---|---|---|")
    for name, seconds in times.items():
        middle = statistics.median(seconds)
        print(f"| {name} | {middle:.2f} | {min(seconds):.2f}–{max(seconds):.2f} | {options.mib / middle:.0f} |")
    ratios = [plain / cold for plain, cold in zip(times["plain"], times["cold"])]
    print(f"\ncold beside plain: {statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})")


if __name__ == "__main__":
    main()
