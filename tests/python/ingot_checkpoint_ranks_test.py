"""ingot_checkpoint: what each rank holds on its own (PerRank), saved by some number of ranks and loaded by another. Runs with the Python of .deps/venv
and PYTHONPATH at the built package; names of tests may be given as arguments."""
import copy
import itertools
import json
import math
import random
import threading
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy
import torch
import torch.distributed as dist

import ingot_checkpoint as ic
from checkpoint_ranks import bits, expect, main, run
from ingot_checkpoint import loader_state, rank_state, value_bytes
from ingot_checkpoint.policies import POLICIES

PAIRS = list(itertools.product(range(1, 7), repeat=2))


def resharded(values, count, policy, kept=None):
    """What each of `count` ranks makes of the values, one of each rank that saved, and how many of them it read for that; as load() does it."""
    blobs = [value_bytes.encode(value) for value in values]
    saved = rank_state.Kept("here", len(values), kept)
    teams = [SimpleNamespace(rank=rank, size=count) for rank in range(count)]
    ranks = [ic.PerRank(policy=policy) for _ in teams]
    wanted = rank_state.wanted_of([{"x": one.wanted(team)} for one, team in zip(ranks, teams)])
    fault = rank_state.refuse_without_policy(wanted, {"x": saved})
    if fault:
        raise ic.Mismatch(fault)
    reads = [set() for _ in teams]

    def resolving(team, one):
        def read(name, index):
            reads[team.rank].add(index)
            return value_bytes.decode(blobs[index], name)
        return rank_state.Resolving({"x": one}, {"x": saved}, wanted, team, read)
    each = [resolving(team, one) for team, one in zip(teams, ranks)]
    measures = json.loads(json.dumps(rank_state.Resolving.together([json.loads(json.dumps(one.measured())) for one in each])))
    for one in reads:
        one.clear()
    for one in each:
        one.resolve(measures)
        one.put()
    return [one.value for one in ranks], [len(one) for one in reads]


# Every token once.

def random_samples(generator, ranks):
    """For each rank samples of tokens, all of them different; some ranks have none."""
    token = itertools.count()
    most = generator.choice([0, 3, 12])
    return [[{"input_ids": torch.tensor([next(token) for _ in range(generator.randint(0, 40))], dtype=torch.int32), "from": rank}
             for _ in range(generator.randint(0, most))] for rank in range(ranks)]


def conserve():
    """For all pairs of 1 to 6 ranks and random buffers: no token is lost, none comes twice, and all stay in order."""
    generator = random.Random(7)
    for saved, loaded in PAIRS:
        for _ in range(4):
            ranks = random_samples(generator, saved)
            for policy, weight in (("split_tokens", lambda sample: max(1, len(sample["input_ids"]))), ("split", lambda sample: 1)):
                got, reads = resharded(ranks, loaded, policy)
                before, after = ([(sample["from"], *sample["input_ids"].tolist()) for rank in given for sample in rank] for given in (ranks, got))
                assert before == after, (saved, loaded, policy)
                weights = [sum(map(weight, rank)) for rank in got]
                largest = max((weight(sample) for rank in got for sample in rank), default=0)
                if saved != loaded:
                    assert max(weights) <= sum(weights) / loaded + largest, (weights, largest)
                    assert max(reads) <= -(-saved // loaded) + 2 or sum(map(bool, ranks)) < saved, (saved, loaded, reads)
            # Tokens without bounds of samples, of which ranks have a part of each kind of container.
            flat = [torch.cat([sample["input_ids"] for sample in rank] or [torch.empty(0, dtype=torch.int32)]) for rank in ranks]
            for turned in (lambda tokens: tokens, lambda tokens: tokens.numpy(), lambda tokens: tokens.tolist(), lambda tokens: bytes(token % 251 for token in tokens),
                           lambda tokens: tuple(tokens.tolist()), lambda tokens: {f"stream {token}": [int(token)] for token in tokens}):
                given = [turned(tokens) for tokens in flat]
                got, _ = resharded(given, loaded, "split")
                def listed(parts):
                    return [list(part.items()) if isinstance(part, dict) else list(part) for part in parts]
                assert list(itertools.chain(*listed(got))) == list(itertools.chain(*listed(given)))
                assert all(type(part) is type(given[0]) for part in got)
                sizes = [len(part) for part in got]
                assert saved == loaded or max(sizes) - min(sizes) <= 1, sizes
    print(f"ok {len(PAIRS)} pairs of rank counts: every token exactly once, in order, in equal shares")


def go_on():
    """Of a sequence that is dealt out in turn, what was read before and what is read afterwards is all of it, once."""
    for saved, loaded in PAIRS:
        for total in range(0, 40):
            read = [len(range(rank, total, saved)) for rank in range(saved)]
            assert sum(read) == total
            got, _ = resharded(read, loaded, "interleaved")
            after = [sample for rank in range(loaded) for sample in list(range(rank, 60, loaded))[got[rank]:]]
            before = [sample for rank in range(saved) for sample in list(range(rank, 60, saved))[:read[rank]]]
            assert Counter(before) + Counter(after) == Counter(range(60)), (saved, loaded, total)
    expect(ic.Mismatch, "lost or come twice", lambda: resharded([5, 3], 3, "interleaved"))
    expect(ic.Mismatch, "not a number of samples", lambda: resharded([5, -3], 3, "interleaved"))
    # Streams: each is read on by one rank, from where it was.
    for saved, loaded in PAIRS:
        streams = [{f"file {rank}.{i}": 100 * rank + i for i in range(3)} for rank in range(saved)]
        got, _ = resharded(streams, loaded, "split")
        assert sorted(item for rank in got for item in rank.items()) == sorted(item for rank in streams for item in rank.items())
    expect(ic.Mismatch, "two ranks have saved the key 'a'", lambda: resharded([{"a": 1}, {"a": 2}], 1, "split"))
    print("ok positions: what was not read is read, what was read is not")


def apply_policies():
    for saved, loaded in PAIRS:
        values = [{"seen": 10 ** rank, "loss": [0.5 * rank, torch.full((2,), float(rank))]} for rank in range(saved)]
        got, reads = resharded(values, loaded, "sum")
        assert sum(one["seen"] for one in got) == sum(one["seen"] for one in values)
        assert torch.equal(sum(one["loss"][1] for one in got), sum(one["loss"][1] for one in values))
        if saved == loaded:
            assert [one["seen"] for one in got] == [one["seen"] for one in values] and reads == [1] * loaded
            continue
        assert [one["seen"] for one in resharded(values, loaded, "replicate")[0]] == [1] * loaded
        got, reads = resharded(values, loaded, "modulo")
        assert [one["seen"] for one in got] == [10 ** (rank % saved) for rank in range(loaded)] and reads == [1] * loaded
        got, reads = resharded(values, loaded, lambda saved, index, count: {"new": (len(saved), index, count)})
        assert [one["new"] for one in got] == [(saved, rank, loaded) for rank in range(loaded)] and reads == [0] * loaded
        got, _ = resharded(values, loaded, lambda saved, index, count: sum(one["seen"] for one in saved) + saved[-1]["seen"])
        assert got == [sum(10 ** rank for rank in range(saved)) + 10 ** (saved - 1)] * loaded
        assert resharded([[3, "a"]] * saved, loaded, "same")[0] == [[3, "a"]] * loaded
        if saved > 1:
            expect(ic.Mismatch, "rank 0 and rank 1 have saved different values: 0 and 1", lambda: resharded(list(range(saved)), loaded, "same"))
        # Each key its own; what was kept on saving counts when nothing is said on loading.
        by_key = {"buffer": "split", "seen": "sum", "rng": "modulo"}
        values = [{"buffer": [rank] * 3, "seen": rank, "rng": b"%d" % rank} for rank in range(saved)]
        for policy, kept in ((by_key, None), (None, by_key), (by_key, "replicate"), ({**by_key, "rng": lambda saved, index, count: b"%d" % (index % len(saved))}, None)):
            got, _ = resharded(values, loaded, policy, kept)
            assert [item for one in got for item in one["buffer"]] == [rank for rank in range(saved) for _ in range(3)]
            assert sum(one["seen"] for one in got) == sum(range(saved)) and [one["rng"] for one in got] == [b"%d" % (rank % saved) for rank in range(loaded)]
    for policy in (None, "error"):
        said = expect(ic.Mismatch, "was saved by 2 ranks and is loaded by 3", lambda: resharded([1, 2], 3, policy))
        assert all(f"'{name}'" in said for name in POLICIES if name != "error") and "function" in said, said
    for value, policy, words in ((3, "split", "cannot be split"), ("text", "sum", "cannot be added"), (True, "sum", "cannot be added"), (3, {"a": "sum"}, "keys of a dict"),
                                 ({"a": 1, "b": 2}, {"a": "sum"}, "'b'"), ({"a": 1}, {"a": "sum", "b": "sum"}, "'b'"), ({"a": "x"}, {"a": "sum"}, "'a'"),
                                 ({"a": 1}, {"a": "error"}, "no policy for its key 'a'")):
        expect(ic.Mismatch, words, lambda: resharded([value, value], 1, policy))
    expect(ic.Mismatch, "different kinds of things", lambda: resharded([[1], (2,)], 1, "split"))
    expect(ic.Mismatch, "cannot be added", lambda: resharded([1, 2.0], 1, "sum"))
    for policy in ("replicat", 5, {}, {"a": "sums"}, ["sum"]):
        expect(TypeError, "is none of 'error', 'replicate'", lambda: ic.PerRank(1, policy))
    expect(TypeError, "together", lambda: ic.PerRank(1, index=0))
    expect(TypeError, "index 2 of 2", lambda: ic.PerRank(1, index=2, count=2))
    print("ok policies, of whole values and by key")


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
    for test in (conserve, go_on, apply_policies, encode):
        test()


# Ranks.

def own_state(rank, world):
    """Values that say whose they are."""
    return {"buffer": [torch.full((3,), 10 * rank + i) for i in range(4)], "seen": 100 + rank, "rng": kept_values()["python"] + (rank,)}


def per_rank(rank, world, values):
    policy = {"buffer": "split", "seen": "sum", "rng": lambda saved, index, count: ("new", index, count, len(saved))}
    return {"w": torch.arange(50.0), "step": 3, "inner": {"own": ic.PerRank(values, policy)}, "shared": ic.PerRank(f"of {rank // 2}", "modulo", rank // 2, (world + 1) // 2)}


def ranks_on_ranks(rank, world, folder):
    """Loads what another number of ranks has saved, and saves what that makes."""
    job = json.loads((folder / "job.json").read_text())
    state = per_rank(rank, world, own_state(rank, world))
    if job["before"]:
        path = folder / f"step_{job['step'] - 1:08d}"
        state["w"].zero_()
        report = ic.load(path, state)
        value = state["inner"]["own"].value
        assert report["extras"] == [] and report["missing"] == [] and torch.equal(state["w"], torch.arange(50.0))
        whole = [bits(tensor) for index in range(job["before"]) for tensor in ic.read_rank(path, "inner.own", index)["buffer"]]
        mine = len(value["buffer"])
        assert mine == 48 // world and [bits(tensor) for tensor in value["buffer"]] == whole[rank * mine:(rank + 1) * mine]
        if job["before"] != world:
            assert value["rng"] == ("new", rank, world, job["before"]), value["rng"]
            assert state["shared"].value == f"of {rank // 2 % ((job['before'] + 1) // 2)}", state["shared"].value
        else:
            assert value["rng"][:3] == ("new", rank, world)
    else:
        state["inner"]["own"].value["buffer"] = [torch.full((3,), 10 * rank + i) for i in range(48 // world)]
    if rank == 0 and job["before"]:
        held = ic.inspect(path)
        assert held["ranks"] == {"inner.own": {"count": job["before"], "policy": None}, "shared": {"count": (job["before"] + 1) // 2, "policy": "modulo"}}, held["ranks"]
        assert sum(ic.read_rank(path, "inner.own", index)["seen"] for index in range(job["before"])) == job["seen"]
        assert held["values"] == {"step": 3} and held["tensors"].keys() == {"w"}
    state["shared"].value = f"of {rank // 2}"
    # What changes after start() is not saved.
    with ic.AsyncSaver(folder) as saver:
        saver.start(job["step"], state)
        saver.wait_copied()
        own = state["inner"]["own"].value
        for tensor in own["buffer"]:
            tensor.fill_(-1)
        own.clear()


def ranks(folder):
    """A chain: each number of ranks loads what the one before saved, and saves it again."""
    chain = [2, 4, 3, 3, 1, 2]
    for step, world in enumerate(chain):
        job = {"step": step, "before": chain[step - 1] if step else 0, "seen": 201}
        (folder / "job.json").write_text(json.dumps(job))
        run(world, ranks_on_ranks, folder)
    print("ok values of ranks through", " -> ".join(map(str, chain)), "ranks")


def refusals_on_ranks(rank, world, folder):
    last = rank == world - 1
    def state(value=None, **options):
        return {"w": torch.full((50,), 7.0), "own": ic.PerRank(rank if value is None else value, **options)}
    path = ic.save(folder, 1, state())["path"]
    expect(TypeError if last else ic.CheckpointError, "'own': ['a'] is a builtins.object", lambda: ic.save(folder, 2, state({"a": object() if last else 1})))
    expect(ic.CheckpointError, "no rank gives the value of index 1", lambda: ic.save(folder, 2, state(5, index=0, count=2)))
    expect(ic.CheckpointError, "both give the value of index 0, but not the same one", lambda: ic.save(folder, 2, state(index=0, count=1)))
    expect(ic.CheckpointError, "gives the policy None", lambda: ic.save(folder, 2, state(policy="sum" if last else None)))
    expect(ic.CheckpointError, "gives the count 2", lambda: ic.save(folder, 2, state(5, index=0, count=3 if last else 2)))
    assert ic.latest(folder) == folder / "step_00000001"
    # On another number of ranks: an error on all, which says what to do; tensors are as they were.
    for options, kind, words in (({}, ic.Mismatch, "'modulo'"), ({"policy": "split"}, ic.CheckpointError, "cannot be split"),
                                 ({"policy": lambda saved, index, count: 1 // (count - 1 - index)}, ic.CheckpointError, "ZeroDivisionError")):
        mine = state("mine", index=rank, count=world + 1, **options) if words != "ZeroDivisionError" else state("mine", index=rank + 1, count=world + 1, **options)
        mine["w"].zero_()
        failure = raised(lambda: ic.load(path, mine))
        assert words in str(failure) or words == type(failure).__name__, failure
        assert isinstance(failure, kind) or words == type(failure).__name__, type(failure)
        assert not mine["w"].any() and mine["own"].value == "mine"
    mine = {"w": torch.zeros(50), "other": ic.PerRank("mine")}
    expect(ic.Mismatch, "missing values (1): 'other'", lambda: ic.load(path, mine))
    assert ic.load(path, mine, strict=False)["missing"] == ["other"] and mine["other"].value == "mine"
    expect(ic.CheckpointError, f"{world} ranks saved it", lambda: ic.read_rank(path, "own", world))
    expect(ic.CheckpointError, "inspect() lists names", lambda: ic.read_rank(path, "others", 0))
    # Damage: all are told, nothing has changed.
    dist.barrier()
    if rank == 0:
        for file in folder.glob("step_00000001/*"):
            content = file.read_bytes()
            at = content.find(b'{"version": 1, "value": %d}' % (world - 1))
            if at >= 0:
                file.write_bytes(content[:at + 24] + b"7" + content[at + 25:])
    dist.barrier()
    mine = state("mine")
    mine["w"].zero_()
    expect(ic.CheckpointError, "checksum", lambda: ic.load(path, mine))
    assert not mine["w"].any() and mine["own"].value == "mine"


def raised(call):
    try:
        call()
    except Exception as failure:
        return failure
    raise AssertionError("nothing was raised")


def rank_refusals(folder):
    for world in (2, 3):
        run(world, refusals_on_ranks, folder / str(world))
        print(f"ok {world} ranks: what is refused, on all ranks, before anything changes")


# Loaders.

DOCUMENTS, LENGTH = 120, 16


def document(number):
    """Tokens that are in no other document."""
    return [1000 * number + place for place in range(7 + number * 31 % 23)]


class Packed(torch.utils.data.IterableDataset):
    """Rows of LENGTH tokens, of documents one after the other; each of `units` readers (workers of ranks) begins with a stream of them. A reader
    may have several streams, or none, after it was loaded elsewhere."""

    def __init__(self, rank, ranks):
        self.rank, self.ranks = rank, ranks
        self.streams, self.buffer, self.samples = None, torch.empty(0, dtype=torch.int64), []

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        number, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        if self.streams is None:
            unit, units = self.rank * workers + number, self.ranks * workers
            self.streams = {f"{unit} of {units}": 0}
        while True:
            while len(self.buffer) < LENGTH:
                if not self.samples and not self.read_ahead():
                    return
                self.buffer = torch.cat([self.buffer, torch.tensor(self.samples.pop(0)["tokens"])])
            row, self.buffer = self.buffer[:LENGTH], self.buffer[LENGTH:]
            yield row

    def read_ahead(self):
        for stream, read in self.streams.items():
            unit, units = map(int, stream.split(" of "))
            documents = range(unit, DOCUMENTS, units)[read:read + 3]
            if documents:
                self.samples = [{"tokens": document(number)} for number in documents]
                self.streams[stream] += len(documents)
                return True
        return False

    def state_dict(self):
        return {"streams": dict(self.streams or {}), "buffer": self.buffer.clone(), "samples": list(self.samples)}

    def load_state_dict(self, state):
        self.streams, self.buffer, self.samples = dict(state["streams"]), state["buffer"].clone(), list(state["samples"])


# The tokens of a buffer go before the samples of its reader: where they come to lie with another one, they are a row's beginning there.
POLICY = {"streams": "split", "buffer": "split", "samples": "split_tokens"}


class Plain:
    """A loader that is none of torchdata's."""
    num_workers = 0

    def __init__(self, dataset):
        self.dataset, self.state_dict, self.load_state_dict = dataset, dataset.state_dict, dataset.load_state_dict

    def __iter__(self):
        return ([row] for row in self.dataset)


def loaders(rank, ranks, workers):
    made = [Plain(Packed(rank, ranks))]
    try:
        from torchdata.stateful_dataloader import StatefulDataLoader
    except ImportError:
        return made
    return made + [StatefulDataLoader(Packed(rank, ranks), batch_size=1, num_workers=count) for count in workers]


def tokens_in(rows):
    return [int(token) for batch in rows for token in torch.as_tensor(batch[0]).tolist()]


def through_bytes(loader):
    return value_bytes.decode(value_bytes.encode(ic.LoaderState(loader).content()), "here")


def gone_on(states, made, policy=POLICY):
    """Loads into loaders, one of each rank, what others gave."""
    team = [SimpleNamespace(rank=rank, size=len(made)) for rank in range(len(made))]
    ranks = [ic.LoaderState(loader, policy) for loader in made]
    wanted = rank_state.wanted_of([{"x": one.wanted(own)} for one, own in zip(ranks, team)])
    each = [rank_state.Resolving({"x": one}, {"x": rank_state.Kept("here", len(states), None)}, wanted, own, lambda name, index: states[index]) for one, own in zip(ranks, team)]
    measures = rank_state.Resolving.together([json.loads(json.dumps(one.measured())) for one in each])
    for one in each:
        one.resolve(measures)
        one.put()


def left_in(loader):
    """What is in the buffers of readers when all documents are read: too few tokens for a row."""
    return [token for unit in loader_state.units_of(through_bytes(loader)) for token in unit["buffer"].tolist() + [token for sample in unit["samples"] for token in sample["tokens"]]]


def read_through(layouts, steps):
    """Rows of loaders of one layout after the other, (ranks, kind of loader) each; the last one to the end. All tokens, once each."""
    seen, states = [], None
    for number, (ranks, kind, workers) in enumerate(layouts):
        made = [loaders(rank, ranks, [workers])[kind] for rank in range(ranks)]
        if states is not None:
            gone_on(states, made)
        for loader in made:
            rows = iter(loader)
            seen += tokens_in(rows if number + 1 == len(layouts) else itertools.islice(rows, steps))
        states = [through_bytes(loader) for loader in made]
    seen += [token for loader in made for token in left_in(loader)]
    wanted = [token for number in range(DOCUMENTS) for token in document(number)]
    assert Counter(seen) == Counter(wanted), (layouts, len(seen), len(wanted))


def pack():
    """A loader that packs, stopped between rows, on another number of ranks: every token of every document comes once."""
    for saved, loaded in PAIRS:
        read_through([(saved, 0, 0), (loaded, 0, 0)], 5)
    read_through([(3, 0, 0), (5, 0, 0), (1, 0, 0), (4, 0, 0), (2, 0, 0)], 3)
    print("ok every token of packed documents once, on 1 to 6 ranks")


def torchdata():
    """The same of torchdata's StatefulDataLoader, without workers and with some."""
    if len(loaders(0, 1, [0])) == 1:
        return print("left out: torchdata is not installed")
    for saved, loaded in PAIRS:
        read_through([(saved, 1, 0), (loaded, 1, 0)], 5)
    for saved, loaded in (((1, 2), (2, 1)), ((2, 1), (1, 3)), ((1, 0), (1, 2)), ((1, 2), (1, 0)), ((2, 2), (2, 2))):
        read_through([(saved[0], 1, saved[1]), (loaded[0], 1, loaded[1])], 5)
    from torchdata.stateful_dataloader import StatefulDataLoader
    late = StatefulDataLoader(Packed(0, 1), batch_size=1, num_workers=1, snapshot_every_n_steps=4)
    rows = iter(late)
    next(rows)
    expect(ic.Mismatch, "snapshot_every_n_steps=1", lambda: gone_on([through_bytes(late)], [Plain(Packed(rank, 2)) for rank in range(2)]))
    by_index = StatefulDataLoader(list(range(20)), batch_size=1)
    next(iter(by_index))
    expect(ic.Mismatch, "'interleaved'", lambda: gone_on([through_bytes(by_index)], [StatefulDataLoader(list(range(20)), batch_size=1) for rank in range(2)]))
    gone_on([through_bytes(by_index)], [again := StatefulDataLoader(list(range(20)), batch_size=1)])
    assert [int(row) for row in again] == list(range(1, 20))
    expect(TypeError, "no state_dict()", lambda: ic.LoaderState(3))
    print("ok torchdata's loader, with other numbers of ranks and of workers")


def published_loader():
    """The class that the README shows, as it stands there."""
    readme = (Path(__file__).resolve().parents[2] / "python/README.md").read_text()
    text = next(block.split("```")[0] for block in readme.split("```python\n") if block.startswith("class PrefetchedRows"))
    names = {"threading": threading, "copy": copy}
    exec(text, names)
    return names["PrefetchedRows"]


def prefetched():
    """The README's loader on 1 to 8 ranks, stopped anywhere while its thread makes rows ahead: no token is lost, and none comes twice."""
    made_ahead = 0
    for trial in range(40):
        draw, token, loader_of = random.Random(trial), itertools.count(), published_loader()
        documents = {f"stream {number}": [[next(token) for _ in range(draw.randint(1, 30))] for _ in range(draw.randint(0, 40))] for number in range(draw.randint(1, 12))}
        length, seen, states, policy = draw.randint(1, 24), [], None, {"streams": "split", "tokens": "split", "rows": "split"}

        def read(stream, place):
            return documents[stream][place] if place < len(documents[stream]) else None
        layouts = [draw.randint(1, 8) for _ in range(draw.randint(1, 4))]
        for number, ranks in enumerate(layouts):
            made = [loader_of(read, list(documents)[rank::ranks], length, draw.randint(0, 9)) for rank in range(ranks)]
            if states is not None:
                gone_on(states, made, policy)
            for loader in made:
                rows = iter(loader)
                for row in rows if number + 1 == len(layouts) else itertools.islice(rows, draw.randint(0, 6)):
                    assert len(row) == length
                    seen += row
            states = [through_bytes(loader) for loader in made]
            made_ahead += sum(len(state["rows"]) for state in states)
            for loader in made:
                with loader.changed:  # its thread reads to the end, and ends
                    loader.depth = len(documents) * 10**6
                    loader.changed.notify_all()
        seen += [one for state in states for one in state["tokens"]]
        assert all(not state["rows"] for state in states) and Counter(seen) == Counter(range(next(token))), (trial, layouts)
    assert made_ahead > 0
    seen = []

    def broken(stream, place):
        if place == 5:
            raise OSError("the disk is gone")
        return [place] * 4
    expect(OSError, "the disk is gone", lambda: seen.extend(published_loader()(broken, ["a"], 2, 3)))
    assert len(seen) == 10, seen
    print("ok rows made ahead by the README's loader, on 1 to 8 ranks")


def loader_on_ranks(rank, world, folder):
    """Goes on where the checkpoint is, if there is one, and saves after some rows, or reads all."""
    loader = loaders(rank, world, [0])[-1]  # torchdata's, if it is there
    path = ic.latest(folder / "checkpoints")
    state = {"w": torch.ones(3), "data": {"loader": ic.LoaderState(loader, POLICY)}}
    if path is not None:
        ic.load(path, state)
    seen = tokens_in(iter(loader) if world == 3 else itertools.islice(iter(loader), 5))
    if world == 3:
        seen += left_in(loader)
    else:
        ic.save(folder / "checkpoints", world, state)
    (folder / f"seen_{world}_{rank}.json").write_text(json.dumps(seen))


def saved_loaders(folder):
    """Through a checkpoint, with ranks that are processes."""
    for world in (1, 2, 3):
        run(world, loader_on_ranks, folder)
    seen = [token for file in folder.glob("seen_*.json") for token in json.loads(file.read_text())]
    assert Counter(seen) == Counter(token for number in range(DOCUMENTS) for token in document(number)), len(seen)
    print("ok loaders through checkpoints of 1, 2 and 3 ranks")


def loaders_of_ranks(folder):
    pack()
    torchdata()
    prefetched()
    saved_loaders(folder)


if __name__ == "__main__":
    main([policies, ranks, rank_refusals, loaders_of_ranks])
