"""ingot_checkpoint against torch: what DDP, FSDP2 and tensor parallel ranks hold is saved under one layout and loaded under another, every bit
the same. Runs with the Python of .deps/venv and PYTHONPATH at the built
package; names of tests may be given as arguments."""
import json
from pathlib import Path

import torch
from torch import nn

import ingot_checkpoint as ic
from checkpoint_ranks import bits, blank, content, expect_filled, fill, main, run

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


def pass_on(rank, world, folder, load, save):
    """Loads what the layout before saved, and saves it again: load(path, state, in_place), save(path, state, job)."""
    job = json.loads((folder / "job.json").read_text())
    state = LAYOUTS[job["layout"]](rank, world)
    if job["step"] > 0:
        blank(state)
        state["step"], state["note"], state["rate"], state["list"] = 0, "", 0.0, []
        load(folder / f"step_{job['step'] - 1:08d}", state, job["step"] % 2 == 0)
        assert (state["step"], state["note"], state["rate"], state["nothing"], state["list"]) == (17, "Grüße", float("inf"), None, [1, [2.5, True]])
        groups = state["optimizer"]["param_groups"]
        assert groups[0]["betas"] == (0.5, 0.75) and groups[0]["lr"] == 0.125, groups
    else:
        fill(state)
    count = expect_filled(state)
    assert count > 40, count
    save(folder / f"step_{job['step']:08d}", state, job)


def pass_on_by_itself(rank, world, folder):
    def load(path, state, in_place):
        report = ic.load(path, state, in_place=in_place)
        assert report["values"]["step"] == 17 and report["missing"] == [] and path.name == f"step_{report['step']:08d}"
        assert ic.read_extra(path, "rank_0") == b"\x00\xff\x00"

    def save(path, state, job):
        report = ic.save(folder, job["step"], state, extras={f"rank_{rank}": b"\x00\xff" + bytes([rank])}, keep=0, piece_limit_bytes=job["piece_bytes"])
        assert report["step"] == job["step"] and Path(report["path"]) == path and path.is_dir()
        assert len(report["ranks"]) == (world if rank == 0 else 0), report
    pass_on(rank, world, folder, load, save)


def layouts(folder):
    """A chain through all layouts: each loads what the one before saved, and saves it again."""
    chain = [("replicated", 2), ("sharded", 4), ("tensor_parallel", 2), ("two_axes", 4), ("sharded", 2), ("replicated", 1)]
    for step, (layout, world) in enumerate(chain):
        job = {"layout": layout, "step": step, "piece_bytes": 700 if step % 2 else 8 << 20}
        (folder / "job.json").write_text(json.dumps(job))
        run(world, pass_on_by_itself, folder)
        print("ok", *(f"{layout} of {world}" for layout, world in chain[max(0, step - 1):step + 1]), sep="  ", flush=True)
    held = ic.inspect(folder / "step_00000005")
    assert held["step"] == 5 and held["values"]["note"] == "Grüße", held["values"]
    for name, tensor in held["tensors"].items():
        for step in range(6):
            assert bits(ic.read(folder / f"step_{step:08d}", name)) == bits(content(name, tensor["dtype"], tensor["shape"])), (name, step)
    assert ic.latest(folder) == folder / "step_00000005"
    print("ok", len(held["tensors"]), "tensors, whole, of six layouts")


if __name__ == "__main__":
    main([layouts])
