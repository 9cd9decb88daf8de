"""An archive is the run that it was made of, in one file: the same texts, its tokenizer and chat template, and errors that name what is wrong.
Standard library only."""
import json
import os
import re
import resource
import signal
import struct
import subprocess
import sys
import urllib.request

from harness import INGOT, Workspace, expect_error, ingot

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"


def trained(w, family="zaya1"):
    run = w.path / family
    ingot("train", w.config(family, family=family, **{"train.steps": 12, "optimizer.lr": 5e-3}), "--run-dir", run, "--no-forecast")
    return run


def text_of(model, *flags):
    out, _ = ingot("generate", "--model", model, "--prompt", "Anna sees the", "--tokens", 20, "--json", *flags)
    return json.loads(out)["ids"]


def header_of(file):
    data = file.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8:8 + size]), data[8 + size:]


def answer(model, path, body, *flags):
    """Of a server of its own."""
    with subprocess.Popen([INGOT, "serve", str(model), "--port", "0", *flags], stderr=subprocess.PIPE, text=True) as server:
        try:
            port = next(found[1] for found in (re.search(r"http://127.0.0.1:(\d+)/v1", line) for line in server.stderr) if found)
            request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=60) as reply:
                return json.load(reply)
        finally:
            server.terminate()
            server.communicate(timeout=60)


def it_answers_as_the_run_does(w):
    run, file = trained(w), w.path / "m.safetensors"
    (run / "tokenizer" / "chat_template.jinja").write_text(TEMPLATE)
    for dtype in ("fp32", "bf16"):
        report = json.loads(ingot("checkpoint", "export-archive", run, "-o", file, "--dtype", dtype, "--json")[0])
        assert report["tokenizer"] and report["bytes"] == file.stat().st_size, report
        assert text_of(file) == text_of(run, "--dtype", dtype)  # without a flag an archive has its own dtype
        body = {"model": "m", "messages": [{"role": "user", "content": "Anna sees"}], "max_tokens": 8, "temperature": 0}
        told = [answer(model, "/v1/chat/completions", body, *flags)["choices"] for model, flags in ((file, []), (run, ["--dtype", dtype]))]
        assert told[0] == told[1], told
    assert text_of(file, "--dtype", "fp32") != []
    assert text_of(file, "--weights", "int8") == text_of(run, "--dtype", "bf16", "--weights", "int8")


def its_tensors_are_those_of_a_safetensors_file(w):
    run, file = trained(w, "llama"), w.path / "m.safetensors"
    ingot("checkpoint", "export-archive", run, "-o", file)
    header, data = header_of(file)
    begin = file.stat().st_size - len(data)
    assert header["__metadata__"]["dtype"] == "bf16" and 'family = "llama"' in header["__metadata__"]["config.toml"]
    at = 0
    for name, one in sorted(((k, v) for k, v in header.items() if k != "__metadata__"), key=lambda item: item[1]["data_offsets"]):
        assert one["data_offsets"][0] == at, name  # no holes
        assert name.startswith("ingot/padding") or (begin + at) % 64 == 0, name
        at = one["data_offsets"][1]
    assert at == len(data)
    first, last = header["ingot/files/tokenizer.json"]["data_offsets"]
    assert data[first:last] == (run / "tokenizer" / "tokenizer.json").read_bytes()
    # The same weights as a folder of Hugging Face's, and the archive becomes such a folder.
    ingot("checkpoint", "export-hf", run, "-o", w.path / "a")
    ingot("checkpoint", "export-hf", file, "-o", w.path / "b")
    assert (w.path / "a" / "model.safetensors").read_bytes() == (w.path / "b" / "model.safetensors").read_bytes()
    assert (w.path / "a" / "tokenizer.json").read_bytes() == (w.path / "b" / "tokenizer.json").read_bytes()


def what_is_wrong_is_said(w):
    run, file = trained(w, "llama"), w.path / "m.safetensors"
    ingot("checkpoint", "export-archive", run, "-o", file)
    ingot("checkpoint", "verify", file)
    whole = file.read_bytes()
    begin = len(whole) - len(header_of(file)[1])
    damaged = bytearray(whole)
    damaged[begin + 100] ^= 1
    file.write_bytes(damaged)
    out, _ = ingot("checkpoint", "verify", file, status=3)
    assert "DAMAGED" in out and "is not what was written" in out, out
    file.write_bytes(whole[:-100])
    expect_error("generate", "--model", file, "--prompt", "a", status=1, words=["m.safetensors", "truncated"])
    file.write_bytes(whole[:20])
    expect_error("serve", file, status=1, words=["m.safetensors"])
    expect_error("checkpoint", "export-archive", file, "-o", w.path / "n.safetensors", status=2, words=["is a file"])
    ingot("checkpoint", "export-archive", run, "-o", file, "--no-tokenizer")
    expect_error("serve", file, status=2, words=["--tokenizer"])

    # A disk that is full: files may not grow beyond 20,000 bytes.
    def limited():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    before = sorted(os.listdir(w.path)), file.read_bytes()
    done = subprocess.run([INGOT, "checkpoint", "export-archive", str(run), "-o", str(file)], capture_output=True, text=True, preexec_fn=limited)
    assert done.returncode == 1 and "cannot write" in done.stderr, done.stderr
    assert (sorted(os.listdir(w.path)), file.read_bytes()) == before


CASES = [it_answers_as_the_run_does, its_tensors_are_those_of_a_safetensors_file, what_is_wrong_is_said]

if __name__ == "__main__":
    for case in CASES:
        if not sys.argv[1:] or case.__name__ in sys.argv[1:]:
            with Workspace() as workspace:
                case(workspace)
            print("ok", case.__name__)
