"""ingot_checkpoint: what each rank holds on its own (PerRank), saved by some number of ranks and loaded by another. Runs with the Python of .deps/venv
and PYTHONPATH at the built package; names of tests may be given as arguments."""
import math
import random

import numpy
import torch

import ingot_checkpoint as ic
from checkpoint_ranks import bits, expect, main
from ingot_checkpoint import value_bytes


# Bytes.

def equal(a, b):
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape and bits(a) == bits(b)
    if isinstance(a, numpy.ndarray):
        return isinstance(b, numpy.ndarray) and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return type(b) is dict and list(a) == list(b) and all(equal(value, b[key]) for key, value in a.items())
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(equal, a, b))
    return type(a) is type(b) and (a == b or a != a and b != b)


def kept_values():
    random.seed(3), numpy.random.seed(4)
    return {"torch": torch.get_rng_state(), "python": random.getstate(), "numpy": numpy.random.get_state(), "new numpy": numpy.random.default_rng(5).bit_generator.state,
            "nested": [None, True, 3, -2 ** 70, 0.1, math.inf, math.nan, "Grüße", b"\0\xff", (), [], {}, {1: {"a.b": [()]}}, ("t", [1.5])],
            "tensors": [torch.arange(6).view(2, 3).t(), torch.tensor(2.5, dtype=torch.bfloat16), torch.empty(0, 3), torch.tensor([True, False])],
            "arrays": [numpy.arange(6, dtype=numpy.uint16).reshape(2, 3).T, numpy.float64([1, math.nan]), numpy.zeros((0, 2))]}


def encode():
    value = kept_values()
    blob = value_bytes.encode(value)
    back = value_bytes.decode(blob, "here")
    assert equal(value, back)
    random.setstate(back["python"]), numpy.random.set_state(back["numpy"]), torch.set_rng_state(back["torch"])
    class Sneaky:
        def __reduce__(self):
            return (print, ("never",))
    for odd, where in (({"a": [1, Sneaky()]}, r"['a'][1]"), ({1.5: 2}, "1.5"), ({"a": {1, 2}}, "set"), (numpy.int64(3), "int64"), (numpy.array(["x"]), "ndarray"),
                       (torch.zeros(2, dtype=torch.uint16), "Tensor"), (numpy.array([Sneaky()]), "ndarray")):
        said = expect(TypeError, "nothing is pickled" if where != "1.5" else "neither a string nor an integer", lambda: value_bytes.encode(odd))
        assert where in said, said
    loop = []
    loop.append(loop)
    expect(TypeError, "holds itself", lambda: value_bytes.encode(loop))
    # Damaged and hostile bytes: an error or some value, never anything else.
    generator = random.Random(11)
    length = 8 + int.from_bytes(blob[:8], "little")
    refused = 0
    for _ in range(1500):
        damaged = bytearray(blob)
        for _ in range(generator.randint(1, 3)):
            damaged[generator.randrange(length)] = generator.randrange(256)
        damaged = bytes(damaged[:generator.randrange(len(blob)) if generator.random() < 0.3 else len(blob)])
        try:
            value_bytes.decode(damaged, "here")
        except ic.CheckpointError as failure:
            assert str(failure).startswith("here is damaged"), failure
            refused += 1
    assert refused > 1000, refused
    for text in ('{"version":2,"value":1}', '[]', '{"version":1}', '{"version":1,"value":{"tensor":["fp32",[9999999999],4]}}', '{"version":1,"value":{"tensor":["fp32",[-1],-4]}}',
                 '{"version":1,"value":{"array":["|O",[1],8]}}', '{"version":1,"value":{"array":["<f4",[0],0],"x":1}}', '{"version":1,"value":{"unknown":1}}',
                 '{"version":1,"value":{"bytes":1}}', '{"version":1,"value":{"dict":[["a",1],["a",2]]}}', '{"version":1,"value":{"of_shape":[]}}',
                 '{"version":1,"value":' + "[" * 100000 + "]" * 100000 + "}"):
        expect(ic.CheckpointError, "here is damaged or of a newer version", lambda: value_bytes.decode(len(text).to_bytes(8, "little") + text.encode(), "here"))
    text = b'{"version":1,"value":[{"bytes":2},{"bytes":-1}]}'
    expect(ic.CheckpointError, "2 bytes are not there", lambda: value_bytes.decode(len(text).to_bytes(8, "little") + text + b"x", "here"))
    print(f"ok values as bytes; {refused} of 1,500 damaged ones are refused, the others are values")


def policies(folder):
    encode()


if __name__ == "__main__":
    main([policies])
