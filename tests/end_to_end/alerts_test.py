"""The alerts in configs/alerts: what promtool and amtool say of them, whether their metrics exist, and one that reaches a person through a
real Prometheus and Alertmanager. Left out where those are not installed (scripts/test does so where it may)."""
import http.server
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

from harness import INGOT, run_chosen, wait_for_steps

ROOT = Path(__file__).resolve().parents[2]
ALERTS = ROOT / "configs/alerts"
LEFT_OUT = 77  # ctest counts it as skipped


def tool(name, *arguments, status=0):
    done = subprocess.run([name, *map(str, arguments)], capture_output=True, text=True, timeout=60)
    assert done.returncode == status, (name, arguments, done.stdout, done.stderr)
    return done.stdout + done.stderr


def rules_fire_when_they_should(w):
    tool("promtool", "check", "config", ALERTS / "prometheus.yml")
    tool("amtool", "check-config", ALERTS / "alertmanager.yml")
    tool("promtool", "test", "rules", ALERTS / "ingot.rules.test.yml")
    # And the test of the rules notices a rule that does not.
    for file in ("ingot.rules.yml", "ingot.rules.test.yml"):
        (w.path / file).write_text((ALERTS / file).read_text().replace('up{job="ingot"} == 0', 'up{job="ingot"} == 2'))
    assert "IngotRunDown" in tool("promtool", "test", "rules", w.path / "ingot.rules.test.yml", status=1)


def ports(count):
    """Free ones, a moment ago."""
    sockets = [http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) for _ in range(count)]
    numbers = [s.server_port for s in sockets]
    for s in sockets:
        s.server_close()
    return numbers


def start_run(w, name, port, launcher=()):
    config = w.config(name, **{"train.steps": 1000000, "checkpoint.every": 0, "train.validation_every": 0, "log.prometheus": f"127.0.0.1:{port}"})
    process = subprocess.Popen([*launcher, INGOT, "train", config, "--no-forecast", "--run-dir", w.path / name], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    wait_for_steps(w.path / name, 2, process)
    return process


def every_metric_that_is_asked_for_exists(w):
    """In rules and on the dashboard; validation_loss is there once there was a validation."""
    port, of_launcher = ports(2)
    process = start_run(w, "metrics", port, [INGOT, "launch", "-n", "1", "--page", f"127.0.0.1:{of_launcher}", "--"])
    page = "".join(urllib.request.urlopen(f"http://127.0.0.1:{p}/metrics", timeout=10).read().decode() for p in (port, of_launcher))
    process.terminate()
    process.communicate(timeout=60)
    there = set(re.findall(r"^# TYPE (ingot_\w+)", page, re.M)) | {"ingot_validation_loss"}
    for file in ("ingot.rules.yml", "grafana_dashboard.json"):
        asked = set(re.findall(r"\bingot_\w+", (ALERTS / file).read_text()))
        assert len(asked) > 5 and asked <= there, (file, asked - there)
    json.loads((ALERTS / "grafana_dashboard.json").read_text())


def a_run_that_is_killed_reaches_a_person(w):
    heard = []

    class Person(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            heard.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    person = http.server.HTTPServer(("127.0.0.1", 0), Person)
    threading.Thread(target=person.serve_forever, daemon=True).start()
    run_port, prometheus_port, alertmanager_port = ports(3)
    folder = w.path / "alerts"
    folder.mkdir()
    # The files as they are, but for addresses and waits of seconds.
    changes = {"127.0.0.1:9400": f"127.0.0.1:{run_port}", "127.0.0.1:9093": f"127.0.0.1:{alertmanager_port}", "127.0.0.1:9095": f"127.0.0.1:{person.server_port}",
               "_interval: 15s": "_interval: 1s", "for: 2m": "for: 2s", "group_wait: 10s": "group_wait: 0s"}
    for file in ALERTS.glob("*.yml"):
        text = file.read_text()
        for before, after in changes.items():
            text = text.replace(before, after)
        (folder / file.name).write_text(text)
    run = start_run(w, "killed", run_port)
    programs = [["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{prometheus_port}"],
                ["prometheus-alertmanager", f"--config.file={folder}/alertmanager.yml", f"--storage.path={folder}/state",
                 f"--web.listen-address=127.0.0.1:{alertmanager_port}", "--cluster.listen-address="]]
    logs = [open(folder / f"{program[0]}.log", "w") for program in programs]
    processes = [subprocess.Popen(program, stdout=log, stderr=log) for program, log in zip(programs, logs)]
    try:
        def ask(query):
            url = f"http://127.0.0.1:{prometheus_port}/api/v1/query?query={query}"
            try:
                return json.load(urllib.request.urlopen(url, timeout=5))["data"]["result"]
            except OSError:
                return []

        def wait(what, condition):
            until = time.time() + 60
            while not condition():
                assert time.time() < until and all(p.poll() is None for p in processes), (what, heard, [Path(log.name).read_text()[-2000:] for log in logs])
                time.sleep(0.2)

        wait("a scrape", lambda: any(r["value"][1] != "0" for r in ask("ingot_step")))
        assert not heard, heard
        run.send_signal(signal.SIGKILL)
        killed = time.time()
        wait("the alert", lambda: heard)
        path, message = heard[0]
        alert, = message["alerts"]
        assert path == "/pages" and alert["status"] == "firing" and alert["labels"]["alertname"] == "IngotRunDown", heard
        assert alert["labels"]["instance"] == f"127.0.0.1:{run_port}" and "does not answer" in alert["annotations"]["summary"], heard
        print(f"heard after {time.time() - killed:.1f} s")
    finally:
        for process in [*processes, run]:
            process.kill()
            process.wait(timeout=30)
        person.shutdown()


TESTS = [rules_fire_when_they_should, every_metric_that_is_asked_for_exists, a_run_that_is_killed_reaches_a_person]

if __name__ == "__main__":
    if missing := [name for name in ("promtool", "amtool", "prometheus", "prometheus-alertmanager") if not shutil.which(name)]:
        print("left out: no", ", ".join(missing), "(Debian's prometheus and prometheus-alertmanager)")
        sys.exit(LEFT_OUT)
    run_chosen(TESTS)
