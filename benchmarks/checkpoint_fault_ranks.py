"""What checkpoint_faults.py asks a process of one system for: saves by two ranks and loads, each in forks of it, so that none of them can take
the others along. An order is a line of JSON on the standard input, and so is its answer on the standard output."""
import importlib.metadata
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from pathlib import Path

from checkpoint_systems import ByteCheckpoint as ByteCheckpointInPlace

RANKS, OLD, NEW = 2, 1, 2  # ranks; which content a save had, and its step
DEADLINE_S, GRACE_S = 60, 5  # of everything; of the other rank once one has failed
SHAPES = {"embedding.weight": ("bfloat16", (2048, 512)), "attention.qkv": ("float32", (1536, 512)), "moments.attention.qkv": ("float32", (1536, 512)),
          "mlp.up": ("float16", (2048, 256)), "mlp.down": ("float8_e4m3fn", (1024, 1024)), "samples.seen": ("int64", (4096,)),
          "padding.mask": ("bool", (2048, 16)), "router.bias": ("float32", (64,))}


def values_of(content):
    return {"iteration": 1000 * content, "learning_rate": 3e-4 / content, "betas": [0.9, 0.95], "run": f"run-{content}", "tokens": content << 40}


def tensor_of(content, name):
    import torch
    dtype, shape = SHAPES[name]
    dtype = getattr(torch, dtype)
    generator = torch.Generator().manual_seed(1000 * content + list(SHAPES).index(name))
    codes = torch.randint(0, 256, (*shape, dtype.itemsize), dtype=torch.uint8, generator=generator)
    return (codes % 2 == 1).reshape(shape) if dtype == torch.bool else codes.view(dtype).reshape(shape)


def bits(tensor):
    import torch
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def differences(tensors, values, content):
    """Names of what is not as this content has it, with the number of bytes and the first of them."""
    found = {} if values == values_of(content) else {"values": f"{values}"[:200]}
    for name in SHAPES:
        loaded, truth = bits(tensors[name]), bits(tensor_of(content, name))
        if len(loaded) != len(truth) or tensors[name].dtype != tensor_of(content, name).dtype:
            found[name] = "another size or dtype"
        elif not loaded.equal(truth):
            places = (loaded != truth).nonzero()
            found[name] = f"{len(places)} of {len(truth)} bytes differ, first {int(places[0])}"
    return found


class ByHand:
    """Each rank a file. Nothing says which checkpoint is the newest one."""
    own_latest = False

    @staticmethod
    def place(folder, step):
        return folder / f"step_{step}"

    def save(self, folder, step, rank, local, values):
        self.place(folder, step).mkdir(parents=True, exist_ok=True)
        self.write(self.place(folder, step) / self.rank_files[0].format(rank), local, values)

    def load(self, path):
        import torch
        shards = [self.read(path / self.rank_files[0].format(rank)) for rank in range(RANKS)]
        whole = {name: torch.empty(shape, dtype=getattr(torch, dtype)) for name, (dtype, shape) in SHAPES.items()}
        for rank, (local, _) in enumerate(shards):
            if local.keys() != whole.keys():
                raise RuntimeError(f"missing or unexpected keys: {sorted(local.keys() ^ whole.keys())}")
            for name, target in whole.items():
                rows = target.chunk(RANKS)[rank]
                if rows.shape != local[name].shape:
                    raise RuntimeError(f"size mismatch for {name}: {local[name].shape} is not {rows.shape}")
                rows.copy_(local[name])
        return whole, shards[0][1]

    def newest(self, folder):
        return max(folder.glob("step_*"), default=None, key=lambda path: int(path.name[5:]))


class TorchSave(ByHand):
    rank_files = ["rank{}.pt"]

    def write(self, path, local, values):
        import torch
        torch.save({"tensors": local, "values": values}, path)

    def read(self, path):
        import torch
        loaded = torch.load(path, weights_only=True)
        return loaded["tensors"], loaded["values"]


class Safetensors(ByHand):
    rank_files = ["rank{}.safetensors"]

    def write(self, path, local, values):
        from safetensors.torch import save_file
        save_file(local, path, {"values": json.dumps(values)})

    def read(self, path):
        from safetensors import safe_open
        with safe_open(path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, json.loads(file.metadata()["values"])


def sharded(local):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard
    mesh = init_device_mesh("cpu", (RANKS,))
    return {name: DTensor.from_local(tensor, mesh, [Shard(0)], run_check=False) for name, tensor in local.items()}


def blank():
    import torch
    return {name: torch.zeros(shape, dtype=getattr(torch, dtype)) for name, (dtype, shape) in SHAPES.items()}


def parted(state):
    return {name: state[name] for name in SHAPES}, {name: value for name, value in state.items() if name not in SHAPES}


class Dcp(ByHand):
    rank_files = ["__{}_0.distcp"]

    def save(self, folder, step, rank, local, values):
        import torch.distributed.checkpoint as dcp
        dcp.save({**sharded(local), **values}, checkpoint_id=self.place(folder, step))

    def load(self, path):
        import torch.distributed.checkpoint as dcp
        state = {**blank(), **dict.fromkeys(values_of(OLD))}
        dcp.load(state, checkpoint_id=path, no_dist=True)
        return parted(state)


class Ingot:
    rank_files, own_latest = ["data_0000{}.bin"], True

    @staticmethod
    def place(folder, step):
        return folder / f"step_{step:08}"

    def save(self, folder, step, rank, local, values):
        import ingot_checkpoint
        ingot_checkpoint.save(folder, step, {**sharded(local), **values}, timeout_s=DEADLINE_S)

    def load(self, path):
        import ingot_checkpoint
        state = {**blank(), **values_of(NEW + 1)}  # neither of those that were saved
        ingot_checkpoint.load(path, state)
        return parted(state)

    def newest(self, folder):
        import ingot_checkpoint
        return ingot_checkpoint.latest(folder)


class ByteCheckpoint:
    rank_files, own_latest = ["model/__{}_0.distcp", "extra_state/extra_state_rank_{}.pt"], True

    @staticmethod
    def place(folder, step):
        return folder / f"global_step_{step}"

    def save(self, folder, step, rank, local, values):
        import bytecheckpoint
        bytecheckpoint.save(str(folder), {"model": ByteCheckpointInPlace.Model(sharded(local)), "extra_state": values}, framework="fsdp2", global_steps=step)

    def load(self, path):
        import bytecheckpoint
        join(0, 1, free_port())
        tensors = blank()
        state = {"model": ByteCheckpointInPlace.Model(tensors), "extra_state": {}}
        bytecheckpoint.load(str(path), state, framework="fsdp2")
        return tensors, state["extra_state"]

    def newest(self, folder):
        from bytecheckpoint.utilities.ckpt_format.common_utils import find_latest_ckpt_path
        return find_latest_ckpt_path(str(folder))


SYSTEMS = {"ingot": Ingot, "torch.save": TorchSave, "safetensors": Safetensors, "dcp": Dcp, "bytecheckpoint": ByteCheckpoint}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def join(rank, world, port):
    import torch.distributed as dist
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)


def said_by(failure):
    """Its message and those of its causes, without the lines of a traceback that is part of a message."""
    lines = []
    while failure is not None and len(lines) < 100:
        lines += [line for line in str(failure).splitlines() if line.strip() and not line.startswith((" ", "Traceback"))]
        failure = failure.__cause__
    return "; ".join(lines)


class Fork:
    """A process that does one thing and says how that ended: the result, {"error": …, "type": …}, or {"status": …} when it died. It says
    first that it is ready, and goes on when told."""

    def __init__(self, prepare, action):
        (self.answers, answers), (orders, self.orders) = os.pipe(), os.pipe()
        self.process, self.result, self.text = os.fork(), None, b""
        if self.process:
            os.close(answers)
            os.close(orders)
            return
        try:
            os.setpgid(0, 0)
            given = prepare()
            os.write(answers, b"\n")
            os.read(orders, 1)
            try:
                result = action(given)
            except BaseException as failure:
                result = {"error": said_by(failure), "type": type(failure).__name__}
            os.write(answers, json.dumps(result).encode() + b"\n")
        finally:
            os._exit(0)

    def go(self):
        os.write(self.orders, b".")

    def wait(self, lines, seconds):
        """False when it has not said so many lines, nor died, by then."""
        end = time.monotonic() + seconds
        while self.text.count(b"\n") < lines:
            if not select.select([self.answers], [], [], max(0, end - time.monotonic()))[0]:
                return False
            said = os.read(self.answers, 1 << 16)
            if not said:
                break
            self.text += said
        return True

    def end(self):
        try:
            os.killpg(self.process, signal.SIGKILL)
        except ProcessLookupError:
            pass
        status = os.waitpid(self.process, 0)[1]
        self.wait(2, 1)  # what it said last
        os.close(self.answers)
        os.close(self.orders)
        lines = self.text.split(b"\n")
        return json.loads(lines[1]) if len(lines) > 2 else {"status": os.waitstatus_to_exitcode(status)}


class Worker:
    """Its methods are the orders."""

    def __init__(self, name):
        self.system = SYSTEMS[name]()

    def load(self, path):
        def action(_):
            tensors, values = self.system.load(Path(path))
            return {"differs": {content: differences(tensors, values, content) for content in (OLD, NEW)}}
        return self.alone(action)

    def newest(self, folder):
        def action(_):
            found = self.system.newest(Path(folder))
            return {"path": None if found is None else str(found)}
        return self.alone(action)

    def alone(self, action):
        fork = Fork(lambda: None, action)
        fork.go()
        is_done = fork.wait(2, DEADLINE_S)
        result = fork.end()
        return result if is_done else {"status": "hangs"}

    def save(self, folder, warm, step, content, kill_after_s=None, limits=None):
        import torch.distributed as dist
        port = free_port()

        def prepare(rank):
            join(rank, RANKS, port)
            local = {name: tensor_of(content, name).chunk(RANKS)[rank].clone() for name in SHAPES}
            self.system.save(Path(warm), step, rank, local, values_of(content))  # a first save takes many times as long as one of a long run
            dist.barrier()
            return local

        def action(rank, local):
            started = time.monotonic()
            if limits and limits[rank] is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limits[rank], limits[rank]))
            self.system.save(Path(folder), step, rank, local, values_of(content))
            return {"seconds": time.monotonic() - started}
        ranks = [Fork(lambda rank=rank: prepare(rank), lambda local, rank=rank: action(rank, local)) for rank in range(RANKS)]
        for rank in ranks:
            if not rank.wait(1, DEADLINE_S) or not rank.text:
                return [{"status": "did not begin"}, *(one.end() for one in ranks)]
        for rank in ranks:
            rank.go()
        if kill_after_s is not None:
            time.sleep(kill_after_s)
            for rank in ranks:
                os.killpg(rank.process, signal.SIGKILL)  # all of them, before anything waits
        else:
            self.wait_for(ranks)
        return [rank.end() for rank in ranks]

    @staticmethod
    def wait_for(ranks):
        """Until all are done; not for long once one has failed."""
        end, left = time.monotonic() + DEADLINE_S, list(ranks)
        while left and time.monotonic() <= end:
            for rank in [rank for rank in left if rank.wait(2, 0.01)]:
                left.remove(rank)
                if b"error" in rank.text:
                    end = min(end, time.monotonic() + GRACE_S)

    def versions(self):
        import torch
        module = {"safetensors": "safetensors", "bytecheckpoint": "bytecheckpoint"}
        name = next(name for name, kind in SYSTEMS.items() if isinstance(self.system, kind))
        own = f"{name} {importlib.metadata.version(module[name])}, " if name in module else ""
        return own + f"PyTorch {torch.__version__.split('+')[0]}"


def work(name):
    """What libraries print goes nowhere."""
    import torch
    import torch.distributed.checkpoint
    import torch.distributed.tensor
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w")
    null = os.open(os.devnull, os.O_RDWR)
    orders = os.fdopen(os.dup(0))
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    worker = Worker(name)
    for line in orders:
        order = json.loads(line)
        answers.write(json.dumps(getattr(worker, order.pop("do"))(**order)) + "\n")
        answers.flush()


if __name__ == "__main__":
    work(sys.argv[1])
