"""The engine as a storage of torch.distributed.checkpoint: dcp.save, dcp.async_save and dcp.load write and read the same folders as save() and
load(). DCP's planner says which parts each rank holds; the engine writes, checks and exchanges them.

Ranks talk over a Gloo group of their own. The storage is not told its ranks, so DCP's coordinator gives each plan a Seat, and a name for the
group by way of torch's store: plans may be cached, names are never used twice."""
import io
import os
import re
import uuid
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, ChunkStorageMetadata, Metadata, StorageMeta, TensorProperties, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from . import OWN, VALUES, AsyncSaver, _Arena, _core, _ended, _for_engine, _interruptible, _is_ready, _items, _json_extra, _settings, _undefined_after_error
from ._core import CheckpointError
from .team import Alone, agree, connect
from .torch_state import TORCH_DTYPES, Box, Entry, Flattening, from_json, is_plain, like, refuse_shared_memory, to_json

PATHS = OWN + "paths.json"  # where in a nested state a name stands: names to lists of keys


@dataclass(frozen=True)
class Seat:
    """Which of the ranks that save or load together this one is."""
    rank: int
    size: int
    coordinator: int  # its rank among all

    def connect(self, verb, timeout_s):
        if self.size == 1:
            return Alone()
        name = _store().get(self.key(verb)).decode()
        return connect(name, self.rank, self.size, timeout_s)

    def key(self, verb):
        return f"ingot_checkpoint/dcp_{verb}/{self.coordinator}_of_{self.size}"


def _store():
    return dist.distributed_c10d._get_default_store()


def _seated(plans, verb):
    """The plans of all ranks, by the coordinator."""
    coordinator = dist.get_rank() if len(plans) > 1 else 0
    seats = [Seat(rank, len(plans), coordinator) for rank in range(len(plans))]
    if len(plans) > 1:
        _store().set(seats[0].key(verb), f"ingot_checkpoint/{uuid.uuid4().hex}")
    return [replace(plan, storage_data=seat) for plan, seat in zip(plans, seats)]


def _place(path):
    """(folder, step) of a path that names a checkpoint."""
    path = Path(path)
    step = re.fullmatch(r"step_(\d+)", path.name)
    if step is None:
        raise ValueError(f"{path}: a checkpoint's folder is called step_N, by its step; give .../step_00001000, say")
    return path.parent, int(step[1])


def _done(value):
    future = Future()
    future.set_result(value)
    return future


class StorageWriter(dcp.StorageWriter):
    """Writes one checkpoint, `path` = folder/step_N; dcp.save's checkpoint_id is another one. It becomes visible when all of it is durable, and
    replaces one of that step. Options as for save(). Plain values are kept as JSON, and what is neither that nor a tensor is a TypeError with
    its key: nothing is pickled. DCP raises its CheckpointException on all ranks, which holds what was raised here."""

    def __init__(self, path, keep=0, staging_bytes=256 << 20, timeout_s=600, **options):
        self.path = os.fspath(path)
        self._staging_bytes, self._timeout_s, self._settings = staging_bytes, timeout_s, _settings(keep, options)
        self._held = []  # what this rank holds; the plan that it gets leaves out what others write

    @property
    def checkpoint_id(self):
        return self.path

    def storage_meta(self):
        return StorageMeta(checkpoint_id=self.path)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id):
        return re.fullmatch(r"step_\d+", Path(checkpoint_id).name) is not None

    def reset(self, checkpoint_id=None):
        if checkpoint_id is not None:
            self.path = os.fspath(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator, *args, **kwargs):
        if not kwargs.get("use_collectives", True):
            raise ValueError("use_collectives=False would make each rank write a checkpoint of its own; it is not supported")
        _place(self.path)

    def prepare_local_plan(self, plan):
        if plan.usable:  # else the planner's cached one is used, as it was
            self._held = plan.items
        return plan

    def prepare_global_plan(self, plans):
        return _seated(plans, "save")

    def write_data(self, plan, planner):
        folder, step = _place(self.path)
        team = plan.storage_data.connect("save", self._timeout_s)

        def content():
            flat = Flattening()
            values = {}
            for item in plan.items:
                name = item.index.fqn
                if item.type == WriteItemType.BYTE_IO:
                    values[name] = {"value": _json_of(name, planner, item), "path": _path_of(plan, name)}
                else:
                    with _naming(name):
                        tensor = planner.resolve_data(item).detach()
                        data = item.tensor_data
                        flat.add(name, tensor.dtype, data.size, [Box(tuple(data.chunk.offsets), tensor)], is_shared=True,
                                 is_plain=item.type == WriteItemType.TENSOR)
                    values.setdefault(name, {"path": _path_of(plan, name)})
            return flat.entries, values, {}, {}

        def blobs_of(known):
            return {VALUES: {name: one["value"] for name, one in known.items() if "value" in one}, PATHS: {name: one["path"] for name, one in known.items()}}

        written = {item.index for item in plan.items}
        replicas = ((item.index.fqn, planner.resolve_data(item).detach()) for item in self._held
                    if item.type == WriteItemType.TENSOR and item.index not in written)
        saver = AsyncSaver._in_foreground(folder, team, self._staging_bytes, self._settings)
        with saver, _interruptible(team):
            saver._start(step, content, blobs_of, replicas)
            _ended(saver)
        return _done([WriteResult(index=item.index, size_in_bytes=item.tensor_storage_size() or 0, storage_data=None) for item in plan.items])

    def finish(self, metadata, results):
        """It is visible already: the engine commits when the last rank's files are durable."""
        metadata.storage_data, metadata.storage_meta = {}, self.storage_meta()


class _naming:
    """TypeErrors within name the key."""

    def __init__(self, name):
        self._name = name

    def __enter__(self):
        return self

    def __exit__(self, kind, failure, _):
        if kind is TypeError:
            raise TypeError(f"'{self._name}': {failure}") from None


def _json_of(name, planner, item):
    with _naming(name):
        if not hasattr(planner, "lookup_object"):
            raise TypeError(f"{type(planner).__name__} has no lookup_object(), and gives values pickled only")
        value = planner.lookup_object(item.index)
        if not is_plain(value):
            raise TypeError(f"a {type(value).__module__}.{type(value).__qualname__} is neither a tensor nor a plain value; nothing is pickled")
        return to_json(value)


def _path_of(plan, name):
    return list((plan.planner_data or {}).get(name, (name,)))


class _Unreadable(Metadata):
    """What read_metadata() returns in place of an error, which DCP would drop: whoever looks at it raises it."""

    def __init__(self, failure):
        self._failure = failure

    @property
    def state_dict_metadata(self):
        raise self._failure


class StorageReader(dcp.StorageReader):
    """Reads one checkpoint, folder/step_N, whoever wrote it. When reading fails, tensors are undefined, on all ranks; with in_place=False,
    which takes memory for a second copy, they are what they were. As with DCP's own reader, a tensor of another dtype is converted."""

    def __init__(self, path, verify=True, timeout_s=600, in_place=True):
        self.path = os.fspath(path)
        self._verify, self._timeout_s, self._in_place = verify, timeout_s, in_place

    @property
    def checkpoint_id(self):
        return self.path

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id):
        return StorageWriter.validate_checkpoint_id(checkpoint_id)

    def reset(self, checkpoint_id=None):
        if checkpoint_id is not None:
            self.path = os.fspath(checkpoint_id)

    def read_metadata(self, *args, **kwargs):
        try:
            reader = _core.Reader(self.path, None, self._verify)
            known = {name: _tensor_metadata(dtype, shape) for name, dtype, shape in reader.tensors()}
            known |= {name: BytesStorageMetadata() for name in _json_extra(reader, VALUES)}
            paths = _json_extra(reader, PATHS)
            return Metadata(known, {name: tuple(paths.get(name, [name])) for name in known}, {}, StorageMeta(checkpoint_id=self.path))
        except CheckpointError as failure:
            return _Unreadable(failure)

    def set_up_storage_reader(self, metadata, is_coordinator, *args, **kwargs):
        metadata.state_dict_metadata  # raises what read_metadata() could not

    def prepare_local_plan(self, plan):
        return plan

    def prepare_global_plan(self, plans):
        return _seated(plans, "load")

    def read_data(self, plan, planner):
        team = plan.storage_data.connect("load", self._timeout_s)
        wanted = [item for item in plan.items if item.type == LoadItemType.TENSOR]
        given = {}

        def produce():
            """Everything that can fail on one rank alone."""
            reader_of_this_rank = {name: (dtype, tuple(shape)) for name, dtype, shape in reader.tensors()}
            given["targets"] = [planner.resolve_tensor(item).detach() for item in wanted]
            entries, arena = [], []
            for item, target in zip(wanted, given["targets"]):
                name = item.storage_index.fqn
                with _naming(name):
                    refuse_shared_memory(name, Entry("", (), [Box((), target)]))
                    dtype, shape = reader_of_this_rank[name]
                    if tuple(target.shape) != tuple(item.lengths):
                        raise TypeError(f"a part of shape {tuple(item.lengths)} is to be read into a tensor of shape {tuple(target.shape)}")
                    direct = self._in_place and _is_ready(target) and target.dtype == TORCH_DTYPES[dtype]
                    entries.append((name, dtype, shape, item, target if direct else None))
                    arena.append(0 if direct else _Arena.rounded(target.numel() * TORCH_DTYPES[dtype].itemsize))
            given["entries"], given["bytes"] = entries, sum(arena)

        try:
            with _interruptible(team), torch.no_grad():
                reader = _core.Reader(self.path, _for_engine(team), self._verify)
                values = _json_extra(reader, VALUES)
                agree(team, produce, lambda _: None)
                with _undefined_after_error(self._in_place):
                    memory = self._read(reader, given)
        finally:
            team.abandon()
        with torch.no_grad():
            for item, target, content in zip(wanted, given["targets"], memory):
                if content is not target:
                    target.copy_(content)
                planner.commit_tensor(item, target)
        state = getattr(planner, "state_dict", {})
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                value = from_json(values[item.storage_index.fqn])
                # The planner unpickles: what was pickled here, a moment ago.
                pickled = io.BytesIO()
                torch.save(like(state.get(item.dest_index.fqn), value), pickled)
                pickled.seek(0)
                planner.load_bytes(item, pickled)
        return _done(None)

    @staticmethod
    def _read(reader, given):
        arena = _Arena(given["bytes"])
        tensors, parts, memory = {}, [], []
        for name, dtype, shape, item, target in given["entries"]:
            if target is None:
                target = arena.like(torch.empty(tuple(item.lengths), dtype=TORCH_DTYPES[dtype], device="meta"))
            memory.append(target)
            place = tensors.setdefault(name, (len(tensors), dtype, shape))[0]
            chunk = item.storage_index.offset or (0,) * len(shape)
            offset = tuple(begin + further for begin, further in zip(chunk, item.storage_offsets))
            parts.append((place, offset, tuple(item.lengths), target.data_ptr()))
        reader.load([(name, dtype, shape) for name, (_, dtype, shape) in tensors.items()], parts)
        return memory


def _tensor_metadata(dtype, shape):
    """One chunk, whatever the pieces: the engine cuts and exchanges."""
    size = torch.Size(shape)
    return TensorStorageMetadata(TensorProperties(dtype=TORCH_DTYPES[dtype]), size, [ChunkStorageMetadata(torch.Size([0] * len(size)), size)])
