#!/usr/bin/env python3
"""An independent reader of ingot checkpoints, written from docs/checkpoint-format.md alone.

read_checkpoint.py CHECKPOINT [FOLDER]

Checks all that the page says must hold (checksums only where the package xxhash is installed), prints one line per tensor
and extra, and writes their bytes to tensor_<n>.bin and extra_<n>.bin in FOLDER, which must exist.
"""
import itertools
import math
import pathlib
import re
import struct
import sys

try:
    import xxhash
except ImportError:
    xxhash = None

DTYPES = {1: ("fp64", 8), 2: ("fp32", 4), 3: ("bf16", 2), 4: ("fp16", 2), 5: ("fp8_e4m3", 1), 6: ("fp8_e5m2", 1), 7: ("int64", 8),
          8: ("int32", 4), 9: ("int16", 2), 10: ("int8", 1), 11: ("uint8", 1), 12: ("boolean", 1), 13: ("complex64", 8), 14: ("complex128", 16)}

def require(condition, message):
    condition or sys.exit(f"refused: {message}")

def check_digest(data, digest, what):
    if xxhash:
        require(xxhash.xxh3_128_intdigest(data).to_bytes(16, "little") == digest, f"the checksum of {what} does not match")

class Cursor:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, size):
        require(0 <= size <= len(self.data) - self.at, "the metadata ends too early")
        self.at += size
        return self.data[self.at - size:self.at]

    def number(self):
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                require(value < 2**63 and (byte or shift == 7), "a number is too large or has needless bytes")
                return value

    def text(self):
        return self.take(self.number()).decode("utf-8", "surrogateescape")

    def finish(self):
        require(self.at == len(self.data), "a section has bytes to spare")

def sections_of(raw):
    require(len(raw) >= 64 and raw[:8] == b"INGOTMET", "this is not the metadata of a checkpoint")
    (version, count), (step, size) = struct.unpack_from("<II", raw, 8), struct.unpack_from("<QQ", raw, 32)
    require(size == len(raw), "the metadata has the wrong size")
    check_digest(raw[:48] + raw[64:], raw[48:64], "the metadata")
    require(version == 1, f"version {version} is unknown")
    cursor, sections, previous = Cursor(raw[64:]), {}, 0
    for _ in range(count):
        kind, flags, size = struct.unpack("<IIQ", cursor.take(16))
        require(kind > previous, "sections are out of order")
        previous = kind
        content = cursor.take(size)
        require(kind <= 4 or not flags & 1, f"section {kind} must be understood")
        sections[kind] = Cursor(content)
    cursor.finish()
    require(set(sections) >= {1, 2, 3, 4}, "a section is missing")
    return raw[16:32], step, sections

def read_metadata(raw):
    checkpoint_id, step, sections = sections_of(raw)
    files, tensors, pieces, extras = (sections[kind] for kind in (1, 2, 3, 4))
    file_list = [(files.text(), files.number()) for _ in range(files.number())]
    for name, _ in file_list:
        require(re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*", name) and name != "metadata.bin", f"the file name {name!r} is not allowed")
    tensor_list = []
    for _ in range(tensors.number()):
        name, (dtype, item_bytes) = tensors.text(), DTYPES[tensors.take(1)[0]]
        shape = [tensors.number() for _ in range(tensors.number())]
        count, piece_bytes = tensors.number(), tensors.number()
        begin, found = pieces.at, []
        for _ in range(count):
            found.append(([(pieces.number(), pieces.number()) for _ in shape], pieces.number(), pieces.number(), pieces.take(16)))
        require(pieces.at - begin == piece_bytes, f"the pieces of {name} have the wrong size")
        tensor_list.append((name, dtype, item_bytes, shape, found))
    extra_list = [(extras.text(), extras.number(), extras.number(), extras.number(), extras.take(16)) for _ in range(extras.number())]
    for part in (files, tensors, pieces, extras):
        part.finish()
    for records in (tensor_list, extra_list):
        names = [record[0].encode("utf-8", "surrogateescape") for record in records]
        require(names == sorted(set(names)), "names are not in rising order")
    return checkpoint_id, step, file_list, tensor_list, extra_list

class DataFiles:
    def __init__(self, folder, checkpoint_id, step, file_list):
        self.names, self.contents, self.used = [name for name, _ in file_list], [], [[(0, 64)] for _ in file_list]
        for index, (name, size) in enumerate(file_list):
            content = (folder / name).read_bytes()
            require(len(content) == size, f"{name} has the wrong size")
            header = b"INGOTDAT" + struct.pack("<II", 1, index) + checkpoint_id + struct.pack("<Q", step) + bytes(24)
            require(content[:64] == header, f"{name} does not belong to this checkpoint")
            self.contents.append(content)

    def read(self, file, offset, size, digest, what):
        require(file < len(self.contents) and 64 <= offset and offset + size <= len(self.contents[file]), f"{what} is outside its file")
        self.used[file].append((offset, offset + size))
        data = self.contents[file][offset:offset + size]
        check_digest(data, digest, what)
        return data

    def check_padding(self):
        for name, content, used in zip(self.names, self.contents, self.used):
            end = 0
            for begin, stop in sorted(used) + [(len(content), len(content))]:
                require(begin >= end, f"ranges of {name} overlap")
                require(begin - end < 4096 and not any(content[end:begin]), f"the padding of {name} is not zero or too long")
                end = stop

def assemble(tensor, files):
    name, _, item_bytes, shape, pieces = tensor
    data, covered = bytearray(math.prod(shape) * item_bytes), bytearray(math.prod(shape))
    for box, file, offset, digest in pieces:
        require(all(begin + extent <= size and extent > 0 for (begin, extent), size in zip(box, shape)), f"a piece of {name} is outside of it")
        piece = files.read(file, offset, math.prod(extent for _, extent in box) * item_bytes, digest, f"a piece of {name}")
        run, source = (box[-1][1] if box else 1), 0
        for index in itertools.product(*(range(begin, begin + extent) for begin, extent in box[:-1])):
            first = 0
            for position, size in zip((*index, box[-1][0]) if box else (), shape):
                first = first * size + position
            require(not any(covered[first:first + run]), f"pieces of {name} overlap")
            covered[first:first + run] = b"\1" * run
            data[first * item_bytes:(first + run) * item_bytes] = piece[source:source + run * item_bytes]
            source += run * item_bytes
    require(all(covered), f"a part of {name} is in no piece")
    return bytes(data)

def main(path, dump=None):
    checkpoint_id, step, file_list, tensor_list, extra_list = read_metadata((path / "metadata.bin").read_bytes())
    require(not path.name.startswith("step_") or path.name == f"step_{step:08}", "the folder has the name of another step")
    files = DataFiles(path, checkpoint_id, step, file_list)
    print(f"step {step} id {checkpoint_id[8:][::-1].hex()}{checkpoint_id[:8][::-1].hex()} checksums {'checked' if xxhash else 'not checked'}")
    results = {}
    for number, tensor in enumerate(tensor_list):
        print(f"tensor {tensor[0]} {tensor[1]} {tensor[3]} {len(tensor[4])} pieces")
        results[f"tensor_{number}.bin"] = assemble(tensor, files)
    for number, (name, file, offset, size, digest) in enumerate(extra_list):
        print(f"extra {name} {size} bytes")
        results[f"extra_{number}.bin"] = files.read(file, offset, size, digest, f"extra {name}")
    files.check_padding()
    for file_name, content in results.items() if dump else ():
        (dump / file_name).write_bytes(content)

if __name__ == "__main__":
    main(*map(pathlib.Path, sys.argv[1:3]))
