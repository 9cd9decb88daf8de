"""What the tests of the Python package ingot_checkpoint share: tensors of known bits, and ranks that are processes over Gloo, with a deadline."""
import socket
import sys
import tempfile
import time
import traceback
import warnings
import zlib
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

DEADLINE_S = 150
PRELOADED = ["__main__", "checkpoint_ranks", "torch.distributed.checkpoint.state_dict", "torch.distributed.device_mesh", "torch.distributed.fsdp", "torch.distributed.tensor.parallel"]


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
        body(rank, world, Path(folder))
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
    ranks = [context.Process(target=run_rank, args=(rank, world, port, body, str(folder), errors)) for rank in range(world)]
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


def main(tests):
    """Those that the command line names, or all."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    mp.set_forkserver_preload(PRELOADED)
    for test in tests:
        if sys.argv[1:] and test.__name__ not in sys.argv[1:]:
            continue
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            test(Path(folder))
        print(f"{test.__name__}: {time.monotonic() - started:.1f} s", flush=True)
