"""The pages of `ingot report` in a browser: what is drawn, named under the pointer, zoomed and hidden. Skipped where there is no Chromium."""
import html
import http.server
import json
import math
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

from harness import ingot, run_chosen_in_scratch
from verdict_test import profile, write
from watch_test import Watch

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
STEPS = 20000
# Runs behind the page's own scripts and leaves its findings where --dump-dom shows them.
EXERCISE = """
const all = [...document.querySelectorAll('.canvas')], tip = document.querySelector('.tip');
const send = (kind, type, box, x, y, more) => {
  const r = box.getBoundingClientRect(), place = {clientX: r.left + r.width * x, clientY: r.top + r.height * y, bubbles: true, ...more};
  (box.querySelector('canvas:last-of-type') ?? box).dispatchEvent(new kind(type, place));
};
const hover = (box, x, y) => (send(PointerEvent, 'pointermove', box, x, y), tip.hidden ? null : [...tip.children].map(row => [...row.children].map(e => e.textContent)));
const labels = box => [...box.querySelectorAll('.dygraph-axis-label-x')].map(e => e.textContent);
const drag = (box, from, to) => {
  send(MouseEvent, 'mousedown', box, from, .5, {button: 0}), send(MouseEvent, 'mousemove', box, (from + to) / 2, .5);
  send(MouseEvent, 'mousemove', box, to, .5), send(MouseEvent, 'mouseup', box, to, .5);
};
const found = {titles: [...document.querySelectorAll('figure h3')].map(e => e.textContent), x: [...document.querySelectorAll('.xlabel')].map(e => e.textContent)};
found.hovers = all.map(box => hover(box, .5, .5));
found.labels = all.map(labels);
drag(all[0], .3, .4);
found.zoomed = all.map(labels), found.zoomed_hover = hover(all[0], .5, .5);
for (const type of ['mousedown', 'mouseup', 'mousedown', 'mouseup', 'dblclick']) send(MouseEvent, type, all[0], .5, .5);
found.back = all.map(labels);
found.logs = document.querySelectorAll('.log').length;
document.querySelector('.log')?.click();
document.querySelector('.chip')?.click();
found.hover_without_first = hover(all[0], .5, .5);
found.overflow = document.documentElement.scrollWidth - document.documentElement.clientWidth, found.errors = errors;
const out = document.createElement('pre');
out.id = 'found', out.textContent = JSON.stringify(found), document.body.append(out);
"""
# Where the page's policy stands, a request or code made from text would be an error as well.
WATCH = "<script>const errors=[];onerror=(...e)=>{errors.push(String(e))};addEventListener('securitypolicyviolation',e=>errors.push(e.blockedURI))</script>"


def exercised(page, width):
    text = Path(page).read_text()
    head, tail = text.rsplit("</body>", 1)
    Path("page.html").write_text(head.replace("<main>", WATCH + "<main>", 1) + f"<script>{EXERCISE}</script></body>" + tail)
    call = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--window-size={width},900", "--virtual-time-budget=3000", "--dump-dom", "page.html"]
    dom = subprocess.run(call, capture_output=True, text=True, timeout=120)
    answer = re.search('<pre id="found">(.*?)</pre>', dom.stdout, re.S)
    assert answer, (dom.returncode, dom.stderr[-2000:], dom.stdout[-500:])
    found = json.loads(html.unescape(answer[1]))
    assert not found["errors"], found["errors"]
    return found


def loss_at(step):
    return 2.5 + 7 * step**-0.3 + 0.05 * math.sin(step)


def make_run(name):
    Path(name).mkdir()
    with open(f"{name}/metrics.jsonl", "w") as file:
        for step in range(1, STEPS + 1):
            record = {"step": step, "loss": round(loss_at(step), 5), "grad_norm": 1 + step % 7, "lr": 1e-3 / step, "step_ms": 500 + step % 11}
            file.write(json.dumps(record) + "\n")
    rank = {"bytes": 10**9, "plan_s": 0.1, "copy_s": 0.2, "hash_s": 0.1, "write_s": 0.6, "sync_s": 0.1}
    with open(f"{name}/checkpoints.jsonl", "w") as file:
        for step in range(1000, STEPS, 1000):
            save = {"kind": "save", "where": "folder", "step": step, "ok": step != 5000, "failure": "</script><script>errors.push('a name ran')</script>",
                    "bytes": 2 * 10**9, "total_s": 1, "stall_s": 0.3, "commit_s": 0.1, "ranks": [rank, rank | {"write_s": 0.7}]}
            file.write(json.dumps(save) + "\n")


# Acts as a reader who zooms, hides a run, opens a part and scrolls, then lets the runs go on and at last the server end.
READ_ON = """
(async () => {
  const main = document.querySelector('main'), sleep = ms => new Promise(done => setTimeout(done, ms));
  const until = async test => { for (let i = 0; i < 600 && !test(); ++i) await sleep(100); return test(); };
  const plot = title => [...document.querySelectorAll('figure')].find(e => e.querySelector('h3').textContent === title);
  const part = () => [...document.querySelectorAll('details')].find(e => e.textContent.includes('train.steps'));
  const drag = (canvas, from, to) => {
    const r = canvas.getBoundingClientRect(), at = x => ({clientX: r.left + r.width * x, clientY: r.top + r.height / 2, bubbles: true});
    for (const [type, x] of [['mousedown', from], ['mousemove', to], ['mouseup', to]]) canvas.dispatchEvent(new MouseEvent(type, at(x)));
  };
  const looks = () => ({
    zoomed: [...plot('Loss').querySelectorAll('.dygraph-axis-label-x')].map(e => e.textContent),
    whole: [...plot('Throughput').querySelectorAll('.dygraph-axis-label-y')].map(e => e.textContent),
    logs: [...document.querySelectorAll('.log[aria-pressed=true]')].map(e => e.closest('figure').querySelector('h3').textContent),
    off: [...document.querySelectorAll('.chip.off')].map(e => e.textContent), open: part().open, scroll: scrollY,
    canvases: document.querySelectorAll('.plot canvas').length / document.querySelectorAll('.plot').length,
    tips: document.querySelectorAll('.tip').length,
  });
  const found = {first: main.querySelector('.verdict').textContent};
  drag(plot('Loss').querySelector('canvas:last-of-type'), .3, .5);
  plot('Gradient norm').querySelector('.log').click();
  [...document.querySelectorAll('.chip')].find(e => e.textContent === 'other').click();
  part().open = true;
  scrollTo(0, 300);
  found.before = looks();
  await fetch('go-on');
  found.followed = await until(() => main.textContent.includes('is at step 1,500'));
  found.after = looks(), found.state = document.querySelector('.live').textContent;
  const pointer = type => dispatchEvent(new PointerEvent(type));
  pointer('pointerdown');
  await fetch('go-on');
  await sleep(5000);
  found.held = main.textContent.includes('is at step 1,500');
  pointer('pointerup');
  found.let_go = await until(() => main.textContent.includes('is at step 2,000'));
  await fetch('end');
  found.ended = await until(() => document.querySelector('.live.far')) && document.querySelector('.live').textContent;
  found.errors = errors;
  const out = document.createElement('pre');
  out.id = 'found', out.textContent = JSON.stringify(found), document.body.append(out);
})();
"""


def thousands(label):
    return float(label.removesuffix(" k").replace(",", "")) * (1000 if label.endswith(" k") else 1)


def check_loss(hover, names):
    """The tooltip's values are those of the file."""
    (label, step), *rows = hover
    step, values = int(step.replace(",", "")), dict(rows)
    assert label == "step", hover
    for name in names:
        [(key, value)] = [(key, value) for key, value in values.items() if key.startswith(name) and "mean" not in key]
        own = re.search(r"\(at ([\d,]+)\)", key)
        at = int(own[1].replace(",", "")) if own else step
        assert abs(float(value) - loss_at(at)) < 2e-5, (key, value, loss_at(at))
    return step


def runs_are_read_and_zoomed(_):
    evil = "<img src=x onerror=errors.push(1)>"
    make_run("plain"), make_run(evil)
    ingot("report", "plain", evil, "-o", "runs.html")
    for width in (500, 1300):  # Chromium has no narrower window
        found = exercised("runs.html", width)
        assert found["overflow"] == 0, (width, found["overflow"])
        assert len(found["hovers"]) == len(found["titles"]), (found["titles"], found["hovers"])
        check_loss(found["hovers"][0], ["plain: training", evil + ": training"])
        by_step = [i for i, x in enumerate(found["x"]) if x == "step"]
        assert len(by_step) >= 4 and 0 in by_step, found["x"]
        # All plots over steps show what was dragged over in the first, and everything again after a double click.
        for i in by_step:
            shown = [thousands(label) for label in found["zoomed"][i]]
            assert shown and all(0.2 * STEPS < step < 0.45 * STEPS for step in shown), (found["titles"][i], found["zoomed"][i])
        assert 0.2 * STEPS < check_loss(found["zoomed_hover"], ["plain: training"]) < 0.45 * STEPS
        assert found["back"] == found["labels"] and found["labels"][0] != found["zoomed"][0]
        assert all(evil in row[0] for row in found["hover_without_first"][1:]), found["hover_without_first"]
        bars = found["titles"].index("Saves to the folder, plain")
        assert found["labels"][bars][0] == "1,000", found["labels"][bars]
        cells = found["titles"].index("Rate of each rank, to the folder, plain")
        assert found["hovers"][cells][0][0] == "rank" and found["hovers"][cells][2][0] == "GB/s", found["hovers"][cells]


def profiles_have_axes_in_their_units(_):
    first, second = write("a.json", profile()), write("b.json", profile("<b>1</b>", triad=2e12))
    for inputs in ((first,), (first, second)):
        ingot("report", *inputs, "-o", "profile.html")
        found = exercised("profile.html", 1300)
        assert len(found["labels"]) == len(found["titles"]) and all(found["labels"]), found["labels"]
        [memory] = [i for i, title in enumerate(found["titles"]) if title.startswith("Memory bandwidth")]
        assert found["labels"][memory][0].endswith("KiB") and found["labels"][memory][-1].endswith("MiB"), found["labels"][memory]
        assert found["logs"] > 3


class ReadOn(http.server.BaseHTTPRequestHandler):
    """Between the browser and the program: READ_ON comes into the page, and the page can say what happens to its runs next."""
    watch = None

    def log_message(self, *_):
        pass

    def do_GET(self):
        if self.path == "/go-on":
            write_steps("grows", 500)
        elif self.path == "/end":
            self.watch.process.send_signal(signal.SIGINT)
            self.watch.process.wait()
        try:
            status, text, tag = self.watch.get(self.path[1:], self.headers["If-None-Match"] or "")
        except OSError:
            status, text, tag = (200 if self.path == "/end" else 502), "", None
        head, end, tail = text.rpartition("</body>")
        body = (head.replace("<main>", WATCH + "<main>", 1) + f"<script>{READ_ON}</script>" + end + tail if end else text).encode()
        self.send_response(200 if self.path in ("/go-on", "/end") else status)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        if tag:
            self.send_header("ETag", tag)
        self.end_headers()
        self.wfile.write(body)


def write_steps(name, count):
    path = Path(name) / "metrics.jsonl"
    path.parent.mkdir(exist_ok=True)
    (path.parent / "config.toml").write_text("[train]\nsteps = 3000\n")
    done = path.read_text().count("\n") if path.exists() else 0
    with open(path, "a") as file:
        for step in range(done + 1, done + count + 1):
            record = {"step": step, "steps": 3000, "loss": loss_at(step), "grad_norm": 1 + step % 7, "step_ms": 500, "tokens_per_s": 1e4}
            file.write(json.dumps(record) + "\n")


def a_watched_run_grows_under_the_eyes_of_a_reader(_):
    write_steps("grows", 1000), write_steps("other", 1000)
    with Watch("grows", "other") as watch:
        ReadOn.watch = watch
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), ReadOn)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        call = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1300,900", "--virtual-time-budget=200000", "--dump-dom",
                f"http://127.0.0.1:{server.server_port}/"]
        dom = subprocess.run(call, capture_output=True, text=True, timeout=300)
        server.shutdown()
    answer = re.search('<pre id="found">(.*?)</pre>', dom.stdout, re.S)
    assert answer, (dom.returncode, dom.stderr[-2000:], dom.stdout[-500:])
    found = json.loads(html.unescape(answer[1]))
    assert not found["errors"] and "is at step 1,000" in found["first"], found
    before, after = found["before"], found["after"]
    assert found["followed"] and before == after, (before, after)
    assert before["logs"] == ["Gradient norm"] and before["off"] == ["other"] and before["open"] and before["scroll"] == 300, before
    assert all(250 < thousands(label) < 600 for label in before["zoomed"]), before["zoomed"]
    assert before["canvases"] == 2 and before["tips"] == 1 and "changed" in found["state"], found
    assert found["held"] and found["let_go"] and "no answer since" in found["ended"], found


if __name__ == "__main__":
    if not BROWSER:
        print("no Chromium: skipped")
        sys.exit(77)
    run_chosen_in_scratch([runs_are_read_and_zoomed, profiles_have_axes_in_their_units,
                           a_watched_run_grows_under_the_eyes_of_a_reader])
