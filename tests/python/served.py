"""`ingot serve` on a tiny model, and clients of it. Standard library only."""
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "end_to_end"))
from harness import INGOT, ingot

TEMPLATE = ("{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}\n{% endfor %}"
            "{% if add_generation_prompt %}<assistant>{% endif %}")


class Server:
    def __init__(self, w, *flags):
        model = w.path / "served"
        if not model.exists():
            ingot("train", w.config("served", **{"train.steps": 30}), "--run-dir", model, "--no-forecast")
        (w.path / "chat.jinja").write_text(TEMPLATE)
        self.model = model
        self.call = [INGOT, "serve", str(model), "--port", "0", "--chat-template", str(w.path / "chat.jinja"), *map(str, flags)]
        self.stderr = w.path / "serve.stderr"

    def __enter__(self):
        with open(self.stderr, "w") as stderr:  # a pipe that nobody reads would fill
            self.process = subprocess.Popen(self.call, stdout=subprocess.DEVNULL, stderr=stderr)
        deadline = time.time() + 60
        while not (found := re.search(r"answers at http://([0-9.]+):([0-9]+)/v1", self.said())):
            assert self.process.poll() is None and time.time() < deadline, self.said()
            time.sleep(0.01)
        self.port = int(found.group(2))
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def said(self):
        return self.stderr.read_text()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60), self.said()

    def ask(self, path, body=None, key=None):
        """(status, the answer's JSON or text)."""
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        request = urllib.request.Request(self.url + path, data=None if body is None else json.dumps(body).encode(), headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                text = answer.read().decode()
                return answer.status, json.loads(text) if text.startswith(("{", "[")) else text
        except urllib.error.HTTPError as failure:
            return failure.code, json.loads(failure.read())

    def connect(self, timeout=20):
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout)

    def metric(self, name):
        text = self.ask("/metrics")[1]
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name)}

    def wait_until_idle(self, limit=30):
        deadline = time.time() + limit
        while any(v > 0 for v in self.metric("ingot_serve_texts").values()):
            assert time.time() < deadline, self.metric("ingot_serve_texts")
            time.sleep(0.05)

    def status_mib(self, name):
        return int(re.search(rf"{name}:\s+(\d+)", Path(f"/proc/{self.process.pid}/status").read_text()).group(1)) / 1024

    def peak_mib(self):
        return self.status_mib("VmHWM")

    def resident_mib(self):
        return self.status_mib("VmRSS")

    def threads(self):
        return len(os.listdir(f"/proc/{self.process.pid}/task"))

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


def request_bytes(path, body, method="POST", headers=()):
    """A request as its bytes; the body is bytes, or what becomes JSON."""
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: a", "Content-Type: application/json", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def receive(connection):
    """All until the server closes."""
    parts = []
    while part := connection.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


def status_and_body(answer):
    """Of an answer's bytes; the parts of a chunked body joined."""
    head, _, body = answer.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" in head.lower():
        parts = []
        while body:
            length, _, rest = body.partition(b"\r\n")
            size = int(length, 16)
            parts.append(rest[:size])
            body = rest[size + 2:] if size else b""
        body = b"".join(parts)
    return int(head.split(b" ")[1]), body


def without_names(value):
    """An answer without what each has of its own."""
    return {k: v for k, v in value.items() if k not in ("id", "created")} if isinstance(value, dict) else value


def events(body):
    """What a stream has said: its documents, and whether it came to its end."""
    lines = [line[6:] for line in body.decode().split("\n\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"], lines[-1:] == ["[DONE]"]
