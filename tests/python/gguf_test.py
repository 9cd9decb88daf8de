"""GGUF files that ingot writes, read by the gguf package: every tensor and its values for each family, tokens of tokenizers, errors. Runs with
the Python of .deps/venv."""
import json
import resource
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "end_to_end"))
import gguf
import numpy
import torch
from gguf_models import CASES, expected_tensors, save_model
from harness import Workspace, at_night, expect_error, ingot

ROOT = Path(__file__).resolve().parent.parent.parent
TYPES = {"fp32": gguf.GGMLQuantizationType.F32, "fp16": gguf.GGMLQuantizationType.F16, "bf16": gguf.GGMLQuantizationType.BF16,
         "q8_0": gguf.GGMLQuantizationType.Q8_0}
KNOWN = {value for group in vars(gguf.Keys).values() if isinstance(group, type) for value in vars(group).values() if isinstance(value, str)}


def bytes_of(x, kind):
    if kind == TYPES["bf16"]:
        return x.to(torch.bfloat16).view(torch.int16).numpy().tobytes()
    return gguf.quants.quantize(x.numpy(), kind).tobytes()


def is_exact(name, x):
    return x.dim() == 1 or name.endswith((".bias", "ffn_gate_inp.weight"))


def check_file(path, expected, dtype, arch):
    reader = gguf.GGUFReader(path)
    assert {t.name for t in reader.tensors} == set(expected), {t.name for t in reader.tensors} ^ set(expected)
    for t in reader.tensors:
        x = expected[t.name]
        kind = TYPES["fp32"] if is_exact(t.name, x) else TYPES[dtype]
        if kind == TYPES["q8_0"] and x.shape[-1] % 32:
            kind = TYPES["bf16"]
        assert list(t.shape) == list(x.shape)[::-1], (t.name, t.shape, x.shape)
        assert t.tensor_type == kind, (t.name, t.tensor_type, kind)
        if t.name.startswith("rope_"):
            assert numpy.allclose(t.data, x.numpy(), rtol=1e-6), t.name
        else:
            assert t.data.tobytes() == bytes_of(x, kind), f"{t.name}: other values"
    for key in reader.fields:
        assert key.startswith("GGUF.") or key in KNOWN or key.replace(arch + ".", "{arch}.", 1) in KNOWN, f"{key} is no key of GGUF"
    return {key: field.contents() for key, field in reader.fields.items()}


# They differ from others in their shape's values alone; by day llama.cpp does not read those.
AT_NIGHT = {"llama, linear and wider heads", "llama, yarn", "mistral", "qwen3, yarn", "olmo2, tied", "phi3, rotating in part"}


def families(w):
    for number, (case, (arch, settings)) in enumerate(CASES.items()):
        if case in AT_NIGHT and not at_night():
            continue
        torch.manual_seed(number)
        folder, file = w.path / f"model{number}", w.path / f"{number}.gguf"
        config = save_model(case, folder)
        dtype = list(TYPES)[number % len(TYPES)] if number else "fp32"
        ingot("checkpoint", "export-gguf", folder, "-o", file, "--dtype", dtype)
        name = gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH[arch]]
        fields = check_file(file, expected_tensors(case, config, folder), dtype, name)
        assert fields["general.architecture"] == name
        assert fields[f"{name}.vocab_size"] == config.vocab_size and fields[f"{name}.block_count"] == config.num_hidden_layers
        print(f"ok {case}: {dtype}")


def tokenizers(w):
    recorded = json.loads((ROOT / "src/data/testdata/tokenizer_llama3.json").read_text())["tokenizer"]
    folder, size = w.path / "words", len(recorded["model"]["vocab"]) + len(recorded["added_tokens"])
    save_model("llama", folder, vocab_size=size + 2)  # the model has two ids more than the tokenizer
    (folder / "tokenizer.json").write_text(json.dumps(recorded))
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    ingot("checkpoint", "export-gguf", folder, "-o", w.path / "words.gguf", "--dtype", "bf16")
    fields = {key.removeprefix("tokenizer."): field.contents() for key, field in gguf.GGUFReader(w.path / "words.gguf").fields.items()}
    tokens = {id_: text for text, id_ in recorded["model"]["vocab"].items()} | {t["id"]: t["content"] for t in recorded["added_tokens"]}
    assert fields["ggml.tokens"] == [tokens.get(i, f"[PAD{i}]") for i in range(size + 2)]
    types = {i: 1 for i in recorded["model"]["vocab"].values()} | {t["id"]: 3 if t["special"] else 4 for t in recorded["added_tokens"]}
    assert fields["ggml.token_type"] == [types.get(i, 5) for i in range(size + 2)]
    assert fields["ggml.merges"] == [m if isinstance(m, str) else " ".join(m) for m in recorded["model"]["merges"]]
    assert (fields["ggml.model"], fields["ggml.pre"]) == ("gpt2", "llama-bpe" if recorded["model"]["ignore_merges"] else "smaug-bpe")
    assert (fields["ggml.bos_token_id"], fields["ggml.eos_token_id"], fields["ggml.add_bos_token"]) == (0, 1, True)
    assert fields["chat_template"].startswith("{% for m in messages")
    expect_error("checkpoint", "export-gguf", w.path / "model0", "-o", w.path / "y.gguf", "--tokenizer", folder, status=1, words=["--tokenizer", "83"])


def errors(w):
    export = ("checkpoint", "export-gguf", w.path / "model0", "--dtype", "fp32", "-o")
    expect_error(*export, w.path / "none" / "x.gguf", status=1, words=["cannot create", "x.gguf"])
    target = w.path / "limited" / "x.gguf"
    target.parent.mkdir()

    def bound_files():  # as on a full disk, writing fails halfway
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))

    _, err = ingot(*export, target, status=1, preexec_fn=bound_files)
    assert "x.gguf" in err and not list(target.parent.iterdir()), (err, list(target.parent.iterdir()))


def main():
    torch.set_num_threads(2)
    with Workspace() as w:
        families(w)
        tokenizers(w)
        errors(w)


main()
