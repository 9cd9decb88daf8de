"""State dicts as boxes: each tensor has a name, a dtype and a global shape, and this rank holds boxes of it; all else is plain values.
Nothing is pickled: what is neither is a TypeError that names the key."""
import itertools
import math
from dataclasses import dataclass, field

import torch

DTYPES = {torch.float64: "fp64", torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.float8_e4m3fn: "fp8_e4m3",
          torch.float8_e5m2: "fp8_e5m2", torch.int64: "int64", torch.int32: "int32", torch.int16: "int16", torch.int8: "int8",
          torch.uint8: "uint8", torch.bool: "boolean", torch.complex64: "complex64", torch.complex128: "complex128"}
TORCH_DTYPES = {name: dtype for dtype, name in DTYPES.items()}


@dataclass
class Part:
    """A part of a tensor of `global_shape` that begins at `offset`. A list of them is several parts of one tensor."""
    global_shape: tuple
    offset: tuple
    tensor: torch.Tensor


class OfRank:
    """Stands in a state for what is this rank's own (rank_state.PerRank)."""


@dataclass
class Box:
    offset: tuple
    tensor: torch.Tensor  # a view of what the state holds, of the box's extent; of any strides, on any device


@dataclass
class Entry:
    dtype: str
    shape: tuple
    boxes: list = field(default_factory=list)
    is_plain: bool = False  # a whole tensor of no class that says how ranks share it


@dataclass
class Leaf:
    holder: object  # the dict or list that holds the value
    key: object
    value: object

    def put(self, value):
        if isinstance(self.holder, (dict, list)):
            self.holder[self.key] = like(self.value, value)


def like(old, new):
    """JSON has no tuples: what was one becomes one again."""
    if isinstance(old, (list, tuple)) and isinstance(new, list):
        olds = itertools.chain(old, itertools.repeat(None))
        return type(old)([like(o, n) for o, n in zip(olds, new)]) if type(old) in (list, tuple) else new
    return new


def _chunk(runs, count, index):
    """The part of a dim that torch.chunk gives to one of `count`. A dim is a list of (begin, size)."""
    total = sum(size for _, size in runs)
    each = -(-total // count)
    begin, end = min(total, each * index), min(total, each * (index + 1))
    part, at = [], 0
    for start, size in runs:
        low, high = max(begin, at), min(end, at + size)
        if low < high:
            part.append((start + low - at, high - low))
        at += size
    return part


def _merged(runs):
    merged = []
    for start, size in runs:
        if merged and sum(merged[-1]) == start:
            merged[-1] = (merged[-1][0], merged[-1][1] + size)
        else:
            merged.append((start, size))
    return merged


def runs_of(shape, mesh_shape, coordinate, placements):
    """For each dim what this rank holds of it, as (begin, size); placements apply from left to right."""
    dims = [[(0, size)] for size in shape]
    for count, index, placement in zip(mesh_shape, coordinate, placements):
        if placement.is_replicate():
            continue
        dim = getattr(placement, "dim", None)
        if dim is None or placement.is_partial():
            raise TypeError(f"the placement {placement} has no content of its own; reduce it first")
        factor = getattr(placement, "split_factor", 1)
        dims[dim] = [run for outer in range(factor) for run in _chunk(_chunk(dims[dim], factor, outer), count, index)]
    return [_merged(runs) for runs in dims]


def _boxes(local, dims):
    """The boxes that a product of runs makes of a local tensor in which runs lie one after the other."""
    sizes = tuple(sum(size for _, size in runs) for runs in dims)
    if tuple(local.shape) != sizes:
        raise TypeError(f"the local tensor has shape {tuple(local.shape)}, its placements make it {sizes}")
    if all(len(runs) == 1 for runs in dims):
        return [Box(tuple(runs[0][0] for runs in dims), local)]
    placed = []
    for runs in dims:
        at, dim = 0, []
        for start, size in runs:
            dim.append((start, slice(at, at + size)))
            at += size
        placed.append(dim)
    return [Box(tuple(start for start, _ in choice), local[tuple(part for _, part in choice)]) for choice in itertools.product(*placed)]


def _is_dtensor(value):
    return isinstance(value, torch.Tensor) and hasattr(value, "placements") and hasattr(value, "device_mesh")


def _is_sharded(value):
    """megatron.core.dist_checkpointing.ShardedTensor, and what looks like it."""
    return all(hasattr(value, name) for name in ("key", "data", "global_shape", "global_offset")) and not isinstance(value, torch.Tensor)


def _of_sharded(value):
    if getattr(value, "flattened_range", None) is not None:
        raise TypeError("flattened ranges are not supported; give the unflattened part")
    if not isinstance(value.data, torch.Tensor):
        raise TypeError("it has no data")
    before = getattr(value, "prepend_axis_num", 0)
    return Box(tuple(value.global_offset), value.data.detach()[(None,) * before])


class Flattening:
    def __init__(self):
        self.entries, self.values, self.ranks, self.paths = {}, {}, {}, set()
        self.meshes, self.runs = {}, {}  # a state has few meshes and layouts, and many tensors

    def add(self, name, dtype, shape, boxes, is_shared=False, is_plain=False):
        shape = tuple(int(size) for size in shape)
        if not is_shared and (name in self.paths or name in self.entries):
            raise TypeError("another key of the state has the same name when nested keys are joined by dots")
        if dtype not in DTYPES:
            raise TypeError(f"dtype {dtype} is not one of {', '.join(str(known)[6:] for known in DTYPES)}")
        entry = self.entries.setdefault(name, Entry(DTYPES[dtype], shape, is_plain=is_plain))
        if (entry.dtype, entry.shape) != (DTYPES[dtype], shape):
            raise TypeError(f"it is given as {entry.dtype} {entry.shape} and as {DTYPES[dtype]} {shape}")
        for box in boxes:
            local = box.tensor
            if local.layout != torch.strided or local.device.type == "meta" or local.is_quantized:
                raise TypeError(f"a tensor of layout {local.layout} on {local.device} has no plain memory")
            if local.dtype != dtype or local.dim() != len(shape) or len(box.offset) != len(shape):
                raise TypeError(f"a part of {local.dtype} {tuple(local.shape)} at {box.offset} does not fit {dtype} {shape}")
            # A part without elements says nothing, unless the tensor has none.
            if local.numel() > 0 or math.prod(shape) == 0:
                entry.boxes.append(Box(tuple(int(begin) for begin in box.offset), local))

    def boxes_of_dtensor(self, tensor):
        mesh, shape, placements = tensor.device_mesh, tuple(tensor.shape), tensor.placements
        if id(mesh) not in self.meshes:
            self.meshes[id(mesh)] = tuple(mesh.shape), mesh.get_coordinate()
        mesh_shape, coordinate = self.meshes[id(mesh)]
        if coordinate is None:
            return []
        layout = id(mesh), shape, placements
        if layout not in self.runs:
            self.runs[layout] = runs_of(shape, mesh_shape, coordinate, placements)
        return _boxes(tensor.to_local().detach(), self.runs[layout])

    def leaf(self, name, holder, key, value):
        if isinstance(value, torch.Tensor):
            whole = not _is_dtensor(value)
            if not whole:
                boxes = self.boxes_of_dtensor(value)
            elif type(value) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
                boxes = [Box((0,) * value.dim(), value.detach())]
            else:
                raise TypeError(f"a tensor of class {type(value).__name__} is not supported")
            self.add(name, value.dtype, value.shape, boxes, is_plain=whole)
        elif isinstance(value, Part) or _are_parts(value):
            parts = [value] if isinstance(value, Part) else value
            for part in parts:
                self.add(name, part.tensor.dtype, part.global_shape, [Box(tuple(part.offset), part.tensor.detach())], part is not parts[0])
        elif _is_sharded(value):
            self.add(value.key, getattr(value.data, "dtype", None), value.global_shape, [_of_sharded(value)], is_shared=True)
        elif is_plain(value) or isinstance(value, OfRank):
            if name in self.paths or name in self.entries:
                raise TypeError("another key of the state has the same name when nested keys are joined by dots")
            if isinstance(value, OfRank):
                self.ranks[name] = value
            else:
                self.values[name] = Leaf(holder, key, value)
        else:
            raise TypeError(f"a {type(value).__module__}.{type(value).__qualname__} is neither a tensor nor a plain value; nothing is pickled")
        self.paths.add(name)

    def walk(self, name, holder, key, value):
        if isinstance(value, dict) and value:
            children = list(value.items())
        elif isinstance(value, (list, tuple)) and not is_plain(value) and not _are_parts(value):
            children = list(enumerate(value))
        else:
            try:
                return self.leaf(name, holder, key, value)
            except TypeError as failure:
                raise TypeError(f"'{name}': {failure}") from None
        for child, inner in children:
            if type(child) not in (str, int):
                raise TypeError(f"'{name}': the key {child!r} is neither a string nor an integer")
            self.walk(f"{name}.{child}" if name else str(child), value, child, inner)


def _are_parts(value):
    return type(value) is list and len(value) > 0 and all(isinstance(one, Part) for one in value)


def is_plain(value):
    """What JSON holds without dicts, which are flattened (but for empty ones)."""
    if type(value) in (list, tuple):
        return all(is_plain(one) for one in value) and not any(isinstance(one, dict) for one in value)
    return value is None or type(value) in (bool, int, float, str) or (isinstance(value, dict) and not value)


def flatten(state):
    """(entries by name, leaves by name, what is each rank's own by name) of a state dict."""
    if not isinstance(state, dict):
        raise TypeError(f"the state is a {type(state).__name__}, not a dict")
    flat = Flattening()
    for key, value in state.items():
        if type(key) not in (str, int):
            raise TypeError(f"the key {key!r} is neither a string nor an integer")
        flat.walk(str(key), state, key, value)
    return flat.entries, flat.values, flat.ranks


def to_json(value):
    """NaN and infinities are not JSON: they become {"float": "nan"}. Dicts are never within values, so this is told apart."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    return [to_json(one) for one in value] if isinstance(value, (list, tuple)) else value


def from_json(value):
    if isinstance(value, dict) and value:
        return float(value["float"])
    return [from_json(one) for one in value] if isinstance(value, list) else value


def contiguous_host(tensor):
    """The tensor itself when its memory can be read as it lies, else a copy."""
    return tensor.resolve_conj().resolve_neg().cpu().contiguous()


def refuse_shared_memory(name, entry):
    """Filling a tensor whose elements share memory would end half done."""
    for box in entry.boxes:
        if any(stride == 0 and size > 1 for stride, size in zip(box.tensor.stride(), box.tensor.shape)):
            raise TypeError(f"'{name}': elements of the tensor share memory (expanded); it cannot be filled")
