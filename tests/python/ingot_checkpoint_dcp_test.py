"""ingot_checkpoint as a storage of torch.distributed.checkpoint: dcp.save, dcp.async_save and dcp.load of unchanged programs. Runs with the Python
of .deps/venv and PYTHONPATH at the built package; $INGOT_BINARY looks at what was written; names of tests may be given as arguments."""
import json
import os
import subprocess
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner, _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

import ingot_checkpoint as ic
from checkpoint_ranks import bits, blank, content, expect, expect_filled, main, run
from ingot_checkpoint_layouts_test import pass_on

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int64, torch.int32, torch.int16,
          torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128]
VALUES = {"step": 17, "note": "Grüße", "rate": float("inf"), "nothing": None, "list": [1, [2.5, True]], "betas": (0.5, 0.75)}


def ingot(*args):
    done = subprocess.run([os.environ["INGOT_BINARY"], "checkpoint", *map(str, args)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"ingot checkpoint {args}: status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def save(path, state, **options):
    return dcp.save(state, storage_writer=ic.StorageWriter(path), **options)


def load(path, state, **options):
    dcp.load(state, storage_reader=ic.StorageReader(path), **options)


def expect_on(failed, kind, words, call):
    """CheckpointException, as DCP raises on all ranks, that holds an error of this very type on that rank; all say the same."""
    started = time.monotonic()
    try:
        call()
    except dcp.api.CheckpointException as raised:
        found = raised.failures[failed][0]
        assert type(found) is kind and all(words in str(error) for error, _ in raised.failures.values()), raised
        assert time.monotonic() - started < 30
        return
    raise AssertionError(f"no CheckpointException with '{words}'")


# One process.

def contents(dtypes=DTYPES):
    return {"dtypes": {str(dtype)[6:]: content(str(dtype), dtype, (5, 7)) for dtype in dtypes}, "scalar": torch.tensor(2.5), "empty": torch.empty(0, 3),
            "a.dotted": {"key": torch.arange(24.0).reshape(4, 6)[:, 1:4]}, "list": [{"lr": 0.1, "t": torch.ones(2)}], "big": content("big", torch.float32, (3000, 1000))}


def flat(state):
    return {name: value for name, value in dcp._nested_dict.flatten_state_dict(state)[0].items() if isinstance(value, torch.Tensor)}


def expect_equal(got, wanted):
    got, wanted = flat(got), flat(wanted)
    assert got.keys() == wanted.keys(), (sorted(got), sorted(wanted))
    for name, tensor in wanted.items():
        assert got[name].dtype == tensor.dtype and got[name].shape == tensor.shape and bits(got[name]) == bits(tensor), name


def zeros(state):
    if isinstance(state, torch.Tensor):
        return torch.zeros_like(state)
    if isinstance(state, dict):
        return {key: zeros(value) for key, value in state.items()}
    return [zeros(value) for value in state] if isinstance(state, list) else type(state)() if state is not None else None


def formats(folder):
    state, path = contents() | {"values": VALUES}, folder / "step_00000005"
    save(path, state)
    assert sorted(p.name for p in folder.iterdir()) == ["step_00000005"]
    assert json.loads(ingot("verify", path, "--json"))["sound"]
    names = {tensor["name"] for tensor in json.loads(ingot("inspect", path, "--json"))["tensors"]}
    assert names == set(flat(state)), names
    held = ic.inspect(path)
    assert held["extras"] == [] and held["values"]["values.note"] == "Grüße" and held["step"] == 5, held
    for reader in (load, lambda path, state: ic.load(path, state), lambda path, state: dcp.load(state, storage_reader=ic.StorageReader(path, in_place=False))):
        mine = zeros(state) | {"values": VALUES | {"step": 0, "note": "", "betas": (0, 0)}}
        reader(path, mine)
        expect_equal(mine, state)
        assert mine["values"] == VALUES and type(mine["values"]["betas"]) is tuple and mine["list"][0]["lr"] == 0.1, mine["values"]
    # Without a state: the nesting is kept.
    rebuilt = {}
    _load_state_dict(rebuilt, storage_reader=ic.StorageReader(path), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    expect_equal(rebuilt, state)
    assert rebuilt["a.dotted"].keys() == {"key"} and rebuilt["values"]["list"] == VALUES["list"]
    # What the package saved; views and other dtypes as destinations.
    ic.save(folder, 6, state)
    mine = zeros(state) | {"big": torch.zeros(1000, 3000, dtype=torch.float64).t()}
    load(folder / "step_00000006", mine)
    assert torch.equal(mine["big"].float().nan_to_num(), state["big"].double().float().nan_to_num()) and mine["values"]["note"] == "Grüße"
    expect_equal(mine | {"big": state["big"]}, state)
    # The same step again, and others, by checkpoint_id; older ones go only where keep says so.
    writer, reader = ic.StorageWriter(path), ic.StorageReader(path)
    for step in (5, 7):
        dcp.save({"x": torch.full((3,), float(step))}, checkpoint_id=folder / f"step_{step:08d}", storage_writer=writer)
    for step in (5, 7):
        mine = {"x": torch.zeros(3)}
        dcp.load(mine, checkpoint_id=folder / f"step_{step:08d}", storage_reader=reader)
        assert (mine["x"] == step).all()
    dcp.save({"x": torch.ones(3)}, storage_writer=ic.StorageWriter(folder / "step_8", keep=2))
    assert sorted(p.name for p in folder.iterdir()) == ["step_00000007", "step_00000008"]
    print("ok one format for DCP, the package and the program")


class Sneaky:
    def __reduce__(self):
        return (print, ("never",))


def refusals(folder):
    path = folder / "step_00000001"
    for name, value in {"a.b": {"b": Sneaky()}, "a.d": {"d": torch.float32}, "a.s": {"s": {1}}, "a.t": {"t": (torch.ones(1),)}, "a.y": {"y": b"bytes"}, "a.r": {"r": ic.PerRank(1)}}.items():
        expect_on(0, TypeError, f"'{name}'", lambda: save(path, {"w": torch.ones(2), "a": value}))
    expect_on(0, TypeError, "'u'", lambda: save(path, {"u": torch.zeros(2, dtype=torch.uint16)}))
    expect_on(0, ValueError, "step_N", lambda: save(folder / "latest", {"w": torch.ones(2)}))
    expect(ValueError, "use_collectives", lambda: save(path, {"w": torch.ones(2)}, use_collectives=False))
    expect(TypeError, "unknown options: kep", lambda: ic.StorageWriter(path, kep=1))
    expect_on(0, ic.CheckpointError, "no client of object stores", lambda: save("s3://bucket/run/step_00000001", {"w": torch.ones(2)}))
    expect_on(0, ic.CheckpointError, "no client of object stores", lambda: load("s3://bucket/run/step_00000001", {"w": torch.ones(2)}))
    assert not list(folder.iterdir())
    save(path, {"w": torch.ones(2), "n": 1})
    for file in path.iterdir():
        assert b"pickle" not in file.read_bytes() and b"PK\3\4" not in file.read_bytes(), file
    mine = {"w": torch.zeros(2), "n": 0}
    expect_on(0, RuntimeError, "more", lambda: load(path, mine | {"more": torch.zeros(1)}))
    expect_on(0, ValueError, "Size mismatch", lambda: load(path, mine | {"w": torch.zeros(3)}))
    expect_on(0, TypeError, "'w'", lambda: load(path, mine | {"w": torch.zeros(1).expand(2)}))
    expect_on(0, ic.CheckpointError, "nowhere", lambda: load(folder / "nowhere", mine))
    assert not mine["w"].any() and mine["n"] == 0
    metadata = bytearray((path / "metadata.bin").read_bytes())
    metadata[80] ^= 1
    (path / "metadata.bin").write_bytes(metadata)
    expect_on(0, ic.CheckpointError, "checksum", lambda: load(path, mine))
    print("ok refusals; nothing is pickled")


# Ranks.

def pass_on_by_dcp(rank, world, folder):
    def read(path, state, in_place):
        dcp.load(state, storage_reader=ic.StorageReader(path, in_place=in_place))

    def write(path, state, _):
        save(path, state)
        if world > 1:
            dist.barrier()
        blank(state)
        ic.load(path, state)
        expect_filled(state)
    pass_on(rank, world, folder, read, write)


def layouts(folder):
    """A chain: each layout loads what the one before saved by DCP, and saves it again."""
    chain = [("sharded", 2), ("replicated", 1), ("sharded", 3), ("tensor_parallel", 2), ("replicated", 2), ("two_axes", 4)]
    for step, (layout, world) in enumerate(chain):
        (folder / "job.json").write_text(json.dumps({"layout": layout, "step": step}))
        run(world, pass_on_by_dcp, folder)
        assert json.loads(ingot("verify", folder / f"step_{step:08d}", "--json"))["sound"]
        print("ok", *(f"{layout} of {world}" for layout, world in chain[max(0, step - 1):step + 1]), sep="  ", flush=True)


def matrix(rank, world, placement, rows=10):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_tensor
    return distribute_tensor(content("matrix", torch.float32, (rows, 9)), init_device_mesh("cpu", (world,)), [placement], src_data_rank=None)


def async_on_ranks(rank, world, folder):
    from torch.distributed.tensor import Shard
    planner = DefaultSavePlanner(enable_plan_caching=True)
    writer = ic.StorageWriter(folder / "step_0", keep=2)
    state = {"matrix": matrix(rank, world, Shard(1)), "shared": torch.zeros(11), "step": 0}
    for step in range(1, 6):
        state["matrix"].to_local().fill_(step * 10 + rank)
        state["shared"].fill_(step)
        state["step"] = step
        if step == 4:
            state["more"] = torch.ones(3)  # plans change
            writer = ic.StorageWriter(folder / "step_0", keep=2)
        future = dcp.async_save(state, checkpoint_id=folder / f"step_{step:08d}", storage_writer=writer, planner=planner)
        state["matrix"].to_local().fill_(-1)
        state["shared"].fill_(-1)
        future.result(60)
    assert sorted(p.name for p in folder.glob("step_*")) == ["step_00000004", "step_00000005"]
    for step in (4, 5):
        path = folder / f"step_{step:08d}"
        load(path, state)
        assert (state["matrix"].to_local() == step * 10 + rank).all() and (state["shared"] == step).all() and state["step"] == step
    # An error is in the future of all ranks.
    bad = dcp.async_save(state | ({"bad": {1}} if rank == world - 1 else {}), checkpoint_id=folder / "step_9", storage_writer=writer)
    expect_on(world - 1, TypeError, "'bad'", lambda: bad.result(60))


def background(folder):
    for world in (2, 3):
        run(world, async_on_ranks, folder / str(world))
        print(f"ok {world} ranks: async_save, plans cached and changed")


def process_on_ranks(rank, world, folder):
    for step in (1, 2):
        tensor = torch.full((5,), float(step))
        future = dcp.async_save({"w": tensor, "step": step}, storage_writer=ic.StorageWriter(folder / f"step_{step}"), async_checkpointer_type=AsyncCheckpointerType.PROCESS)
        tensor.fill_(-1)
        if step == 2:
            state = {"w": torch.zeros(5), "step": 0}
            ic.load(folder / "step_00000001", state)  # while a save is under way
            assert (state["w"] == 1).all() and state["step"] == 1
        future.result(60)
    load(folder / "step_00000002", state)
    assert (state["w"] == 2).all() and state["step"] == 2


def process(folder):
    os.environ["MASTER_ADDR"] = "127.0.0.1"  # for the group of the processes that save
    run(2, process_on_ranks, folder, "spawn")
    print("ok async_save from a process of its own")


class Breaking(DefaultSavePlanner):
    def resolve_data(self, write_item):
        raise RuntimeError("a cable was pulled")


class BreakingLoad(dcp.DefaultLoadPlanner):
    def resolve_tensor(self, read_item):
        raise RuntimeError("a cable was pulled")


def failures_on_ranks(rank, world, folder):
    from torch.distributed.tensor import Replicate, Shard
    last = world - 1
    path = folder / "step_00000001"
    state = {"matrix": matrix(rank, world, Shard(0)), "w": torch.arange(5000.0), "n": 3}
    expect_on(last, TypeError, "'inner.thing'", lambda: save(path, state | ({"inner": {"thing": Sneaky()}} if rank == last else {})))
    expect_on(last, RuntimeError, "a cable was pulled", lambda: save(path, state, planner=Breaking() if rank == last else None))
    # A plain tensor that DCP's planner would take from any one of the ranks.
    other = torch.arange(5000.0) + (rank == last)
    expect_on(0, ic.CheckpointError, "'w' on rank 0 and", lambda: save(path, state | {"w": other}))
    blocked = folder / f"file_{rank}"
    blocked.write_text("")
    place = (blocked if rank == last else folder) / "step_00000001"
    expect_on(0, ic.CheckpointError, f"rank {last}", lambda: save(place, state))
    dist.barrier()
    assert not list(folder.glob("*step_*"))
    dcp.save(state | {"w": other}, storage_writer=ic.StorageWriter(path, check_replicas=False))
    save(path, state)
    # What can fail before bytes are read changes nothing; nor does damage when there is a second copy.
    mine = {"matrix": matrix(rank, world, Replicate()), "w": torch.zeros(5000), "n": 0}
    blank(mine)
    expect_on(last, RuntimeError, "a cable was pulled", lambda: load(path, mine, planner=BreakingLoad() if rank == last else None))
    expect_on(last, ic.CheckpointError, "nowhere", lambda: load(folder / "nowhere" if rank == last else path, mine))
    dist.barrier()
    if rank == 0:
        data = max(path.glob("data_*"), key=lambda file: file.stat().st_size)
        damaged = bytearray(data.read_bytes())
        damaged[len(damaged) // 2] ^= 1
        data.write_bytes(damaged)
    dist.barrier()
    for each in range(world):
        expect_on(each, ic.CheckpointError, "checksum", lambda: dcp.load(mine, storage_reader=ic.StorageReader(path, in_place=False)))
    assert (mine["matrix"].to_local() == 1).all() and (mine["w"] == 1).all() and mine["n"] == 0
    for each in range(world):
        expect_on(each, ic.CheckpointError, "undefined now", lambda: load(path, mine))
    assert mine["n"] == 0


def failures(folder):
    for world in (2, 3):
        (folder / str(world)).mkdir()
        run(world, failures_on_ranks, folder / str(world))
        print(f"ok {world} ranks: one that fails makes all fail, at once")


if __name__ == "__main__":
    main([formats, refusals, layouts, background, process, failures])
