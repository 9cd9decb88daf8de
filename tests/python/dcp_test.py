"""Checkpoints of PyTorch DCP in both directions: torch loads every bit of what ingot exported, whole, sharded and as one torch.save
file; an import of what torch saved holds every bit too, read by tests/oracles/read_checkpoint.py. Runs with the Python of .deps/venv.
INGOT_BINARY is the program; its verbs `checkpoint export-dcp SOURCE -o FOLDER` and `checkpoint import-dcp SOURCE -o FOLDER --step N`
are used."""
import io
import os
import subprocess
import sys
import tempfile
import warnings
import zipfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

HERE = Path(__file__).parent
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int64, torch.int32, torch.int16,
          torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128]


def ingot(*args, status=0):
    done = subprocess.run([os.environ["INGOT_BINARY"], *map(str, args)], capture_output=True, text=True, timeout=300)
    assert done.returncode == status, f"ingot {args}: status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def bits(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def assert_equal(got, expected):
    assert set(got) == set(expected), (sorted(got), sorted(expected))
    for name, tensor in expected.items():
        assert got[name].dtype == tensor.dtype and got[name].shape == tensor.shape, name
        assert bits(got[name]) == bits(tensor), name


def random_tensor(dtype, *shape):
    """Any bits: NaNs, infinities and denormals too; but booleans are 0 or 1."""
    tensor = torch.randint(0, 256, (*shape, dtype.itemsize), dtype=torch.uint8)
    return (tensor % 2 == 1).reshape(shape) if dtype == torch.bool else tensor.view(dtype).reshape(shape)


def state_of(dtypes):
    state = {f"dtypes.{str(dtype)[6:]}": random_tensor(dtype, 5, 7) for dtype in dtypes}
    return state | {"matrix": random_tensor(torch.float32, 50, 31), "vector": random_tensor(torch.bfloat16, 997), "scalar": torch.tensor(2.5),
                    "empty": torch.empty(0, 3), "hollow": torch.empty(2, 0, 5, dtype=torch.int8), "model.layers.0.weight": random_tensor(torch.bfloat16, 12, 10)}


def check_whole(folder, state):
    """dcp.load into tensors that are there, into nothing, and by way of torch.save; and each archive as the standard library sees it."""
    loaded = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    dcp.load(loaded, checkpoint_id=folder, no_dist=True)
    assert_equal(loaded, state)
    fresh = {}
    _load_state_dict(fresh, storage_reader=dcp.FileSystemReader(folder), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    assert_equal({name: value for name, value in fresh.items() if isinstance(value, torch.Tensor)}, state)
    dcp_to_torch_save(folder, folder.with_suffix(".pt"))
    torch_saved = torch.load(folder.with_suffix(".pt"), weights_only=False)
    assert_equal({name: value for name, value in torch_saved.items() if isinstance(value, torch.Tensor)}, state)
    for index, info in dcp.FileSystemReader(folder).read_metadata().storage_data.items():
        with open(folder / info.relative_path, "rb") as file:
            file.seek(info.offset)
            assert zipfile.ZipFile(io.BytesIO(file.read(info.length))).testzip() is None, index


def load_sharded(rank, folder, path, world, port):
    """Each rank loads its parts of every tensor that has two dims, by rows and by columns."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (world,))
    expected = {name: tensor for name, tensor in torch.load(path).items() if tensor.dim() == 2}
    for dim in (0, 1):
        wanted = {name: distribute_tensor(torch.zeros_like(tensor), mesh, [Shard(dim)], src_data_rank=None) for name, tensor in expected.items()}
        dcp.load(wanted, checkpoint_id=folder)
        local = {name: distribute_tensor(tensor, mesh, [Shard(dim)], src_data_rank=None).to_local() for name, tensor in expected.items()}
        assert_equal({name: tensor.to_local() for name, tensor in wanted.items()}, local)
    dist.barrier()
    dist.destroy_process_group()


def imported(folder, work):
    """name -> (dtype, shape, bytes) and extras of an ingot checkpoint, by the independent reader."""
    dump = work / "dump"
    dump.mkdir()
    out = subprocess.run([sys.executable, HERE.parent / "oracles" / "read_checkpoint.py", folder, dump], capture_output=True, text=True, check=True).stdout
    tensors, extras = {}, {}
    for line in out.splitlines()[1:]:
        kind, name = line.split()[:2]
        if kind == "tensor":
            tensors[name] = (dump / f"tensor_{len(tensors)}.bin").read_bytes()
        else:
            extras[name] = (dump / f"extra_{len(extras)}.bin").read_bytes()
    return tensors, extras


def main():
    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)

        # Out: safetensors, which have no complex128, to DCP.
        state = state_of([dtype for dtype in DTYPES if dtype != torch.complex128])
        save_file(state, work / "model.safetensors")
        torch.save(state, work / "state.pt")
        for name, limits in (("one", []), ("many", ["--chunk-mib", 0.0003, "--file-mib", 0.005])):
            ingot("checkpoint", "export-dcp", work / "model.safetensors", "-o", work / name, *limits)
            check_whole(work / name, state)
            print("ok torch loads", name, len(list((work / name).glob("*.distcp"))), "files")
        assert len(list((work / "many").glob("*.distcp"))) > 2
        torch.multiprocessing.spawn(load_sharded, args=(work / "many", work / "state.pt", 3, 29500 + os.getpid() % 1000), nprocs=3)
        print("ok three ranks load their shards")

        # In: what torch saved, by the reader that knows only the description of the format; and out again.
        state = state_of(DTYPES)
        objects = {"step": 7, "names": ["a", "b"], "text": "Grüße"}
        dcp.save(state | objects, checkpoint_id=work / "torch", no_dist=True)
        ingot("checkpoint", "import-dcp", work / "torch", "-o", work / "ingot", "--step", 7)
        tensors, extras = imported(work / "ingot" / "step_00000007", work)
        assert tensors == {name: bits(tensor) for name, tensor in state.items()}
        assert extras["dcp/step.json"] == b"7\n" and "dcp/text.json" in extras and len(extras) == len(objects), extras
        print("ok import", len(tensors), "tensors")
        ingot("checkpoint", "export-dcp", work / "ingot", "-o", work / "back")
        check_whole(work / "back", state)
        fresh = {}
        _load_state_dict(fresh, storage_reader=dcp.FileSystemReader(work / "back"), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
        assert fresh["extra.dcp/step.json"] == "7\n"
        print("ok import and export again")

        ingot("checkpoint", "import-dcp", work / "nowhere", "-o", work / "x", "--step", 1, status=1)


if __name__ == "__main__":
    main()
