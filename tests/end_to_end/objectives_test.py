"""Objectives beside the next token, as a user runs them: an encoder of hidden tokens, and a model converted to draft blocks of 16."""
import json

import random

from harness import close, expect_error, ingot, launch, metrics, run_chosen


def an_encoder_learns_hidden_tokens(w):
    settings = {"model.bidirectional": True, "data.mask_rate": 0.15, "data.mask_id": 3, "data.packing": "best_fit", "train.steps": 30,
                "train.batch_size": 16, "train.validation_every": 15, "optimizer.lr": 0.02}
    for family, more in (("llama", {}), ("linear_llama", {"model.linear_attention": "basic", "model.feature_map": "elu", "model.short_convolution": 0,
                                                          "model.mixers": ["linear", "softmax"]})):
        run = w.path / family
        ingot("train", w.config(family, family=family, **(settings | more)), "--run-dir", run, "--no-forecast")
        found = metrics(run)
        assert found[-1]["loss"] < 0.9 * found[0]["loss"] and found[-1]["validation_loss"] < found[0]["loss"], [m["loss"] for m in found]
    expect_error("generate", "--model", w.path / "llama", "--prompt", "Anna", status=2, words=["encoder"])
    expect_error("checkpoint", "export-hf", w.path / "llama", "-o", w.path / "hf", status=2, words=["bidirectional"])
    expect_error("train", w.config("causal", **{"data.mask_rate": 0.15, "data.mask_id": 3}), "--run-dir", w.path / "no", status=2, words=["model.bidirectional"])


def a_model_is_converted_to_draft_and_says_the_same_in_fewer_passes(w):
    shape = {"model.hidden": 64, "model.ffn": 128, "model.head_dim": 16, "data.seq_len": 96, "train.batch_size": 8, "optimizer.lr": 0.01}
    ingot("train", w.config("plain", family="llama", **shape, **{"train.steps": 120}), "--run-dir", w.path / "plain", "--no-forecast")
    folder, run = w.path / "folder", w.path / "drafting"
    ingot("checkpoint", "export-hf", w.path / "plain", "-o", folder, "--dtype", "fp32")
    ingot("checkpoint", "import-hf", folder, "-o", run)
    drafting = {"model.draft_block": 16, "model.draft_mask_id": 3, "train.steps": 120}
    ingot("train", w.config("drafting", family="llama", **shape, **drafting), "--run-dir", run, "--no-forecast")
    found = metrics(run)
    assert found[-1]["draft_loss"] < 0.8 * found[0]["draft_loss"], (found[0], found[-1])
    # The loss is the mean of the two, and what was learned before is not lost.
    of_next = lambda m: 2 * m["loss"] - m["draft_loss"]
    assert of_next(found[-1]) < 1.05 * metrics(w.path / "plain")[-1]["loss"], (found[-1], metrics(w.path / "plain")[-1])
    for temperature in (0, 0.8):
        words = ("generate", "--model", run, "--prompt", "Anna sees the", "--tokens", 60, "--temperature", temperature, "--seed", 3, "--dtype", "fp64", "--json")
        plain, drafted = json.loads(ingot(*words)[0]), json.loads(ingot(*words, "--drafts")[0])
        assert plain["ids"] == drafted["ids"], (plain, drafted)
        print(f"temperature {temperature}: {len(drafted['ids'])} tokens in {drafted['passes']} passes, {drafted['drafts_taken']} drafts taken")
    expect_error("generate", "--model", w.path / "plain", "--prompt", "Anna", "--drafts", status=2, words=["model.draft_block"])
    # The folder is that of the model without drafts, whose text stays the same.
    ingot("checkpoint", "export-hf", run, "-o", w.path / "converted", "--dtype", "fp32")


def rows_of_their_own_lengths_follow_the_curve_of_padded_ones(w):
    rng, words = random.Random(5), (w.path / "text.txt").read_text().split()
    (w.path / "lines.txt").write_text("".join(" ".join(rng.choices(words, k=rng.randint(1, 25))) + "\n" for _ in range(600)))
    ingot("data", "tokenize", w.path / "lines.txt", "--split", "line", "--tokenizer", w.path / "tokenizer", "-o", w.path / "tokens", "--overwrite")
    settings = {"data.packing": "documents", "train.batch_size": 8, "train.steps": 10, "train.validation_every": 5, "checkpoint.every": 4,
                "train.precision": "fp64"}
    for family in ("zaya1", "llama"):
        config = w.config(family, family=family, **settings)
        train = lambda name, ranks, *more: launch(ranks, "train", config, "--no-forecast", "--run-dir", w.path / f"{family}-{name}", *more)
        changed = lambda *changes: [word for change in ("data.rows=variable", *changes) for word in ("--set", change)]
        train("fixed", 1)
        train("variable", 1, *changed("train.microbatch_size=1"))
        train("ranks", 2, *changed("train.microbatch_size=2", "parallel.zero=3"), "--stop-after", 6)
        train("ranks", 1, *changed("train.microbatch_size=1"))  # goes on
        fixed, *found = [metrics(w.path / f"{family}-{name}") for name in ("fixed", "variable", "ranks")]
        tolerance = 1e-9 if family == "llama" else 1e-3  # the balance of experts counts padding, where there is some
        for run in found:
            assert [m["tokens"] for m in run] == [m["tokens"] for m in found[0]] and run[-1]["tokens"] < 0.8 * fixed[-1]["tokens"], (run[-1], fixed[-1])
            close(*([(m["loss"],) for m in curve] for curve in (fixed, run)), tolerance)
            close(*([(curve[at]["validation_loss"],) for at in (4, 9)] for curve in (fixed, run)), tolerance)
        close(*([(m["loss"], m["grad_norm"]) for m in curve] for curve in found), 1e-9)
    reproducible = [word for change in ("train.reproducible=true", "train.microbatch_size=1", "train.threads=1") for word in ("--set", change)]
    expect_error("train", config, "--set", "data.rows=variable", *reproducible, "--run-dir", w.path / "no", status=2, words=["data.rows", "train.reproducible"])


run_chosen([rows_of_their_own_lengths_follow_the_curve_of_padded_ones, an_encoder_learns_hidden_tokens, a_model_is_converted_to_draft_and_says_the_same_in_fewer_passes])
