"""lm-evaluation-harness says of a model behind `ingot serve`, and `ingot eval` by itself, what it says of the exported folder run by transformers:
all three agree with one another.

Runs with the Python of .deps/venv: INGOT_BINARY=build/release/ingot .deps/venv/bin/python tests/python/harness_test.py [CASE...]
"""
import json
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
sys.modules["fla"] = None  # transformers would take its kernels for GPUs

import lm_eval
import lm_eval.evaluator
from lm_eval.tasks import TaskManager

sys.path.insert(0, str(Path(__file__).parent.parent / "end_to_end"))
from harness import INGOT, at_night, expect_error, ingot, run_chosen

lm_eval.evaluator.add_env_info = lambda results: None  # a dozen processes for what nobody reads here

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


def with_examples(w):
    """Those tasks, with examples before each question, and what a likelihood task makes of the same rows."""
    choice, rolling, until = tasks(w)
    choice["metric_list"] += [{"metric": "acc_bytes"}]
    rolling["metric_list"] += [{"metric": "byte_perplexity"}]
    shots = {"num_fewshot": 2, "fewshot_split": "test"}
    likely = choice | {"task": "ingot_likely", "output_type": "loglikelihood", "doc_to_target": "{{answers[gold]}}",
                       "metric_list": [{"metric": "perplexity"}, {"metric": "acc"}]}
    likely.pop("doc_to_choice")
    right = until | {"task": "ingot_right", "num_fewshot": 1, "fewshot_split": "test", "doc_to_text": "Say: {{question}}\n{% if true %}\nNow{% endif %}"}
    return [choice, choice | shots | {"task": "ingot_shots"}, likely, rolling, until, right]


def as_chats(w):
    """Without examples and with three, drawn from the questions; one with a description."""
    choice, _, until = tasks(w)
    likely = choice | {"output_type": "loglikelihood", "doc_to_target": "{{answers[gold]}}", "metric_list": [{"metric": "perplexity"}, {"metric": "acc"}]}
    likely.pop("doc_to_choice")
    made = []
    for shots in (0, 3):
        common = {"num_fewshot": shots, "fewshot_split": "test"}
        made += [choice | common | {"task": f"ingot_chat_choice_{shots}", "description": "Who does what?"},
                 likely | common | {"task": f"ingot_chat_likely_{shots}"},
                 until | common | {"task": f"ingot_chat_until_{shots}", "description": "Go on:\n\n", "target_delimiter": " -> "}]
    return made


def evaluated(w, kind, chosen=tasks, errors=0, ways={}, **arguments):
    ours_alone = TaskManager(include_defaults=False)  # else each call reads the harness's 14,000 tasks
    result = lm_eval.simple_evaluate(task_manager=ours_alone, model=kind, model_args=arguments, tasks=chosen(w), log_samples=True, bootstrap_iters=errors, **ways)
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
            if "stderr" in name:  # of perplexities they are bootstrapped
                continue
            assert abs(ours[0][task][name] - number) <= 2e-5 * max(1, abs(number)), (task, name, ours[0][task][name], number)
    for task, responses in theirs[1].items():
        a, b = flat(ours[1][task]), flat(responses)
        assert len(a) == len(b) > 0
        for x, y in zip(a, b):
            assert abs(x - y) < 1e-3 if isinstance(y, float) else x == y, (task, x, y)


CHOICE = """kind = "multiple_choice"
data = "choice.json"
prompt = "question"
choices = ["answers"]
answer = "gold"
"""
UNTIL = """kind = "generate"
data = "until.json"
target = "answer"
until = ["."]
most_tokens = 24
"""
TASKS = {
    "choice": CHOICE,
    "shots": CHOICE + "shots = 2\n",
    "likely": """kind = "loglikelihood"\ndata = "choice.json"\nprompt = "{{question}}"\ntarget = "{{answers[gold]}}"\n""",
    "rolling": """kind = "perplexity"\ndata = "rolling.json"\ntarget = "text"\n""",
    "until": UNTIL + """prompt = "question"\n""",
    "right": UNTIL + """prompt = "Say: {{question}}\\n{% if true %}\\nNow{% endif %}"\nshots = 1\n""",
}


for shots in (0, 3):
    TASKS |= {
        f"chat_choice_{shots}": CHOICE + f'description = "Who does what?"\nshots = {shots}\n',
        f"chat_likely_{shots}": TASKS["likely"] + f"shots = {shots}\n",
        f"chat_until_{shots}": UNTIL + f'prompt = "question"\ndescription = "Go on:\\n\\n"\ndelimiter = " -> "\nshots = {shots}\n',
    }
PLAIN = ("choice", "shots", "likely", "rolling", "until", "right")
CHATS = tuple(name for name in TASKS if name.startswith("chat_"))


def of_ingot(w, folder, context, names=PLAIN, flags=()):
    """(metrics and standard errors, responses of each row) by task, as `evaluated` has them."""
    for name in names:
        (w.path / f"ingot_{name}.toml").write_text(TASKS[name])
    ingot("eval", folder, "--tasks", *[w.path / f"ingot_{name}.toml" for name in names], "--context", context, *flags, "--results", w.path / "results.json",
          "--items", w.path / "items.jsonl")
    results = json.loads((w.path / "results.json").read_text())
    numbers = {}
    for task in results["tasks"]:
        numbers[task["task"]] = {k: v["value"] for k, v in task["metrics"].items()} | {k + "_stderr": v["stderr"] for k, v in task["metrics"].items()}
    responses = {name: [] for name in numbers}
    for item in map(json.loads, (w.path / "items.jsonl").read_text().splitlines()):
        if "log_likelihoods" in item:
            responses[item["task"]].append(list(zip(item["log_likelihoods"], item["is_greedy"])))
        elif "is_greedy" in item:
            responses[item["task"]].append([item["log_likelihood"], item["is_greedy"]])
        else:
            responses[item["task"]].append(item.get("text", item.get("log_likelihood")))
    return numbers, responses, {task["task"]: task["counts"] for task in results["tasks"]}


def server_eval_and_transformers_score_alike(w):
    folder, context = exported(w), 256
    transformers = evaluated(w, "hf", pretrained=str(folder), dtype="float32", device="cpu", batch_size=4, max_length=context)
    assert 0 < transformers[0]["ingot_choice"]["acc,none"] < 1, transformers[0]
    numbers, responses, _ = of_ingot(w, folder, context, ("choice", "rolling", "until"))
    verb = {task: {f"{name},none": number for name, number in found.items()} for task, found in numbers.items()}, responses
    assert_alike(verb, transformers)
    with Server(folder) as url:
        for backend in ({"tokenizer_backend": "huggingface", "tokenizer": str(folder)}, {"tokenizer_backend": "remote"}):
            server = evaluated(w, "local-completions", model="exported", base_url=url + "/v1/completions", num_concurrent=4, max_length=context,
                               tokenized_requests=True, **backend)
            assert_alike(server, transformers)
            assert_alike(verb, server)


def ingot_scores_as_transformers_does(w):
    folder, context = exported(w), 64  # examples do not fit whole, and texts take several windows
    theirs = evaluated(w, "hf", with_examples, errors=10, pretrained=str(folder), dtype="float32", device="cpu", batch_size=4, max_length=context)
    numbers, responses, counts = of_ingot(w, folder, context)
    assert counts["ingot_shots"]["cut_contexts"] > 10 and counts["ingot_choice"]["cut_contexts"] == 0, counts
    compared = 0
    for task, expected in theirs[0].items():
        for name, number in expected.items():
            metric, _, _ = name.partition(",")
            # Perplexities have bootstrapped errors there.
            if metric.endswith("stderr") and not metric.startswith(("acc", "exact_match")):
                continue
            assert abs(numbers[task][metric] - number) <= 2e-5 * max(1, abs(number)), (task, name, numbers[task][metric], number)
            compared += 1
        a, b = flat(responses[task]), flat(theirs[1][task])
        assert len(a) == len(b) > 0, (task, len(a), len(b))
        for x, y in zip(a, b):
            assert abs(x - y) < 1e-3 if isinstance(y, float) else x == y, (task, x, y)
    assert compared == 2 * (3 + 3 + 1 + 1 + 1) + 1 + 3, compared


# One begins with bos and ends messages with eos; the other knows neither, trims, and refuses the system.
TEMPLATES = {
    "whole": "{{ bos_token }}{% for m in messages %}<{{ m.role }}>\n{{ m.content }}{{ eos_token }}\n{% endfor %}{% if add_generation_prompt %}<assistant>\n{% endif %}",
    "picky": "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}{{ m.role | upper }}: {{ m.content | trim }}\n"
             "{% endfor %}{% if add_generation_prompt %}ASSISTANT:{% endif %}",
}


def chats_are_scored_as_transformers_does(w):
    """At night in six ways; by day in three that have each template, several turns and one, a system's message and none."""
    compared, texts, ways_of = 0, set(), {"whole": 4, "picky": 2} if at_night() else {"whole": 2, "picky": 1}
    for name, template in TEMPLATES.items():
        folder = w.path / f"chat_{name}"
        shutil.copytree(exported(w), folder)
        (folder / "chat_template.jinja").write_text(template)
        for multiturn, system in ((False, None), (True, "Be brief."), (True, None), (False, "Be brief.\n"))[:ways_of[name]]:
            ways = {"apply_chat_template": True, "fewshot_as_multiturn": multiturn, "system_instruction": system}
            theirs = evaluated(w, "hf", as_chats, ways=ways, pretrained=str(folder), dtype="float32", device="cpu", batch_size=4, max_length=256)
            flags = ["--chat"] + ["--multiturn"] * multiturn + (["--system", system] if system else [])
            numbers, responses, counts = of_ingot(w, folder, 256, CHATS, flags)
            ours = {task: {f"{metric},none": number for metric, number in found.items()} for task, found in numbers.items()}, responses
            assert_alike(ours, theirs)
            assert len(theirs[0]) == len(CHATS)
            for task, count in counts.items():
                refused = name == "picky" and (system is not None or "likely" not in task)
                assert count.get("without_system", 0) == (QUESTIONS if "until" not in task else TEXTS) * refused, (task, count)
            texts.add(str(responses))
            compared += 1
    assert compared == len(texts) == sum(ways_of.values()), (compared, len(texts))  # every way says something else


def wrong_chats_say_what_is_wrong(w):
    folder = exported(w)
    for name in CHATS[:1]:
        (w.path / f"ingot_{name}.toml").write_text(TASKS[name])
    tasks(w)
    task = w.path / f"ingot_{CHATS[0]}.toml"
    expect_error("eval", folder, "--tasks", task, "--chat", status=1, words=["has no chat template", "--template FILE"])
    expect_error("eval", folder, "--tasks", task, "--multiturn", status=2, words=["--template, --multiturn and --system are of --chat"])
    expect_error("eval", folder, "--tasks", task, "--chat", "--template", w.path / "none.jinja", status=1, words=["none.jinja"])
    (w.path / "never.jinja").write_text("{{ raise_exception('not today') }}")
    expect_error("eval", folder, "--tasks", task, "--chat", "--template", w.path / "never.jinja", status=1, words=["choice.json:1:", "not today"])
    (w.path / "mine.jinja").write_text(TEMPLATES["whole"])
    out, _ = ingot("eval", folder, "--tasks", task, "--chat", "--template", w.path / "mine.jinja", "--system", "Hello", "--json")
    assert json.loads(out)["chat"] == {"template": str(w.path / "mine.jinja"), "multiturn": False, "system": "Hello"}, out


TESTS = [server_eval_and_transformers_score_alike, ingot_scores_as_transformers_does, chats_are_scored_as_transformers_does, wrong_chats_say_what_is_wrong]

if __name__ == "__main__":
    run_chosen(TESTS)
