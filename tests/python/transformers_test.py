"""The exported folder in the hands of others: transformers loads it and gives the same logits, loss, gradients and greedy ids; its
tokenizer gives the same ids. Runs with the Python of .deps/venv."""
import json
import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "end_to_end"))
import torch
from harness import Workspace, ingot
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer


def tokens_of(prefix):
    """All ids of a .bin/.idx pair."""
    index = Path(f"{prefix}.idx").read_bytes()
    assert index[:9] == b"MMIDIDX\0\0"
    code = index[17]
    width, letter = {4: (4, "i"), 8: (2, "H")}[code]
    data = Path(f"{prefix}.bin").read_bytes()
    return list(struct.unpack(f"<{len(data) // width}{letter}", data))


def fixture_of(model, ids, path):
    prompt, new = 8, 8
    with torch.no_grad():
        logits = model(ids).logits
        greedy = model.generate(ids[:, :prompt], max_new_tokens=new, do_sample=False, eos_token_id=None, pad_token_id=0)[:, prompt:]
    out = model(ids, labels=ids, use_cache=False)
    out.loss.backward()
    tensors = {"input_ids": ids, "logits": logits, "loss": out.loss.detach().reshape(1), "greedy_ids": greedy}
    for name, p in model.named_parameters():
        if p.grad is not None and "experts" not in name:
            tensors["grad." + name] = p.grad
    save_file({k: v.contiguous() for k, v in tensors.items()}, path, metadata={"fixture": json.dumps({"family": "test", "prompt": prompt})})


def main():
    torch.manual_seed(0)
    torch.set_num_threads(2)
    with Workspace() as w:
        for family in ("zaya1", "llama"):
            run, folder = w.path / family, w.path / f"{family}-hf"
            ingot("train", w.config(family, family=family, **{"train.steps": 40, "optimizer.lr": 5e-3, "optimizer.warmup_steps": 5}), "--run-dir", run)
            ingot("checkpoint", "export-hf", run, "-o", folder, "--dtype", "fp32", "--shard-gb", 0.0001)
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
            if hasattr(model, "set_experts_implementation") and family == "zaya1":
                model.set_experts_implementation("eager")
            ids = torch.randint(3, 384, (2, 30))
            fixture_of(model, ids, str(w.path / f"{family}.safetensors"))
            out, _ = ingot("verify", "model", folder, "--fixture", w.path / f"{family}.safetensors", "--json")
            report = json.loads(out)
            assert report["pass"] and report["compared"] > 20, report
            print("ok", family, report["compared"], "tensors agree with transformers")

            tokenizer = AutoTokenizer.from_pretrained(folder)
            text = (w.path / "text.txt").read_text()
            mine = tokens_of(w.path / "tokens")
            eos = tokenizer.eos_token_id
            documents, current = [], []
            for token in mine:
                if token == eos:
                    documents.append(current)
                    current = []
                else:
                    current.append(token)
            theirs = [tokenizer(d.strip("\n"), add_special_tokens=False)["input_ids"] for d in text.split("\n\n") if d.strip()]
            assert len(documents) == len(theirs), (len(documents), len(theirs))
            assert documents == theirs, "the exported tokenizer gives other ids"
            for sample in ("Ünïcödé — 日本 \U0001f600 tabs\tand  spaces", " leading", "123 4567"):
                ids = tokenizer(sample, add_special_tokens=False)["input_ids"]
                assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == sample, (sample, tokenizer.decode(ids))
            print("ok", family, "tokenizer")


main()
