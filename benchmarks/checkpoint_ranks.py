"""What one rank of compare_checkpoints.py measures, all ranks at once, when the parent asks for it: a line of JSON on the standard input."""
import concurrent.futures
import json
import mmap
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from checkpoint_systems import GIB, KINDS, OTHERS, Slices, State, nothing

BLOCK_BYTES = 4 << 20
STEP_S = 0.5
DEPTHS = (1, 4, 8)  # blocks under way at once, of each rank, when the disk alone is measured


def sync(path):
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.close(file)


def evict(folder):
    for path in folder.rglob("*"):
        if path.is_file():
            file = os.open(path, os.O_RDONLY)
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)


def processor_s():
    """Of this process and of children that ended."""
    return sum(os.times()[:4])


def read_counters():
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["rchar"]), int(lines["read_bytes"])


def median_s(action, times=15):
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


class Rank:
    """One rank; its methods are what the parent asks for, of all ranks at once."""

    def __init__(self, folder, gib):
        import torch
        import torch.distributed as dist
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        self.torch, self.dist, self.folder, self.gib = torch, dist, folder, gib
        self.rank, self.ranks, self.systems, self.slices = dist.get_rank(), dist.get_world_size(), {}, None
        self.state = State(self.rank, self.ranks, gib)
        self.state.fill()
        self.factor, self.products = torch.rand(256, 256), 0
        self.copies = None

    def multiply(self):
        """As much as takes STEP_S of processor time when nothing else runs."""
        if self.products == 0:
            end = time.thread_time() + 2 * STEP_S
            while time.thread_time() < end:
                self.torch.mm(self.factor, self.factor)
                self.products += 0.5
        for _ in range(int(self.products)):
            self.torch.mm(self.factor, self.factor)

    def reduced(self, value, how="MAX"):
        value = self.torch.tensor(float(value), dtype=self.torch.float64)
        self.dist.all_reduce(value, getattr(self.dist.ReduceOp, how))
        return value.item()

    def timed(self, action):
        self.dist.barrier()
        start = time.perf_counter()
        action()
        return self.reduced(time.perf_counter() - start)

    def system(self, name):
        if name not in self.systems:
            self.systems[name] = (KINDS | OTHERS)[name](self.folder / name.replace(", ", "-"))
        return self.systems[name]

    def emptied(self, folder):
        if self.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            os.sync()
            time.sleep(0.3)
        self.dist.barrier()

    def compute(self, kind):
        {"none": nothing, "device": lambda: time.sleep(STEP_S), "host": self.multiply}[kind]()

    def alone(self):
        self.multiply()
        return {"compute": self.timed(self.multiply)}

    def save(self, name, compute, tensors=None):
        system, folder = self.system(name), self.folder / name.replace(", ", "-")
        self.emptied(folder)
        processor = processor_s()
        times = [time.perf_counter()]
        copied, done = system.begin(tensors or self.state.tensors)
        for action in (lambda: self.compute(compute), copied, done):
            times.append(time.perf_counter())
            action()
        times.append(time.perf_counter())
        if not system.is_durable:
            self.dist.barrier()
            for path in sorted(folder.rglob("*"))[self.rank::self.ranks] + [folder]:
                sync(path)
        self.dist.barrier()
        start, step, copy = times[1] - times[0], times[2] - times[1], times[3] - times[2]
        result = {"start": start, "copied": copy, "stall": start + copy, "compute": step, "durable": time.perf_counter() - times[0]}
        result = {key: self.reduced(value) for key, value in result.items()}
        result["processor"] = self.reduced(processor_s() - processor, "SUM")
        if self.rank == 0 and name.startswith("ingot"):
            result |= {"phases": system.outcome["ranks"], "total": system.outcome["phases"]["total_s"]}
        return result

    def load(self, name):
        system = self.system(name)
        for tensor in self.state.local.values():
            tensor.zero_()
        if self.rank == 0:
            evict(self.folder / name.replace(", ", "-"))
        self.dist.barrier()
        before, processor = read_counters(), processor_s()
        result = {"load": self.timed(lambda: system.load(self.state))}
        result["processor"] = self.reduced(processor_s() - processor, "SUM")
        asked, disk = (self.reduced(after - first, "SUM") for first, after in zip(before, read_counters()))
        self.state.expect_filled(name)
        result |= {"asked": asked, "disk": disk, "needed": self.reduced(self.state.needed_bytes, "SUM")}
        if self.rank == 0 and name.startswith("ingot"):
            result["phases"] = system.outcome["ranks"]
        return result

    def memory_copy(self):
        """Of what a rank writes, into memory that was touched before."""
        if self.copies is None:
            self.copies = {name: tensor.clone() for name, tensor in self.state.own.items()}
        return {"memory copy": self.timed(lambda: [self.copies[name].copy_(tensor) for name, tensor in self.state.own.items()])}

    def disk(self):
        """Files of this rank's share, past the page cache."""
        path, result = self.folder / f"disk{self.rank}", {}
        blocks = round(self.gib * GIB / self.ranks / BLOCK_BYTES)
        buffers = [mmap.mmap(-1, BLOCK_BYTES) for _ in range(max(DEPTHS))]
        for buffer in buffers:
            buffer.write(os.urandom(BLOCK_BYTES))

        def transfer(flags, depth, call):
            file = os.open(path, flags | os.O_DIRECT, 0o600)
            if flags & os.O_CREAT:
                os.posix_fallocate(file, 0, blocks * BLOCK_BYTES)
            def some(first):
                assert all(call(file, [buffers[first]], block * BLOCK_BYTES) == BLOCK_BYTES for block in range(first, blocks, depth))
            with concurrent.futures.ThreadPoolExecutor(depth) as pool:
                list(pool.map(some, range(depth)))
            if flags & os.O_CREAT:
                os.fsync(file)
            os.close(file)

        for depth in DEPTHS:
            path.unlink(missing_ok=True)
            os.sync()
            time.sleep(0.3)
            result[f"write, {depth} blocks at once"] = self.timed(lambda: transfer(os.O_WRONLY | os.O_CREAT, depth, os.pwritev))
        for depth in DEPTHS:
            result[f"read, {depth} blocks at once"] = self.timed(lambda: transfer(os.O_RDONLY, depth, os.preadv))
        path.unlink()
        return result

    def irregular(self):
        """Moments in flat buffers of four tensors, each cut into equal intervals that end inside rows."""
        if self.slices is None:
            self.slices = Slices(self.rank, self.ranks, self.gib)
            self.save("ingot, slices", "none", self.slices.parts())
        parts = self.slices.parts()
        result = {"gather": self.timed(self.slices.gather)}
        for mode, kind in (("at once", "none"), ("device", "device")):
            result[mode] = self.save("ingot, slices", kind, parts)["stall"]
        return result

    def metadata(self, planning):
        """Bytes, seconds to open a checkpoint and to parse what lies in memory by then; ingot is parsed by its planning_bench, where there is one."""
        import pickle
        result = {}
        if self.rank == 0:
            from ingot_checkpoint import _core, latest
            own, dcp = latest(self.folder / "ingot"), self.folder / "dcp/checkpoint/.metadata"
            content = dcp.read_bytes()
            parsed = float(subprocess.run([planning, own / "metadata.bin"], capture_output=True, text=True, check=True).stdout) if Path(planning).exists() else None
            result["ingot"] = [(own / "metadata.bin").stat().st_size, median_s(lambda: _core.Reader(str(own), None, True)), parsed]
            result["dcp"] = [len(content), median_s(lambda: pickle.loads(dcp.read_bytes())), median_s(lambda: pickle.loads(content))]
        self.dist.barrier()
        return result


def main():
    rank = Rank(Path(sys.argv[1]), float(sys.argv[2]))
    with os.fdopen(int(os.environ["REPLIES"]), "w") as replies:
        print(json.dumps({}), file=replies, flush=True)
        for line in sys.stdin:
            order = json.loads(line)
            result = getattr(rank, order.pop("do"))(**order)
            if rank.rank == 0:
                print(json.dumps(result), file=replies, flush=True)
    rank.dist.barrier()
    for child in multiprocessing.active_children():
        child.kill()  # bytecheckpoint's server and PyTorch's daemon would outlive it
    os._exit(0)  # and their threads would not let it end


if __name__ == "__main__":
    main()
