"""What each rank holds on its own: buffers and positions of its data loader, states of random generators, counters. Saved by `count` ranks, and
loaded by as many as it is, by another number of them as a policy says. Nothing is pickled. One thread uses a PerRank."""
import functools

from ._core import CheckpointError
from .policies import Lazy, advice, check_policy, digest, policy_of, policy_to_json, within
from .team import Mismatch
from .torch_state import OfRank
from .value_bytes import encode

MAX_RANKS = 1 << 20


class PerRank(OfRank):
    """Stands in a state for a value that is this rank's own: None, bool, int, float, str, bytes, tensors and numpy arrays, and tuples, lists and
    dicts of them. load() puts what was saved into `value`; where as many ranks load as saved, each gets its own, bit for bit.

    policy      what to do where their number is another: a name of POLICIES, or a dict of policies by the keys of the value, or a function
                (saved, index, count) that returns a value; `saved` is a sequence of what ranks saved, which reads when it is asked. What is
                given on saving is kept, but for functions; what is given on loading counts first. Without any: Mismatch.
    index       whose value it is, of `count`; the rank within those that save or load, and their number, unless given. Ranks that share a
                value (tensor-parallel ones of a data rank) give the same index; one of them writes it, and all get it."""

    def __init__(self, value=None, policy=None, index=None, count=None):
        if (index is None) != (count is None):
            raise TypeError("index and count are given together, or neither")
        if index is not None and not 0 <= index < count <= MAX_RANKS:
            raise TypeError(f"index {index} of {count} is none")
        check_policy(policy)
        self.value, self.policy, self.index, self.count = value, policy, index, count

    def place(self, team):
        """(index, count)"""
        return (team.rank, team.size) if self.index is None else (int(self.index), int(self.count))

    def wanted(self, team):
        """What all ranks must know to load it."""
        index, count = self.place(team)
        return {"index": index, "count": count, "has_policy": self.policy not in (None, "error")}

    def content(self):
        """What is saved."""
        return self.value

    def put(self, value):
        self.value = value

    def applied(self, policy, saved_count, count):
        """What measures and takes; None where each gets its own."""
        return None if saved_count == count else policy_of(policy)


def kept_ranks(path, given):
    """{name: Kept} of the JSON that a checkpoint holds."""
    try:
        return {name: Kept(f"{path}: '{name}'", **one) for name, one in given.items()}
    except (AttributeError, TypeError, ValueError) as failure:
        raise CheckpointError(f"{path}: what it says of ranks' own values is damaged or of a newer version: {failure}") from None


class Kept:
    """How many ranks saved a value of their own, and with which policy."""

    def __init__(self, origin, count, policy):
        if type(count) is not int or not 0 < count <= MAX_RANKS:
            raise ValueError(f"{origin}: {count!r} is no number of ranks")
        check_policy(policy)
        self.origin, self.count, self.policy = origin, count, policy


def encoded(ranks, team):
    """({name: (index, bytes)}, {name: what all ranks must know to agree on it})"""
    blobs, known = {}, {}
    for name, one in ranks.items():
        index, count = one.place(team)
        try:
            blob = encode(one.content())
        except TypeError as failure:
            raise TypeError(f"'{name}': {failure}") from None
        blobs[name] = index, blob
        known[name] = {"index": index, "count": count, "policy": policy_to_json(one.policy), "digest": digest(blob)}
    return blobs, known


def writers_of(products):
    """For each name the number of its values, their policy, and of each value which rank writes it, from what each rank knows."""
    found = {}
    for rank, product in enumerate(products):
        for name, own in product.items():
            first = found.setdefault(name, {"rank": rank, "count": own["count"], "policy": own["policy"], "writers": {}})
            for key in ("count", "policy"):
                if first[key] != own[key]:
                    raise CheckpointError(f"'{name}': rank {first['rank']} gives the {key} {first[key]!r} and rank {rank} {own[key]!r}")
            writer = first["writers"].setdefault(own["index"], (rank, own["digest"]))
            if writer[1] != own["digest"]:
                raise CheckpointError(f"'{name}': rank {writer[0]} and rank {rank} both give the value of index {own['index']}, but not the same one; one of them is enough")
    for name, one in found.items():
        lacking = [index for index in range(one["count"]) if index not in one["writers"]]
        if lacking:
            raise CheckpointError(f"'{name}': no rank gives the value of index {lacking[0]} of {one['count']}")
    return {name: {"count": one["count"], "policy": one["policy"], "writers": [one["writers"][index][0] for index in range(one["count"])]}
            for name, one in found.items()}


def wanted_of(products):
    """For each name {"count", "holders"} from {name: {"index", "count"}} of each rank."""
    found = {}
    for rank, product in enumerate(products):
        for name, own in product.items():
            first = found.setdefault(name, {"count": own["count"], "has_policy": own["has_policy"], "holders": []})
            if (first["count"], first["has_policy"]) != (own["count"], own["has_policy"]):
                raise Mismatch(f"'{name}': rank {first['holders'][0]} and rank {rank} want it of another number of ranks, or only one of them has a policy")
            first["holders"].append(rank)
    return found


def refuse_without_policy(wanted, kept):
    """What does not fit, in words."""
    faults = []
    for name, one in wanted.items():
        known = kept.get(name)
        if known is not None and known.count != one["count"] and not one["has_policy"] and known.policy in (None, "error"):
            faults.append(f"\n  '{name}' was saved by {known.count} ranks and is loaded by {one['count']}; {advice()}")
    return "".join(faults)


class Resolving:
    """What this rank makes of the values that ranks saved. All ranks call measured(), together() on one of them, resolve() on all with its
    answer; then put() changes the state. read(name, index) gives what one rank saved."""

    def __init__(self, ranks, kept, wanted, team, read):
        self._ranks, self._kept, self._wanted, self._team = ranks, kept, wanted, team
        self._saved = {name: Lazy(kept[name].count, functools.lru_cache(maxsize=4)(functools.partial(read, name))) for name in ranks}
        self._values = {}

    def _each(self):
        for name, one in self._ranks.items():
            kept, (index, count) = self._kept[name], one.place(self._team)
            try:
                yield name, one.applied(kept.policy if one.policy is None else one.policy, kept.count, count), self._saved[name], index, count
            except Mismatch as failure:
                raise Mismatch(f"'{name}': {failure}") from None

    def measured(self):
        found = {}
        for name, policy, saved, _, _ in self._each():
            if hasattr(policy, "measure"):
                holders = self._wanted[name]["holders"]
                mine = range(holders.index(self._team.rank), len(saved), len(holders))
                found[name] = {index: within(name, policy.measure, saved[index]) for index in mine}
        return found

    @staticmethod
    def together(products):
        measures = {}
        for product in products:
            for name, own in product.items():
                measures.setdefault(name, {}).update(own)
        return {name: [own[index] for index in sorted(own, key=int)] for name, own in measures.items()}

    def resolve(self, measures):
        for name, policy, saved, index, count in self._each():
            own = measures.get(name, [None] * len(saved))
            if len(own) != len(saved):
                raise Mismatch(f"'{name}': not all ranks that load it give the same policy")
            self._values[name] = saved[index] if policy is None else within(name, policy.take, own, saved, index, count)

    def put(self):
        for name, value in self._values.items():
            self._ranks[name].put(value)
