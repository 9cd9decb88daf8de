"""The tables of docs/support.md: what they say is tested has a layout in train/*Layouts* that is compared with one rank, what they say runs is taken,
and what they say is refused is refused in the words of the footnote. Nothing is trained but for the folders of the third table. By day each row of a table
tries some of its cells, in turn, and each footnote's first; at night all are tried."""
import json
import os
import re
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from harness import INGOT, Workspace, at_night

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ROOT / "configs/clusters/h100-64.json"

SMALL = {"model.vocab_size": 384, "data.seq_len": 16, "train.steps": 1, "train.batch_size": 4, "train.microbatch_size": 1, "train.threads": 1,
         "checkpoint.every": 1}
# Families whose parts others take the place of, by the first words of the row.
HYBRIDS = {
    "hybrid of CCA and softmax": {"model.mixers": ["cca", "softmax"], "model.feed_forwards": ["moe", "mlp"]},
    "hybrid with linear layers": {"model.mixers": ["cca", "linear", "softmax", "linear"], "model.feed_forwards": ["moe", "mlp"]},
}
MIXTURE = {"model.family": "qwen3_moe"}
HIDDEN = {"model.bidirectional": True, "data.mask_rate": 0.15, "data.mask_id": 3}
BASIC = {"model.mixers": ["linear"], "model.linear_attention": "basic", "model.feature_map": "elu", "model.short_convolution": 0}
# An objective's settings, and the layouts that have it, by their names.
OBJECTIVES = {
    "next token": ({}, r"^(?!.*_(lora\d|pairs|encoder|drafts\d))"),
    "multi-token prediction": ({"model.mtp_layers": 1, "train.mtp_loss": 0.3}, r"_mtp\d"),
    "fill in the middle": ({"data.fim_rate": 0.5, "data.fim_prefix": 3, "data.fim_suffix": 4, "data.fim_middle": 5}, None),
    "answers of conversations": ({"data.packing": "best_fit"}, None),
    "preference pairs": ({"train.dpo_beta": 0.1, "data.packing": "pairs"}, r"_pairs\b"),
    "hidden tokens, softmax or latent": (HIDDEN, r"_encoder$"),
    "hidden tokens, basic linear": (HIDDEN | BASIC, r"_encoder_linear$"),
    "drafted blocks": ({"model.draft_block": 4, "model.draft_mask_id": 3}, r"_drafts\d"),
    "LoRA": ({"model.lora_rank": 2}, r"_lora\d"),
    "losses of routers": ({"train.balance_loss": 0.01, "train.router_z_loss": 0.01}, r"_balance_over_"),
    "FP8": ({"train.precision": "fp8"}, None),
}
AXES = {"data": {}, "ZeRO 1–3": {"parallel.zero": 3}} | {
    axis: {f"parallel.{axis}": 2} for axis in ("context", "tensor", "tensor_sequence", "expert", "pipeline")}
IN_ORDER = {"parallel.context_order": "contiguous"}
# Axes whose cells are tried in one call where all of them are taken.
TOGETHER = (("data", "ZeRO 1–3", "expert", "pipeline"), ("context", "tensor"), ("tensor_sequence",))


@cache
def small_model(family):
    """What a family's parts need, and small sizes, as the program gives them; nothing where it knows no such family."""
    example = subprocess.run([INGOT, "train", "--example", family], capture_output=True, text=True, timeout=120).stdout
    return {f"model.{name}": value for name, value in tomllib.loads(example).get("model", {}).items()}


def tables(page):
    """[(columns, {row: {column: cell}})]; a row's name is its first cell without backticks and what is in brackets."""
    found, lines = [], page.splitlines() + [""]
    for i, line in enumerate(lines):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|") or set(line) <= set("|-"):
            continue
        if lines[i + 1].startswith("|-"):
            found.append((cells[1:], {}))
        else:
            assert len(cells) == len(found[-1][0]) + 1, line
            found[-1][1][re.sub(r"\s*\(.*?\)|`", "", cells[0])] = dict(zip(found[-1][0], cells[1:]))
    return found


def footnotes(page):
    """The program's words of each: pieces that its message has one behind another."""
    return {mark: words.split(" … ") for mark, words in re.findall(r'^- \((\w)\) "(.+?)"', page, re.M)}


class Program:
    """Configurations and what the program answers to them."""

    def __init__(self, workspace):
        self.w = workspace
        # No measurement of this machine, no trace of an earlier build.
        self.environment = os.environ | {"INGOT_CACHE": str(workspace.path / "cache"), "OMP_NUM_THREADS": "1"}
        self.calls = 0

    def run(self, *words):
        self.calls += 1
        done = subprocess.run([INGOT, *map(str, words)], capture_output=True, text=True, timeout=120, env=self.environment)
        return "" if done.returncode == 0 else f"status {done.returncode}: {done.stderr.strip()}"

    def config(self, settings):
        settings = small_model(settings.get("model.family", "llama")) | SMALL | settings
        return self.w.config(f"c{abs(hash(json.dumps(settings)))}", settings.pop("model.family", "llama"), **settings)

    def plan(self, settings, devices):
        """Empty where the layout is taken, else the message. A step on a device that only counts; it does not know what masks of encoders and drafts
        are made by, whose memory is predicted instead."""
        if settings.get("model.bidirectional") or settings.get("model.draft_block"):
            return self.run("plan", "memory", self.config({"train.precision": "bf16"} | settings), "--cluster", CLUSTER, "--devices", devices)
        return self.run("plan", "trace", self.config(settings), "--devices", devices)

    def along(self, settings, axes, more={}):
        for axis in axes:
            settings = settings | AXES[axis]
        of_data = {"data", "ZeRO 1–3", "expert"}  # on the same ranks
        devices = 2 ** (len(set(axes) - of_data) + bool(set(axes) & of_data))
        return self.plan(settings | more, devices)

    def train(self, settings):
        """One step; the run's folder."""
        config = self.config(settings)
        failed = self.run("train", config, "--run-dir", config.with_suffix(""), "--no-forecast")
        assert not failed, (settings, failed)
        return config.with_suffix("")

    def folder(self, run, *flags):
        return self.run("checkpoint", "export-hf", run, "-o", f"{run}_folder{len(flags)}", *flags)


class Page:
    def __init__(self, text):
        self.notes = footnotes(text)
        self.used = set()
        self.wrong = []

    def note_of(self, cell):
        mark = re.search(r"\((\w)\)$", cell)
        if not mark:
            return None
        self.used.add(mark[1])
        return self.notes[mark[1]]

    def expect_refused(self, where, cell, answer):
        words = self.note_of(cell)
        if not words:
            self.wrong.append(f"{where}: '{cell}' has no footnote")
        elif not answer:
            self.wrong.append(f"{where}: '{cell}', and the program takes it")
        elif not answer.startswith("status 2") and "peft" not in answer and "Hugging Face form" not in answer:
            self.wrong.append(f"{where}: no refusal but {answer}")
        elif not re.search(".*".join(map(re.escape, words)), answer, re.S):
            self.wrong.append(f"{where}: refused, but not as footnote {cell[-3:]} says: {answer}")

    def expect_taken(self, where, cell, answer):
        if answer:
            self.wrong.append(f"{where}: '{cell}', and the program says {answer}")


def tried_cells(rows, groups):
    """(row, its cells, the columns that are tried): at night all, by day one group of them in turn, and where a footnote comes for the first time."""
    seen = set()
    for i, (row, cells) in enumerate(rows.items()):
        marks = {column: cell[-2] for column, cell in cells.items() if re.search(r"\(\w\)$", cell)}
        tried = {column for column, mark in marks.items() if mark not in seen} | set(groups[i % len(groups)])
        seen |= set(marks.values())
        yield row, cells, set(cells) if at_night() else tried


def check_axes(page, program, row, cells, tried, settings):
    """The cells of a row of the first two tables."""
    assert all(re.match(r"(tested|runs|refused)\b", cell) for cell in cells.values()), (row, cells)
    more = IN_ORDER if "(" in cells["context"] and not cells["context"].startswith("refused") else {}
    for axis, cell in cells.items():
        if axis in tried and cell.startswith("refused"):
            page.expect_refused(f"{row} × {axis}", cell, program.along(settings, [axis]))
    if more and "context" in tried:
        page.expect_refused(f"{row} × context, zigzag", cells["context"], program.along(settings, ["context"]))
    for axes in TOGETHER:
        axes = [axis for axis in axes if axis in tried and not cells[axis].startswith("refused")]
        if not axes or not program.along(settings, axes, more if "context" in axes else {}):
            continue
        for axis in axes:
            page.expect_taken(f"{row} × {axis}", cells[axis], program.along(settings, [axis], more if axis == "context" else {}))


def tested_axes(layouts):
    """What a row's cells have to say where they are not refused, of the names of layouts."""
    found = {axis: any(re.search(rf"_{axis}\d", name) for name in layouts) for axis in AXES}
    levels = sorted({level for name in layouts if "_data" in name for level in re.findall(r"_zero([123])", name)})
    said = {axis: "tested" if is_tested else "runs" for axis, is_tested in found.items()}
    said["ZeRO 1–3"] = "runs" if not levels else "tested" if len(levels) == 3 else "tested: " + ", ".join(levels)
    return said


def check_tested(page, row, cells, layouts):
    for axis, said in tested_axes(layouts).items():
        cell = re.sub(r"\s*\(\w\)$", "", cells[axis])
        if cell != said and not (cell == "refused" and said == "runs"):
            page.wrong.append(f"{row} × {axis}: '{cell}', and by the names of the layouts it is '{said}'")


def layouts_of_family(names, row):
    is_next_token = re.compile(OBJECTIVES["next token"][1])
    parts = r"_(cca|linear|softmax|latent)_|_(mlp|moe)$"  # that take the place of a family's
    if row in HYBRIDS:
        return [name for name in names if re.search(parts, name.partition("_fp")[2]) and is_next_token.search(name)
                and ("_linear_" in name.partition("_fp")[2]) == ("linear" in row) and "_softmax" in name]
    return [name for name in names if re.match(rf"{row}_(fp|bf)\d+_", name) and is_next_token.search(name) and not re.search(parts, name.partition("_fp")[2])]


def model_of(row):
    return {"model.family": "zaya1"} | HYBRIDS[row] if row in HYBRIDS else {"model.family": row}


def check_objectives_of_family(page, program, row, cells, tried):
    model = model_of(row)
    of_every_family = OBJECTIVES["preference pairs"][0] | OBJECTIVES["FP8"][0]
    tuned = model | OBJECTIVES["multi-token prediction"][0] | OBJECTIVES["LoRA"][0]
    run = program.train(tuned) if any(column.startswith("folder") for column in tried) else None
    if "losses of routers" in tried and not cells["losses of routers"].startswith("yes"):
        page.expect_taken(f"{row} × preference pairs and FP8", "for every family", program.plan(model | of_every_family, 1))
    for column, cell in cells.items():
        assert cell == "yes" or re.fullmatch(r"refused \(\w\)", cell), (row, column, cell)
        if column not in tried:
            continue
        if column.startswith("folder: MTP"):
            answer = program.folder(run)
        elif column.startswith("folder: LoRA"):
            answer = program.folder(run, "--adapters")
            if cell.startswith("refused") and not row.startswith("hybrid"):
                page.expect_taken(f"{row} × {column}, o_proj alone", cell, program.folder(program.train(tuned | {"model.lora_targets": ["o_proj"]}), "--adapters"))
        else:
            settings = next(settings for name, (settings, _) in OBJECTIVES.items() if name.startswith(column))
            answer = program.plan(model | settings | (of_every_family if column == "losses of routers" and cell == "yes" else {}), 1)
        if cell.startswith("refused"):
            page.expect_refused(f"{row} × {column}", cell, answer)
        else:
            page.expect_taken(f"{row} × {column}", cell, answer)


def check_columns_and_rows(page, text, program):
    (axes, families), (again, objectives), (of_families, both) = tables(text)
    assert axes == list(AXES) and again == list(AXES), (axes, again)
    assert list(objectives) == list(OBJECTIVES), list(objectives)
    unknown = program.plan({"model.family": "unknown"}, 1)
    known = re.search(r"must be one of ([a-z0-9_, ]+)", unknown)[1].split(", ")
    for rows in (families, both):
        assert sorted(rows) == sorted(known + list(HYBRIDS)), f"a row too many, or none: {set(rows) ^ set(known + list(HYBRIDS))}"
    return families, objectives, both


def main():
    text = (ROOT / "docs/support.md").read_text()
    page = Page(text)
    with Workspace() as w:
        program = Program(w)
        families, objectives, both = check_columns_and_rows(page, text, program)
        if layouts_test := os.environ.get("INGOT_LAYOUTS_TEST"):
            listed = subprocess.run([layouts_test, "--gtest_list_tests", "--gtest_filter=All/Layouts.*"], capture_output=True, text=True, timeout=120).stdout
            names = re.findall(r"^  train_the_same_model/(\S+)", listed, re.M)
            assert len(names) > 200, listed[:2000]
            for row, cells in families.items():
                check_tested(page, row, cells, layouts_of_family(names, row))
            for row, cells in objectives.items():
                pattern = OBJECTIVES[row][1]
                check_tested(page, row, cells, [name for name in names if pattern and re.search(pattern, name)])
        columns = list(next(iter(both.values())))
        jobs = [lambda one=one: check_axes(page, program, *one, model_of(one[0])) for one in tried_cells(families, TOGETHER)]
        jobs += [lambda one=one: check_axes(page, program, *one, MIXTURE | OBJECTIVES[one[0]][0]) for one in tried_cells(objectives, TOGETHER)]
        jobs += [lambda one=one: check_objectives_of_family(page, program, *one) for one in tried_cells(both, [columns[i::4] for i in range(4)])]
        with ThreadPoolExecutor(int(os.environ.get("INGOT_SUPPORT_THREADS", 2))) as threads:
            for done in [threads.submit(job) for job in jobs]:
                done.result()
        if unused := set(page.notes) - page.used:
            page.wrong.append(f"no cell has the footnotes {sorted(unused)}")
    cells = sum(len(cells) for rows in (families, objectives, both) for cells in rows.values())
    print(f"{cells} cells, {program.calls} calls of the program, {len(page.wrong)} cells disagree")
    for line in sorted(page.wrong):
        print("docs/support.md:", line)
    sys.exit(1 if page.wrong else 0)


main()
