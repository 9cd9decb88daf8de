"""What a rank of recovery_beside_torchrun.py trains where PyTorch does: a small GPT-2, under torchrun (a checkpoint each step, DDP) or torchft.

    torchrun … recovery_ranks.py torch.save|dcp|torchft-ddp|torchft FOLDER

Writes FOLDER/steps-N.jsonl: {"start": step} when N begins or goes on, {"step": step, "ranks": how many took part} after each, both with time_s.
N is the rank, of torchft the replica group.
"""
import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

LAYERS, HIDDEN, HEADS, FFN, VOCAB, SEQ_LEN = 2, 32, 4, 64, 384, 48
DEADLINE = timedelta(seconds=60)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.qkv, self.out = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.up, self.down = nn.Linear(HIDDEN, FFN), nn.Linear(FFN, HIDDEN)

    def forward(self, x):  # [batch, seq, hidden]
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.out(functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Gpt2(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCAB, HIDDEN), nn.Embedding(SEQ_LEN, HIDDEN)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, VOCAB, bias=False)

    def forward(self, ids):  # [batch, seq]
        return self.head(self.norm(self.blocks(self.tokens(ids) + self.places.weight)))


def loss_of(model, step, rank):
    """Of the rank's sequence of this step."""
    ids = torch.randint(VOCAB, (1, SEQ_LEN + 1), generator=torch.Generator().manual_seed(1000 * step + rank))
    return functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


class Steps:
    def __init__(self, folder, number):
        self.file = open(folder / f"steps-{number}.jsonl", "a")

    def write(self, **what):
        print(json.dumps(what | {"time_s": time.time()}), file=self.file, flush=True)


class OneFile:
    """torch.save by rank 0: written beside, then renamed."""

    def __init__(self, folder, model, optimizer):
        self.path, self.model, self.optimizer = folder / "newest.pt", model, optimizer

    def load(self):
        if not self.path.exists():
            return 0
        state = torch.load(self.path, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        return state["step"]

    def save(self, step):
        if dist.get_rank() == 0:
            new = self.path.with_suffix(".new")
            torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "step": step}, new)
            new.rename(self.path)


class Dcp:
    """dcp.async_save by all ranks, each when the one before it is complete; the two newest are kept."""

    def __init__(self, folder, model, optimizer):
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
        self.dcp, self.get, self.set = dcp, get_state_dict, set_state_dict
        self.folder, self.model, self.optimizer, self.under_way = folder / "dcp", model, optimizer, None

    def state(self, step):
        model, optimizer = self.get(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "step": torch.tensor(step)}

    def saved(self):
        return sorted((path.parent for path in self.folder.glob("*/.metadata")), key=lambda path: int(path.name))

    def load(self):
        if not (saved := self.saved()):
            return 0
        state = self.state(0)
        self.dcp.load(state, checkpoint_id=saved[-1])
        self.set(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        return int(state["step"])

    def save(self, step):
        import shutil
        if self.under_way:
            self.under_way.result(DEADLINE.total_seconds())
        if dist.get_rank() == 0:
            for path in self.saved()[:-2]:
                shutil.rmtree(path)
        self.under_way = self.dcp.async_save(self.state(step), checkpoint_id=self.folder / str(step), process_group=self.saving())

    def saving(self):
        """A group of its own, as a background thread uses it."""
        if not hasattr(self, "group"):
            self.group = dist.new_group(backend="gloo", timeout=DEADLINE)
        return self.group


def train_ddp(kind, folder):
    dist.init_process_group("gloo", timeout=DEADLINE)
    rank = dist.get_rank()
    torch.manual_seed(1)
    model = Gpt2()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    checkpoint = kind(folder, model, optimizer)
    step, steps = checkpoint.load(), Steps(folder, rank)
    parallel = nn.parallel.DistributedDataParallel(model)
    steps.write(start=step, parameters=sum(p.numel() for p in model.parameters()))
    while True:
        optimizer.zero_grad()
        loss_of(parallel, step, rank).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        checkpoint.save(step)
        steps.write(step=step, ranks=dist.get_world_size())


def average(manager, model):
    """All gradients in one all-reduce, as torchft's DistributedDataParallel does with so small a model."""
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    manager.allreduce(flat).wait()
    for p, grad in zip(model.parameters(), flat.split([p.numel() for p in model.parameters()])):
        p.grad.copy_(grad.view_as(p))


def train_torchft(folder, with_ddp):
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
    group = int(os.environ["REPLICA_GROUP_ID"])
    torch.manual_seed(1)
    model = Gpt2()
    inner = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def load(state):
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])
    manager = Manager(pg=ProcessGroupGloo(timeout=DEADLINE), min_replica_size=2, load_state_dict=load, replica_id=f"group_{group}", timeout=DEADLINE,
                      state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()})
    parallel = DistributedDataParallel(manager, model) if with_ddp else model
    optimizer, steps = Optimizer(manager, inner), Steps(folder, group)
    steps.write(start=manager.current_step(), parameters=sum(p.numel() for p in model.parameters()))
    while True:
        optimizer.zero_grad()
        loss_of(parallel, manager.current_step(), group).backward()
        if not with_ddp:
            average(manager, model)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        before = manager.current_step()
        optimizer.step()
        if manager.current_step() > before:  # committed
            steps.write(step=manager.current_step(), ranks=manager.num_participants())


def main():
    torch.set_num_threads(1)
    kind, folder = sys.argv[1], Path(sys.argv[2])
    if kind.startswith("torchft"):
        train_torchft(folder, with_ddp=kind == "torchft-ddp")
    else:
        train_ddp({"torch.save": OneFile, "dcp": Dcp}[kind], folder)


if __name__ == "__main__":
    main()
