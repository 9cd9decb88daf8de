"""llama.cpp itself on GGUF files that ingot writes: its logits and its greedy ids of small models of every family are the fixture that
`ingot verify model` compares ingot with. Skipped (77) without llama-cpp-python, which scripts/test --night builds into .deps/llama_cpp.
Runs with the Python of .deps/venv."""
import ctypes
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.append(str(ROOT / ".deps" / "llama_cpp"))
try:
    import llama_cpp
except ImportError:
    print("there is no llama-cpp-python: ./scripts/test --night builds it")
    sys.exit(77)

sys.path.insert(0, str(Path(__file__).parent.parent / "end_to_end"))
import numpy
import torch
from gguf_models import CASES, save_model
from harness import Workspace, ingot
from safetensors.torch import save_file

PROMPT, NEW, ROWS, SEQ = 9, 8, 2, 31


@llama_cpp.llama_log_callback
def say_nothing(level, text, data):
    pass


class Model:
    """llama.cpp's C interface: fp32 keys and values, no flash attention, so that what differs is the order of sums alone."""

    def __init__(self, path):
        params = llama_cpp.llama_model_default_params()
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        assert self.model, f"llama.cpp does not take {path}"
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_threads, params.n_threads_batch = 64, 64, 64, 2, 2
        params.type_k = params.type_v = llama_cpp.GGML_TYPE_F32
        params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.size = llama_cpp.llama_vocab_n_tokens(self.vocab)

    def restart(self):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        self.position = 0

    def logits(self, ids):
        """Of every one of these ids, which follow those before."""
        batch = llama_cpp.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = token, self.position + i, 1, 0, 1
        assert llama_cpp.llama_decode(self.context, batch) == 0
        self.position += len(ids)
        rows = [numpy.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(self.context, i), (self.size,)).copy() for i in range(len(ids))]
        llama_cpp.llama_batch_free(batch)
        return torch.tensor(numpy.stack(rows))

    def greedy(self, prompt, count):
        self.restart()
        last = self.logits(prompt)[-1]
        ids = []
        for _ in range(count):
            ids.append(int(last.argmax()))
            last = self.logits(ids[-1:])[-1]
        return ids

    def tokenize(self, text, adds_special=False):
        data, room = text.encode(), (llama_cpp.llama_token * (len(text.encode()) + 8))()
        count = llama_cpp.llama_tokenize(self.vocab, data, len(data), room, len(room), adds_special, True)
        assert count >= 0
        return list(room[:count])

    def close(self):
        llama_cpp.llama_free(self.context)
        llama_cpp.llama_model_free(self.model)


def families(w, wanted):
    for number, case in enumerate(CASES):
        if not case.startswith(wanted):
            continue
        torch.manual_seed(number)
        folder, file, fixture = w.path / f"model{number}", w.path / f"{number}.gguf", w.path / f"{number}.safetensors"
        config = save_model(case, folder)
        ingot("checkpoint", "export-gguf", folder, "-o", file, "--dtype", "fp32", "--no-tokenizer")
        model = Model(file)
        assert model.size == config.vocab_size
        ids = torch.randint(3, config.vocab_size, (ROWS, SEQ))
        logits = []
        for row in ids:
            model.restart()
            logits.append(model.logits(row.tolist()))
        tensors = {"input_ids": ids, "logits": torch.stack(logits), "greedy_ids": torch.tensor([model.greedy(row[:PROMPT].tolist(), NEW) for row in ids])}
        model.close()
        save_file({name: x.contiguous() for name, x in tensors.items()}, str(fixture),
                  metadata={"fixture": json.dumps({"family": config.model_type, "prompt": PROMPT})})
        # Gemma's GELU is a table in fp16 there.
        tolerance = 4e-3 if case.startswith("gemma") else 3e-4
        report = json.loads(ingot("verify", "model", folder, "--fixture", file.with_suffix(".safetensors"), "--rtol", tolerance, "--json")[0])
        assert report["pass"] and report["compared"] == 2, (case, report)
        print(f"ok {case}: logits and {ROWS * NEW} greedy ids")


# Recorded tokenizers (src/data/testdata), and why texts may get other ids there.
TOKENIZERS = {"gpt2": None, "llama3": None, "qwen": "NFC", "llama2": None, "gemma": None, "export_bpe": None, "export_unigram": "best way"}


def tokenizers(w):
    for name, why in TOKENIZERS.items():
        folder = w.path / name
        folder.mkdir()
        is_model = name.startswith("export")
        recorded = json.loads((ROOT / f"src/data/testdata/{'' if is_model else 'tokenizer_'}{name}.json").read_text())
        if is_model:
            tokenizer, cases, size = ROOT / f"src/data/testdata/{name}.model", recorded, 1000
        else:
            tokenizer, cases = folder / "tokenizer.json", recorded["cases"]
            tokenizer.write_text(json.dumps(recorded["tokenizer"]))
            size = len(recorded["tokenizer"]["model"]["vocab"]) + len(recorded["tokenizer"]["added_tokens"])
        save_model("llama", folder / "model", vocab_size=size)
        _, said = ingot("checkpoint", "export-gguf", folder / "model", "-o", folder / "x.gguf", "--tokenizer", tokenizer)
        assert ("llama.cpp will cut some texts into other tokens" in said) == (why is not None) and (why or "") in said, said
        model = Model(folder / "x.gguf")
        plain = sum(model.tokenize(case["text"]) == case["ids"] for case in cases)
        dressed = sum(model.tokenize(case["text"], adds_special=True) == case.get("special", case["ids"]) for case in cases)
        model.close()
        same = len(cases) if why is None else 0.9 * len(cases)
        assert plain >= same and dressed >= same, (name, plain, dressed, len(cases))
        print(f"ok {name}: {plain} of {len(cases)} texts have the same tokens, {dressed} with special ones")


def main():
    torch.set_num_threads(2)
    llama_cpp.llama_log_set(say_nothing, ctypes.c_void_p(0))
    with Workspace() as w:
        families(w, tuple(sys.argv[1:]) or "")
        if not sys.argv[1:]:
            tokenizers(w)


main()
