"""ingot_checkpoint against torch: all dtypes, kinds of shards and parts, and what Megatron-like ranks hold, every bit the same. Runs with the Python of .deps/venv and PYTHONPATH at the
built package; names of tests may be given as arguments."""

import resource

import torch

import ingot_checkpoint as ic
from checkpoint_ranks import bits, content, expect_filled, fill, main, run

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int64, torch.int32,
          torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128]

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


BIG_BYTES = 192 << 20


def memory_state(rank, world):
    rows = BIG_BYTES // 4096
    return {"w": ic.Part((rows * world, 1024), (rows * rank, 0), torch.full((rows, 1024), float(rank)))}


def memory_saved_on_ranks(rank, world, folder):
    ic.save(folder, 1, memory_state(rank, world))


def memory_on_ranks(rank, world, folder):
    for in_place in (True, False):
        state = memory_state(world - 1 - rank, world)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        ic.load(folder / "step_00000001", state, **({} if in_place else {"in_place": False}))
        more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before << 10) / BIG_BYTES
        assert more < 0.5 if in_place else more > 0.8, (in_place, more)
        assert state["w"].tensor.min() == state["w"].tensor.max() == world - 1 - rank
        del state


def memory(folder):
    """Loading took memory for a second copy of everything."""
    for world in (1, 2):
        run(world, memory_saved_on_ranks, folder / str(world))
        run(world, memory_on_ranks, folder / str(world))
        print(f"ok {world} ranks: no second copy is made unless it is asked for")


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


if __name__ == "__main__":
    main([kinds, parts, memory, megatron])
