"""The ranks that save or load one checkpoint together: small texts and parts of tensors pass over a Gloo group of their own, whatever
the backend of the group that was given. One thread at a time uses a team."""
import functools
import hashlib
import json
from datetime import timedelta

import torch
import torch.distributed as dist

from ._core import CheckpointError


class Mismatch(CheckpointError):
    """The checkpoint does not hold what the state wants: tensors are missing, unexpected, or of another shape or dtype."""


def _guarded(method):
    """What fails once ends the team: ranks may now stand at different places. Giving up the group closes its connections, so the
    others fail at once instead of waiting."""
    @functools.wraps(method)
    def guarded(self, *arguments):
        if self._group is None:
            raise CheckpointError(f"rank {self.rank}: these ranks cannot communicate any more since {self._failure or 'the end'}; make a new saver")
        try:
            return method(self, *arguments)
        except BaseException as failure:
            if not isinstance(failure, Exception):
                self.interrupt = failure.with_traceback(None)
            text = f"{method.__name__} failed on rank {self.rank} of {self.size}: {type(failure).__name__}: {failure}"
        self.abandon(text)
        raise CheckpointError(text)
    return guarded


def _bytes(text):
    return torch.frombuffer(bytearray(text), dtype=torch.uint8) if text else torch.empty(0, dtype=torch.uint8)


def _count(number):
    return torch.tensor([number], dtype=torch.int64)


SHORT = 1016  # bytes of a text that fit beside its length


def _head(text):
    return _bytes(len(text).to_bytes(8, "little") + text[:SHORT].ljust(SHORT, b"\0"))


def _text_of(head):
    """(length of the text, as much of it as there is here)"""
    content = head.numpy().tobytes()
    length = int.from_bytes(content[:8], "little")
    return length, content[8:8 + min(length, SHORT)]


def _view(memory, counts):
    return torch.frombuffer(memory, dtype=torch.uint8) if sum(counts) else torch.empty(0, dtype=torch.uint8)


class GroupTeam:
    def __init__(self, group, rank, size):
        self._group, self.rank, self.size = group, rank, size
        self._failure = ""
        self.interrupt = None  # KeyboardInterrupt and the like, for the caller to raise again

    def abandon(self, failure=""):
        self._failure = self._failure or failure
        self._group = None

    # What is short, as most texts are, goes along with its length: one operation instead of two.
    @_guarded
    def gather(self, own):
        heads = [_head(b"") for _ in range(self.size)] if self.rank == 0 else []
        self._group.gather(heads, _head(own), 0).wait()
        rest = own[SHORT:]
        if self.rank != 0:
            if rest:
                self._group.send([_bytes(rest)], 0, 1).wait()
            return []
        texts = [_text_of(head) for head in heads]
        rests = [torch.empty(max(0, length - SHORT), dtype=torch.uint8) for length, _ in texts]
        works = [self._group.recv([rest], rank, 1) for rank, rest in enumerate(rests) if rank != 0 and len(rest)]
        for work in works:
            work.wait()
        return [own] + [text + rest.numpy().tobytes() for (_, text), rest in zip(texts[1:], rests[1:])]

    @_guarded
    def broadcast(self, text):
        head = _head(text if self.rank == 0 else b"")
        self._group.broadcast(head, 0).wait()
        length, begin = _text_of(head)
        if length <= SHORT:
            return begin
        rest = _bytes(text[SHORT:]) if self.rank == 0 else torch.empty(length - SHORT, dtype=torch.uint8)
        self._group.broadcast(rest, 0).wait()
        return begin + rest.numpy().tobytes()

    @_guarded
    def scatter(self, texts):
        if self.rank == 0:
            sent = [(rank, _count(len(text)), _bytes(text)) for rank, text in enumerate(texts) if rank != 0]
            works = [self._group.send([count], rank, 2) for rank, count, _ in sent]
            works += [self._group.send([text], rank, 3) for rank, _, text in sent if len(text)]
            for work in works:
                work.wait()
            return texts[0]
        count = _count(0)
        self._group.recv([count], 0, 2).wait()
        own = torch.empty(int(count), dtype=torch.uint8)
        if len(own):
            self._group.recv([own], 0, 3).wait()
        return own.numpy().tobytes()

    @_guarded
    def all_to_all(self, send, send_counts, receive, receive_counts):
        self._group.alltoall_base(_view(receive, receive_counts), _view(send, send_counts), receive_counts, send_counts).wait()

    @_guarded
    def all(self, own):
        every = _count(int(own))
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MIN
        self._group.allreduce([every], options).wait()
        return bool(every)


class Alone:
    rank, size, interrupt = 0, 1, None

    def gather(self, own):
        return [own]

    def broadcast(self, text):
        return text

    def abandon(self, failure=""):
        pass


def make_team(process_group, timeout_s):
    """A team of the ranks of a process group (all ranks unless given). All of them call it, in the same order."""
    if not dist.is_available() or not dist.is_initialized():
        return Alone()
    rank, size = dist.get_rank(process_group), dist.get_world_size(process_group)
    if rank < 0:
        raise ValueError("this rank is not in the process group that is to save or load")
    if size == 1:
        return Alone()
    # Not dist.new_group: that names a group of some ranks by the number of groups that each has made, which may differ among them.
    store = dist.distributed_c10d._get_default_store()
    ranks = ",".join(map(str, dist.get_process_group_ranks(process_group or dist.group.WORLD)))
    name = "ingot_checkpoint/" + hashlib.sha256(ranks.encode()).hexdigest()[:16]
    number = store.add(f"{name}/made_by_{rank}", 1)
    return connect(f"{name}/{number}", rank, size, timeout_s)


def connect(name, rank, size, timeout_s):
    """A team of ranks that all know a name which nobody has used before."""
    store = dist.distributed_c10d._get_default_store()
    try:
        group = dist.ProcessGroupGloo(dist.PrefixStore(name, store), rank, size, timeout=timedelta(seconds=timeout_s))
    except RuntimeError as failure:
        raise CheckpointError(f"rank {rank} of {size} cannot reach the others: {failure}") from None
    return GroupTeam(group, rank, size)


def agree(team, produce, decide):
    """produce() on all ranks, decide(what all produced) on rank 0, whose answer all get; all of it JSON. What any of them raises is an
    error on all ranks: on its own rank as it is, on the others as CheckpointError that says where it was."""
    failure = None
    try:
        own = {"value": produce()}
    except Exception as error:
        failure, own = error, {"fault": f"rank {team.rank}: {type(error).__name__}: {error}"}
    texts = team.gather(json.dumps(own).encode())
    answer = {}
    if team.rank == 0:
        try:
            products = [json.loads(text) for text in texts]
            faults = [product["fault"] for product in products if "fault" in product]
            if faults:
                raise CheckpointError("\n".join(faults))
            answer = {"value": decide([product["value"] for product in products])}
        except Exception as error:
            answer = {"fault": str(error), "mismatch": isinstance(error, Mismatch)}
    answer = json.loads(team.broadcast(json.dumps(answer).encode()))
    if failure is not None:
        raise failure
    if "fault" in answer:
        raise (Mismatch if answer["mismatch"] else CheckpointError)(answer["fault"])
    return answer["value"]
