"""DPO from JSON lines to a step: what ingot makes of pairs, of the reference and of the first step, against transformers' model and the paper's
formula written out. Runs with the Python of .deps/venv."""
import json
import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "end_to_end"))
import torch
from harness import Workspace, expect_error, ingot, metrics
from transformers import AutoConfig, AutoModelForCausalLM

TEMPLATE = "{% for m in messages %}{{ '[' ~ m.role ~ '] ' }}{% if m.role == 'assistant' %}{% generation %}{{ m.content ~ ' </s>' }}{% endgeneration %}{% else %}{{ m.content ~ ' ' }}{% endif %}{% endfor %}"
BETA, SMOOTHING = 0.4, 0.1


def documents(prefix):
    """(ids, learned) of every document."""
    index = (prefix.parent / (prefix.name + ".idx")).read_bytes()
    dtype, sequences, count = struct.unpack_from("<BQQ", index, 17)
    lengths = struct.unpack_from(f"<{sequences}i", index, 34)
    width = {4: 4, 8: 2}[dtype]
    tokens = (prefix.parent / (prefix.name + ".bin")).read_bytes()
    ids = struct.unpack(f"<{len(tokens) // width}{'i' if width == 4 else 'H'}", tokens)
    mask = (prefix.parent / (prefix.name + ".mask")).read_bytes()[8:]
    at = 0
    for length in lengths:
        yield ids[at:at + length], [bool(mask[i // 8] >> (i % 8) & 1) for i in range(at, at + length)]
        at += length


def scores(model, prefix):
    for ids, learned in documents(prefix):
        p = torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), -1)
        yield sum((p[i - 1, ids[i]] for i in range(1, len(ids)) if learned[i]), start=torch.zeros((), dtype=torch.double))


def main():
    torch.set_num_threads(2)
    with Workspace() as w:
        words = (w.path / "text.txt").read_text().split()
        text = lambda start, count: " ".join(words[start:start + count])
        lines = []
        for i in range(30):
            chosen, rejected = text(900 + 7 * i, 1 + i % 5), text(1900 + 11 * i, 1 + i % 3)
            prompt, answer = text(13 * i, 2 + i % 4), lambda t: [{"role": "assistant", "content": t}]
            user = [{"role": "user", "content": prompt}]
            lines.append([{"prompt": prompt, "chosen": chosen, "rejected": rejected}, {"prompt": user, "chosen": answer(chosen), "rejected": answer(rejected)},
                          {"chosen": user + answer(chosen), "rejected": user + answer(rejected)}][i % 3])
        (w.path / "pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (w.path / "template").write_text(TEMPLATE)
        pairs = w.path / "pairs"
        tokenize = ("data", "tokenize", w.path / "pairs.jsonl", "--chat", "--preferences", "--template", w.path / "template", "--tokenizer", w.path / "tokenizer", "-o", pairs)
        ingot(*tokenize)
        assert len(list(documents(pairs))) == 60

        def folder(seed):
            torch.manual_seed(seed)
            model = AutoModelForCausalLM.from_config(AutoConfig.for_model(
                "llama", hidden_size=32, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2, head_dim=8, num_hidden_layers=2,
                vocab_size=384, tie_word_embeddings=True, rms_norm_eps=1e-5, initializer_range=0.2), attn_implementation="eager")
            model.save_pretrained(w.path / f"model{seed}")
            return model, w.path / f"model{seed}"

        policy, policy_folder = folder(1)
        reference, reference_folder = folder(2)
        settings = {"train.dpo_beta": BETA, "train.dpo_label_smoothing": SMOOTHING, "data.packing": "pairs", "data.seq_len": 128, "data.validation_fraction": 0,
                    "train.steps": 8, "optimizer.lr": 0.003, "optimizer.name": "adamw"}
        config = w.config("dpo", family="llama", **settings)
        config.write_text(config.read_text().replace(str(w.path / "tokens"), str(pairs)))
        expect_error("train", config, "--run-dir", w.path / "none", "--no-forecast", status=1, words=["pairs.reference", "ingot data score"])
        ingot("data", "score", pairs, "--model", reference_folder)
        with torch.no_grad():
            expected = [s.item() for s in scores(reference, pairs)]
        found = struct.unpack("<60d", (w.path / "pairs.reference").read_bytes()[8:])
        assert max(abs(a - b) for a, b in zip(found, expected)) < 1e-3, list(zip(found, expected))[:4]

        # All pairs in one batch: rows are filled in the order of the pairs.
        lengths = [len(ids) for ids, _ in documents(pairs)]
        rows, room = 0, 0
        for i in range(0, 60, 2):
            if lengths[i] + lengths[i + 1] > room:
                rows, room = rows + 1, 128
            room -= lengths[i] + lengths[i + 1]
        config.write_text(config.read_text().replace("batch_size = 4", f"batch_size = {rows}"))
        values = list(scores(policy, pairs))
        h = torch.stack([BETA * (values[i] - values[i + 1] - expected[i] + expected[i + 1]) for i in range(0, 60, 2)])
        loss = -((1 - SMOOTHING) * torch.nn.functional.logsigmoid(h) + SMOOTHING * torch.nn.functional.logsigmoid(-h)).mean()
        loss.backward()
        norm = torch.stack([p.grad.norm() for p in policy.parameters()]).norm().item()
        for name, extra in (("one", ""), ("three", "[parallel]\ncontext = 2\n")):
            run = w.path / f"run_{name}"
            ingot("checkpoint", "import-hf", policy_folder, "-o", run)
            of_run = w.path / f"{name}.toml"
            of_run.write_text(config.read_text() + extra)
            ranks = ("launch", "-n", "2", "--", Path(__import__("os").environ["INGOT_BINARY"])) if extra else ()
            ingot(*ranks, "train", of_run, "--run-dir", run, "--no-forecast")
            steps = metrics(run)
            first = steps[0]
            assert abs(first["loss"] - loss.item()) < 1e-5 * loss.item(), (first, loss)
            assert abs(first["grad_norm"] - norm) < 1e-4 * norm, (first, norm)
            assert abs(first["dpo_margin"] - h.mean().item()) < 1e-4 * h.abs().max().item(), (first, h)
            assert abs(first["dpo_accuracy"] - (h > 0).double().mean().item()) < 1e-6, (first, h)
            assert steps[-1]["loss"] < first["loss"] and steps[-1]["dpo_accuracy"] > first["dpo_accuracy"], steps
        for change, words in ((("packing = \"pairs\"", "packing = \"best_fit\""), ["train.dpo_beta"]), (("dpo_beta = 0.4", "dpo_beta = 0"), ["train.dpo_beta"])):
            wrong = w.path / "wrong.toml"
            wrong.write_text(config.read_text().replace(*change))
            expect_error("train", wrong, "--run-dir", w.path / "none", status=2, words=words)
        (w.path / "pairs.jsonl").write_text('{"prompt": "a", "chosen": "b"}\n')
        expect_error(*tokenize, "--overwrite", status=1, words=["rejected"])
        print("ok preferences")


main()
