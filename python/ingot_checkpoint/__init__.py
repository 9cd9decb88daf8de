"""Checkpoints of PyTorch state dicts: saved by many ranks into one folder, in the background, and loaded under any other layout.

    report = save(folder, step, state)            durable when it returns
    with AsyncSaver(folder) as saver: ...         under the next step
    load(latest(folder), state)                   fills the tensors in place
    StorageWriter(path), StorageReader(path)      the same by way of torch.distributed.checkpoint
"""
import atexit
import collections
import contextlib
import json
import mmap
import warnings
import weakref
from pathlib import Path

import torch

from . import _core
from ._core import CheckpointError
from .loader_state import LoaderState
from .rank_state import PerRank, Resolving, encoded, kept_ranks, refuse_without_policy, wanted_of, writers_of
from .team import Alone, Mismatch, agree, make_team
from .torch_state import TORCH_DTYPES, Part, contiguous_host, flatten, from_json, refuse_shared_memory, to_json
from .value_bytes import decode

__all__ = ["AsyncSaver", "CheckpointError", "LoaderState", "Mismatch", "Part", "PerRank", "StorageReader", "StorageWriter", "inspect", "latest", "load", "read",
           "read_extra", "read_rank", "save"]

OWN = "torch/"  # extras of the package's own begin with it
VALUES = OWN + "values.json"  # what the state holds beside tensors: names to values
RANKS = OWN + "ranks.json"  # what ranks hold on their own: names to {"count", "policy"}; of each an extra, OWN + "rank/NAME/INDEX"


def __getattr__(name):
    """torch.distributed.checkpoint is imported by those who use it."""
    if name in ("StorageReader", "StorageWriter"):
        from . import dcp
        return getattr(dcp, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@contextlib.contextmanager
def _interruptible(team):
    """A callback's KeyboardInterrupt is an error of the team for the engine; for the caller it is what it was."""
    try:
        yield
    except CheckpointError:
        if team.interrupt is not None:
            raise team.interrupt
        raise


@contextlib.contextmanager
def _undefined_after_error(in_place):
    try:
        yield
    except CheckpointError as failure:
        if not in_place:
            raise
        raise CheckpointError(f"{failure}\nTensors of the state are undefined now: load another checkpoint, or make them anew, before they are used; "
                              "with in_place=False they would be what they were") from None


def _for_engine(team):
    return None if isinstance(team, Alone) else team


def _extras(extras):
    blobs = {}
    for name, content in (extras or {}).items():
        if not isinstance(content, (str, bytes)):
            raise TypeError(f"extra '{name}' is a {type(content).__name__}, not a string or bytes")
        if name.startswith(OWN):
            raise TypeError(f"extra '{name}': names that begin with {OWN} are taken")
        blobs[name] = content.encode() if isinstance(content, str) else content
    return blobs


def _settings(keep, options):
    settings = {"keep": keep, "keep_every": 0, "in_flight": 1, "refuse_nonfinite": False, "piece_limit_bytes": 8 << 20,
                "file_limit_bytes": 4 << 30, "check_replicas": True}
    if options.keys() - settings.keys():
        raise TypeError(f"unknown options: {', '.join(sorted(options.keys() - settings.keys()))}")
    return settings | options


class AsyncSaver:
    """Saves in the background: start(), then wait_copied() before anything that was given changes (the optimizer's next update). All ranks
    of the group make it and call start() and save() together; one thread uses it. Options: keep (so many newest ones stay; 0: all),
    keep_every (0: none), staging_bytes (memory for copies; as much as the rank writes unless given), in_flight, refuse_nonfinite,
    check_replicas (plain tensors must be the same on all ranks), piece_limit_bytes, file_limit_bytes; timeout_s is for every wait for another
    rank."""

    def __init__(self, folder, process_group=None, keep=0, staging_bytes=None, timeout_s=600, **options):
        self._saver = None
        settings = _settings(keep, options)
        self._prepare(folder, make_team(process_group, timeout_s), make_team(process_group, timeout_s), staging_bytes, settings)

    @classmethod
    def _in_foreground(cls, folder, team, staging_bytes, settings):
        """One that has one team, so that start() waits for what is under way."""
        saver = cls.__new__(cls)
        saver._saver = None
        saver._prepare(folder, team, team, staging_bytes, settings)
        return saver

    def _prepare(self, folder, calling, background, staging_bytes, settings):
        settings = dict(settings)
        self._calling, self._background = calling, background
        self._checks_replicas = settings.pop("check_replicas")
        self._kept = collections.deque()
        self._in_flight = settings["in_flight"]
        self._saver = _core.Saver(str(folder), _for_engine(background), _for_engine(calling) if calling is not background else None,
                                  staging_bytes=staging_bytes, **settings)
        self._at_exit = _close_at_exit(self)

    def start(self, step, state, extras=None):
        """Begins to save. Returns as soon as all ranks know who writes what; until wait_copied() nothing of the state may change. Raises
        when the ranks' parts do not make up the tensors; what fails later is in finished()."""
        def content():
            entries, leaves, ranks = flatten(state)
            return entries, {name: to_json(leaf.value) for name, leaf in leaves.items()}, _extras(extras), ranks

        self._start(step, content)

    def _start(self, step, content, blobs_of=lambda values: {VALUES: values}, replicas=()):
        """content() makes (entries, JSON values by name, extras, PerRanks by name); values of all ranks become the extras that blobs_of says. `replicas` are
        further tensors, by name, that must be the same on all ranks."""
        self._require_open()
        given = {}

        def produce():
            entries, values, given["extras"], ranks = content()
            given["ranks"], kept = encoded(ranks, self._calling)
            given["step"] = int(step)
            given["items"] = tensors, parts, memory = _items(entries, contiguous_host)
            digests = {}
            if self._checks_replicas and self._calling.size > 1:
                digests = {tensors[part[0]][0]: _digest(tensor) for part, tensor in zip(parts, memory) if entries[tensors[part[0]][0]].is_plain}
                digests |= {name: _digest(contiguous_host(tensor)) for name, tensor in replicas}
            return {"step": int(step), "values": values, "digests": digests, "ranks": kept}

        def decide(products):
            if len({product["step"] for product in products}) > 1:
                raise CheckpointError(f"ranks save different steps: {[product['step'] for product in products]}")
            _require_same([product["digests"] for product in products])
            values = {}
            for product in reversed(products):  # where ranks differ, the first one counts
                values |= product["values"]
            return values, writers_of([product["ranks"] for product in products])

        with _interruptible(self._calling), torch.no_grad():
            values, ranks = agree(self._calling, produce, decide)
            blobs = given["extras"]
            for name, (index, blob) in given["ranks"].items():
                if ranks[name]["writers"][index] == self._calling.rank:
                    blobs[_name_of(name, index)] = blob
            if self._calling.rank == 0:
                if ranks:
                    blobs[RANKS] = json.dumps({name: {key: one[key] for key in ("count", "policy")} for name, one in ranks.items()}).encode()
                blobs |= {name: json.dumps(content, allow_nan=False, sort_keys=True).encode() for name, content in blobs_of(values).items()}
            tensors, parts, memory = given.pop("items")
            self._kept.append(memory)
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
        """Waits for what is under way and ends. Raises CheckpointError for failures that finished() has not told."""
        if self._saver is None:
            return
        self._saver.wait()
        failures = [f"step {outcome['step']}: {outcome['failure']}" for outcome in self._saver.finished() if outcome["failure"]]
        self._saver = None
        self._kept.clear()
        atexit.unregister(self._at_exit)
        self._calling.abandon()
        self._background.abandon()
        if failures:
            raise CheckpointError("not saved, and nobody asked: " + "\n".join(failures))

    def _require_open(self):
        if self._saver is None:
            raise CheckpointError("the saver is closed")

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        try:
            self.close()
        except CheckpointError as failure:
            if kind is None:
                raise
            warnings.warn(str(failure), RuntimeWarning, stacklevel=2)  # beside the caller's own error

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


def _digest(tensor):
    return _core.digest(tensor.data_ptr(), tensor.nbytes)


def _require_same(digests):
    """One of the ranks that have a plain tensor writes it, so it must be the same on all of them. `digests` by name, for each rank."""
    first, faults = {}, {}
    for rank, own in enumerate(digests):
        for name, digest in own.items():
            holder = first.setdefault(name, (rank, digest))
            if holder[1] != digest:
                faults.setdefault(name, f"'{name}' on rank {holder[0]} and rank {rank}")
    if faults:
        more = f", and {len(faults) - 10} more" if len(faults) > 10 else ""
        raise CheckpointError(f"plain tensors differ between ranks: {', '.join(list(faults.values())[:10])}{more}; only one would be saved. Make them "
                              "the same, give each a key or a Part of its own, or set check_replicas=False")


def _items(entries, memory_of):
    """(tensors, parts, memory that the parts point to), as the engine takes them."""
    tensors, parts, memory = [], [], []
    for name, entry in entries.items():
        for box in entry.boxes:
            memory.append(memory_of(box.tensor))
            parts.append((len(tensors), box.offset, tuple(box.tensor.shape), memory[-1].data_ptr()))
        tensors.append((name, entry.dtype, entry.shape))
    return tensors, parts, memory


def save(folder, step, state, extras=None, process_group=None, keep=0, staging_bytes=256 << 20, timeout_s=600, **options):
    """Saves into folder/step_<step> and returns a report when it is durable and visible; all ranks return, or raise, together. Each name of
    `extras` (strings or bytes) is given by one rank. Options as for AsyncSaver."""
    settings = _settings(keep, options)
    saver = AsyncSaver._in_foreground(folder, make_team(process_group, timeout_s), staging_bytes, settings)
    with saver, _interruptible(saver._calling):
        saver.start(step, state, extras)
        return _ended(saver)


def _ended(saver):
    saver.wait()
    report = saver.finished()[0]
    failure = report.pop("failure")
    if failure:
        raise CheckpointError(failure)
    return report


def load(path, state, process_group=None, strict=True, verify=True, timeout_s=600, in_place=True):
    """Fills the tensors of the state, and its plain values; this rank's parts in whatever layout it holds them. Nothing changes before all
    ranks have compared what they want with what there is; then bytes are read to where they belong. Should that fail, by damage say, tensors
    are undefined, on all ranks, and the error says so. in_place=False reads everything into memory of its own first: as much again as the
    state, and a copy, for tensors that after an error are what they were. Mismatch is raised, on all ranks, when shapes or dtypes differ
    and, if strict, when tensors or values are missing or tensors unexpected. Returns a report: step, id, values (all plain values by name),
    missing, extras (names: read_extra), phases."""
    team = make_team(process_group, timeout_s)
    given = {}

    def produce():
        given["entries"], given["leaves"], given["ranks"] = flatten(state)
        for name, entry in given["entries"].items():
            refuse_shared_memory(name, entry)
        return {"tensors": [(name, entry.dtype, entry.shape) for name, entry in given["entries"].items()], "values": list(given["leaves"]),
                "ranks": {name: one.wanted(team) for name, one in given["ranks"].items()}}

    with _interruptible(team), torch.no_grad():
        try:
            wanted = agree(team, produce, _union)
            reader = _core.Reader(str(path), _for_engine(team), verify)
            values, kept = _json_extra(reader, VALUES), _kept_ranks(path, reader)
            missing = agree(team, lambda: None, lambda _: _check(path, reader, wanted, values, kept, strict))
            own = Resolving({name: one for name, one in given["ranks"].items() if name in kept}, kept, wanted["ranks"], team,
                            lambda name, index: _of_rank(path, reader, name, index))
            if wanted["ranks"]:
                measures = agree(team, own.measured, own.together)
                agree(team, lambda: own.resolve(measures), lambda _: None)
            entries = {name: entry for name, entry in given["entries"].items() if name not in set(missing)}
            boxes = [box for entry in entries.values() for box in entry.boxes]
            arena = _Arena(sum(_Arena.rounded(box.tensor.nbytes) for box in boxes if not (in_place and _is_ready(box.tensor))))
            tensors, parts, memory = _items(entries, lambda tensor: tensor if in_place and _is_ready(tensor) else arena.like(tensor))
            with _undefined_after_error(in_place):
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
        own.put()
    extras = [name for name in reader.extras() if not name.startswith(OWN)]
    return report | {"step": reader.step(), "id": reader.id(), "values": values, "missing": missing, "extras": extras}


def _json_extra(reader, name):
    return json.loads(reader.extra(name)) if name in reader.extras() else {}


def _name_of(name, index):
    return f"{OWN}rank/{name}/{index}"


def _kept_ranks(path, reader):
    return kept_ranks(path, _json_extra(reader, RANKS))


def _of_rank(path, reader, name, index):
    return decode(reader.own_extra(_name_of(name, index)), f"{path}: what rank {index} has saved as '{name}'")


def _union(products):
    tensors, values = {}, {}
    for rank, product in enumerate(products):
        values |= dict.fromkeys(product["values"])
        for name, dtype, shape in product["tensors"]:
            first = tensors.setdefault(name, (rank, dtype, shape))
            if first[1:] != (dtype, shape):
                raise Mismatch(f"'{name}' is {first[1]} {first[2]} on rank {first[0]} and {dtype} {shape} on rank {rank}")
    return {"tensors": [(name, dtype, shape) for name, (_, dtype, shape) in tensors.items()], "values": list(values),
            "ranks": wanted_of([product["ranks"] for product in products])}


def _check(path, reader, wanted, values, kept, strict):
    fault, missing = reader.compare_with([(name, dtype, tuple(shape)) for name, dtype, shape in wanted["tensors"]], strict)
    lost = sorted(set(wanted["values"]) - values.keys() | wanted["ranks"].keys() - kept.keys())
    fault += refuse_without_policy(wanted["ranks"], kept)
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
    names, values = reader.extras(), _json_extra(reader, VALUES)
    return {"step": reader.step(), "id": reader.id(),
            "tensors": {name: {"dtype": TORCH_DTYPES[dtype], "shape": tuple(shape)} for name, dtype, shape in reader.tensors()},
            "values": {name: from_json(value) for name, value in values.items()},
            "ranks": {name: {"count": kept.count, "policy": kept.policy} for name, kept in _kept_ranks(path, reader).items()}, "extras": [name for name in names if not name.startswith(OWN)]}


def read(path, name):
    """A whole tensor."""
    reader = _core.Reader(str(path), None, True)
    for known, dtype, shape in reader.tensors():
        if known == name:
            tensor = torch.empty(tuple(shape), dtype=TORCH_DTYPES[dtype])
            reader.load([(name, dtype, tuple(shape))], [(0, (0,) * len(shape), tuple(shape), tensor.data_ptr())])
            return tensor
    raise CheckpointError(f"{path} has no tensor '{name}'")


def read_rank(path, name, index):
    """What rank `index` has saved as a PerRank of this name."""
    reader = _core.Reader(str(path), None, True)
    kept = _kept_ranks(path, reader).get(name)
    if kept is None or not 0 <= index < kept.count:
        raise CheckpointError(f"{path} has nothing of rank {index} that is called '{name}'; " + (f"{kept.count} ranks saved it" if kept else "inspect() lists names"))
    return _of_rank(path, reader, name, index)


def read_extra(path, name):
    """The bytes of an extra."""
    return _core.Reader(str(path), None, True).extra(name)
