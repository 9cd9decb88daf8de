"""Values as bytes: None, bool, int, float, str, bytes, tensors, numpy arrays, and tuples, lists and dicts of them. Nothing is pickled; what comes from
a file may be anything.

The length of a text of JSON, 8 bytes, little-endian; the text; what is binary, one after the other. In the text an object has one key, which says
what it stands for."""
import json
import math

import numpy
import torch

from ._core import CheckpointError
from .torch_state import DTYPES, TORCH_DTYPES, contiguous_host


def encode(value):
    binary = []
    try:
        text = json.dumps({"version": 1, "value": _to_json(value, binary, "")}, allow_nan=False).encode()
    except RecursionError:
        raise TypeError("it is nested too deeply, or holds itself") from None
    return b"".join([len(text).to_bytes(8, "little"), text, *binary])


def _to_json(value, binary, at):
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if type(value) is list:
        return [_to_json(one, binary, f"{at}[{i}]") for i, one in enumerate(value)]
    if type(value) is tuple:
        return {"tuple": [_to_json(one, binary, f"{at}[{i}]") for i, one in enumerate(value)]}
    if type(value) is dict:
        odd = [key for key in value if type(key) not in (str, int)]
        if odd:
            raise TypeError(f"{at or 'its'} key {odd[0]!r} is neither a string nor an integer")
        return {"dict": [[key, _to_json(one, binary, f"{at}[{key!r}]")] for key, one in value.items()]}
    if type(value) is bytes:
        return {"bytes": _added(binary, value)}
    if type(value) in (torch.Tensor, torch.nn.Parameter) and value.dtype in DTYPES and value.layout == torch.strided and value.device.type != "meta":
        host = contiguous_host(value.detach())
        content = host.reshape(-1).view(torch.uint8).numpy().tobytes() if host.numel() else b""
        return {"tensor": [DTYPES[value.dtype], list(value.shape), _added(binary, content)]}
    if type(value) is numpy.ndarray and value.dtype.kind in "biufc" and value.dtype.isnative:
        return {"array": [value.dtype.str, list(value.shape), _added(binary, value.tobytes())]}
    raise TypeError(f"{at or 'it'} is a {type(value).__module__}.{type(value).__qualname__}; a PerRank holds None, bool, int, float, str, bytes, tensors, numpy arrays, "
                    "and tuples, lists and dicts of them; nothing is pickled")


def _added(binary, content):
    binary.append(content)
    return len(content)


def decode(content, origin):
    """Throws CheckpointError, which names the origin."""
    try:
        return Decoding(content).value()
    except (ValueError, TypeError, KeyError, IndexError, RecursionError, RuntimeError, OverflowError) as failure:
        raise CheckpointError(f"{origin} is damaged or of a newer version: {type(failure).__name__}: {failure}") from None


class Decoding:
    def __init__(self, content):
        length = int.from_bytes(content[:8], "little")
        if len(content) < 8 or length > len(content) - 8:
            raise ValueError(f"{len(content)} bytes do not hold a text of {length}")
        self._content, self._at = content, 8 + length
        self._json = json.loads(content[8:self._at])
        if not isinstance(self._json, dict) or self._json.get("version") != 1:
            raise ValueError("not of version 1")

    def value(self):
        value = self._value(self._json["value"])
        if self._at != len(self._content):
            raise ValueError(f"{len(self._content) - self._at} bytes too many")
        return value

    def _value(self, given):
        if isinstance(given, list):
            return [self._value(one) for one in given]
        if not isinstance(given, dict):
            return given
        (kind, inner), = given.items()
        return getattr(self, "_" + kind if kind in ("float", "tuple", "dict", "bytes", "tensor", "array") else "_unknown")(inner)

    def _unknown(self, _):
        raise ValueError("holds something unknown")

    def _float(self, given):
        return {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[given]

    def _tuple(self, given):
        return tuple(self._value(one) for one in given)

    def _dict(self, given):
        made = {key: self._value(one) for key, one in given}
        if any(type(key) not in (str, int) for key in made) or len(made) != len(given):
            raise ValueError("keys are neither strings nor integers, or come twice")
        return made

    def _bytes(self, length):
        if type(length) is not int or not 0 <= length <= len(self._content) - self._at:
            raise ValueError(f"{length} bytes are not there")
        begin, self._at = self._at, self._at + length
        return self._content[begin:self._at]

    def _tensor(self, given):
        name, shape, length = given
        dtype = TORCH_DTYPES[name]
        content = self._of_shape(shape, dtype.itemsize, length)
        return torch.frombuffer(bytearray(content), dtype=dtype).view(tuple(shape)) if content else torch.empty(tuple(shape), dtype=dtype)

    def _array(self, given):
        name, shape, length = given
        dtype = numpy.dtype(str(name))
        if dtype.kind not in "biufc":
            raise ValueError(f"dtype {dtype} is not of numbers")
        return numpy.frombuffer(bytearray(self._of_shape(shape, dtype.itemsize, length)), dtype=dtype).reshape(tuple(shape))

    def _of_shape(self, shape, itemsize, length):
        if any(type(size) is not int or not 0 <= size < 1 << 60 for size in shape) or math.prod(shape) * itemsize != length:
            raise ValueError(f"a shape of {shape} does not take {length} bytes")
        return self._bytes(length)
