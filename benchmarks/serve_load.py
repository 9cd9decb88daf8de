#!/usr/bin/env python3
"""`ingot serve` with many clients at once, against its engine alone: what serving costs, and how long clients wait.

    ninja -C build/release libingot.so ingot serve_engine_bench
    python3 benchmarks/serve_load.py [--models tiny 94M] [--clients 32] [--rounds 5] [-o TABLE.md]

Two Llamas that are trained for one step, so that their weights are as good as random: a tiny one, of which a pass takes less than a
millisecond, and one of 94 M parameters, whose weights are read from memory. Measured:

- Together: all clients ask at the same moment for a stream of 128 tokens after a prompt of 64 of their own; tokens a second from the first
  request to the last byte. The engine alone does the same: serve_engine_bench hands it as many texts at once, without a server, and a request of
  as many prompts shows what the server costs without streams. The sides take turns, the order turns with the round.
- Load: each client asks again as soon as it has its answer, with prompts of 16 to 256 tokens and 16 to 192 new ones. From a request's first byte
  to its first token, and between two events of a stream: medians, 95th and 99th percentiles.

All clients are one process and one thread, which takes note of the time of each event and reads nothing else of it; its CPU time is on the server's
account, as both run on the same cores. CPU time that other programs took is counted: beyond a tenth of a core, a measurement is marked.
"""
import argparse
import json
import os
import random
import re
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODELS = {
    "tiny": {"model.layers": 2, "model.hidden": 32, "model.heads": 4, "model.kv_heads": 2, "model.head_dim": 8, "model.ffn": 48},
    "94M": {"model.layers": 8, "model.hidden": 1024, "model.heads": 16, "model.kv_heads": 16, "model.head_dim": 64, "model.ffn": 2304, "model.vocab_size": 4096},
}
PROMPT, NEW = 64, 128
TICK = os.sysconf("SC_CLK_TCK")


def make_model(w, name):
    from harness import ingot
    run = w.path / name
    settings = {"train.steps": 1, "train.batch_size": 1, "model.max_positions": 1024} | MODELS[name]
    ingot("train", w.config(name, "llama", **settings), "--run-dir", run, "--no-forecast")
    return run, settings.get("model.vocab_size", 384)


class EngineAlone:
    def __init__(self, program, model, texts):
        self.process = subprocess.Popen([program, str(model), str(texts), str(PROMPT), str(NEW)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline().strip() != "ready":
            sys.exit("serve_engine_bench does not start")

    def round(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())


class Server:
    def __init__(self, program, model):
        self.process = subprocess.Popen([program, "serve", str(model), "--port", "0"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        said = ""
        while not (found := re.search(r"answers at http://127.0.0.1:([0-9]+)/v1", said)):
            line = self.process.stderr.readline()
            if not line:
                sys.exit(f"ingot serve: {said}")
            said += line
        self.port = int(found.group(1))


def request_of(prompt, new, stream):
    body = json.dumps({"prompt": prompt, "max_tokens": new, "temperature": 0, "ignore_eos": True, "stream": stream}).encode()
    return b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body


class Stream:
    """A client's current request."""

    def __init__(self, port, request, new):
        self.begin = time.perf_counter()
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.sendall(request)
        self.new, self.times, self.has_status, self.last = new, [], False, b""

    def read(self):
        """False at the end."""
        data = self.socket.recv(1 << 16)
        now = time.perf_counter()
        if not self.has_status and data:
            assert data.startswith(b"HTTP/1.1 200"), data[:300]
            self.has_status = True
        if b"data: {" in data:
            self.times.append(now)
        if data:
            self.last = (self.last + data)[-200:]
            return True
        self.socket.close()
        assert b"[DONE]" in self.last, self.last
        return False


def run_streams(port, clients, next_request):
    """Of all streams: next_request(client) gives bytes and new tokens, or None at a client's end."""
    selector, done = selectors.DefaultSelector(), []

    def start(client):
        if (asked := next_request(client)) is not None:
            stream = Stream(port, *asked)
            selector.register(stream.socket, selectors.EVENT_READ, (client, stream))
    for client in range(clients):
        start(client)
    while selector.get_map():
        for key, _ in selector.select():
            client, stream = key.data
            try:
                goes_on = stream.read()
            except AssertionError:
                raise
            if not goes_on:
                selector.unregister(key.fileobj)
                done.append(stream)
                start(client)
    return done


def busy_s():
    user, nice, system, _, _, *rest = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:])
    return (user + nice + system + sum(rest[:3])) / TICK


def own_s(pids):
    total = sum(os.times()[:2])
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        total += (int(fields[11]) + int(fields[12])) / TICK
    return total


class Sides:
    def __init__(self, o, model, vocabulary):
        self.o, self.vocabulary = o, vocabulary
        self.engine, self.server = EngineAlone(o.engine, model, o.clients), Server(o.program, model)
        self.pids = [self.engine.process.pid, self.server.process.pid]

    def prompts(self, round_, tokens):
        draw = random.Random(f"{round_} {tokens}")
        return [[draw.randrange(self.vocabulary) for _ in range(tokens)] for _ in range(self.o.clients)]

    def alone(self, _):
        return self.engine.round()

    def one_request(self, round_):
        begin = time.perf_counter()
        with socket.create_connection(("127.0.0.1", self.server.port)) as c:
            c.sendall(request_of(self.prompts(2 * round_, PROMPT), NEW, False))
            said = b""
            while data := c.recv(1 << 16):
                said += data
        assert json.loads(said.partition(b"\r\n\r\n")[2])["usage"]["completion_tokens"] == NEW * self.o.clients
        return time.perf_counter() - begin

    def streams(self, round_):
        requests = [(request_of(prompt, NEW, True), NEW) for prompt in self.prompts(2 * round_ + 1, PROMPT)]
        left = dict(enumerate(requests))
        begin = time.perf_counter()
        run_streams(self.server.port, self.o.clients, lambda client: left.pop(client, None))
        return time.perf_counter() - begin

    def load(self, requests):
        draws = [random.Random(f"load {client}") for client in range(self.o.clients)]
        counts = [requests] * self.o.clients

        def next_request(client):
            if counts[client] == 0:
                return None
            counts[client] -= 1
            draw, new = draws[client], draws[client].randrange(16, 193)
            return request_of([draw.randrange(self.vocabulary) for _ in range(draw.randrange(16, 257))], new, True), new
        begin = time.perf_counter()
        done = run_streams(self.server.port, self.o.clients, next_request)
        return time.perf_counter() - begin, done

    def end(self):
        for side in (self.engine, self.server):
            side.process.kill()
            side.process.wait()


def watched(pids, measure, *arguments):
    """What it gives, and how many cores other programs took."""
    begin, busy, own = time.perf_counter(), busy_s(), own_s(pids)
    result = measure(*arguments)
    elapsed = time.perf_counter() - begin
    return result, max(0.0, (busy_s() - busy - (own_s(pids) - own)) / elapsed)


def spread(values):
    return f"{statistics.median(values):,.0f} ({min(values):,.0f}–{max(values):,.0f})"


def percentiles(values):
    values = sorted(values)
    at = lambda p: values[min(len(values) - 1, int(p * len(values)))] * 1000
    return " | ".join(f"{at(p):.1f}" for p in (0.5, 0.95, 0.99))


def measured(o, sides, name):
    rates, others = {"the engine alone": [], "one request": [], "streams": []}, []
    ways = list(zip(rates, (sides.alone, sides.one_request, sides.streams)))
    for round_ in range(o.rounds + 1):  # the first one warms up
        for way, measure in ways[round_ % 3:] + ways[:round_ % 3]:
            seconds, foreign = watched(sides.pids, measure, round_)
            if round_:
                rates[way].append(o.clients * NEW / seconds)
                others.append(foreign)
    (seconds, done), foreign = watched(sides.pids, sides.load, o.requests)
    first = [s.times[0] - s.begin for s in done]
    between = [b - a for s in done for a, b in zip(s.times, s.times[1:])]
    # Of the same round, as what else the machine does changes from round to round.
    loss = [100 * (1 - s / e) for s, e in zip(rates["streams"], rates["the engine alone"])]
    lines = [f"### {name}, {o.clients} clients", "", "| together | tokens/s |", "|---|---|"]
    lines += [f"| {way} | {spread(values)} |" for way, values in rates.items()]
    lines += ["", f"Streams lose {statistics.median(loss):.1f} % against the engine alone (median of {o.rounds} rounds, {min(loss):.1f} to {max(loss):.1f}). "
              f"Other programs took {statistics.median(others):.2f} cores ({min(others):.2f}–{max(others):.2f}).", "",
              f"Load: {len(done)} requests, {sum(s.new for s in done):,} tokens, {sum(s.new for s in done) / seconds:,.0f} tokens/s; other programs took {foreign:.2f} cores.", "",
              "| ms | p50 | p95 | p99 |", "|---|---|---|---|", f"| to the first token | {percentiles(first)} |", f"| between events | {percentiles(between)} |", ""]
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=8, help="of each client under load")
    parser.add_argument("--program", default=str(ROOT / "build/release/ingot"))
    parser.add_argument("--engine", default=str(ROOT / "build/release/benchmarks/serve/serve_engine_bench"))
    parser.add_argument("-o", "--output")
    o = parser.parse_args()
    os.environ["INGOT_BINARY"] = o.program
    sys.path.insert(0, str(ROOT / "tests/end_to_end"))
    from harness import Workspace
    lines = []
    with Workspace() as w:
        for name in o.models:
            model, vocabulary = make_model(w, name)
            sides = Sides(o, model, vocabulary)
            try:
                lines += measured(o, sides, name)
            finally:
                sides.end()
    table = "\n".join(lines)
    print(table)
    if o.output:
        Path(o.output).write_text(table)


main()
