"""lm-evaluation-harness says of a model behind `ingot serve` what it says of the exported folder run by transformers.

Runs with the Python of .deps/venv: INGOT_BINARY=build/release/ingot .deps/venv/bin/python tests/python/harness_test.py [CASE...]
"""
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
sys.modules["fla"] = None  # transformers would take its kernels for GPUs

import lm_eval

sys.path.insert(0, str(Path(__file__).parent.parent / "end_to_end"))
from harness import INGOT, ingot, run_chosen

QUESTIONS, TEXTS = 24, 6


def exported(w):
    folder = w.path / "exported"
    if not folder.exists():
        ingot("train", w.config("llama", "llama", **{"train.steps": 60, "optimizer.lr": 0.01}), "--run-dir", w.path / "llama", "--no-forecast")
        ingot("checkpoint", "export-hf", w.path / "llama", "-o", folder)
    return folder


def tasks(w):
    """Multiple choice by likelihood, perplexity of whole texts, and what is written until a stop text; of sentences as the model has read."""
    chance = random.Random(7)
    sentences = [s.strip() + "." for s in (w.path / "text.txt").read_text().replace("\n", " ").split(".") if s.strip()]
    made = {"choice": [], "rolling": [], "until": []}
    for _ in range(QUESTIONS):
        words = chance.choice(sentences).split(" ")
        answers = [" ".join(words[-3:])] + [" ".join(chance.choice(sentences).split(" ")[-n:]) for n in (1, 3, 4)]
        gold = chance.randrange(4)
        answers[0], answers[gold] = answers[gold], answers[0]
        made["choice"].append({"question": " ".join(words[:-3]), "answers": answers, "gold": gold})
    for _ in range(TEXTS):
        made["rolling"].append({"text": " ".join(chance.sample(sentences, 8))})
        made["until"].append({"question": " ".join(chance.choice(sentences).split(" ")[:3]), "answer": "bread"})
    for name, rows in made.items():
        (w.path / f"{name}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    common = lambda name: {"task": f"ingot_{name}", "dataset_path": "json", "test_split": "test", "dataset_kwargs": {"data_files": {"test": str(w.path / f"{name}.json")}}}
    return [common("choice") | {"output_type": "multiple_choice", "doc_to_text": "{{question}}", "doc_to_target": "{{gold}}", "doc_to_choice": "{{answers}}",
                                "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}]},
            common("rolling") | {"output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{text}}",
                                 "metric_list": [{"metric": "word_perplexity"}, {"metric": "bits_per_byte"}]},
            common("until") | {"output_type": "generate_until", "doc_to_text": "{{question}}", "doc_to_target": "{{answer}}",
                               "generation_kwargs": {"until": ["."], "max_gen_toks": 24}, "metric_list": [{"metric": "exact_match"}]}]


def evaluated(w, kind, **arguments):
    result = lm_eval.simple_evaluate(model=kind, model_args=arguments, tasks=tasks(w), log_samples=True, bootstrap_iters=0)
    numbers = {task: {k: v for k, v in found.items() if isinstance(v, float)} for task, found in result["results"].items()}
    responses = {task: [s["resps"] for s in sorted(samples, key=lambda s: s["doc_id"])] for task, samples in result["samples"].items()}
    return numbers, responses


class Server:
    def __init__(self, folder):
        self.folder = folder

    def __enter__(self):
        self.process = subprocess.Popen([INGOT, "serve", str(self.folder), "--port", "0"], stderr=subprocess.PIPE, text=True)
        said = ""
        while not (found := re.search(r"answers at (http://[0-9.:]+)/v1", said)):
            line = self.process.stderr.readline()
            assert line, said
            said += line
        return found.group(1)

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()


def flat(value):
    """The numbers and texts of nested lists."""
    if isinstance(value, (list, tuple)):
        return [x for part in value for x in flat(part)]
    return [value]


def assert_alike(ours, theirs):
    for task, numbers in theirs[0].items():
        for name, number in numbers.items():
            assert abs(ours[0][task][name] - number) <= 2e-5 * max(1, abs(number)), (task, name, ours[0][task][name], number)
    for task, responses in theirs[1].items():
        a, b = flat(ours[1][task]), flat(responses)
        assert len(a) == len(b) > 0
        for x, y in zip(a, b):
            assert abs(x - y) < 1e-3 if isinstance(y, float) else x == y, (task, x, y)


def the_server_scores_as_transformers_does(w):
    folder = exported(w)
    theirs = evaluated(w, "hf", pretrained=str(folder), dtype="float32", device="cpu", batch_size=4, max_length=256)
    assert any(0 < acc < 1 for acc in [theirs[0]["ingot_choice"]["acc,none"]]), theirs[0]
    with Server(folder) as url:
        for backend in ({"tokenizer_backend": "huggingface", "tokenizer": str(folder)}, {"tokenizer_backend": "remote"}):
            ours = evaluated(w, "local-completions", model="exported", base_url=url + "/v1/completions", num_concurrent=4, max_length=256,
                             tokenized_requests=True, **backend)
            assert_alike(ours, theirs)


TESTS = [the_server_scores_as_transformers_does]

if __name__ == "__main__":
    run_chosen(TESTS)
