#!/usr/bin/env python3
"""Records checkpoints of PyTorch DCP and of Megatron-Core's torch_dist for src/interchange/dcp_test.cpp.

    .deps/venv/bin/python tests/oracles/make_dcp_fixtures.py tests/references/dcp
    pip install --no-deps --target MCORE megatron-core==0.16.1
    PYTHONPATH=MCORE .deps/venv/bin/python tests/oracles/make_dcp_fixtures.py tests/references/dcp --megatron

Made with torch 2.11 on the CPU. Each fixture is a folder beside which NAME.json says what it holds: of each tensor an id, the
dtype and the shape, and of each byte object its value. Element i of the tensor with id t has the bits of `bits_of(t, i)`, so that
an element read from a wrong place is seen.
"""
import argparse
import json
import os
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp8_e4m3": torch.float8_e4m3fn,
          "fp8_e5m2": torch.float8_e5m2, "int64": torch.int64, "int32": torch.int32, "int16": torch.int16, "int8": torch.int8,
          "uint8": torch.uint8, "boolean": torch.bool, "complex64": torch.complex64, "complex128": torch.complex128}


def bits_of(tensor_id, count, width):
    """[count, width] bytes: the top bytes of (id·2^32 + index)·0x9E3779B97F4A7C15 mod 2^64, little-endian; after 8 bytes come their complements."""
    mixed = (np.arange(count, dtype=np.uint64) + np.uint64(tensor_id << 32)) * np.uint64(0x9E3779B97F4A7C15)
    if width == 16:
        return np.stack([mixed, ~mixed], axis=1).view(np.uint8).reshape(count, 16)
    return (mixed >> np.uint64(64 - 8 * width)).view(np.uint8).reshape(count, 8)[:, :width]


class Book:
    """Makes tensors with ids of their own and remembers what they are."""

    def __init__(self):
        self.tensors = {}

    def tensor(self, name, dtype, shape):
        tensor_id = len(self.tensors) + 1
        self.tensors[name] = {"id": tensor_id, "dtype": dtype, "shape": list(shape)}
        count, width = int(np.prod(shape, dtype=np.int64)), DTYPES[dtype].itemsize
        if dtype == "boolean":
            raw = bits_of(tensor_id, count, 1) >> 7
        else:
            raw = bits_of(tensor_id, count, width)
        if count == 0:
            return torch.empty(shape, dtype=DTYPES[dtype])
        return torch.from_numpy(np.ascontiguousarray(raw).reshape(-1)).view(DTYPES[dtype]).reshape(shape)


def flat(prefix, value, out):
    if isinstance(value, dict):
        for key, inner in value.items():
            flat(f"{prefix}.{key}" if prefix else str(key), inner, out)
    elif not isinstance(value, torch.Tensor):
        out[prefix] = value
    return out


def write_book(out, name, book, state, **more):
    objects = flat("", state, {})
    (Path(out) / f"{name}.json").write_text(json.dumps({"tensors": book.tensors, "objects": objects} | more, indent=1) + "\n")


def single(out):
    book = Book()
    state = {"dtypes": {name: book.tensor(f"dtypes.{name}", name, (3, 5)) for name in DTYPES}}
    state["scalar"] = book.tensor("scalar", "fp32", ())
    state["count"] = book.tensor("count", "int64", ())
    state["empty"] = book.tensor("empty", "bf16", (0, 4))
    state["hollow"] = book.tensor("hollow", "fp32", (3, 0, 2))
    # Saved as they lie in memory: strides (1, 6), and a part of a larger storage, which DCP clones.
    state["transposed"] = book.tensor("transposed", "fp32", (6, 7)).t().contiguous().t()
    state["part"] = torch.cat([torch.zeros(9, 2), book.tensor("part", "fp32", (9, 4)), torch.zeros(9, 2)], dim=1)[:, 2:6]
    state["permuted"] = book.tensor("permuted", "int16", (3, 4, 5)).permute(2, 0, 1).contiguous().permute(1, 2, 0)
    state["model"] = {"layers": {"0": {"weight": book.tensor("model.layers.0.weight", "bf16", (8, 6)), "bias": book.tensor("model.layers.0.bias", "bf16", (8,))}}}
    state["optim"] = {"state": {"0": {"exp_avg": book.tensor("optim.state.0.exp_avg", "fp32", (8, 6)), "step": book.tensor("optim.state.0.step", "fp32", ())}},
                      "param_groups": {"lr": 0.125, "betas": [0.9, 0.95], "name": "decay", "fused": None, "amsgrad": False}}
    state["step"] = 1234567890123
    state["text"] = "Grüße \U0001f600"
    write_book(out, "single", book, state)
    dcp.save(state, checkpoint_id="single", no_dist=True)


def files_per_item(out):
    book = Book()
    state = {f"t{i}": book.tensor(f"t{i}", "int32", (4 + i, 3)) for i in range(3)} | {"note": "one file per item"}
    write_book(out, "files_per_item", book, state)
    dcp.save(state, storage_writer=FileSystemWriter("files_per_item", single_file_per_rank=False), no_dist=True)


def sharded(out, name, world, shape, axes, plans, threads=1):
    """Every tensor under every plan of placements; rank 0 writes the book."""
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=axes)
    book, state = Book(), {}
    for plan, (dtype, size, placements) in plans.items():
        full = book.tensor(plan, dtype, size)
        state[plan] = distribute_tensor(full, mesh, placements, src_data_rank=None)
    state["plain"] = book.tensor("plain", "fp32", (5,))
    state["step"] = 7
    if dist.get_rank() == 0:
        write_book(out, name, book, state)
    dcp.save(state, storage_writer=FileSystemWriter(name, thread_count=threads))


def two_ranks(rank, out):
    plans = {"rows": ("fp32", (7, 3), [Shard(0)]), "columns": ("bf16", (4, 9), [Shard(1)]), "vector": ("fp64", (11,), [Shard(0)]),
             "fewer": ("int32", (1, 6), [Shard(0)]), "both": ("fp16", (3, 3), [Replicate()]), "nothing": ("fp32", (0, 5), [Shard(0)]),
             "scalar": ("fp32", (), [Replicate()])}
    sharded(out, "two_ranks", 2, (2,), ("dp",), plans, threads=2)


def four_ranks(rank, out):
    plans = {"rows": ("fp32", (10, 3), [Shard(0)]), "few_rows": ("bf16", (5, 4), [Shard(0)]), "columns": ("int8", (3, 13), [Shard(1)]),
             "last": ("fp8_e4m3", (2, 3, 6), [Shard(2)]), "both": ("fp32", (2, 2), [Replicate()])}
    sharded(out, "four_ranks", 4, (4,), ("dp",), plans)


def two_by_two(rank, out):
    plans = {"hsdp": ("fp32", (7, 5), [Replicate(), Shard(0)]), "fsdp_tp": ("bf16", (7, 9), [Shard(0), Shard(1)]),
             "strided": ("fp32", (9, 4), [Shard(0), Shard(0)]), "tp": ("complex64", (3, 4), [Replicate(), Shard(1)])}
    sharded(out, "two_by_two", 4, (2, 2), ("replicate", "shard"), plans)


def megatron(rank, out):
    """Layers of one prepended axis, a fused tensor cut along columns, a replica, and objects of one shard per rank."""
    torch.cuda.synchronize = lambda *_: None  # Megatron's writer waits for the device that is not there
    torch.cuda.current_device = lambda: "cpu"  # where its planner gathers
    import megatron.core
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing import ShardedObject, ShardedTensor
    book = Book()
    state = {"iteration": 42, "checkpoint_version": 3.0, "args": argparse.Namespace(hidden_size=8, num_layers=4, name="tiny", dtype=torch.bfloat16),
             "opt_param_scheduler": {"num_steps": 336, "lr": [0.1, 0.2]}}
    # decoder.layers.mlp.linear_fc1.weight: [4 layers, 6, 3]; each of two ranks has two layers.
    fc1 = book.tensor("decoder.layers.mlp.linear_fc1.weight", "bf16", (4, 6, 3))
    for layer in range(2):
        number = 2 * rank + layer
        state[f"fc1.{layer}"] = ShardedTensor.from_rank_offsets("decoder.layers.mlp.linear_fc1.weight", fc1[number].clone(), (0, number, 4),
                                                                prepend_axis_num=1)
    qkv = book.tensor("decoder.layers.self_attention.linear_qkv.weight", "fp32", (4, 4, 6))  # also cut along the columns
    for layer in range(4):
        part = qkv[layer][:, 3 * rank : 3 * rank + 3].clone()
        state[f"qkv.{layer}"] = ShardedTensor.from_rank_offsets("decoder.layers.self_attention.linear_qkv.weight", part, (0, layer, 4), (2, rank, 2),
                                                                prepend_axis_num=1)
    embedding = book.tensor("embedding.word_embeddings.weight", "bf16", (8, 5))
    state["embedding"] = ShardedTensor.from_rank_offsets("embedding.word_embeddings.weight", embedding[4 * rank : 4 * rank + 4].clone(), (0, rank, 2))
    norm = book.tensor("decoder.final_layernorm.weight", "fp32", (5,))
    state["norm"] = ShardedTensor.from_rank_offsets("decoder.final_layernorm.weight", norm, replica_id=rank)
    moment = book.tensor("optimizer.state.exp_avg.embedding.word_embeddings.weight", "fp32", (8, 5))
    state["moment"] = ShardedTensor.from_rank_offsets("optimizer.state.exp_avg.embedding.word_embeddings.weight", moment[4 * rank : 4 * rank + 4].clone(),
                                                      (0, rank, 2))
    state["rng"] = ShardedObject("rng_state", {"seed": 100 + rank}, (2,), (rank,))
    if rank == 0:
        objects = {f"rng_state/shard_{r}_2": [{"seed": 100 + r}] for r in range(2)}
        (Path(out) / "megatron.json").write_text(json.dumps({"made_with": f"megatron-core {megatron.core.__version__}", "tensors": book.tensors, "objects": objects}, indent=1) + "\n")
        Path("megatron").mkdir()
    dist.barrier()
    dist_checkpointing.save(state, "megatron")


def run(rank, make, world, out, port):
    warnings.filterwarnings("ignore")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    make(rank, out)
    dist.barrier()
    dist.destroy_process_group()


def main():
    warnings.filterwarnings("ignore")
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--megatron", action="store_true")
    args = parser.parse_args()
    out = Path(args.out).resolve()
    out.mkdir(parents=True, exist_ok=True)
    parallel = [(megatron, 2)] if args.megatron else [(two_ranks, 2), (four_ranks, 4), (two_by_two, 4)]
    alone = [] if args.megatron else [single, files_per_item]
    with tempfile.TemporaryDirectory() as folder:  # a relative name of the checkpoint, which is recorded, names nobody's folders
        os.chdir(folder)
        for make in alone:
            make(out)
        for i, (make, world) in enumerate(parallel):
            torch.multiprocessing.spawn(run, args=(make, world, out, 29610 + os.getpid() % 1000 + i), nprocs=world)
        for made in Path(folder).iterdir():
            shutil.rmtree(out / made.name, ignore_errors=True)
            shutil.move(str(made), out / made.name)
            print(made.name, sum(f.stat().st_size for f in (out / made.name).iterdir()), "bytes")


if __name__ == "__main__":
    main()
