"""ingot_checkpoint saving while the program goes on. Runs with the Python of .deps/venv and PYTHONPATH at the built
package; names of tests may be given as arguments."""
import threading
import warnings

import torch
import torch.distributed as dist

import ingot_checkpoint as ic
from checkpoint_ranks import expect, main, run

def async_on_ranks(rank, world, folder):
    before = threading.active_count()
    weight = torch.full((300, 1000), float(rank))
    state = {"weight": ic.Part((300 * world, 1000), (300 * rank, 0), weight), "shared": torch.zeros(11)}
    with ic.AsyncSaver(folder, keep=2, staging_bytes=None if world < 4 else 1 << 16) as saver:
        for step in range(1, 5):
            weight.fill_(step * 10 + rank)
            state["shared"].fill_(step)
            saver.start(step, state)
            saver.wait_copied()
            weight.fill_(-1)
            state["shared"].fill_(-1)
        saver.wait()
        outcomes = saver.finished()
        assert [(o["step"], o["failure"], o["planned"]) for o in outcomes] == [(1, "", True), (2, "", False), (3, "", False), (4, "", False)], outcomes
        assert saver.finished() == [] and not saver.is_busy()
    if world > 1:
        dist.barrier()
    assert sorted(p.name for p in folder.glob("step_*")) == ["step_00000003", "step_00000004"]
    for step in (3, 4):
        whole = ic.read(folder / f"step_{step:08d}", "weight")
        assert all((whole[300 * r:300 * (r + 1)] == step * 10 + r).all() for r in range(world)), step
        assert (ic.read(folder / f"step_{step:08d}", "shared") == step).all()
    expect(ic.CheckpointError, "closed", lambda: saver.save(9, state))
    assert threading.active_count() == before


def background(folder):
    for world in (1, 2, 4):
        run(world, async_on_ranks, folder / str(world))
        print(f"ok {world} ranks: what is saved is what was there at start()")


def left_open_on_ranks(rank, world, folder):
    global kept
    kept = ic.AsyncSaver(folder, keep=3)
    kept.save(7, {"weight": ic.Part((300 * world, 1000), (300 * rank, 0), torch.full((300, 1000), float(rank)))})


def left_open(folder):
    """The end of the interpreter waits for a saver that nobody closed."""
    for world in (1, 2, 4):
        inner = folder / str(world)
        run(world, left_open_on_ranks, inner, "spawn")
        assert ic.latest(inner) == inner / "step_00000007", ic.latest(inner)
        whole = ic.read(inner / "step_00000007", "weight")
        assert all((whole[300 * r:300 * (r + 1)] == r).all() for r in range(world))
        print(f"ok {world} ranks: left open, and complete")


def lost_on_ranks(rank, world, folder):
    state = {"weight": ic.Part((2 * world, 3), (2 * rank, 0), torch.full((2, 3), float("nan")))}

    def saved(step, read=False, error=None):
        with ic.AsyncSaver(folder, refuse_nonfinite=True) as saver:
            saver.save(step, state)
            if read:
                saver.wait()
                assert "NaN" in saver.finished()[0]["failure"]
            if error:
                raise error

    words = expect(ic.CheckpointError, "NaN", lambda: saved(3))
    assert "step 3" in words, words
    saved(4, read=True)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        expect(KeyError, "of the caller", lambda: saved(5, error=KeyError("of the caller")))
    assert any("step 5" in str(one.message) for one in seen), [str(one.message) for one in seen]
    assert not list(folder.glob("step_*"))


def lost(folder):
    """close() dropped failures that nobody had read."""
    for world in (1, 2):
        run(world, lost_on_ranks, folder / str(world))
        print(f"ok {world} ranks: a failure that nobody read is raised by close()")


if __name__ == "__main__":
    main([background, left_open, lost])
