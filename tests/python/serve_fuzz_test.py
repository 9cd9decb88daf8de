"""`ingot serve` under requests that are malformed, mutated, slow, endless or cut short: it stays alive, says no 500, and answers others as if idle.

INGOT_BINARY=build/release/ingot python3 tests/python/serve_fuzz_test.py [CASE...]; with INGOT_NIGHT set many more requests are drawn. Standard
library only. INGOT_SEED draws others.
"""
import concurrent.futures
import copy
import json
import os
import random
import socket
import time

from served import Server, receive, request_bytes, status_and_body, without_names

from harness import run_chosen

SEED = int(os.environ.get("INGOT_SEED", "1"))
ROUNDS, REQUESTS = (400, 100) if os.environ.get("INGOT_NIGHT") else (6, 80)
CLIENTS = 4

KNOWN = [("/v1/completions", {"prompt": "And it came", "max_tokens": 24, "temperature": 0}),
         ("/v1/completions", {"prompt": "Anna sees the", "max_tokens": 16, "seed": 3, "temperature": 1.5, "top_k": 20}),
         ("/v1/completions", {"prompt": "Ben takes", "max_tokens": 2, "temperature": 0, "echo": True, "logprobs": 2}),
         ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Who?"}], "max_tokens": 12, "temperature": 0}),
         ("/tokenize", {"prompt": "Clara makes the bread"}),
         ("/detokenize", {"tokens": [5, 6, 7, 8]})]

COMPLETION = {"prompt": "And it", "max_tokens": 8, "temperature": 1, "top_p": 0.9, "min_p": 0.01, "top_k": 40, "n": 2, "best_of": 2, "seed": 1, "stop": ["."],
              "echo": True, "logprobs": 3, "stream": False, "stream_options": {"include_usage": True}, "presence_penalty": 0.5,
              "frequency_penalty": 0.5, "repetition_penalty": 1.1, "logit_bias": {"5": 1}, "stop_token_ids": [3], "ignore_eos": False,
              "suffix": "", "model": "m", "user": "u"}
CHAT = {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who?"}], "max_tokens": 8,
        "max_completion_tokens": 8, "logprobs": True, "top_logprobs": 2, "temperature": 1, "stream": True, "n": 2,
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}], "chat_template_kwargs": {"enable_thinking": True}}
VALID = [("/v1/completions", COMPLETION), ("/v1/completions", COMPLETION | {"stream": True, "prompt": [[5, 6], [7]], "best_of": None}),
         ("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 4}), ("/v1/chat/completions", CHAT), ("/v1/chat/completions", CHAT | {"stream": False}),
         ("/tokenize", {"prompt": "And it", "add_special_tokens": True}), ("/tokenize", {"messages": CHAT["messages"]}),
         ("/detokenize", {"tokens": [5, 6, 7]})]

# Written into the body as they are: some are no JSON.
RAW = ["NaN", "Infinity", "-Infinity", "1e400", "-1e400", "1e-400", "-0", "0", "-1", "2147483648", "9223372036854775807", "9223372036854775808",
       "-9223372036854775809", "18446744073709551616", "1" * 400, "0.1", "true", "false", "null", '""', '"a"', "[]", "{}", "[[]]", "[[[]]]", "[null]", "[{}]", "[1,\"a\"]",
       '{"a":1}', '"\\ud800"', '"\\u0000"', '"\\udc00\\ud800"', '"\xff"', '"' + "a" * 5000 + '"', "[" * 60 + "]" * 60, "[" * 5000 + "]" * 5000,
       '{"a":' * 5000, "[" + "1," * 3000 + "1]", '["a",' * 50 + "1" + "]" * 50, "[-1]", "[1e9]", "[2147483647]", "[9223372036854775808]", "'a'", "01",
       "0x10", "+1", ".5", "\\", "", '"\\x"', '"unended', "[1", '{"a"}', "tru", "\ufeff1", "/* */1", '{"type":"text","text":"a"}',
       '[{"role":"user"}]', '[{"role":1,"content":2}]', '[{"role":"user","content":[{"type":"text","text":"a"}]}]', '[{"role":"user","content":null}]',
       '[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{"}}]}]', '{"5":1e400}', '{"-1":1}', '{"":""}', "[" + '"a",' * 300 + '"a"]']


def places(value, path=()):
    """Paths of all that is in a body."""
    found = [path] if path else []
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        found += places(inner, (*path, key))
    return found


def mutated_body(draw):
    path, body = draw.choice(VALID)
    body, marks = copy.deepcopy(body), []
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        if not body:
            break
        *outer, last = draw.choice(places(body))
        holder = body
        for key in outer:
            holder = holder[key]
        what = draw.random()
        if what < 0.1:
            del holder[last]
        elif what < 0.15 and isinstance(holder, dict):
            holder["x" * draw.randrange(3)] = holder[last]
        else:
            marks.append(draw.choice(RAW))
            holder[last] = f"@{len(marks) - 1}@"
    text = json.dumps(body)
    for i, raw in enumerate(marks):
        text = text.replace(f'"@{i}@"', raw)
    data = text.encode("utf-8", "surrogatepass") if draw.random() < 0.8 else text.encode("latin-1", "replace")
    if draw.random() < 0.15:  # bytes of any kind
        data = bytearray(data)
        for _ in range(draw.randrange(1, 6)):
            at = draw.randrange(len(data) + 1)
            data[at:at + draw.choice((0, 1, 1, 20))] = draw.choice((b"", bytes([draw.randrange(256)]), draw.randbytes(8), b'"', b"{", b"]", b"\\u"))
    return path, bytes(data)


def in_chunks(draw, body):
    data, at = b"", 0
    while at < len(body):
        size = draw.choice((1, 7, 100, 5000))
        data += b"%x\r\n" % len(body[at:at + size]) + body[at:at + size] + b"\r\n"
        at += size
    return data + b"0\r\n\r\n"


def mutated_request(draw):
    """Bytes on the wire, and whether the client closes its half of the connection behind them."""
    path, body = mutated_body(draw) if draw.random() < 0.7 else (lambda p, b: (p, json.dumps(b).encode()))(*draw.choice(VALID))
    if draw.random() < 0.65:
        return request_bytes(path, body), False
    request_line = draw.choice([f"POST {path} HTTP/1.1"] * 8 + [
        f"GET {path} HTTP/1.1", f"DELETE {path} HTTP/1.1", f"PUT {path} HTTP/1.1", f"HEAD {path} HTTP/1.1", f"OPTIONS * HTTP/1.1", f"POST {path}", f"POST {path} HTTP/0.9",
        f"POST {path} HTTP/1.0", f"POST {path} HTTP/2.0", f"PRI * HTTP/2.0", f"post {path} HTTP/1.1", f"POST  {path}  HTTP/1.1", f"POST /../../{path} HTTP/1.1",
        f"POST /%00%ff%{path} HTTP/1.1", f"POST {path}?{'a=b&' * 2000} HTTP/1.1", f"GET /{'a' * 9000} HTTP/1.1", "\x16\x03\x01\x02", "", f"GET http://b{path} HTTP/1.1",
        "CONNECT a:1 HTTP/1.1", "TRACE / HTTP/1.1", f"GET /metrics HTTP/1.1", "GET / HTTP/1.1", "GET /tokenizer_info HTTP/1.1"])
    length = draw.choice([f"Content-Length: {len(body)}"] * 6 + [
        "", "Content-Length: 0", f"Content-Length: {len(body) - 1}", f"Content-Length: {len(body) + 10}", "Content-Length: -5", "Content-Length: x",
        "Content-Length: 99999999999999999999", f"Content-Length: {len(body)}\r\nContent-Length: 3", f"Content-Length: 3\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked", "Transfer-Encoding: chunked", "Transfer-Encoding: gzip, chunked", "Transfer-Encoding: x", "Content-Length: 16777217"])
    if "chunked" in length and draw.random() < 0.8:
        body = in_chunks(draw, body)
        if draw.random() < 0.3:
            body = body.replace(b"\r\n", draw.choice((b"\n", b"\r\nzz\r\n", b"\r\n-1\r\n", b"\r\nffffffffffff\r\n")), draw.randrange(1, 3))
    headers = draw.sample(["Host: a", "Expect: 100-continue", "Expect: x", "Connection: keep-alive", "Connection: Upgrade\r\nUpgrade: websocket", "Range: bytes=0-1,2-3,5-",
                           "Content-Encoding: gzip", "Content-Encoding: br", "Content-Type: multipart/form-data; boundary=x", "Content-Type: multipart/form-data",
                           "Content-Type: application/x-www-form-urlencoded", "Authorization: " + "a" * 5000, "no colon", ": no name", "a:" + "b" * 9000, "\x00: \x01",
                           "Accept-Encoding: gzip, deflate, br", " folded", "a: b\n c: d", "\r", "X: " + "\xff" * 20, "a: b\r\n" * 300], draw.randrange(4))
    data = "\r\n".join([request_line, *([length] if length else []), *headers]).encode("latin-1") + b"\r\n\r\n" + body
    what = draw.random()
    if what < 0.15:
        data = data[:draw.randrange(len(data) + 1)]  # cut short
    elif what < 0.25:
        data *= 2  # pipelined
    elif what < 0.3:
        data = draw.randbytes(draw.choice((1, 100, 20000)))
    return data, True


def send(s, data, closes_half, piece=None):
    """The answer's bytes. What has no end is given one by closing this half of the connection."""
    with s.connect() as c:
        try:
            for at in range(0, len(data), piece or len(data) or 1):
                c.sendall(data[at:at + (piece or len(data))])
            if closes_half:
                c.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it has closed early
        return receive(c)


def check(answer, data):
    if not answer:
        return None
    assert answer.startswith(b"HTTP/1.1 "), (answer[:200], data[:1000])
    while answer.startswith(b"HTTP/1.1 100"):
        answer = answer.partition(b"\r\n\r\n")[2]
        if not answer:
            return None
    status, body = status_and_body(answer)
    assert status < 500 or status == 503, (status, body[:300], data[:2000])
    head = answer.partition(b"\r\n\r\n")[0].lower()
    if b"content-type: application/json" in head and b"content-encoding" not in head and not data.startswith(b"HEAD"):
        document = json.loads(body)
        assert ("error" in document) == (status >= 400), (status, document)
        assert status < 400 or document["error"]["message"], document
    if b"text/event-stream" in head:
        assert b'"server_error"' not in body, (body[-500:], data[:2000])
    return status


def known_answers(s):
    found = []
    for path, body in KNOWN:
        deadline = time.time() + 20
        while True:
            status, answer = s.ask(path, body)
            if status != 429:  # texts of clients that have just left go with the next pass
                break
            assert time.time() < deadline
            time.sleep(0.05)
        assert status == 200, (path, status, answer)
        found.append(without_names(answer))
    return found


def mutated_requests_change_nothing_for_others(w):
    counts = {}
    with Server(w, "--context", 256, "--texts", 6, "--waiting", 12, "--pass-tokens", 32) as s:
        idle = known_answers(s)
        slow = [s.connect(60) for _ in range(80)]  # more than there are threads
        for i, c in enumerate(slow):
            c.sendall((b"", b"POST /v1/compl", b"POST /v1/completions HTTP/1.1\r\nContent-Length: 100\r\n\r\n{", b"GET / HTTP/1.1\r\na: ")[i % 4])
        with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
            for round_ in range(ROUNDS):
                draw = random.Random(f"{SEED} {round_}")
                requests = [mutated_request(draw) for _ in range(REQUESTS)]
                others = pool.submit(known_answers, s)
                for (data, _), answer in zip(requests, pool.map(lambda r: send(s, *r), requests)):
                    status = check(answer, data)
                    counts[status] = counts.get(status, 0) + 1
                assert s.process.poll() is None, (round_, s.said()[-3000:])
                assert others.result() == idle, f"round {round_}: other answers than of an idle server\n{others.result()}\n{idle}"
                for c in slow:  # a byte now and then
                    try:
                        c.sendall(b"a")
                    except OSError:
                        pass
        s.wait_until_idle()
        assert known_answers(s) == idle
        for c in slow:
            c.close()
        code, said = s.stop()
        assert code == 0, said[-2000:]
    print(f"answers by status, None without one: {dict(sorted(counts.items(), key=str))}")
    # What is drawn must not all be rubbish.
    assert counts[200] > ROUNDS * REQUESTS / 10 and counts[400] > ROUNDS * REQUESTS / 10, counts


def every_field_of_every_wrong_kind_is_refused_or_taken(w):
    with Server(w, "--context", 256, "--texts", 6, "--waiting", 200) as s:
        cases = []
        for path, body in VALID:
            for field in [*body, "unknown"]:
                rest = {k: v for k, v in body.items() if k != field}
                inner = json.dumps(rest)[1:-1]
                cases += [(path, "{%s%s%s}" % (inner, ", " if inner else "", json.dumps(field) + ": " + raw)) for raw in RAW]
        chosen = cases if os.environ.get("INGOT_NIGHT") else random.Random(SEED).sample(cases, 800)
        with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
            requests = [request_bytes(path, text.encode("utf-8", "surrogatepass")) for path, text in chosen]
            for (path, text), data, answer in zip(chosen, requests, pool.map(lambda data: send(s, data, False), requests)):
                assert check(answer, data) in (200, 400, 429), (path, text[:500], answer[:500])
        assert s.process.poll() is None


def endless_and_huge_requests_end(w):
    with Server(w, "--context", 256, "--pass-tokens", 32) as s:
        idle, before, start = known_answers(s), s.resident_mib(), time.time()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\n"
        endless = [b"GET /" + b"a" * 200_000, head + b"a: b\r\n" * 50_000, head + b"a: " + b"b" * 300_000, b"\r\n" * 100_000, bytes(200_000),
                   head + b"Transfer-Encoding: chunked\r\n\r\n" + b"ffff\r\n" + b"a" * 0xffff + b"\r\n" * 400, head + b"Transfer-Encoding: chunked\r\n\r\n" + b"1" * 50_000,
                   head + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 3_500_000, head + b"Content-Length: 40000000\r\n\r\n" + b"a" * 40_000_000]
        for data in endless:
            answer = send(s, data, False)
            assert status_and_body(answer)[0] in (400, 413, 414, 431), (data[:100], answer[:200])
        huge = 16 * 1024 * 1024 - 100
        values = [b'{"prompt":"' + b"a" * (huge - 20) + b'"}', b'{"prompt":[' + b"1," * (huge // 2 - 20) + b"1]}", b'{"x":[' + b"[]," * (huge // 3 - 20) + b"[]]}",
                  b'{"prompt":"a","max_tokens":1,"x":[' + b'"",' * (huge // 3 - 20) + b'""]}', b'{"messages":[' + b"{}," * (huge // 3 - 20) + b"{}]}",
                  b'{"tokens":[' + b"5," * (huge // 2 - 20) + b"5]}", b'{"prompt":"' + b"\\u0000" * (huge // 6 - 20) + b'"}', b" " * huge]
        for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
            for value in values:
                status = status_and_body(send(s, request_bytes(path, value), False))[0]
                assert status in (200, 400, 413), (path, value[:60], status)
        assert known_answers(s) == idle
        peak = s.peak_mib()
        print(f"resident {before:.0f} MiB before, {peak:.0f} at the most; {time.time() - start:.1f} s")
        # malloc keeps a part of what each of its arenas has had.
        assert peak - before < 1000, (before, peak)


TESTS = [mutated_requests_change_nothing_for_others, every_field_of_every_wrong_kind_is_refused_or_taken, endless_and_huge_requests_end]

if __name__ == "__main__":
    run_chosen(TESTS)
