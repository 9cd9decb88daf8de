"""Calls of `ingot data tokenize` that are killed, that share the work, and that cannot write."""
import json
import os
import random
import resource
import signal
import subprocess
import time

from harness import INGOT, expect_error, ingot, make_text, run_chosen


def make_inputs(folder):
    """Lines of JSON and paragraphs that are cut into some 60 pieces."""
    folder.mkdir()
    make_text(folder / "words.txt", 300)
    paragraphs = [p for p in (folder / "words.txt").read_text().split("\n\n") if p]
    draw = random.Random(2)
    with open(folder / "a.jsonl", "w") as lines:
        for number in range(20_000):
            lines.write(json.dumps({"id": number, "text": paragraphs[draw.randrange(len(paragraphs))]}) + ("\r\n" if number % 7 else "\n"))
    with open(folder / "b.txt", "w") as text:
        text.write("\n\n".join(draw.choice(paragraphs) for _ in range(3_000)))
    return folder / "a.jsonl", folder / "b.txt"


def call(w, prefix, inputs, *more, piece_bytes=80_000):
    return ["data", "tokenize", *inputs, "--tokenizer", w.path / "tokenizer", "-o", prefix, "--piece-bytes", piece_bytes, "--threads", 1, "--json", *more]


def start(*args):
    return subprocess.Popen([INGOT, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def names_of(folder, prefix):
    return sorted(path.name for path in folder.iterdir() if path.name.startswith(prefix))


def killed_workers_go_on_to_the_bytes_of_an_undisturbed_one(w):
    folder = w.path / "killed"
    inputs = make_inputs(folder)
    whole = json.loads(ingot(*call(w, folder / "whole", inputs, piece_bytes=1 << 40))[0])
    assert whole["pieces"] == 1, whole
    begin = time.time()
    undisturbed = json.loads(ingot(*call(w, folder / "undisturbed", inputs))[0])
    took = time.time() - begin
    draw, kills, shared = random.Random(), 0, folder / "shared"
    while not (folder / "shared.manifest.json").exists():
        workers = [start(*call(w, shared, inputs)) for _ in range(3)]
        for worker in workers if kills < 9 else []:
            time.sleep(draw.uniform(0.02, 0.3) * took / 3)
            kills += worker.poll() is None
            worker.kill()
        told = [worker.communicate(timeout=120)[0] for worker in workers]
        # Nothing carries the final names before all of it is there.
        assert not (folder / "shared.manifest.json").exists() or (folder / "shared.idx").exists()
    assert kills >= 3, kills
    told = [json.loads(text) for text in told if text] + [json.loads(ingot(*call(w, shared, inputs))[0])]
    for said in told:
        assert {key: said[key] for key in ("documents", "tokens", "pieces")} == {key: undisturbed[key] for key in ("documents", "tokens", "pieces")}, (said, undisturbed)
    assert told[-1]["was_there"] and told[-1]["own_pieces"] == 0, told
    assert undisturbed["pieces"] > 40 and undisturbed["own_pieces"] == undisturbed["pieces"], undisturbed
    for suffix in ("bin", "idx"):
        expected = (folder / f"whole.{suffix}").read_bytes()
        for name in ("undisturbed", "shared"):
            assert (folder / f"{name}.{suffix}").read_bytes() == expected, (name, suffix)
    assert (folder / "shared.manifest.json").read_bytes() == (folder / "undisturbed.manifest.json").read_bytes()
    assert names_of(folder, "shared") == ["shared.bin", "shared.idx", "shared.manifest.json"], names_of(folder, "shared")
    manifest = json.loads((folder / "shared.manifest.json").read_text())
    assert [(i["path"], i["bytes"]) for i in manifest["made_from"]["inputs"]] == [(str(path), path.stat().st_size) for path in inputs], manifest["made_from"]
    assert sum(piece["documents"] for piece in manifest["pieces"]) == manifest["documents"] == whole["documents"] == 23_000
    # The ranges of a file lie behind one another.
    for path in inputs:
        sources = [source for piece in manifest["pieces"] for source in piece["sources"] if source["path"] == str(path)]
        ends = [source["begin"] + source["text_bytes"] for source in sources]
        assert [source["begin"] for source in sources] == [0, *ends[:-1]] and ends[-1] == path.stat().st_size, (path, sources)


def ranks_of_a_launcher_share_the_work(w):
    folder = w.path / "ranks"
    inputs = make_inputs(folder)
    ingot(*call(w, folder / "whole", inputs))
    ingot("launch", "-n", 2, "--", INGOT, *call(w, folder / "shared", inputs))
    for suffix in ("bin", "idx", "manifest.json"):
        assert (folder / f"shared.{suffix}").read_bytes() == (folder / f"whole.{suffix}").read_bytes(), suffix
    assert len(names_of(folder, "shared")) == 3


def what_cannot_be_written_or_is_another_datasets_is_said(w):
    folder = w.path / "wrong"
    inputs = make_inputs(folder)

    def bound_files():  # as on a full disk, writing fails halfway
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    _, err = ingot(*call(w, folder / "full", inputs), status=1, preexec_fn=bound_files)
    assert "cannot write" in err and "full.pieces/000000" in err and not names_of(folder, "full"), (err, names_of(folder, "full"))
    (folder / "file").write_text("")
    expect_error(*call(w, folder / "file" / "out", inputs), status=1, words=["cannot create the folder", "file"])
    if os.geteuid() != 0:
        (folder / "locked").mkdir(mode=0o500)
        expect_error(*call(w, folder / "locked" / "out", inputs), status=1, words=["cannot create the folder", "Permission denied"])
    # The join does not fit any more: what is finished stays, and nothing has the final names.
    def bound_join():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))

    _, err = ingot(*call(w, folder / "join", inputs), status=1, preexec_fn=bound_join)
    assert "cannot write" in err and names_of(folder, "join") == ["join.pieces"], (err, names_of(folder, "join"))
    assert not [path for path in (folder / "join.pieces").iterdir() if path.suffix == ".tmp"]
    expect_error(*call(w, folder / "join", inputs, "--bos"), status=2, words=["join.pieces", "'bos' was false, now it is true", "--overwrite"])
    assert json.loads(ingot(*call(w, folder / "join", inputs))[0])["own_pieces"] == 0
    expect_error(*call(w, folder / "join", inputs, "--no-eos"), status=2, words=["join.idx is there already", "--overwrite"])
    before = (folder / "join.idx").stat().st_mtime_ns
    ingot(*call(w, folder / "join", inputs, "--overwrite"))
    assert (folder / "join.idx").stat().st_mtime_ns == before, "it was there already"
    ingot(*call(w, folder / "join", inputs, "--no-eos", "--overwrite"))
    assert (folder / "join.idx").stat().st_mtime_ns != before


TESTS = [killed_workers_go_on_to_the_bytes_of_an_undisturbed_one, ranks_of_a_launcher_share_the_work, what_cannot_be_written_or_is_another_datasets_is_said]

if __name__ == "__main__":
    run_chosen(TESTS)
