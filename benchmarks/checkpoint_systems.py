"""What compare_checkpoints.py saves and loads: a state, and ingot and its peers behind one interface. Each rank has one of each."""

GIB = 1 << 30
COLUMNS, LAYERS = 1024, 48


class State:
    def __init__(self, rank, ranks, gib):
        import torch
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import DTensor, Replicate, Shard
        self.torch, self.rank, self.share = torch, rank, max(16, round(gib * GIB / 6 / COLUMNS / LAYERS / ranks))
        self.local, mesh = {}, init_device_mesh("cpu", (ranks,))
        for layer in range(LAYERS):
            self.local[f"weight.{layer}"] = torch.zeros(self.share * ranks, COLUMNS, dtype=torch.bfloat16)
            self.local[f"moment.{layer}"] = torch.zeros(self.share, COLUMNS)
        self.tensors = {name: DTensor.from_local(tensor, mesh, [Replicate() if self.is_whole(name) else Shard(0)], run_check=False)
                        for name, tensor in self.local.items()}
        self.needed_bytes = sum(tensor.nbytes for tensor in self.local.values())
        self.own = {name: tensor[rank * self.share:(rank + 1) * self.share] if self.is_whole(name) else tensor for name, tensor in self.local.items()}

    @staticmethod
    def is_whole(name):
        return name.startswith("weight")

    def part(self, kind):
        return {name: tensor for name, tensor in self.local.items() if name.startswith(kind)}

    def bits(self, name):
        """What the tensor holds here, as integers: no two elements of a tensor, nor two tensors, agree much."""
        tensor, layer = self.local[name], int(name.split(".")[1])
        first = 0 if self.is_whole(name) else self.rank * tensor.numel()
        codes = self.torch.arange(first, first + tensor.numel(), dtype=self.torch.int32) * 1664525 + (layer + 1) * 22695477
        return (codes >> 9).to(self.torch.int16) if self.is_whole(name) else codes

    def fill(self):
        for name, tensor in self.local.items():
            bits = self.bits(name)
            tensor.view(bits.dtype).view(-1).copy_(bits)

    def expect_filled(self, system):
        for name, tensor in self.local.items():
            bits = self.bits(name)
            assert self.torch.equal(tensor.view(bits.dtype).view(-1), bits), f"{system}: {name} is not what was saved"


def nothing():
    pass


class Ingot:
    is_durable = True

    def __init__(self, folder):
        import ingot_checkpoint
        self.package, self.step = ingot_checkpoint, 0
        self.folder, self.saver, self.outcome = folder, ingot_checkpoint.AsyncSaver(folder, keep=0), None

    def begin(self, tensors):
        """Begins to save; two functions: one that returns when tensors may change, one when it is done."""
        self.step += 1
        self.saver.start(self.step, tensors)
        return self.saver.wait_copied, self.finish

    def finish(self):
        self.saver.wait()
        self.outcome, = self.saver.finished()
        assert not self.outcome["failure"], self.outcome

    def load(self, state):
        """Straight into the tensors, as all peers do."""
        self.outcome = self.package.load(self.package.latest(self.folder), state.tensors)


class IngotWaiting(Ingot):
    """save() instead of a saver; loads into memory of its own first, so that tensors change on all ranks or on none."""
    def __init__(self, folder):
        import ingot_checkpoint
        self.package, self.folder, self.step, self.outcome = ingot_checkpoint, folder, 0, None

    def begin(self, tensors):
        self.step += 1
        self.outcome = self.package.save(self.folder, self.step, tensors, keep=0)
        return nothing, nothing

    def load(self, state):
        self.outcome = self.package.load(self.package.latest(self.folder), state.tensors, in_place=False)


class Dcp:
    is_durable, kind = False, None

    def __init__(self, folder):
        self.folder = folder / "checkpoint"

    def begin(self, tensors):
        import torch.distributed.checkpoint as dcp
        if not self.kind:
            dcp.save(tensors, checkpoint_id=self.folder)
            return nothing, nothing
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
        return nothing, dcp.async_save(tensors, checkpoint_id=self.folder, async_checkpointer_type=AsyncCheckpointerType[self.kind]).result

    def load(self, state):
        import torch.distributed.checkpoint as dcp
        dcp.load(state.tensors, checkpoint_id=self.folder)


class DcpThread(Dcp):
    kind = "THREAD"


class DcpProcess(Dcp):
    kind = "PROCESS"


class DcpIngot:
    """DCP with ingot_checkpoint as its storage."""
    is_durable, in_place = True, True

    def __init__(self, folder):
        self.path = folder / "step_00000001"

    def begin(self, tensors):
        import ingot_checkpoint
        import torch.distributed.checkpoint as dcp
        dcp.save(tensors, storage_writer=ingot_checkpoint.StorageWriter(self.path))
        return nothing, nothing

    def load(self, state):
        import ingot_checkpoint
        import torch.distributed.checkpoint as dcp
        dcp.load(state.tensors, storage_reader=ingot_checkpoint.StorageReader(self.path, in_place=self.in_place))


class DcpIngotCopying(DcpIngot):
    in_place = False


class ByteCheckpoint:
    is_durable = False

    class Model:
        def __init__(self, tensors):
            self.tensors = tensors

        def state_dict(self):
            return self.tensors

        def load_state_dict(self, tensors):
            assert all(tensors[name] is tensor for name, tensor in self.tensors.items()), "not loaded in place"

    def __init__(self, folder):
        self.folder, self.step = folder, 0

    def begin(self, tensors):
        import bytecheckpoint
        self.step += 1
        bytecheckpoint.save(str(self.folder), {"model": self.Model(tensors)}, framework="fsdp2", global_steps=self.step)
        return nothing, nothing

    def load(self, state):
        import bytecheckpoint
        path = next(self.folder.glob("global_step_*"))
        bytecheckpoint.load(str(path), {"model": self.Model(state.tensors)}, framework="fsdp2")


class Files:
    """Each rank a file of its moments, the first one another of the weights; the caller does by hand what the others do by themselves."""
    is_durable = False

    def __init__(self, folder):
        import torch.distributed as dist
        self.folder, self.rank = folder, dist.get_rank()

    def begin(self, tensors):
        local = {name: tensor.to_local() for name, tensor in tensors.items()}
        for kind, name in {"moment": f"moment{self.rank}", **({} if self.rank else {"weight": "weight"})}.items():
            self.write({key: tensor for key, tensor in local.items() if key.startswith(kind)}, self.folder / name)
        return nothing, nothing

    def load(self, state):
        for name in ("weight", f"moment{self.rank}"):
            for key, tensor in self.read(self.folder / name):
                state.local[key].copy_(tensor)


class Safetensors(Files):
    def write(self, tensors, path):
        from safetensors.torch import save_file
        save_file(tensors, path)

    def read(self, path):
        from safetensors import safe_open
        with safe_open(path, "pt") as file:
            yield from ((key, file.get_tensor(key)) for key in file.keys())


class TorchSave(Files):
    def write(self, tensors, path):
        import torch
        torch.save(tensors, path)

    def read(self, path):
        import torch
        return torch.load(path, map_location="cpu").items()


# Compared with one another, in this order.
KINDS = {"ingot": Ingot, "ingot, waiting": IngotWaiting, "dcp": Dcp, "dcp, thread": DcpThread, "dcp, process": DcpProcess,
         "dcp, ingot": DcpIngot, "dcp, ingot copying": DcpIngotCopying,
         "bytecheckpoint": ByteCheckpoint, "safetensors": Safetensors, "torch.save": TorchSave}
OTHERS = {"ingot, slices": Ingot}


class Slices:
    WIDTH, BUFFERS, EACH = 1000, 16, 4

    def __init__(self, rank, ranks, gib):
        import torch
        self.rank, self.rows = rank, round(gib * GIB * 2 / 3 / 4 / self.BUFFERS / self.EACH / self.WIDTH) // ranks * ranks + 1
        self.size = self.rows * self.WIDTH
        self.share = -(-self.size * self.EACH // ranks)
        self.own = [torch.rand(self.share) for _ in range(self.BUFFERS)]
        self.full = torch.zeros(self.share * ranks)
        self.kept = [[torch.zeros_like(piece) for piece in self.rows_of(tensor, ranks)] for _ in self.own for tensor in range(self.EACH)]

    def rows_of(self, tensor, ranks):
        return self.full[tensor * self.size:(tensor + 1) * self.size].view(self.rows, self.WIDTH).chunk(ranks)[self.rank:self.rank + 1]

    def gather(self):
        """What a user of row-wise checkpoints does before the save itself."""
        import torch.distributed as dist
        kept = iter(self.kept)
        for own in self.own:
            dist.all_gather_into_tensor(self.full, own)
            for tensor in range(self.EACH):
                for target, piece in zip(next(kept), self.rows_of(tensor, dist.get_world_size())):
                    target.copy_(piece)

    def boxes(self, begin, end):
        """An interval of a tensor as the end of a row, whole rows, the beginning of a row: (row, column, rows, columns)."""
        while begin < end:
            row, column = divmod(begin, self.WIDTH)
            rows = (end - begin) // self.WIDTH if column == 0 else 0
            columns = self.WIDTH if rows else min(self.WIDTH - column, end - begin)
            yield row, column, max(1, rows), columns
            begin += max(1, rows) * columns

    def parts(self):
        from ingot_checkpoint import Part
        state = {}
        for buffer, own in enumerate(self.own):
            for tensor in range(self.EACH):
                low, high = (min(max(self.rank * self.share + edge - tensor * self.size, 0), self.size) for edge in (0, self.share))
                at, parts = low + tensor * self.size - self.rank * self.share, []
                for row, column, rows, columns in self.boxes(low, high):
                    parts.append(Part((self.rows, self.WIDTH), (row, column), own[at:at + rows * columns].view(rows, columns)))
                    at += rows * columns
                if parts:
                    state[f"moment.{buffer}.{tensor}"] = parts
        return state
