"""Checkpoints of PyTorch state dicts: saved by many ranks into one folder, in the background, and loaded under any other layout.

    report = save(folder, step, state)            durable when it returns
    with AsyncSaver(folder) as saver: ...         under the next step
    load(latest(folder), state)                   fills the tensors in place, on all ranks or on none
"""
import atexit
import collections
import contextlib
import json
import mmap
import weakref
from pathlib import Path

import torch

from . import _core
from ._core import CheckpointError
from .team import Alone, Mismatch, agree, make_team
from .torch_state import TORCH_DTYPES, Part, contiguous_host, flatten, from_json, refuse_shared_memory, to_json

__all__ = ["AsyncSaver", "CheckpointError", "Mismatch", "Part", "inspect", "latest", "load", "read", "read_extra", "save"]

VALUES = "torch/values.json"  # what the state holds beside tensors: names to values


@contextlib.contextmanager
def _interruptible(team):
    """A callback's KeyboardInterrupt is an error of the team for the engine; for the caller it is what it was."""
    try:
        yield
    except CheckpointError:
        if team.interrupt is not None:
            raise team.interrupt
        raise


def _for_engine(team):
    return None if isinstance(team, Alone) else team


def _extras(extras):
    blobs = {}
    for name, content in (extras or {}).items():
        if not isinstance(content, (str, bytes)):
            raise TypeError(f"extra '{name}' is a {type(content).__name__}, not a string or bytes")
        if name.startswith("torch/"):
            raise TypeError(f"extra '{name}': names that begin with torch/ are taken")
        blobs[name] = content.encode() if isinstance(content, str) else content
    return blobs


class AsyncSaver:
    """Saves in the background: start(), then wait_copied() before anything that was given changes (the optimizer's next update). All ranks
    of the group make it and call start() and save() together; one thread uses it. Options: keep, keep_every (0: none), staging_bytes
    (memory for copies; as much as the rank writes unless given), in_flight, refuse_nonfinite, piece_limit_bytes, file_limit_bytes;
    timeout_s is for every wait for another rank."""

    def __init__(self, folder, process_group=None, keep=3, staging_bytes=None, timeout_s=600, **options):
        self._prepare(folder, process_group, keep, staging_bytes, timeout_s, True, options)

    def _prepare(self, folder, process_group, keep, staging_bytes, timeout_s, in_background, options):
        self._saver = None
        settings = {"keep_every": 0, "in_flight": 1, "refuse_nonfinite": False, "piece_limit_bytes": 8 << 20, "file_limit_bytes": 4 << 30}
        if options.keys() - settings.keys():
            raise TypeError(f"unknown options: {', '.join(sorted(options.keys() - settings.keys()))}")
        settings |= options
        self._calling = make_team(process_group, timeout_s)
        self._background = make_team(process_group, timeout_s) if in_background else self._calling
        self._kept = collections.deque()
        self._in_flight = settings["in_flight"]
        self._saver = _core.Saver(str(folder), _for_engine(self._background), _for_engine(self._calling) if in_background else None, keep,
                                  staging_bytes=staging_bytes, **settings)
        self._at_exit = _close_at_exit(self)

    def start(self, step, state, extras=None):
        """Begins to save. Returns as soon as all ranks know who writes what; until wait_copied() nothing of the state may change. Raises
        when the ranks' parts do not make up the tensors; what fails later is in finished()."""
        self._require_open()
        given = {}

        def produce():
            given["entries"], leaves = flatten(state)
            given["extras"] = _extras(extras)
            given["step"] = int(step)
            return {"step": int(step), "values": {name: to_json(leaf.value) for name, leaf in leaves.items()}}

        def decide(products):
            if len({product["step"] for product in products}) > 1:
                raise CheckpointError(f"ranks save different steps: {[product['step'] for product in products]}")
            values = {}
            for product in reversed(products):  # where ranks differ, the first one counts
                values |= product["values"]
            return values

        with _interruptible(self._calling), torch.no_grad():
            values = agree(self._calling, produce, decide)
            blobs = given["extras"]
            if self._calling.rank == 0:
                blobs[VALUES] = json.dumps(values, allow_nan=False, sort_keys=True).encode()
            tensors, parts, kept = _items(given["entries"], contiguous_host)
            self._kept.append(kept)
            try:
                self._saver.start(given["step"], tensors, parts, blobs)
            except BaseException:
                self._kept.pop()
                raise
        while len(self._kept) > self._in_flight:
            self._kept.popleft()

    def wait_copied(self):
        """Returns when what was given may change."""
        self._require_open()
        self._saver.wait_copied()
        self._kept.clear()

    def save(self, step, state, extras=None):
        """start() and wait_copied()."""
        self.start(step, state, extras)
        self.wait_copied()

    def finished(self):
        """How saves ended since the last call, oldest first: dicts with step, path, failure ("" when durable and visible), phases …"""
        self._require_open()
        return self._saver.finished()

    def is_busy(self):
        self._require_open()
        return self._saver.is_busy()

    def wait(self):
        """Until nothing is under way."""
        self._require_open()
        self._saver.wait()
        self._kept.clear()

    def close(self):
        """Waits for what is under way and ends. Outcomes that nobody asked for are lost."""
        if self._saver is None:
            return
        self._saver.wait()
        self._saver = None
        self._kept.clear()
        atexit.unregister(self._at_exit)
        self._calling.abandon()
        self._background.abandon()

    def _require_open(self):
        if self._saver is None:
            raise CheckpointError("the saver is closed")

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        self.close()

    def __del__(self):
        self.close()


def _close_at_exit(saver):
    """Before the interpreter ends: afterwards the background could not call Python any more."""
    reference = weakref.ref(saver)

    def close():
        living = reference()
        if living is not None:
            living.close()

    atexit.register(close)
    return close


class _Arena:
    """Host memory for many tensors at once."""

    def __init__(self, size_bytes):
        self._memory = mmap.mmap(-1, max(1, size_bytes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._end = 0

    @staticmethod
    def rounded(size_bytes):
        return -(-size_bytes // 4096) * 4096

    def like(self, tensor):
        if tensor.numel() == 0:
            return torch.empty(tensor.shape, dtype=tensor.dtype)
        begin, self._end = self._end, self._end + self.rounded(tensor.nbytes)
        return torch.frombuffer(self._memory, dtype=tensor.dtype, count=tensor.numel(), offset=begin).view(tensor.shape)


def _is_ready(tensor):
    return tensor.device.type == "cpu" and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def _items(entries, memory_of):
    """(tensors, parts, memory that the parts point to), as the engine takes them."""
    tensors, parts, memory = [], [], []
    for name, entry in entries.items():
        for box in entry.boxes:
            memory.append(memory_of(box.tensor))
            parts.append((len(tensors), box.offset, tuple(box.tensor.shape), memory[-1].data_ptr()))
        tensors.append((name, entry.dtype, entry.shape))
    return tensors, parts, memory


def save(folder, step, state, extras=None, process_group=None, keep=3, staging_bytes=256 << 20, timeout_s=600, **options):
    """Saves into folder/step_<step> and returns a report when it is durable and visible; all ranks return, or raise, together. Each name of
    `extras` (strings or bytes) is given by one rank. Options as for AsyncSaver."""
    saver = AsyncSaver.__new__(AsyncSaver)
    saver._prepare(folder, process_group, keep, staging_bytes, timeout_s, False, options)
    with saver, _interruptible(saver._calling):
        saver.save(step, state, extras)
        saver.wait()
        report = saver.finished()[0]
        failure = report.pop("failure")
        if failure:
            raise CheckpointError(failure)
        return report


def load(path, state, process_group=None, strict=True, verify=True, timeout_s=600, in_place=False):
    """Fills the tensors of the state in place, and its plain values; this rank's parts in whatever layout it holds them. Nothing changes on
    any rank before all have read everything; with in_place, which needs neither that memory nor the copy, tensors are written as they come,
    and are undefined on all ranks after an error. Mismatch is raised, on all ranks, when shapes or dtypes differ and, if strict, when tensors
    or values are missing or tensors unexpected. Returns a report: step, id, values (all plain values by name), missing, extras (names:
    read_extra), phases."""
    team = make_team(process_group, timeout_s)
    given = {}

    def produce():
        given["entries"], given["leaves"] = flatten(state)
        for name, entry in given["entries"].items():
            refuse_shared_memory(name, entry)
        return {"tensors": [(name, entry.dtype, entry.shape) for name, entry in given["entries"].items()], "values": list(given["leaves"])}

    with _interruptible(team), torch.no_grad():
        try:
            wanted = agree(team, produce, lambda products: _union(products) if team.size > 1 else products[0])
            reader = _core.Reader(str(path), _for_engine(team), verify)
            values = json.loads(reader.extra(VALUES)) if VALUES in reader.extras() else {}
            missing = agree(team, lambda: None, lambda _: _check(path, reader, wanted, values, strict))
            entries = {name: entry for name, entry in given["entries"].items() if name not in set(missing)}
            boxes = [box for entry in entries.values() for box in entry.boxes]
            arena = _Arena(sum(_Arena.rounded(box.tensor.nbytes) for box in boxes if not (in_place and _is_ready(box.tensor))))
            tensors, parts, memory = _items(entries, lambda tensor: tensor if in_place and _is_ready(tensor) else arena.like(tensor))
            report = reader.load(tensors, parts)
        finally:
            team.abandon()
        for box, content in zip(boxes, memory):
            if content is not box.tensor:
                box.tensor.copy_(content)
        values = {name: from_json(value) for name, value in values.items()}
        for name, leaf in given["leaves"].items():
            if name in values:
                leaf.put(values[name])
    extras = [name for name in reader.extras() if name != VALUES]
    return report | {"step": reader.step(), "id": reader.id(), "values": values, "missing": missing, "extras": extras}


def _union(products):
    tensors, values = {}, {}
    for rank, product in enumerate(products):
        values |= dict.fromkeys(product["values"])
        for name, dtype, shape in product["tensors"]:
            first = tensors.setdefault(name, (rank, dtype, shape))
            if first[1:] != (dtype, shape):
                raise Mismatch(f"'{name}' is {first[1]} {first[2]} on rank {first[0]} and {dtype} {shape} on rank {rank}")
    return {"tensors": [(name, dtype, shape) for name, (_, dtype, shape) in tensors.items()], "values": list(values)}


def _check(path, reader, wanted, values, strict):
    fault, missing = reader.compare_with([(name, dtype, tuple(shape)) for name, dtype, shape in wanted["tensors"]], strict)
    lost = sorted(set(wanted["values"]) - values.keys())
    if strict and lost:
        more = f", and {len(lost) - 10} more" if len(lost) > 10 else ""
        fault += f"\n  missing values ({len(lost)}): " + ", ".join(f"'{name}'" for name in lost[:10]) + more
    if fault:
        raise Mismatch(f"{path} does not hold what is wanted; was it made with another model?{fault}")
    return missing + lost


def latest(folder):
    """The newest sound checkpoint of a folder; None when there is none."""
    found = _core.latest(str(folder))
    return None if found is None else Path(found)


def inspect(path):
    """What a checkpoint holds: step, id, tensors (name to dtype and shape), values, extras (names)."""
    reader = _core.Reader(str(path), None, True)
    names = reader.extras()
    values = json.loads(reader.extra(VALUES)) if VALUES in names else {}
    return {"step": reader.step(), "id": reader.id(),
            "tensors": {name: {"dtype": TORCH_DTYPES[dtype], "shape": tuple(shape)} for name, dtype, shape in reader.tensors()},
            "values": {name: from_json(value) for name, value in values.items()}, "extras": [name for name in names if name != VALUES]}


def read(path, name):
    """A whole tensor."""
    reader = _core.Reader(str(path), None, True)
    for known, dtype, shape in reader.tensors():
        if known == name:
            tensor = torch.empty(tuple(shape), dtype=TORCH_DTYPES[dtype])
            reader.load([(name, dtype, tuple(shape))], [(0, (0,) * len(shape), tuple(shape), tensor.data_ptr())])
            return tensor
    raise CheckpointError(f"{path} has no tensor '{name}'")


def read_extra(path, name):
    """The bytes of an extra."""
    return _core.Reader(str(path), None, True).extra(name)
