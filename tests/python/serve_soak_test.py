"""`ingot serve` under mixed traffic for long: answers stay those of an idle server, and memory, threads and file descriptors stay what they were.

INGOT_BINARY=build/release/ingot python3 tests/python/serve_soak_test.py; standard library only. It takes INGOT_SOAK_S seconds: 12 if it is not
set, 3,600 if INGOT_NIGHT is.

Clients complete, chat, stream, score and tokenize, send rubbish, leave in the middle of a stream with and without a reset, ask and do not read,
and keep connections idle. Passes have up to 32 tokens (--pass-tokens), whose numbers do not depend on what else is in them (docs/serving.md):
every answer must be exactly that of the idle server. The rule for memory: the median of the resident memory in the last quarter of the time is
at most 16 MiB above that in the second quarter, whatever the duration; threads are as many, and file descriptors at most 16 more.
"""
import json
import os
import random
import socket
import statistics
import struct
import threading
import time

from serve_fuzz_test import check, mutated_request, send
from served import Server, events, receive, request_bytes, status_and_body, without_names

from harness import run_chosen

SECONDS = float(os.environ.get("INGOT_SOAK_S") or (3600 if os.environ.get("INGOT_NIGHT") else 12))
CLIENTS, MOST_GROWTH_MIB, MOST_MORE_DESCRIPTORS = 8, 16, 16

USER = [{"role": "user", "content": "Who sees the bread?"}]
GREEDY = {"temperature": 0, "ignore_eos": True}
KNOWN = [("/v1/completions", GREEDY | {"prompt": f"{'And Anna ' * (i * i)}takes", "max_tokens": 5 + 11 * i}) for i in range(6)]
KNOWN += [("/v1/completions", {"prompt": "Ben paints", "max_tokens": 40, "seed": i, "temperature": 0.5 + i, "top_k": 50, "top_p": 0.95}) for i in range(3)]
KNOWN += [("/v1/completions", GREEDY | {"prompt": ["Clara", "David and Eva", "Frank"], "n": 2, "max_tokens": 20, "temperature": 1, "seed": 9}),
          ("/v1/completions", {"prompt": "Greta", "best_of": 4, "max_tokens": 15, "seed": 4}),
          ("/v1/completions", GREEDY | {"prompt": "Henry sees the", "max_tokens": 1, "echo": True, "logprobs": 3}),
          ("/v1/completions", GREEDY | {"prompt": "Iris sees the bread. " * 8, "max_tokens": 0, "echo": True, "logprobs": 1}),
          ("/v1/completions", GREEDY | {"prompt": "Jonas", "max_tokens": 60, "repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2}),
          ("/v1/completions", GREEDY | {"prompt": "Karla", "max_tokens": 60, "logit_bias": {"40": 3, "50": -100}, "stop": ["the", " and"]}),
          ("/v1/chat/completions", {"messages": USER, "max_tokens": 25, "temperature": 0}),
          ("/v1/chat/completions", {"messages": USER * 3, "max_tokens": 12, "temperature": 1, "seed": 8, "logprobs": True, "top_logprobs": 2}),
          ("/tokenize", {"prompt": "Leo mends the candle and hides the mirror."}), ("/detokenize", {"tokens": list(range(5, 60))})]
STREAMS = [(path, body | {"stream": True, "stream_options": {"include_usage": True}}) for path, body in KNOWN
           if path.startswith("/v1/") and "best_of" not in body]
LONG = request_bytes("/v1/completions", GREEDY | {"prompt": "Mina", "max_tokens": 900, "stream": True})


def of_stream(body):
    """What a stream has said in all, however it was cut into pieces."""
    documents, has_ended = events(body)
    assert has_ended, body[-500:]
    choices, usage = {}, None
    for document in documents:
        assert "error" not in document, document
        usage = document.get("usage") or usage
        for piece in document["choices"]:
            choice = choices.setdefault(piece["index"], {"text": "", "logprobs": [], "finish_reason": None})
            choice["text"] += piece.get("text") or piece.get("delta", {}).get("content") or ""
            choice["logprobs"] += [piece["logprobs"]] if piece["logprobs"] and any(piece["logprobs"].values()) else []
            choice["finish_reason"] = piece["finish_reason"] or choice["finish_reason"]
    for choice in choices.values():
        joined = {}
        for part in choice["logprobs"]:
            for name, values in part.items():
                joined.setdefault(name, []).extend(values)
        choice["logprobs"] = joined
    return [choices[i] for i in sorted(choices)], usage


def answered(s, path, body):
    """None where the server had no room."""
    with s.connect(60) as c:
        c.sendall(request_bytes(path, body))
        status, said = status_and_body(receive(c))
    if status == 429:
        return None
    assert status == 200, (path, body, status, said[:500])
    return of_stream(said) if body.get("stream") else without_names(json.loads(said))


class Traffic:
    def __init__(self, s, expected, end):
        self.s, self.expected, self.end = s, expected, end
        self.lock, self.counts, self.failure = threading.Lock(), {}, None

    def count(self, what):
        with self.lock:
            self.counts[what] = self.counts.get(what, 0) + 1

    def run(self, seed):
        draw, idle = random.Random(seed), []
        try:
            while time.time() < self.end and not self.failure:
                self.one(draw, idle)
        except BaseException as failure:
            self.failure = self.failure or failure
            raise
        finally:
            for c in idle:
                c.close()

    def one(self, draw, idle):
        what = draw.random()
        if what < 0.7:
            path, body = draw.choice(KNOWN if draw.random() < 0.5 else STREAMS)
            answer = answered(self.s, path, body)
            if answer is not None:
                assert answer == self.expected[json.dumps((path, body))], (path, body, answer, self.expected[json.dumps((path, body))])
            self.count("no room" if answer is None else "streams" if body.get("stream") else "answers")
        elif what < 0.8:
            data, closes_half = mutated_request(draw)
            check(send(self.s, data, closes_half), data)
            self.count("mutated requests")
        elif what < 0.93:  # leaves in the middle, politely or with a reset
            with self.s.connect(60) as c:
                c.sendall(LONG)
                if draw.random() < 0.8:
                    c.recv(draw.choice((1, 200, 5000)))
                if draw.random() < 0.5:
                    c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.count("clients that left")
        else:
            idle.append(self.s.connect(60))
            if draw.random() < 0.5:
                idle[-1].sendall(draw.choice((LONG[:30], LONG)))  # and does not read
            if len(idle) > 6:
                idle.pop(draw.randrange(len(idle))).close()
            self.count("idle connections")


def an_hour_of_mixed_traffic_leaves_the_server_as_it_was(w):
    with Server(w, "--context", 1024, "--texts", 16, "--waiting", 48, "--pass-tokens", 32, "--prefix-cache", 4) as s:
        expected = {json.dumps((path, body)): answered(s, path, body) for path, body in KNOWN + STREAMS}
        again = {json.dumps((path, body)): answered(s, path, body) for path, body in KNOWN + STREAMS}
        assert expected == again and None not in expected.values()
        descriptors = s.descriptors()
        begin = time.time()
        traffic = Traffic(s, expected, begin + SECONDS)
        threads = [threading.Thread(target=traffic.run, args=(i,)) for i in range(CLIENTS)]
        for thread in threads:
            thread.start()
        samples = []  # (seconds, resident MiB, threads, file descriptors)
        while time.time() < traffic.end and not traffic.failure:
            time.sleep(max(0.2, SECONDS / 2000))
            assert s.process.poll() is None, s.said()[-3000:]
            samples.append((time.time() - begin, s.resident_mib(), s.threads(), s.descriptors()))
            if len(samples) % 100 == 0 and SECONDS > 100:
                print(f"{samples[-1][0]:.0f} s: {samples[-1][1]:.1f} MiB, {samples[-1][2]} threads, {samples[-1][3]} descriptors, {traffic.counts}", flush=True)
        for thread in threads:
            thread.join(120)
        assert not traffic.failure and not any(t.is_alive() for t in threads), (traffic.failure, traffic.counts)
        s.wait_until_idle()
        assert {key: answered(s, *json.loads(key)) for key in expected} == expected
        deadline = time.time() + 20
        while s.descriptors() > descriptors + 1:
            assert time.time() < deadline, (descriptors, s.descriptors())
            time.sleep(0.1)
        tokens = s.metric("ingot_serve_tokens_total")
        quarter = lambda n, column: [x[column] for x in samples if (n - 1) * SECONDS / 4 <= x[0] < n * SECONDS / 4]
        second, last = statistics.median(quarter(2, 1)), statistics.median(quarter(4, 1))
        print(f"{SECONDS:.0f} s: {traffic.counts}; {tokens}\nresident: {second:.1f} MiB in the second quarter, {last:.1f} in the last, {s.peak_mib():.1f} at the most; "
              f"threads: {max(quarter(2, 2))}, {max(quarter(4, 2))}; descriptors: {max(quarter(2, 3))}, {max(quarter(4, 3))}")
        assert last - second <= MOST_GROWTH_MIB, (second, last)
        assert max(quarter(4, 2)) <= max(quarter(2, 2)) and max(quarter(4, 3)) <= max(quarter(2, 3)) + MOST_MORE_DESCRIPTORS
        for what in ("answers", "streams", "mutated requests", "clients that left", "idle connections"):
            assert traffic.counts[what] > 5, traffic.counts
        code, said = s.stop()
        assert code == 0, said[-2000:]


TESTS = [an_hour_of_mixed_traffic_leaves_the_server_as_it_was]

if __name__ == "__main__":
    run_chosen(TESTS)
