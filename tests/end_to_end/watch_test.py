"""`ingot report --watch`: a page that follows a run over HTTP until a signal ends it."""
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

from harness import INGOT, expect_error, ingot, metrics, run_chosen


class Watch:
    """The program, watching; ended by `number` it exits with 0."""

    def __init__(self, *args, number=signal.SIGINT):
        self.number = number
        self.process = subprocess.Popen([INGOT, "report", "--watch", "--port", "0", *map(str, args)],
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.url = self.process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", self.url), (self.url, self.process.poll())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        began = time.time()
        self.process.send_signal(self.number)
        _, said = self.process.communicate(timeout=30)
        assert self.process.returncode == 0, (self.process.returncode, said)
        assert time.time() - began < 10 and "terminate" not in said, said

    def get(self, path="", tag=""):
        """(status, text, tag)."""
        try:
            with urllib.request.urlopen(urllib.request.Request(self.url + path, headers={"If-None-Match": tag}), timeout=30) as answer:
                return answer.status, answer.read().decode(), answer.headers["ETag"]
        except urllib.error.HTTPError as answer:
            return answer.code, "", answer.headers["ETag"]

    def until(self, words, limit=120):
        """Asks as the page does until the words are there; returns the tags that it saw."""
        tags, deadline = [""], time.time() + limit
        while True:
            status, text, tag = self.get("main", tags[-1])
            assert status in (200, 304), status
            if status == 200:
                tags.append(tag)
            if words in text:
                return tags[1:]
            assert time.time() < deadline, (words, text[:2000])
            time.sleep(0.05)


def a_run_is_followed_from_before_its_start_to_its_end(w):
    run = w.path / "followed"
    for number in (signal.SIGTERM, signal.SIGINT):
        with Watch(run, number=number) as watch:
            if number == signal.SIGTERM:
                watch.until("followed does not exist yet")
                process = subprocess.Popen([INGOT, "train", w.config(**{"train.steps": 40}), "--no-forecast", "--run-dir", run],
                                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                tags = watch.until("finished all 40 steps", 600)
                assert process.wait(timeout=300) == 0
                assert len(tags) > 2 and len(set(tags)) == len(tags), tags
            watch.until("finished all 40 steps")
            status, page, tag = watch.get()
            assert status == 200 and page.startswith("<!doctype html>") and "could not be read" not in page
            markup = re.sub(r"<script>.*?</script>", "", page, flags=re.S)
            assert not re.findall("src=|href=|https?://", markup), "the page asks for something outside"
            time.sleep(1)
            assert watch.get("main", watch.until("finished all 40 steps")[-1])[0] == 304
    assert len(metrics(run)) == 40 and not (run / "report.html").exists()


def what_is_torn_or_hostile_does_not_end_it(w):
    run = w.path / "torn"
    run.mkdir()
    with Watch(run, "--timeout", 1) as watch:
        watch.until("no step has been recorded")
        (run / "metrics.jsonl").write_text('{"step":1,"steps":9,"loss":3}\n{"step":2,"st')
        watch.until("is at step 1 of 9")
        (run / "metrics.jsonl").write_text('{"step":1,"steps":9,"loss":3}\n{"step":2,"steps":9,"loss":"<script>"}\n\0\xff{{{\n')
        watch.until("1 of 3 lines of metrics.jsonl could not be read")
        port = int(watch.url.rsplit(":", 1)[1].strip("/"))
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(30)]
        for line in (b"\0\0\0\r\n\r\n", b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
                     b"GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", port), timeout=30) as one:
                one.sendall(line)
                assert b"200 OK" not in one.recv(4096), line
        watch.until("1 of 3 lines of metrics.jsonl could not be read")
        (run / "metrics.jsonl").unlink()
        run.rmdir()
        watch.until("torn does not exist yet")
        for connection in idle:
            connection.close()


def wrong_calls_say_what_is_wrong(w):
    run = w.path / "some"
    run.mkdir()
    (w.path / "some.json").write_text("{}")
    expect_error("report", "--watch", run, "-o", w.path / "page.html", status=2, words=["--watch", "-o"])
    expect_error("report", "--watch", run, "--json", status=2, words=["--watch", "--json"])
    expect_error("report", "--watch", w.path / "some.json", status=2, words=["some.json", "is a file"])
    expect_error("report", run, "--port", "1", status=2, words=["--port", "--watch"])
    expect_error("report", "--watch", run, "--port", "70000", status=2, words=["--port"])
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        expect_error("report", "--watch", run, "--port", taken.getsockname()[1], status=2, words=["127.0.0.1:", "taken", "--port"])
    expect_error("report", run, status=1, words=["is no run directory"])


TESTS = [a_run_is_followed_from_before_its_start_to_its_end, what_is_torn_or_hostile_does_not_end_it, wrong_calls_say_what_is_wrong]

if __name__ == "__main__":
    run_chosen(TESTS)
