"""ingot_checkpoint: what it refuses, and errors that reach all ranks at once. Runs with the Python of .deps/venv and PYTHONPATH at the built
package; names of tests may be given as arguments."""
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

import ingot_checkpoint as ic
from checkpoint_ranks import expect, main, run

def mismatches_on_ranks(rank, world, folder):
    good = {"a": torch.ones(4, 4), "b": torch.ones(3, dtype=torch.bfloat16), "value": 1}
    path = ic.save(folder, 1, good)["path"]
    wrong = {"missing (1): 'c'": good | {"c": torch.zeros(2)}, "unexpected (1): 'b'": {"a": good["a"], "value": 1},
             "differently shaped (1): 'a'": good | {"a": torch.zeros(4, 5)}, "differently typed (1): 'b' is bf16": good | {"b": torch.zeros(3)},
             "missing values (1): 'other'": good | {"other": 0}}
    for words, state in wrong.items():
        # Wrong on all ranks, then on the last one only; either way all hear of it.
        for given in (state, state if rank == world - 1 else good):
            if "unexpected" in words:
                given = state  # what any rank wants is not unexpected
            mine = {name: torch.full_like(value, 5) if isinstance(value, torch.Tensor) else value for name, value in given.items()}
            started = time.monotonic()
            expect_mismatch(words, lambda: ic.load(path, mine))
            assert time.monotonic() - started < 30
            assert all((value == 5).all() for value in mine.values() if isinstance(value, torch.Tensor)), "filled in part"
    lenient = {"a": torch.zeros(4, 4), "c": torch.full((2,), 8.0), "other": 6}
    report = ic.load(path, lenient, strict=False)
    assert report["missing"] == ["c", "other"] and (lenient["a"] == 1).all() and (lenient["c"] == 8).all() and lenient["other"] == 6, report
    expect(ic.Mismatch, "differently shaped", lambda: ic.load(path, {"a": torch.zeros(2)}, strict=False))
    expect(ic.CheckpointError, "nowhere", lambda: ic.load(folder / "nowhere", good))
    # Damage is found before anything is overwritten, where there is a second copy; where there is none, all are told.
    path = Path(ic.save(folder, 2, {"a": torch.arange(5000.0), "b": torch.arange(9.0)})["path"])
    if world > 1:
        dist.barrier()
    if rank == 0:
        data = sorted(path.glob("data_*"))[0]
        damaged = bytearray(data.read_bytes())
        damaged[200] ^= 1
        data.write_bytes(damaged)
    if world > 1:
        dist.barrier()
    state = {"a": torch.zeros(5000), "b": torch.zeros(9)}
    said = expect(ic.CheckpointError, "checksum", lambda: ic.load(path, state, in_place=False))
    assert "undefined" not in said and not state["a"].any() and not state["b"].any()
    said = expect(ic.CheckpointError, "checksum", lambda: ic.load(path, state))
    assert "undefined now" in said and "in_place=False" in said, said
    ic.load(folder / "step_00000001", good)


def expect_mismatch(words, call):
    """Where ranks want different things of one tensor, that is what is said."""
    try:
        call()
    except ic.Mismatch as failure:
        assert words in str(failure) or " on rank " in str(failure), failure
        return
    raise AssertionError(f"no Mismatch: {words}")


def mismatches(folder):
    for world in (1, 2, 4):
        run(world, mismatches_on_ranks, folder / str(world))
        print(f"ok {world} ranks: mismatches and damage on all at once, nothing filled in part")


def failures_on_ranks(rank, world, folder):
    from ingot_checkpoint import team
    state = {"w": ic.Part((4 * world, 3), (4 * rank, 0), torch.ones(4, 3))}
    last = rank == world - 1
    # What cannot be saved names its key there, and its rank elsewhere.
    odd = state | ({"inner": {"thing": [object()]}} if last else {})
    expect(TypeError if last else ic.CheckpointError, "'inner.thing.0'", lambda: ic.save(folder, 1, odd))
    expect(ic.CheckpointError, "different steps", lambda: ic.save(folder, 1 + rank, state))
    # Parts that leave a gap.
    hole = {"w": ic.Part((5 * world, 3), (4 * rank, 0), torch.ones(4, 3))}
    expect(ic.CheckpointError, "'w'", lambda: ic.save(folder, 1, hole))
    # A folder that one rank cannot write to.
    blocked = folder / f"file_{rank}"
    blocked.parent.mkdir(parents=True, exist_ok=True)
    blocked.write_text("")
    expect(ic.CheckpointError, f"rank {world - 1}", lambda: ic.save(blocked if last else folder, 1, state))
    assert not list(folder.glob("step_*"))
    # A saver goes on after that.
    with ic.AsyncSaver(folder, timeout_s=60) as saver:
        saver.save(2, state)
        saver.wait()
        assert saver.finished()[0]["failure"] == ""
    # Callbacks that raise, of the calling thread and of the background; the others do not wait for the time-out.
    for name in ("gather", "broadcast"):
        for which in ("_calling", "_background"):
            with ic.AsyncSaver(folder, timeout_s=60) as saver:
                saver.save(3, state)
                saver.wait()
                assert [o["failure"] for o in saver.finished()] == [""]
                if last:
                    def broken(*_):
                        raise RuntimeError("a cable was pulled")
                    setattr(getattr(saver, which), name, broken)
                started = time.monotonic()
                try:
                    saver.save(4, state)
                    saver.wait()
                    failure = saver.finished()[0]["failure"]
                except (ic.CheckpointError, RuntimeError) as error:
                    failure = str(error)
                assert failure, f"rank {rank}: {which}.{name} did not fail"
                assert "a cable was pulled" in failure or not last, failure
                assert time.monotonic() - started < 30, time.monotonic() - started
    if world > 1:
        dist.barrier()
    assert not (folder / "step_00000004").exists()
    # A callback of the engine that raises while loading.
    make = team.make_team

    def breaking(*arguments):
        made = make(*arguments)
        if last:
            def broken(*_):
                raise RuntimeError("a cable was pulled")
            made.all_to_all = broken
        return made
    ic.make_team = breaking
    rows = [torch.zeros(1, 3) for _ in range(world)]  # of every piece a row: too little to read the piece for
    mine = {"w": [ic.Part((4 * world, 3), (4 * piece + rank, 0), row) for piece, row in enumerate(rows)]}
    expect(ic.CheckpointError, "", lambda: ic.load(folder / "step_00000003", mine, timeout_s=60, in_place=False))
    assert not any(row.any() for row in rows)
    ic.make_team = make
    ic.load(folder / "step_00000003", mine)
    assert all((row == 1).all() for row in rows)
    # A rank that does not come.
    if world == 2:
        started = time.monotonic()
        if rank == 0:
            expect(ic.CheckpointError, "", lambda: ic.save(folder, 5, state, timeout_s=3))
            assert time.monotonic() - started < 30
        else:
            time.sleep(8)


def failures(folder):
    for world in (2, 4):
        run(world, failures_on_ranks, folder / str(world))
        print(f"ok {world} ranks: one that fails makes all fail, at once")


def subgroups_on_ranks(rank, world, folder):
    """Two groups save and load apart; the second made its group after others that the first knows nothing of."""
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine, place = halves[rank // 2], rank % 2
    for step in range(2):
        state = {"w": ic.Part((2, 3), (place, 0), torch.full((1, 3), float(rank + step)))}
        path = ic.save(folder / str(rank // 2), step, state, process_group=mine)["path"]
        if rank >= 2:
            ic.load(path, state, process_group=mine)
    assert ic.read(path, "w").tolist() == [[rank - place + 1.0] * 3, [rank - place + 2.0] * 3]
    ic.save(folder / "all", 1, {"x": torch.ones(3)})


def subgroups(folder):
    run(4, subgroups_on_ranks, folder)
    print("ok groups of some ranks")


def replicas_on_ranks(rank, world, folder):
    last = rank == world - 1
    state = {"same": torch.arange(1000.0), "inner": {"running_mean": torch.arange(1000.0)[::2]}, "part": ic.Part((world, 2), (rank, 0), torch.full((1, 2), float(rank)))}
    ic.save(folder, 1, state)
    if last:
        state["inner"]["running_mean"] = state["inner"]["running_mean"].clone()
        state["inner"]["running_mean"][7] = -0.0
    for save in (ic.save, saved_later):
        words = expect(ic.CheckpointError, "'inner.running_mean'", lambda: save(folder, 2, state))
        assert f"rank 0 and rank {world - 1};" in words and "'same'" not in words, words
    assert ic.latest(folder) == folder / "step_00000001"
    ic.save(folder, 3, state, check_replicas=False)
    if last:
        del state["inner"]  # whoever has it must have the same
    ic.save(folder, 4, state)


def saved_later(folder, step, state):
    with ic.AsyncSaver(folder) as saver:
        saver.save(step, state)


def replicas(folder):
    """Plain tensors that differed between ranks became one of them, and nobody was told."""
    for world in (2, 3):
        run(world, replicas_on_ranks, folder / str(world))
        print(f"ok {world} ranks: a plain tensor that differs is an error with its key")


# One process.

def buckets(folder):
    """A bucket's URL became a local folder s3:, and the checkpoint there was called durable."""
    before = os.getcwd()
    os.chdir(folder)
    state = {"a": torch.ones(3)}
    for url in ("s3://bucket/run", Path("s3://bucket/run"), "gs://bucket/run"):
        for call in (lambda: ic.save(url, 1, state), lambda: ic.AsyncSaver(url), lambda: ic.load(url, state), lambda: ic.latest(url),
                     lambda: ic.inspect(url), lambda: ic.read(url, "a")):
            expect(ic.CheckpointError, "no client of object stores", call)
    os.chdir(before)
    assert not list(folder.iterdir()), list(folder.iterdir())
    print("ok buckets are refused")


def old_steps(folder):
    """save() removed older steps unless it was told not to."""
    state = {"a": torch.ones(3)}
    for step in range(6):
        ic.save(folder, step, state)
    with ic.AsyncSaver(folder) as saver:
        saver.save(6, state)
    assert len(list(folder.glob("step_*"))) == 7
    ic.save(folder, 7, state, keep=2)
    assert sorted(p.name for p in folder.glob("step_*")) == ["step_00000006", "step_00000007"]
    print("ok older steps stay unless keep says otherwise")


def refusals(folder):
    import pickle
    class Sneaky:
        def __reduce__(self):
            return (print, ("never",))
    for name, value in {"a.b": {"b": Sneaky()}, "a.0": [Sneaky(), 1], "a": torch.zeros(2, device="meta"), "a.x": {"x": torch.zeros(3).to_sparse()},
                        "a.u": {"u": torch.zeros(2, dtype=torch.uint16)}, "a.d": {"d": torch.float32}, "a.s": {"s": {1}}}.items():
        expect(TypeError, f"'{name}'", lambda: ic.save(folder, 1, {"a": value}))
    expect(TypeError, "joined by dots", lambda: ic.save(folder, 1, {"a.b": torch.ones(1), "a": {"b": torch.ones(1)}}))
    expect(TypeError, "neither a string nor an integer", lambda: ic.save(folder, 1, {"a": {1.5: torch.ones(1)}}))
    expect(TypeError, "unknown options: kep", lambda: ic.save(folder, 1, {}, kep=1))
    assert not list(folder.glob("step_*"))
    pickled = {"dumps": pickle.dumps, "loads": pickle.loads}
    def refuse(*_, **__):
        raise AssertionError("pickle was used")
    pickle.dumps = pickle.loads = torch.save = torch.load = refuse
    view = torch.arange(24.0).reshape(4, 6)[:, 1:4]
    state = {"view": view, "nan": float("nan"), "conj": torch.tensor([1 + 2j]).conj(), "deep": {"list": [{"lr": 0.1, "betas": (0.5, 0.75), "t": torch.ones(2)}]}, 5: 6}
    path = ic.save(folder, 1, state)["path"]
    destination = torch.zeros(6, 8)
    wanted = {"view": destination[1:5, 2:8:2], "nan": 0.0, "conj": torch.zeros(1, dtype=torch.complex64).conj(), "deep": {"list": [{"lr": 0, "betas": (0, 0), "t": torch.zeros(2)}]}, 5: 0}
    report = ic.load(path, wanted)
    assert torch.equal(wanted["view"], view) and destination.count_nonzero() == 12 and wanted["nan"] != wanted["nan"] and wanted["conj"][0] == 1 - 2j
    assert wanted["deep"]["list"][0]["lr"] == 0.1 and wanted["deep"]["list"][0]["betas"] == (0.5, 0.75) and wanted[5] == 6
    assert report["values"]["deep.list.0.betas"] == [0.5, 0.75]
    expect(TypeError, "'view'", lambda: ic.load(path, wanted | {"view": torch.zeros(1, 3).expand(4, 3)}))
    expect(ic.CheckpointError, "no tensor 'x'", lambda: ic.read(path, "x"))
    assert ic.latest(folder / "none") is None
    for file in Path(path).iterdir():
        assert b"cposix" not in file.read_bytes() and b"builtins" not in file.read_bytes(), file
    pickle.dumps, pickle.loads = pickled["dumps"], pickled["loads"]
    print("ok refusals, views, values, no pickle")


if __name__ == "__main__":
    main([refusals, buckets, old_steps, mismatches, failures, subgroups, replicas])
