"""The Python package ingot_checkpoint against torch: what DDP, FSDP2, tensor parallel and Megatron-like ranks hold is saved under one layout
and loaded under another, every bit the same; errors reach all ranks at once. Real processes over Gloo, each test with a deadline. Runs with
the Python of .deps/venv and PYTHONPATH at the built package; names of tests may be given as arguments."""
import json
import os
import socket
import sys
import tempfile
import threading
import time
import traceback
import warnings
import zlib
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

import ingot_checkpoint as ic

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int64, torch.int32,
          torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128]
DEADLINE_S = 150
PRELOADED = ["__main__", "torch.distributed.checkpoint.state_dict", "torch.distributed.device_mesh", "torch.distributed.fsdp", "torch.distributed.tensor.parallel"]


def bits(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def content(name, dtype, shape):
    """Any bits, by the name: NaN payloads, infinities, -0 and denormals too."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    tensor = torch.randint(0, 256, (*shape, dtype.itemsize), dtype=torch.uint8, generator=generator)
    if dtype == torch.bool:
        return (tensor % 2 == 1).reshape(tuple(shape))
    tensor = tensor.view(dtype).reshape(tuple(shape))
    if dtype == torch.float32 and tensor.numel() > 2:
        words = tensor.view(torch.int32).reshape(-1)
        words[0], words[1] = -2147483648, 0x7FA00001  # -0, a signalling NaN with a payload
    return tensor


def local_part(name, tensor):
    """What this rank must hold of it: cut by DTensor itself, not by the code under test."""
    from torch.distributed.tensor import DTensor, distribute_tensor
    whole = content(name, tensor.dtype, tensor.shape)
    if not isinstance(tensor, DTensor):
        return whole
    return distribute_tensor(whole, tensor.device_mesh, tensor.placements, src_data_rank=None).to_local()


def local(tensor):
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def tensors_of(state, prefix=""):
    found = {}
    for key, value in state.items():
        if isinstance(value, dict):
            found |= tensors_of(value, f"{prefix}{key}.")
        elif isinstance(value, torch.Tensor):
            found[prefix + key] = value
    return found


def fill(state):
    with torch.no_grad():
        for name, tensor in tensors_of(state).items():
            local(tensor).copy_(local_part(name, tensor))


def blank(state):
    with torch.no_grad():
        for tensor in tensors_of(state).values():
            local(tensor).fill_(1)


def expect_filled(state):
    tensors = tensors_of(state)
    for name, tensor in tensors.items():
        assert bits(local(tensor)) == bits(local_part(name, tensor)), f"{name} differs on rank {dist.get_rank() if dist.is_initialized() else 0}"
    return len(tensors)


def expect(kind, words, call):
    try:
        call()
    except kind as failure:
        assert type(failure) is kind, (type(failure), failure)
        assert words in str(failure), f"'{words}' is not in: {failure}"
        return str(failure)
    raise AssertionError(f"{kind.__name__} with '{words}' was not raised")


# Ranks.

def run_rank(rank, world, port, body, folder, errors):
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    try:
        if world > 1:
            dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
        globals()[body](rank, world, Path(folder))
        if world > 1:
            dist.barrier()
            dist.destroy_process_group()
    except BaseException:
        errors.put(f"rank {rank}: {traceback.format_exc()}")
        raise


def run(world, body, folder, start_method="forkserver"):
    """`body` on ranks that are processes; none may take longer than the deadline. They are forked from a process that has imported torch
    and has no threads; with start_method "spawn" each is a new interpreter, which also ends as one."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = mp.get_context(start_method)
    errors = context.SimpleQueue()
    ranks = [context.Process(target=run_rank, args=(rank, world, port, body.__name__, str(folder), errors)) for rank in range(world)]
    for one in ranks:
        one.start()
    end = time.monotonic() + DEADLINE_S
    for one in ranks:
        one.join(max(0.1, end - time.monotonic()))
    hanging = [rank for rank, one in enumerate(ranks) if one.is_alive()]
    for one in ranks:
        one.kill()
    texts = []
    while not errors.empty():
        texts.append(errors.get())
    assert not texts, "\n".join(texts)
    assert not hanging, f"{body.__name__}: ranks {hanging} hang"
    assert all(one.exitcode == 0 for one in ranks), [one.exitcode for one in ranks]


# Layouts of one model and its optimizer.

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(12, 20)
        self.down = nn.Linear(20, 12)
        self.register_buffer("scale", torch.ones(7))

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 12)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.norm = nn.LayerNorm(12)
        self.odd = nn.Linear(5, 3)  # fewer rows than ranks


def state_of(model):
    from torch.distributed.checkpoint.state_dict import get_state_dict
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.125, betas=(0.5, 0.75))
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state, "step": 17, "note": "Grüße", "rate": float("inf"), "nothing": None, "list": [1, [2.5, True]]}


def replicated(rank, world):
    model = Model()
    return state_of(nn.parallel.DistributedDataParallel(model) if world > 1 else model)


def sharded(rank, world):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    model = Model()
    mesh = init_device_mesh("cpu", (world,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return state_of(model)


def tensor_parallel(rank, world):
    return state_of(parallelized(Model(), world))


def parallelized(model, ranks, mesh=None):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    mesh = mesh or init_device_mesh("cpu", (ranks,))
    for block in model.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


def two_axes(rank, world):
    """FSDP2 over tensor parallel: strided shards."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("data", "tensor"))
    model = parallelized(Model(), 2, mesh["tensor"])
    for block in model.blocks:
        fully_shard(block, mesh=mesh["data"])
    return state_of(model)


LAYOUTS = {"replicated": replicated, "sharded": sharded, "tensor_parallel": tensor_parallel, "two_axes": two_axes}


def pass_on(rank, world, folder):
    """Loads what the layout before saved, and saves it again."""
    job = json.loads((folder / "job.json").read_text())
    state = LAYOUTS[job["layout"]](rank, world)
    if job["step"] > 0:
        blank(state)
        state["step"], state["note"], state["rate"], state["list"] = 0, "", 0.0, []
        path = folder / f"step_{job['step'] - 1:08d}"
        report = ic.load(path, state, in_place=job["step"] % 2 == 0)
        assert (state["step"], state["note"], state["rate"], state["nothing"], state["list"]) == (17, "Grüße", float("inf"), None, [1, [2.5, True]])
        assert report["values"]["step"] == 17 and report["missing"] == [] and report["step"] == job["step"] - 1
        groups = state["optimizer"]["param_groups"]
        assert groups[0]["betas"] == (0.5, 0.75) and groups[0]["lr"] == 0.125, groups
        assert ic.read_extra(path, "rank_0") == b"\x00\xff\x00"
    else:
        fill(state)
    count = expect_filled(state)
    assert count > 40, count
    report = ic.save(folder, job["step"], state, extras={f"rank_{rank}": b"\x00\xff" + bytes([rank])}, keep=0, piece_limit_bytes=job["piece_bytes"])
    assert report["step"] == job["step"] and Path(report["path"]).is_dir()
    assert len(report["ranks"]) == (world if rank == 0 else 0), report


def layouts(folder):
    """A chain through all layouts: each loads what the one before saved, and saves it again."""
    chain = [("replicated", 2), ("sharded", 4), ("tensor_parallel", 2), ("two_axes", 4), ("sharded", 2), ("replicated", 1)]
    for step, (layout, world) in enumerate(chain):
        job = {"layout": layout, "step": step, "piece_bytes": 700 if step % 2 else 8 << 20}
        (folder / "job.json").write_text(json.dumps(job))
        run(world, pass_on, folder)
        print("ok", *(f"{layout} of {world}" for layout, world in chain[max(0, step - 1):step + 1]), sep="  ", flush=True)
    held = ic.inspect(folder / "step_00000005")
    assert held["step"] == 5 and held["values"]["note"] == "Grüße", held["values"]
    for name, tensor in held["tensors"].items():
        for step in range(6):
            assert bits(ic.read(folder / f"step_{step:08d}", name)) == bits(content(name, tensor["dtype"], tensor["shape"])), (name, step)
    assert ic.latest(folder) == folder / "step_00000005"
    print("ok", len(held["tensors"]), "tensors, whole, of six layouts")


# All dtypes and kinds of parts.

SHAPES = {"matrix": (13, 6), "cube": (5, 4, 3), "vector": (29,), "scalar": (), "empty": (0, 3), "hollow": (2, 0, 5)}


def kinds_state(rank, world, kind):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard
    mesh = init_device_mesh("cpu", (world,)) if world > 1 else None
    grid = init_device_mesh("cpu", (2, world // 2)) if world == 4 else None
    state = {}
    for number, dtype in enumerate(DTYPES):
        for name, shape in SHAPES.items():
            zeros = torch.zeros(shape, dtype=dtype)
            dim = number % max(1, len(shape))
            if kind == "plain" or not shape or 0 in shape or mesh is None:
                # Not contiguous, where that can be.
                state[f"{dtype}.{name}"] = torch.zeros(shape[::-1], dtype=dtype).permute(*range(len(shape))[::-1]) if len(shape) > 1 else zeros
            elif kind == "shard":
                state[f"{dtype}.{name}"] = distribute(zeros, mesh, [Shard(dim)])
            else:
                placements = [[Shard(dim), Shard(dim)], [Replicate(), Shard(dim)], [Shard(dim), Replicate()], [Shard(dim), Shard(0)]][number % 4]
                state[f"{dtype}.{name}"] = distribute(zeros, grid, placements)
    return state


def distribute(tensor, mesh, placements):
    from torch.distributed.tensor import distribute_tensor
    return distribute_tensor(tensor, mesh, placements, src_data_rank=None)


def kinds_on_ranks(rank, world, folder):
    kinds = ["plain", "shard", "grid"] if world == 4 else ["plain", "shard"] if world == 2 else ["plain"]
    for step, kind in enumerate(kinds):
        state = kinds_state(rank, world, kind)
        fill(state)
        ic.save(folder, world * 10 + step, state, keep=0, piece_limit_bytes=64)
    for kind in kinds:
        for path in sorted(folder.glob("step_*")):
            state = kinds_state(rank, world, kind)
            ic.load(path, state)
            assert expect_filled(state) == len(DTYPES) * len(SHAPES)


def kinds(folder):
    for world in (1, 2, 4):
        run(world, kinds_on_ranks, folder)
        print(f"ok {world} ranks: all dtypes and shapes, plain, sharded in any dim, on a grid")


def parts_on_ranks(rank, world, folder):
    class Sharded:  # as megatron.core.dist_checkpointing.ShardedTensor
        def __init__(self, key, data, global_shape, global_offset, prepend_axis_num=0):
            self.key, self.data, self.global_shape, self.global_offset = key, data, global_shape, global_offset
            self.prepend_axis_num, self.replica_id = prepend_axis_num, 0
    wholes = {name: content(name, torch.float32, shape) for name, shape in (("rows", (8, 6)), ("fused", (8, 6)), ("layers.weight", (4, 6, 3)))}

    def state_for(take):
        begin = rank * 4
        state = {"rows": ic.Part((8, 6), (begin, 0), take(wholes["rows"][begin:begin + 4])),
                 # Gate and up: every rank has rows of both.
                 "fused": [ic.Part((8, 6), (rank * 2, 0), take(wholes["fused"][rank * 2:rank * 2 + 2])),
                           ic.Part((8, 6), (4 + rank * 2, 0), take(wholes["fused"][4 + rank * 2:6 + rank * 2]))]}
        # Two layers a rank, one tensor for all layers, cut in columns of none.
        for layer in (0, 1):
            at = rank * 2 + layer
            state[f"decoder.{layer}"] = {"w": Sharded("layers.weight", take(wholes["layers.weight"][at]), (4, 6, 3), (at, 0, 0), 1)}
        return state
    ic.save(folder, 1, state_for(torch.clone))
    for name, whole in wholes.items():
        assert bits(ic.read(folder / "step_00000001", name)) == bits(whole), name
    state = state_for(torch.zeros_like)
    ic.load(folder / "step_00000001", state)
    assert bits(state["rows"].tensor) == bits(wholes["rows"][rank * 4:rank * 4 + 4])
    assert bits(state["fused"][1].tensor) == bits(wholes["fused"][4 + rank * 2:6 + rank * 2])
    assert bits(state["decoder.1"]["w"].data) == bits(wholes["layers.weight"][rank * 2 + 1])


def parts(folder):
    run(2, parts_on_ranks, folder)
    print("ok parts, several a rank, and Megatron's sharded tensors")


def megatron_on_ranks(rank, world, folder):
    """What two tensor-parallel ranks of Megatron-Core hold, in its own classes; loaded by one rank that holds all."""
    from megatron.core.dist_checkpointing import ShardedTensor

    def state_for(rank, world, take):
        def sharded(name, shape, dim=None, layer=None):
            whole = content(name if layer is None else f"{name}{layer}", torch.bfloat16, shape)
            mine = whole if dim is None else whole.chunk(world, dim)[rank]
            cuts = [] if dim is None else [(dim + (layer is not None), rank, world)]
            layers = [] if layer is None else [(0, layer, 2)]
            return ShardedTensor.from_rank_offsets(name, take(mine), *layers, *cuts, replica_id=(0, rank if dim is None else 0, 0),
                                                   prepend_axis_num=int(layer is not None))
        state = {"embedding": sharded("embedding.weight", (32, 8), 0), "norm": sharded("final_norm.weight", (8,))}
        for layer in (0, 1):
            state[f"layer{layer}"] = {"qkv": sharded("layers.qkv", (24, 8), 0, layer), "proj": sharded("layers.proj", (8, 16), 1, layer)}
        return state
    if rank < 2:
        ic.save(folder, 1, state_for(rank, world, torch.clone))
    assert ic.read(folder / "step_00000001", "layers.qkv").shape == (2, 24, 8)
    for at, of in ((0, 1), (1 - rank, world)):  # whole; and the other rank's part
        expected, state = state_for(at, of, torch.clone), state_for(at, of, torch.zeros_like)
        ic.load(folder / "step_00000001", state)
        for got, wanted in ((state["embedding"], expected["embedding"]), (state["norm"], expected["norm"]), (state["layer1"]["proj"], expected["layer1"]["proj"]),
                            (state["layer0"]["qkv"], expected["layer0"]["qkv"])):
            assert bits(got.data) == bits(wanted.data), got.key


def megatron(folder):
    try:
        import megatron.core
    except ImportError:
        return print("left out: megatron-core is not installed")
    run(2, megatron_on_ranks, folder)
    print(f"ok sharded tensors of megatron-core {megatron.core.__version__}")


# In the background.

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


# Errors.

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
    # Damage is found before anything is overwritten.
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
    expect(ic.CheckpointError, "checksum", lambda: ic.load(path, state))
    assert not state["a"].any() and not state["b"].any()


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
    expect(ic.CheckpointError, "", lambda: ic.load(folder / "step_00000003", mine, timeout_s=60))
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


# One process.

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


TESTS = [refusals, kinds, parts, megatron, layouts, background, left_open, mismatches, failures, subgroups]


def main():
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    mp.set_forkserver_preload(PRELOADED)
    chosen = [test for test in TESTS if not sys.argv[1:] or test.__name__ in sys.argv[1:]]
    for test in chosen:
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            test(Path(folder))
        print(f"{test.__name__}: {time.monotonic() - started:.1f} s", flush=True)


if __name__ == "__main__":
    main()
