"""Evaluations during training (train.evaluations): the numbers of ingot eval, a run that does not notice, best checkpoints, patience, calls that are wrong."""
import json
import random
import signal
import subprocess

from harness import INGOT, expect_error, ingot, json_lines, losses, metrics, run_chosen, wait_for_steps


def write_tasks(w):
    """Questions and texts of many lengths, made like the text that is learned; the files of four tasks by name."""
    folder = w.path / "tasks"
    if not folder.exists():
        folder.mkdir()
        rng = random.Random(7)
        names, verbs, things = "Anna Ben Clara David Eva Frank".split(), "sees takes makes finds".split(), "bread light stone water gold wood".split()
        questions = [{"q": " ".join(f"{rng.choice(names)} {rng.choice(verbs)} the {rng.choice(things)}." for _ in range(rng.randint(0, 1))) + f" {rng.choice(names)} {rng.choice(verbs)} the",
                      "c": [*rng.sample(things, 3)], "g": rng.randrange(3)} for _ in range(14)]
        texts = [{"t": " ".join(f"{rng.choice(names)} {rng.choice(verbs)} the {rng.choice(things)}." for _ in range(rng.randint(1, 12)))} for _ in range(5)]
        for name, rows in (("questions", questions), ("texts", texts)):
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / "choice.toml").write_text('kind = "multiple_choice"\ndata = "questions.jsonl"\nprompt = "q"\nchoices = ["c"]\nanswer = "g"\n')
        (folder / "texts.toml").write_text('kind = "perplexity"\ndata = "texts.jsonl"\ntarget = "t"\n')
        (folder / "written.toml").write_text('kind = "generate"\ndata = "questions.jsonl"\nprompt = "q"\ntarget = "{{ c[0] }}"\nmost_tokens = 4\nfilter = "[a-z]"\n')
        (folder / "constant.toml").write_text('kind = "multiple_choice"\ndata = "questions.jsonl"\nprompt = "q"\n'
                                              'choices = ["{{ c[0] }}", "{{ c[0] }}"]\nanswer = "{{ g % 2 }}"\n')
    return {name: str(folder / f"{name}.toml") for name in ("choice", "texts", "written", "constant")}


def config_of(w, name, tasks, **settings):
    return w.config(name, **{"model.max_positions": 64, "train.evaluations": list(tasks), "train.evaluation_every": 4, "train.steps": 8, "checkpoint.every": 4} | settings)


def evaluated(run):
    """{step: {task: {metric: value}}} of metrics.jsonl."""
    return {m["step"]: m["evaluations"] for m in metrics(run) if "evaluations" in m}


def said_by_eval(run, step, tasks, dtype="fp32"):
    said = json.loads(ingot("eval", run / "checkpoints" / f"step_{step:08}", "--json", "--dtype", dtype, "--tasks", *tasks)[0])
    return {task["task"]: {"items": task["items"]} | {name: m["value"] for name, m in task["metrics"].items()} |
            {f"{name}_stderr": m["stderr"] for name, m in task["metrics"].items()} for task in said["tasks"]}


def checkpoints(run):
    return sorted(int(path.name[5:]) for path in (run / "checkpoints").glob("step_*"))


def evaluations_say_what_ingot_eval_says_and_training_does_not_notice(w):
    files = write_tasks(w)
    for family, precision in (("llama", "fp32"), ("zaya1", "fp32"), ("zaya1", "bf16")):
        tasks = [files[name] for name in ("choice", "texts", "written")]
        run, silent = w.path / f"{family}-{precision}", w.path / f"{family}-{precision}-silent"
        config = config_of(w, family, tasks, **{"model.family": family, "train.precision": precision})
        ingot("train", config, "--no-forecast", "--run-dir", run)
        ingot("train", config, "--no-forecast", "--run-dir", silent, "--set", "train.evaluations=[]", "--set", "train.evaluation_every=0")
        assert losses(run) == losses(silent)
        ingot("checkpoint", "diff", run, silent)
        assert [m.get("expert_load") for m in metrics(run)] == [m.get("expert_load") for m in metrics(silent)]
        assert list(evaluated(run)) == [4, 8]
        for step, said in evaluated(run).items():
            assert said == said_by_eval(run, step, tasks, precision), (family, precision, step)
        assert evaluated(run)[4]["texts"]["loss"] > evaluated(run)[8]["texts"]["loss"]
        log = (run / "log.txt").read_text()
        assert "step 8  choice (14 items): acc " in log and " ± " in log, log


def ranks_share_the_questions(w):
    files = write_tasks(w)
    for name, family, changes, written in (("data", "llama", ["parallel.zero=1"], True), ("zero3", "zaya1", ["parallel.zero=3"], False), ("tensor", "llama", ["parallel.tensor=2"], False)):
        tasks = [files[task] for task in ("choice", "texts", "written") if written or task != "written"]
        run, silent = w.path / f"ranks-{name}", w.path / f"ranks-{name}-silent"
        config, sets = config_of(w, f"ranks-{name}", tasks, **{"model.family": family}), [word for change in changes for word in ("--set", change)]
        ingot("launch", "-n", 2, "--", INGOT, "train", config, "--no-forecast", "--run-dir", run, *sets)
        ingot("launch", "-n", 2, "--", INGOT, "train", config, "--no-forecast", "--run-dir", silent, *sets, "--set", "train.evaluations=[]", "--set", "train.evaluation_every=0")
        assert losses(run) == losses(silent), name
        ingot("checkpoint", "diff", run, silent)
        for step, said in evaluated(run).items():
            for task, expected in said_by_eval(run, step, tasks).items():
                assert said[task].keys() == expected.keys()
                for metric, value in expected.items():
                    assert abs(said[task][metric] - value) <= 2e-5 * max(1, abs(value)), (name, step, task, metric, said[task][metric], value)


def the_best_checkpoint_stays(w):
    files = write_tasks(w)
    run = w.path / "best"
    # Higher is better, and an equal value is no better: no checkpoint is due but of what is better than before, and of the end.
    config = config_of(w, "best", [files["texts"], files["choice"]], **{"train.best_metric": "choice/acc", "train.evaluation_every": 1, "train.steps": 12, "checkpoint.every": 100,
                       "checkpoint.keep": 1, "checkpoint.keep_best": 1, "optimizer.lr": 0.03})
    ingot("train", config, "--no-forecast", "--run-dir", run)
    values = {step: said["choice"]["acc"] for step, said in evaluated(run).items()}
    best = min(values, key=lambda step: (-values[step], step))
    assert len(set(values.values())) > 1 and 1 < best < 12, f"this test needs a metric that rises and falls: {values}"
    assert checkpoints(run) == sorted({best, 12}), (checkpoints(run), values)


def patience_ends_a_run_and_outlives_a_kill(w):
    files = write_tasks(w)
    config = config_of(w, "patience", [files["constant"]], **{"train.best_metric": "constant", "train.patience": 2, "train.evaluation_every": 2, "train.steps": 12, "checkpoint.every": 5,
                       "checkpoint.keep": 1, "checkpoint.keep_best": 1})
    run = w.path / "patience"
    _, err = ingot("train", config, "--no-forecast", "--run-dir", run)
    assert "stopped after step 6 of 12: constant was no better than at step 2 in 2 evaluations (train.patience)" in err, err
    assert losses(run)[-1][0] == 6 and checkpoints(run) == [6], checkpoints(run)  # the last as at a planned end; of equals the newer stays
    saved = json_lines(run / "checkpoints.jsonl")
    assert [one["step"] for one in saved if one["kind"] == "save"] == [2, 5, 6], saved  # the best at once
    _, err = ingot("train", config, "--no-forecast", "--run-dir", run)
    assert losses(run)[-1][0] == 6 and "train.patience" in err, err
    ingot("train", config, "--no-forecast", "--run-dir", run, "--set", "train.patience=4")
    assert losses(run)[-1][0] == 10 and checkpoints(run) == [10], checkpoints(run)
    # The best so far comes back with a checkpoint.
    for kill_after in (3, 5):
        killed = w.path / f"patience-{kill_after}"
        process = subprocess.Popen([INGOT, "train", str(config), "--no-forecast", "--run-dir", str(killed), "--set", "checkpoint.every=1"], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        wait_for_steps(killed, kill_after, process)
        process.send_signal(signal.SIGKILL)
        process.wait()
        ingot("train", config, "--no-forecast", "--run-dir", killed, "--set", "checkpoint.every=1")
        assert losses(killed)[-1][0] == 6, (kill_after, losses(killed)[-1])
    # Ranks agree, and a validation loss can be waited for, too.
    ranks = w.path / "patience-ranks"
    ingot("launch", "-n", 2, "--", INGOT, "train", config, "--no-forecast", "--run-dir", ranks)
    assert losses(ranks)[-1][0] == 6 and checkpoints(ranks) == [6]
    loss = w.path / "patience-loss"
    ingot("train", config, "--no-forecast", "--run-dir", loss, "--set", "train.best_metric=validation_loss", "--set", "train.validation_every=1", "--set", "train.patience=1", "--set", "optimizer.lr=0", "--set",
          "optimizer.warmup_steps=0")
    assert losses(loss)[-1][0] == 2, "weights that stay have the same loss"


def wrong_tasks_end_before_the_first_step(w):
    files = write_tasks(w)
    config, folder = config_of(w, "wrong", [files["choice"]]), w.path / "tasks"
    run = w.path / "wrong"

    def task(name, text):
        (folder / f"{name}.toml").write_text(text)
        return f'train.evaluations=["{folder / name}.toml"]'

    (folder / "bad.jsonl").write_text('{"q": "x", "c": ["a", "b"], "g": 0}\n{"q": "x", "c": ["a", "b"], "g": 7}\n')
    (folder / "long.jsonl").write_text(json.dumps({"t": "Anna", "target": "Anna sees " * 60}) + "\n")
    choice = 'kind = "multiple_choice"\nprompt = "q"\nchoices = ["c"]\nanswer = "g"\n'
    for status, words, settings in (
        (1, ["nowhere.toml"], [f'train.evaluations=["{folder}/nowhere.toml"]']),
        (2, ["typo.toml", "promt"], [task("typo", choice.replace("prompt", "promt") + 'data = "questions.jsonl"\n')]),
        (1, ["gone.jsonl"], [task("no_data", choice + 'data = "gone.jsonl"\n')]),
        (1, ["bad.jsonl:2", "0 to 1"], [task("bad", choice + 'data = "bad.jsonl"\n')]),
        (1, ["long.jsonl:1", "the model sees 64"], [task("long", 'kind = "loglikelihood"\ndata = "long.jsonl"\nprompt = "t"\ntarget = "target"\n')]),
        (2, ["code.toml", "ingot eval --run-code"], [task("code", 'kind = "code"\ndata = "questions.jsonl"\nprompt = "q"\nprogram = "{{ completion }}"\ninterpreter = "sh"\n')]),
        (2, ["second task", "choice"], [f'train.evaluations=["{files["choice"]}", "{files["choice"]}"]']),
        (2, ["train.best_metric", "choice/acc_norm"], ["train.best_metric=chioce"]),
        (2, ["train.evaluation_every is 0"], ["train.evaluation_every=0"]),
        (2, ["train.evaluations is empty"], ["train.evaluations=[]"]),
        (2, ["train.best_metric", "is empty"], ["train.evaluations=[]", "train.evaluation_every=0", "train.best_metric=choice"]),
        (2, ["data.tokenizer is empty"], ["data.tokenizer="]),
        (2, ["validation_loss", "does not validate"], ["train.patience=2"])):
        expect_error("train", config, "--no-forecast", "--run-dir", run, *(word for setting in settings for word in ("--set", setting)), status=status, words=words)
        assert not run.exists(), f"{settings}: a failed start left a run directory"
    # Before anyone waits for another rank, and in the plan.
    for change, words in (("parallel.pipeline=2", ["parallel.pipeline is 2", "data, tensor and expert ranks", "ingot eval"]), ("parallel.context=2", ["parallel.context is 2"]),
                          ("parallel.tensor_sequence=2", ["parallel.tensor_sequence is 2"])):
        expect_error("train", config, "--dry-run", "--set", change, "--set", "train.microbatch_size=1", status=2, words=words)
    for change in ("parallel.tensor=2", "parallel.expert=2"):
        name = change.partition("=")[0]
        expect_error("launch", "-n", 2, "--", INGOT, "train", config, "--no-forecast", "--run-dir", run, "--set", f'train.evaluations=["{files["written"]}"]', "--set", change, status=2,
                     words=["written.toml", "kind 'generate'", f"set {name} to 1"])
    assert not run.exists()


TESTS = [evaluations_say_what_ingot_eval_says_and_training_does_not_notice, ranks_share_the_questions, the_best_checkpoint_stays, patience_ends_a_run_and_outlives_a_kill,
         wrong_tasks_end_before_the_first_step]

if __name__ == "__main__":
    run_chosen(TESTS)
