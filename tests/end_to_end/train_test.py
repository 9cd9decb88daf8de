"""Training from text to a model: the files of a run directory, determinism, stopping and being killed, phases, generation, export."""
import json
import os
import random
import re
import shutil
import signal
import subprocess
import time

from harness import INGOT, at_night, events, expect_error, ingot, launch, losses, make_text, metrics, run_chosen, wait_for_steps


def start(*args):
    return subprocess.Popen([INGOT, *map(str, args)], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def runs_leave_their_files_and_repeat_bit_for_bit(w):
    config = w.config(**{"log.tensorboard": True, "train.validation_every": 5, "train.validation_batches": 2})
    ingot("train", config, "--run-dir", w.path / "a")
    ingot("train", config, "--run-dir", w.path / "b")
    a = losses(w.path / "a")
    assert [step for step, *_ in a] == list(range(1, 13)), a
    assert a == losses(w.path / "b")
    assert a[-1][1] < a[0][1], "the loss does not fall"
    for name in ("config.toml", "log.txt", "metrics.jsonl", "run.json", "checkpoints/step_00000012", "tokenizer"):
        assert (w.path / "a" / name).exists(), name
    first = metrics(w.path / "a")[0]
    for field in ("step tokens loss grad_norm lr step_ms tokens_per_s flops_per_token tflops mfu memory_peak_bytes predicted_step_ms "
                  "predicted_memory_bytes comm_bytes eta_s expert_load").split():
        assert field in first, field
    assert [m["step"] for m in metrics(w.path / "a") if "validation_loss" in m] == [5, 10, 12]
    ingot("checkpoint", "diff", w.path / "a", w.path / "b")


def toggles_change_no_number(w):
    for family in ("zaya1", "llama"):
        base = w.config(family=family, **{"checkpoint.every": 0, "train.steps": 5})
        ingot("train", base, "--no-forecast", "--run-dir", w.path / f"{family}-base")
        expected = losses(w.path / f"{family}-base")
        for toggle in ("train.recompute=selective", "train.recompute=full", "data.prefetch=0"):
            run = w.path / f"{family}-{toggle}"
            ingot("train", base, "--no-forecast", "--run-dir", run, "--set", toggle)
            assert losses(run) == expected, (family, toggle)


def killed_at_any_moment_the_next_start_goes_on_bit_equal(w):
    """By day the second precision and optimizer are killed once."""
    for precision, optimizer, moments in (("fp32", "muon", (1, 4, 7, 11)), ("bf16", "adamw", (1, 4, 7, 11) if at_night() else (7,))):
        config = w.config(**{"train.precision": precision, "optimizer.name": optimizer})
        whole = w.path / f"whole-{precision}"
        ingot("train", config, "--no-forecast", "--run-dir", whole)
        for kill_after in moments:
            run = w.path / f"killed-{precision}-{kill_after}"
            process = start("train", config, "--no-forecast", "--run-dir", run)
            wait_for_steps(run, kill_after, process)
            process.send_signal(signal.SIGKILL)
            process.wait()
            ingot("train", config, "--no-forecast", "--run-dir", run)
            assert losses(run) == losses(whole), (precision, kill_after)
            ingot("checkpoint", "diff", run, whole)


def a_signal_saves_and_exits_0(w):
    config = w.config(**{"train.steps": 100000, "checkpoint.every": 50000})
    for number in (signal.SIGINT, signal.SIGTERM):
        run = w.path / f"signal-{number}"
        process = start("train", config, "--no-forecast", "--run-dir", run)
        wait_for_steps(run, 3, process)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert len(list((run / "checkpoints").iterdir())) == 1, err


def phases_move_context_base_rate_and_mix(w):
    tokens = w.path / "tokens"
    extra = (f'[[train.phases]]\nname = "short"\nsteps = 4\n[[train.phases]]\nname = "long"\ntokens = 700\nseq_len = 96\nbatch_size = 2\n'
             f'rope_base = 1e6\nlr = 1e-3\nwarmup_steps = 1\nsources = ["1 {tokens}"]\n')
    config = w.config("phases", extra=extra, **{"checkpoint.every": 2, "checkpoint.keep": 9})
    ingot("train", config, "--no-forecast", "--run-dir", w.path / "phases")
    steps = metrics(w.path / "phases")
    assert len(steps) == 8 and steps[-1]["tokens"] == 4 * 4 * 48 + 4 * 2 * 96, steps[-1]
    assert steps[4]["lr"] == 1e-3
    ingot("train", config, "--no-forecast", "--run-dir", w.path / "phases-again")
    assert losses(w.path / "phases") == losses(w.path / "phases-again")
    # Resuming in the middle of the second phase goes on there, in a source that both draw from; its border, too.
    for step in (4, 6):
        run = w.path / f"phases-from-{step}"
        ingot("train", config, "--no-forecast", "--run-dir", run, "--resume", w.path / "phases/checkpoints" / f"step_{step:08}")
        assert losses(run) == losses(w.path / "phases")[step:], step
    # Unless the first phase was another one.
    other = w.config("phases-other", extra=extra.replace("steps = 4", "steps = 5"))
    expect_error("train", other, "--no-forecast", "--run-dir", w.path / "r", "--resume", w.path / "phases/checkpoints/step_00000006", status=1,
                 words=["samples of this phase"])


def phases_change_the_layout_and_grow_the_batch(w):
    """What a phase sets does not change the numbers where it must not; a ramp and new moments do, and a killed run goes on with them."""
    phases = '[[train.phases]]\nname = "a"\nsteps = 4\n[[train.phases]]\nname = "b"\nsteps = 4\n{}[[train.phases]]\nname = "c"\nsteps = 3\n'
    settings = {"checkpoint.every": 0, "train.precision": "fp32"}
    ingot("train", w.config("plain", extra=phases.format(""), **settings), "--no-forecast", "--run-dir", w.path / "plain")
    config = w.config("set", extra=phases.format('set = ["train.recompute=full", "train.validation_every=2", "data.prefetch=0"]\n'), **settings)
    _, err = ingot("train", config, "--no-forecast", "--run-dir", w.path / "set")
    assert losses(w.path / "set") == losses(w.path / "plain")
    assert [m["step"] for m in metrics(w.path / "set") if "validation_loss" in m] == [6, 8], err
    plan = json.loads(ingot("train", config, "--dry-run", "--json")[0])
    assert [p["phase"] for p in plan["phases"]] == ["a", "b", "c"]
    assert json.dumps(plan["phases"][0]).replace('"a"', "") != json.dumps(plan["phases"][1]).replace('"b"', ""), plan
    expect_error("train", w.config("wrong", extra=phases.format('set = ["model.hidden=64"]\n')), "--no-forecast", "--run-dir", w.path / "x", status=2,
                 words=["phase 'b'", "model.hidden"])
    # 1, 1, 2, 2, 3, 3, 4, … sequences, and moments of 0 where the second phase begins.
    ramp = phases.format("reset_optimizer = true\n").replace('name = "a"\nsteps = 4\n', 'name = "a"\nsteps = 8\nramp_from = 1\nramp_increment = 1\nramp_steps = 6\n')
    config = w.config("ramp", extra=ramp, **{"checkpoint.every": 3, "checkpoint.keep": 9})
    ingot("train", config, "--no-forecast", "--run-dir", w.path / "ramp")
    tokens = [m["tokens"] for m in metrics(w.path / "ramp")]
    assert [(b - a) // 48 for a, b in zip([0, *tokens], tokens)] == [1, 1, 2, 2, 3, 3] + [4] * 9, tokens
    for step in (3, 6, 9):
        run = w.path / f"ramp-from-{step}"
        ingot("train", config, "--no-forecast", "--run-dir", run, "--resume", w.path / "ramp/checkpoints" / f"step_{step:08}")
        assert losses(run) == losses(w.path / "ramp")[step:], step
    ingot("train", w.config("kept", extra=ramp.replace("reset_optimizer = true\n", ""), **settings), "--no-forecast", "--run-dir", w.path / "kept")
    assert losses(w.path / "kept")[:9] == losses(w.path / "ramp")[:9] and losses(w.path / "kept")[9:] != losses(w.path / "ramp")[9:]


def conversations_are_learned_by_their_answers(w):
    """Loss on answers alone: with every answer the same text and prompts that tell nothing, the loss goes to 0, which that of all tokens cannot."""
    rng = random.Random(3)
    words = (w.path / "text.txt").read_text().split()
    lines = [{"messages": [{"role": "user", "content": " ".join(rng.choices(words, k=6))}, {"role": "assistant", "content": "Anna sees the river."}]} for _ in range(400)]
    (w.path / "chat.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (w.path / "chat.jinja").write_text("{% for m in messages %}<{{ m.role }}> {{ m.content }}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}<assistant> {% endif %}")
    out, _ = ingot("data", "tokenize", w.path / "chat.jsonl", "--chat", "--template", w.path / "chat.jinja", "--tokenizer", w.path / "tokenizer", "-o", w.path / "chat")
    assert "are answers" in out, out
    thought = {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "<think>" + " ".join(words[:90]) + "</think>Anna."}]}
    (w.path / "thought.jsonl").write_text(json.dumps(thought) + "\n" + json.dumps(thought).replace("</think>", "") + "\n")
    trim = ("data", "tokenize", w.path / "thought.jsonl", "--chat", "--template", w.path / "chat.jinja", "--tokenizer", w.path / "tokenizer", "-o", w.path / "thought")
    out, err = ingot(*trim, "--trim-to", 60, "--json")
    made = json.loads(out)
    assert (made["documents"], made["tokens"], made["trimmed"], made["left_out"]) == (1, 60, 1, 1) and "thought.jsonl:2" in err, (out, err)
    shown, _ = ingot("data", "inspect", w.path / "thought", "--tokenizer", w.path / "tokenizer")
    assert "</think>Anna." in shown, shown
    expect_error(*trim, "--trim-to", 60, "--overwrite", "--think-tags", "x", "x", status=2, words=["--think-tags"])
    final = {}
    for packing in ("best_fit", "stream"):
        config = w.config(f"chat-{packing}", family="llama", **{"data.packing": packing, "train.steps": 60, "optimizer.lr": 0.02, "checkpoint.every": 0})
        config.write_text(config.read_text().replace(str(w.path / "tokens"), str(w.path / "chat")))
        ingot("train", config, "--no-forecast", "--run-dir", w.path / packing)
        final[packing] = losses(w.path / packing)[-1][1]
    (w.path / "chat.mask").unlink()
    ingot("train", config, "--no-forecast", "--run-dir", w.path / "all")
    final["all"] = losses(w.path / "all")[-1][1]
    print("last losses:", final)
    assert final["best_fit"] < 0.3 and final["stream"] < 0.3 and final["all"] > 1, final
    expect_error("data", "tokenize", w.path / "chat.jsonl", "--chat", "--tokenizer", w.path / "tokenizer", "-o", w.path / "y", status=1, words=["no chat template", "--template"])
    (w.path / "bad.jsonl").write_text('{"messages": [{"role": "user", "content": "?"}]}\n')
    expect_error("data", "tokenize", w.path / "bad.jsonl", "--chat", "--template", w.path / "chat.jinja", "--tokenizer", w.path / "tokenizer", "-o", w.path / "y",
                 status=1, words=["bad.jsonl:1", "no answer"])


def validation_follows_the_phase(w):
    """Regression: every phase was validated in the context, with the sources and the batch of the base settings. The oracle is the same recipe
    written the other way round: its base settings are the second phase's, and its first phase names what differs."""
    tokens, lines = w.path / "tokens", w.path / "lines.txt"
    lines.write_text("".join(f"Bertha sees {i} grey cats near the river.\n" for i in range(800)))
    ingot("data", "tokenize", lines, "--tokenizer", w.path / "tokenizer", "-o", w.path / "other")
    common = {"data.validation_fraction": 0.2, "train.validation_every": 1, "train.validation_batches": 2, "checkpoint.every": 0}
    short = {"seq_len": 48, "batch_size": 4, "rope_base": 1e4, "sources": [f"1 {tokens}"]}
    long = {"seq_len": 96, "batch_size": 2, "rope_base": 1e6, "sources": [f"1 {w.path / 'other'}"]}

    def phase(name, settings):
        return f'[[train.phases]]\nname = "{name}"\nsteps = 3\n' + "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())

    one = w.config("one", extra=phase("short", {}) + phase("long", long),
                   **common, **{"data.seq_len": 48, "train.batch_size": 4, "model.rope_base": 1e4})
    other = w.config("other-way", extra=phase("short", short) + phase("long", {"sources": long["sources"]}),
                     **common, **{"data.seq_len": 96, "train.batch_size": 2, "model.rope_base": 1e6})
    found = []
    for name, config in (("one", one), ("other-way", other)):
        ingot("train", config, "--no-forecast", "--run-dir", w.path / f"run-{name}")
        found.append([(m["loss"], m["validation_loss"]) for m in metrics(w.path / f"run-{name}")])
    assert found[0] == found[1] and len(found[0]) == 6, found


def a_model_generates_and_is_exported(w):
    config = w.config("g", **{"train.steps": 30, "optimizer.lr": 5e-3})
    run = w.path / "g"
    ingot("train", config, "--no-forecast", "--run-dir", run)
    greedy = json.loads(ingot("generate", "--model", run, "--prompt", "Anna ", "--tokens", 12, "--json")[0])
    assert len(greedy["ids"]) <= 12 and greedy["ids"]
    again = json.loads(ingot("generate", "--model", run / "checkpoints", "--prompt", "Anna ", "--tokens", 12, "--json")[0])
    assert greedy["ids"] == again["ids"]
    draws = [json.loads(ingot("generate", "--model", run, "--prompt", "Anna ", "--tokens", 12, "--temperature", 1.5, "--top-k", 50, "--top-p", 0.95, "--seed", s,
                              "--json")[0])["ids"] for s in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2], draws
    ingot("checkpoint", "export-hf", run, "-o", w.path / "hf", "--dtype", "fp32", "--shard-gb", 0.0001)
    for name in ("config.json", "generation_config.json", "model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json"):
        assert (w.path / "hf" / name).exists(), name
    exported = json.loads(ingot("generate", "--model", w.path / "hf", "--prompt", "Anna ", "--tokens", 12, "--json")[0])
    assert exported["ids"] == greedy["ids"]
    # It ends at whatever the folder says, unless that is not wanted.
    saved = (w.path / "hf/generation_config.json").read_text()
    end = greedy["ids"][4]
    (w.path / "hf/generation_config.json").write_text(json.dumps({"eos_token_id": [end]}))
    ended, went_on = (json.loads(ingot("generate", "--model", w.path / "hf", "--prompt", "Anna ", "--tokens", 12, "--json", *more)[0])["ids"]
                      for more in ((), ("--ignore-eos",)))
    assert ended == greedy["ids"][:greedy["ids"].index(end) + 1] and len(went_on) == 12 and went_on[:5] == greedy["ids"][:5], (ended, went_on, greedy)
    (w.path / "hf/generation_config.json").write_text(saved)
    # The other way round: a run begins with these weights, under another optimizer.
    begun = w.path / "begun"
    ingot("checkpoint", "import-hf", w.path / "hf", "-o", begun)
    imported = json.loads(ingot("generate", "--model", begun, "--prompt", "Anna ", "--tokens", 12, "--json")[0])
    assert imported["ids"] == greedy["ids"]
    ingot("train", config, "--no-forecast", "--run-dir", begun, "--set", "optimizer.name=adamw", "--set", "train.steps=2")
    first, last, goes_on = (metrics(where)[at]["loss"] for where, at in ((run, 0), (run, -1), (begun, 0)))
    assert abs(goes_on - last) < 0.5 < first - goes_on, (first, last, goes_on)
    expect_error("checkpoint", "import-hf", w.path / "hf", "-o", begun, status=2, words=["holds checkpoints already"])
    # A checkpoint of a run must have all of its tensors, unless that is not wanted.
    expect_error("train", config, "--no-forecast", "--run-dir", run, "--set", "optimizer.name=adamw", status=1,
                 words=["missing", "optimizer.first_moment.", "unexpected", "optimizer.momentum.", "checkpoint.strict"])
    ingot("train", config, "--no-forecast", "--run-dir", run, "--set", "optimizer.name=adamw", "--set", "checkpoint.strict=false", "--set", "train.steps=31")
    assert abs(metrics(run)[-1]["loss"] - last) < 0.5, metrics(run)[-2:]
    ingot("checkpoint", "verify", run)
    ingot("report", run, "-o", w.path / "report.html")
    page = (w.path / "report.html").read_text()
    plots = [json.loads(text) for text in re.findall('<script type="application/json">(.*?)</script>', page)]
    assert {plot["x"]["label"] for plot in plots if plot["kind"] == "lines"} == {"step"} and page.startswith("<!doctype html>"), [plot["kind"] for plot in plots]


def nan_is_named_skipped_or_stopped_and_never_saved(w):
    # An embedding of zeros, divided by its own norm: NaN in the first layer of the first step.
    config = w.config("n", **{"model.init_std": 0, "model.norm_eps": 0, "resilience.nonfinite_limit": 3, "checkpoint.every": 1})
    expect_error("train", config, "--no-forecast", "--run-dir", w.path / "n", status=1, words=["step 3: NaN or Inf, first in", "3 steps in a row", "lower optimizer.lr"])
    assert all("NaN" not in line for line in (w.path / "n" / "metrics.jsonl").read_text().splitlines()), "metrics.jsonl is no longer JSON"
    ingot("checkpoint", "verify", w.path / "n")  # the weights were never touched
    expect_error("train", config, "--no-forecast", "--run-dir", w.path / "n-stop", "--set", "resilience.nonfinite=stop", status=1, words=["step 1: NaN", "resilience.nonfinite = stop"])


def spikes_are_skipped_or_stop_the_run_and_a_resumed_run_decides_alike(w):
    """What counts as a spike here is little, so that there are some."""
    spiky = {"train.steps": 50, "optimizer.lr": 0.05, "resilience.spike": "skip", "resilience.spike_sigmas": 1.5, "resilience.spike_window": 16, "checkpoint.every": 10, "checkpoint.keep": 9}
    config = w.config("spikes", **spiky)
    whole, resumed, warned = w.path / "spikes-whole", w.path / "spikes-resumed", w.path / "spikes-warned"
    _, err = ingot("train", config, "--no-forecast", "--run-dir", whole)
    spikes = {e["step"]: e for line in (whole / "events.jsonl").read_text().splitlines() if (e := json.loads(line))["event"] == "spike"}
    assert spikes and min(spikes) > 16 and all(e["skipped"] and "the 16 steps before have" in e["what"] for e in spikes.values()), spikes
    assert err.count("a spike; the update is skipped") == len(spikes), err
    assert {m["step"] for m in metrics(whole) if m.get("skipped")} == set(spikes)
    stop = min(spikes) + 1
    ingot("train", config, "--no-forecast", "--run-dir", resumed, "--stop-after", stop)
    ingot("train", config, "--no-forecast", "--run-dir", resumed)
    assert losses(resumed) == losses(whole)
    ingot("checkpoint", "diff", resumed, whole)
    ingot("train", config, "--no-forecast", "--run-dir", warned, "--set", "resilience.spike=warn")
    assert losses(warned)[:min(spikes)] == losses(whole)[:min(spikes)] and losses(warned) != losses(whole) and not any(m.get("skipped") for m in metrics(warned))
    expect_error("train", config, "--no-forecast", "--run-dir", w.path / "spikes-stop", "--set", "resilience.spike=stop", status=1,
                 words=[f"step {min(spikes)}: ", "resilience.spike = stop", "newest checkpoint is from before"])


def a_run_goes_back_before_a_spike_and_passes_over_the_data(w):
    """With a learning rate of 0 the loss of a step tells its data: those of a run without spikes say which data a step should have had."""
    config = w.config("back", family="llama", **{"train.steps": 44, "optimizer.lr": 0, "resilience.spike": "back", "resilience.spike_back": 5, "resilience.spike_sigmas": 4, "resilience.spike_window": 16,
                                 "checkpoint.every": 4, "checkpoint.keep": 99})
    run, stopped, of_data = w.path / "back", w.path / "back-stopped", w.path / "back-data"
    _, err = ingot("train", config, "--no-forecast", "--run-dir", run)
    events = lambda folder, kind: [e for line in (folder / "events.jsonl").read_text().splitlines() if (e := json.loads(line))["event"] == kind]
    times = events(run, "went_back")
    assert times and err.count("going back to the checkpoint of step") == len(times), (events(run, "spike"), err)
    offsets = [0] * 45
    for time in times:
        assert time["to"] % 4 == 0 and time["step"] - time["to"] >= 5 and time["what"].startswith(f"step {time['step']}: "), time
        offsets[time["to"] + 1:] = [offsets[time["step"]] + time["step"] - time["to"]] * (44 - time["to"])
    ingot("train", config, "--no-forecast", "--run-dir", of_data, "--set", "resilience.spike=off", "--set", f"train.steps={44 + offsets[44]}", "--set", "checkpoint.every=0")
    data = losses(of_data)
    assert losses(run) == [(step, *data[step + offsets[step] - 1][1:]) for step in range(1, 45)], (times, [(l[0], l[1] - data[l[0] + offsets[l[0]] - 1][1]) for l in losses(run)])
    behind = times[0]["step"] // 4 * 4 + 4  # stopped behind a way back, it knows what it has passed over
    ingot("train", config, "--no-forecast", "--run-dir", stopped, "--stop-after", behind)
    ingot("train", config, "--no-forecast", "--run-dir", stopped)
    assert losses(stopped) == losses(run) and [(e["step"], e["to"]) for e in events(stopped, "went_back")] == [(e["step"], e["to"]) for e in times]
    ingot("checkpoint", "diff", run, stopped)


def what_is_saved_is_not_replaced_by_a_run_from_the_start(w):
    config = w.config("only", **{"checkpoint.every": 3, "checkpoint.keep": 1, "train.steps": 6})
    run = w.path / "only"
    ingot("train", config, "--no-forecast", "--run-dir", run)
    [checkpoint], curve = (run / "checkpoints").glob("step_*"), losses(run)
    data = min(checkpoint.glob("data_*.bin"))
    for damage in (lambda: data.rename(w.path / "away"), lambda: os.truncate(data, 100)):
        if not data.exists():
            (w.path / "away").rename(data)
        damage()
        expect_error("train", config, "--no-forecast", "--run-dir", run, "--set", "train.steps=8", status=1, words=["none of the 1 checkpoints", "checkpoint verify"])
        assert losses(run) == curve and [checkpoint] == list((run / "checkpoints").glob("step_*"))
        expect_error("generate", "--model", run, "--prompt", "x", status=1, words=["none of them is complete"])
    # Without checkpoints there is nothing to go on from, and what the run had done is kept beside the new one.
    unsaved = w.path / "unsaved"
    _, err = ingot("train", config, "--no-forecast", "--run-dir", unsaved, "--set", "checkpoint.every=0")
    assert "saves no checkpoints" in err, err
    done = (unsaved / "metrics.jsonl").read_text()
    _, err = ingot("train", config, "--no-forecast", "--run-dir", unsaved, "--set", "checkpoint.every=0", "--set", "train.steps=2")
    assert (unsaved / "metrics.before.jsonl").read_text() == done and len(losses(unsaved)) == 2 and "metrics.before.jsonl" in err, err
    expect_error("generate", "--model", unsaved, "--prompt", "x", status=1, words=["nothing is saved"])
    # One that ends with an error is not one that went without a word.
    expect_error("train", config, "--no-forecast", "--run-dir", w.path / "small", "--set", "model.vocab_size=300", "--set", "data.tokenizer=\"\"", status=1, words=["vocabulary"])
    assert "failed" in ingot("status", w.path / "small")[0] and "vocabulary" in ingot("events", w.path / "small")[0]


def wrong_calls_say_what_is_wrong(w):
    config = w.config("w")
    expect_error("tarin", status=2, words=["train"])
    expect_error("train", config, "--runs-dir", "x", status=2, words=["--run-dir"])
    expect_error("train", w.path / "none.toml", status=2, words=["none.toml", "does not exist"])  # which no launcher tries again
    expect_error("train", config, "--set", "train.stesp=3", status=2, words=["train.steps"])
    expect_error("train", config, "--set", "model.heads=5", status=2, words=["would work"])
    expect_error("train", config, "--set", "train.precision=fp9", status=2, words=["did you mean 'fp8'"])
    expect_error("train", config, "--set", "train.precision=fp8", "--set", "model.layers=2", "--run-dir", w.path / "v", status=2, words=["model.layers is 2"])
    expect_error("train", config, "--set", "train.batch_size=5", "--set", "train.microbatch_size=2", status=2, words=["multiple of train.microbatch_size"])
    expect_error("train", config, "--set", "model.vocab_size=100", "--run-dir", w.path / "v", status=2, words=["vocab_size"])
    _, err = ingot("train", config, "--dry-run", status=2, env={**os.environ, "INGOT_CPU_ALLOCATOR": "jemalloc"})
    assert "INGOT_CPU_ALLOCATOR" in err and "pool or system" in err, err
    # What is missing is said before this machine is measured.
    unmeasured = {**os.environ, "INGOT_CACHE": str(w.path / "no-profile")}
    for setting in (f'data.sources=[{{path="{w.path}/nowhere"}}]', f'data.tokenizer="{w.path}/nowhere"', f'data.validation=["{w.path}/nowhere"]'):
        _, err = ingot("train", config, "--run-dir", w.path / "v", "--set", setting, status=1, env=unmeasured)
        assert "nowhere" in err and "measure" not in err, err
    expect_error("train", config, "--run-dir", w.path / "v", "--set", "data.sources=[]", status=2, words=["data.sources is empty"])
    expect_error("train", config, "--dry-run", "--no-forecast", status=2, words=["--dry-run", "--no-forecast"])
    bad = w.path / "bad.toml"
    bad.write_text("[train\nsteps = 3")
    expect_error("train", bad, status=2, words=["bad.toml:1"])
    for content in (b"", b"\0" * 100, os.urandom(1000)):
        (w.path / "junk.idx").write_bytes(content)
        (w.path / "junk.bin").write_bytes(content)
        text = config.read_text().replace(str(w.path / "tokens"), str(w.path / "junk"))
        (w.path / "junk.toml").write_text(text)
        expect_error("train", w.path / "junk.toml", "--run-dir", w.path / "junk", status=1, words=["junk"])
        assert not (w.path / "junk").exists(), "a failed start left a run directory"
    expect_error("generate", "--model", w.path / "nowhere", "--prompt", "x", status=1, words=["nowhere"])
    expect_error("verify", "model", w.path, "--fixture", w.path / "text.txt", status=1, words=["text.txt"])
    ingot("train", config, "--run-dir", w.path / "r", "--set", "train.steps=3")
    expect_error("train", config, "--run-dir", w.path / "r", "--set", "model.hidden=64", status=1, words=["shape", "config"])
    expect_error("train", config, "--run-dir", w.path / "r", "--resume", "never", status=2, words=["--resume"])
    err = expect_error("train", config, "--run-dir", w.path / "s", "--resume", w.path / "autoo", status=2, words=["--resume", "autoo", "run directory"])
    assert "matmuls" not in err, err
    ingot("train", config, "--run-dir", w.path / "s", "--set", "train.steps=4", "--resume", w.path / "r")  # a run directory is its newest checkpoint
    assert losses(w.path / "s")[0][0] == 4, losses(w.path / "s")
    # Regression: another batch size made the resumed run repeat or skip samples without a word.
    expect_error("train", config, "--run-dir", w.path / "r", "--set", "train.batch_size=2", status=1, words=["batch size", "train.phases"])
    expect_error("train", config, "--run-dir", w.path / "p", "--set", "log.prometheus=nowhere", status=2, words=["log.prometheus"])
    quiet = ingot("train", config, "--run-dir", w.path / "q", "--set", "train.steps=2", "--set", "log.level=error")[1]
    assert quiet == "", quiet  # regression: log.level was never applied


def a_full_disk_does_not_end_the_run(w):
    """A file-size limit stands in for a full disk: the save fails, training goes on and says so."""
    config = w.config("full", **{"train.steps": 6, "checkpoint.every": 2})
    command = f"ulimit -f 64; exec {INGOT} train {config} --run-dir {w.path / 'full'}"
    done = subprocess.run(["bash", "-c", "trap '' XFSZ; " + command], capture_output=True, text=True, timeout=120)
    assert "failed" in done.stderr and "training goes on" in done.stderr, done.stderr
    assert len(metrics(w.path / "full")) == 6
    assert not [p for p in (w.path / "full" / "checkpoints").iterdir() if not p.name.startswith(".")]


def a_run_without_memory_says_who_has_it_and_what_would_do(w):
    config = w.config("large", family="llama", **{"model.layers": 4, "data.seq_len": 256, "train.batch_size": 32, "train.device": "emulated", "train.steps": 2,
                                                  "checkpoint.every": 0, "train.validation_every": 0})

    def train(name, mib, *more, status):
        return ingot("train", config, "--run-dir", w.path / name, *more, status=status, env=os.environ | {"INGOT_EMULATED_MEMORY_MIB": str(mib)})[1]
    plan = json.loads(ingot("train", config, "--dry-run", "--json")[0])["phases"][0]["memory_bytes"]
    mib = (plan["peak"] - plan["program"]) // 2 >> 20
    err = train("full", mib, status=1)
    for word in ("more were asked for", "Tensors at its peak", "backward", "layer/", "what would need less", "train.recompute"):
        assert word in err, (word, err)
    microbatch, recompute = re.search(r'train.microbatch_size = (\d+), train.recompute = "(\w+)"', err).groups()
    train("less", mib, "--set", f"train.microbatch_size={microbatch}", "--set", f"train.recompute={recompute}", status=0)
    assert "INGOT_EMULATED_MEMORY_MIB is 'x'" in train("wrong", "x", status=2)


def a_tuned_run_goes_on_with_its_algorithms(w):
    """Of each GEMM the emulated device has three, which sum in other orders. Which is fastest is chance there: the run's own table decides."""
    config = w.config("tuned", family="llama", **{"train.device": "emulated", "train.precision": "bf16", "train.gemm_backend": "tuned", "train.steps": 6})
    run = w.path / "tuned"
    cache = w.path / "cache"
    ingot("train", config, "--no-forecast", "--run-dir", run, env=os.environ | {"INGOT_CACHE": str(cache)})
    whole = losses(run)
    table = json.loads((run / "gemm_algorithms" / "rank_00000.json").read_text())
    kept = json.loads(next((cache / "gemm_algorithms").glob("*.json")).read_text())
    assert table == kept and table["library"] == "emulated" and len(table["gemms"]) > 10, table
    assert {g["out_dtype"] for g in table["gemms"]} == {"bf16", "fp32"} and {g["adds"] for g in table["gemms"]} == {False, True}
    shutil.rmtree(cache / "gemm_algorithms")
    shutil.rmtree(run / "checkpoints" / "step_00000006")
    ingot("train", config, "--no-forecast", "--run-dir", run, env=os.environ | {"INGOT_CACHE": str(cache)})
    assert losses(run) == whole and not (cache / "gemm_algorithms").exists(), "nothing was measured again"
    for gemm in table["gemms"]:
        gemm["algorithm"][0] = 1 + gemm["algorithm"][0] % 3
    (run / "gemm_algorithms" / "rank_00000.json").write_text(json.dumps(table))
    shutil.rmtree(run / "checkpoints" / "step_00000006")
    ingot("train", config, "--no-forecast", "--run-dir", run, env=os.environ | {"INGOT_CACHE": str(cache)})
    assert losses(run)[:3] == whole[:3] and losses(run)[3:] != whole[3:], "others give other last digits"
    ingot("train", config, "--no-forecast", "--run-dir", w.path / "elsewhere", "--resume", run / "checkpoints/step_00000003", env=os.environ | {"INGOT_CACHE": str(cache)})
    assert losses(w.path / "elsewhere") == losses(run)[3:], "the table comes along"
    # A stage measures its first GEMMs while it waits for gradients of the stage behind it.
    ingot("launch", "-n", 2, "--", INGOT, "train", config, "--no-forecast", "--run-dir", w.path / "stages", "--set", "parallel.pipeline=2", "--set", "train.microbatch_size=1",
          "--set", "resilience.comm_timeout_s=60", env=os.environ | {"INGOT_CACHE": str(cache)})
    assert len(list((w.path / "stages" / "gemm_algorithms").glob("rank_*.json"))) == 2
    err = ingot("launch", "-n", 2, "--", INGOT, "train", config, "--no-forecast", "--run-dir", w.path / "tensor", "--set", "parallel.tensor=2", "--set", "parallel.sequence_parallel=false", status=2)[1]
    assert "repeat layers, which must round alike" in err, err
    expect_error("train", config, "--no-forecast", "--run-dir", w.path / "cpu", "--set", "train.device=cpu", status=2, words=['train.gemm_backend = "tuned"', "there is default"])


def losses_of_routers_even_out_the_load(w):
    settings = {"model.top_k": 2, "optimizer.balancing_lr": 0, "train.steps": 60, "optimizer.lr": 0.01, "model.init_std": 0.2, "train.router_z_loss": 1e-3,
                "checkpoint.every": 0}
    config = w.config(family="mixtral", **settings)
    seen = {}
    for over in ("none", "sequence", "microbatch", "batch") if at_night() else ("none", "sequence", "batch"):
        run = w.path / over
        ingot("train", config, "--no-forecast", "--run-dir", run, "--set", f"train.balance_loss={0 if over == 'none' else 0.1}",
              *(() if over == "none" else ("--set", f"train.balance_over={over}")))
        last = metrics(run)[-10:]
        assert all(m["router_z_loss"] > 0 and ("balance_loss" in m) == (over != "none") for m in last), last
        seen[over] = sum(sum(m["expert_load"]["layers"]) for m in last) / 20
    print("expert load, max over mean:", {over: round(load, 3) for over, load in seen.items()})
    assert all(load < 1 + 0.75 * (seen["none"] - 1) for over, load in seen.items() if over != "none"), seen
    ingot("train", config, "--no-forecast", "--run-dir", w.path / "again", "--set", "train.balance_loss=0.1", "--set", "train.recompute=full", "--set", "train.steps=5")
    assert losses(w.path / "again")[0] == losses(w.path / "batch")[0]
    expect_error("train", w.config("dense", family="llama"), "--no-forecast", "--run-dir", w.path / "dense", "--set", "train.balance_loss=0.1", status=2,
                 words=["train.balance_loss", "the model has no experts"])


def sources_have_losses_of_their_own(w):
    """The oracle: runs of one source each, whose first step has the same weights; and the mean by tokens, which is the loss."""
    make_text(w.path / "other.txt", seed=2)
    ingot("data", "tokenize", w.path / "other.txt", "-o", w.path / "other", "--tokenizer", w.path / "tokenizer")
    second = f'[[data.sources]]\npath = "{w.path / "other"}"\nweight = 3\ncurriculum = "length"\n'
    phases = "".join(f'[[train.phases]]\nname = "{name}"\nsteps = {steps}\nsources = {json.dumps(sources)}\n'
                     for name, steps, sources in (("a", 6, [f"1 {w.path / 'tokens'}", f"3 {w.path / 'other'}"]), ("b", 2, [f"1 {w.path / 'other'}"])))
    settings = {"train.precision": "fp32", "train.threads": 1, "checkpoint.every": 0, "train.steps": 6}
    both = w.config("both", "llama", second + phases, **settings)

    def sources_of(run):
        return [line.get("source_loss") for line in metrics(w.path / run)]

    ingot("train", both, "--no-forecast", "--run-dir", w.path / "whole")
    whole = sources_of("whole")
    assert whole[6:] == [None, None], whole
    for line, sources in zip(metrics(w.path / "whole"), whole[:6]):
        tokens = sum(source["tokens"] for source in sources.values())
        assert abs(sum(source["loss"] * source["tokens"] for source in sources.values()) / tokens - line["loss"]) < 1e-6, line
    launch(2, "train", both, "--no-forecast", "--run-dir", w.path / "ranks")
    for one, two in zip(whole[:6], sources_of("ranks")):
        assert one.keys() == two.keys() and all(one[name]["tokens"] == two[name]["tokens"] for name in one), (one, two)
        assert all(abs(one[name]["loss"] - two[name]["loss"]) < 1e-4 for name in one), (one, two)
    cut = w.config("cut", "llama", second + phases, **settings | {"checkpoint.every": 3})
    ingot("train", cut, "--no-forecast", "--run-dir", w.path / "cut", "--stop-after", 4)
    ingot("train", cut, "--no-forecast", "--run-dir", w.path / "cut")
    assert sources_of("cut") == whole and losses(w.path / "cut") == losses(w.path / "whole")
    # One row of the first source and three of the other are what a run of that one alone begins with.
    for name, rows, source in (("tokens", 1, 0), ("other", 3, 1)):
        weights = [0, 0]
        weights[source] = 1
        alone = w.config("alone", "llama", second.replace("weight = 3", f"weight = {weights[1]}"), **settings | {"train.steps": 1, "train.batch_size": rows})
        alone.write_text(alone.read_text().replace("[[data.sources]]\n", f"[[data.sources]]\nweight = {weights[0]}\n", 1))
        ingot("train", alone, "--no-forecast", "--run-dir", w.path / f"alone-{name}")
        loss = losses(w.path / f"alone-{name}")[0][1]
        assert abs(loss - whole[0][str(w.path / name)]["loss"]) < 1e-5, (name, loss, whole[0])


def the_blend_follows_its_file_and_a_replay_takes_the_same_samples(w):
    """The file is changed while the run goes on, spoiled, mended, and the run killed; another run with what was recorded has the same losses."""
    make_text(w.path / "other.txt", seed=2)
    ingot("data", "tokenize", w.path / "other.txt", "-o", w.path / "other", "--tokenizer", w.path / "tokenizer")
    blend = w.path / "blend.txt"

    def write(text):
        (w.path / "new").write_text(text.format(tokens=w.path / "tokens", other=w.path / "other"))
        os.rename(w.path / "new", blend)

    write("1 {tokens}\nstep 5\n1 {tokens}\n1 {other}\n")
    extra = f'[[data.sources]]\npath = "{w.path / "other"}"\nweight = 0\n'
    config = w.config("blend", "llama", extra, **{"train.steps": 100000, "train.threads": 1, "checkpoint.every": 20, "data.blend_file": str(blend)})
    run = w.path / "blend-run"

    def start():
        return subprocess.Popen([INGOT, "launch", "-n", "2", "--", INGOT, "train", config, "--no-forecast", "--run-dir", run], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def wait_for(condition, what):
        deadline = time.time() + 60
        while not condition():
            assert process.poll() is None and time.time() < deadline, (what, process.communicate())
            time.sleep(0.01)

    changes = lambda: [e["step"] for e in events(run) if e["event"] == "blend"]
    process = start()
    wait_for_steps(run, 6, process)
    write("step x\n")
    wait_for(lambda: "the blend stays what it is" in (run / "log.txt").read_text(), "a word on the wrong file")
    write("1 {tokens}\n7 {other}\n")
    wait_for(lambda: len(changes()) == 2, "the change of the blend")
    assert changes()[0] == 5, changes()
    wait_for_steps(run, changes()[1] + 25, process)
    process.kill()
    process.communicate()
    subprocess.run(["pkill", "-9", "-f", str(config)])
    process = start()
    wait_for_steps(run, changes()[1] + 60, process)
    (run / "stop").write_text("")
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    last = losses(run)[-1][0]
    assert "epochs so far: " in err, err
    recorded = (run / "blend.txt").read_text()
    assert recorded.count("step ") == 3 and recorded.startswith("step 0\n"), recorded
    (w.path / "recorded.txt").write_text(recorded)
    replay = w.config("replay", "llama", extra, **{"train.steps": 100000, "train.threads": 1, "checkpoint.every": 0, "data.blend_file": str(w.path / "recorded.txt")})
    launch(2, "train", replay, "--no-forecast", "--run-dir", w.path / "replay", "--stop-after", last)
    assert losses(w.path / "replay") == losses(run)
    assert (w.path / "replay/blend.txt").read_text() == recorded
    fixed = w.config("fixed", "llama", extra, **{"train.steps": 100000, "train.threads": 1, "checkpoint.every": 0})
    launch(2, "train", fixed, "--no-forecast", "--run-dir", w.path / "fixed", "--stop-after", 8)
    assert losses(w.path / "fixed")[:4] == losses(run)[:4] and losses(w.path / "fixed")[4] != losses(run)[4]
    write("1 nothing\n")
    expect_error("train", config, "--no-forecast", "--run-dir", w.path / "none", status=1, words=["blend.txt:1: nothing is none of data.sources"])
    assert not (w.path / "none").exists()


TESTS = [runs_leave_their_files_and_repeat_bit_for_bit, toggles_change_no_number, killed_at_any_moment_the_next_start_goes_on_bit_equal,
         a_signal_saves_and_exits_0, phases_move_context_base_rate_and_mix,
         phases_change_the_layout_and_grow_the_batch, conversations_are_learned_by_their_answers, validation_follows_the_phase,
         the_blend_follows_its_file_and_a_replay_takes_the_same_samples, sources_have_losses_of_their_own,
         a_model_generates_and_is_exported,
         nan_is_named_skipped_or_stopped_and_never_saved, spikes_are_skipped_or_stop_the_run_and_a_resumed_run_decides_alike, a_run_goes_back_before_a_spike_and_passes_over_the_data, what_is_saved_is_not_replaced_by_a_run_from_the_start, wrong_calls_say_what_is_wrong, a_full_disk_does_not_end_the_run,
         a_run_without_memory_says_who_has_it_and_what_would_do, a_tuned_run_goes_on_with_its_algorithms, losses_of_routers_even_out_the_load]

if __name__ == "__main__":
    run_chosen(TESTS)
