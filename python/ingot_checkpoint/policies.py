"""What becomes of values that some number of ranks saved when another number loads them. A policy has take(measures, saved, index, count): the value
of one of `count` ranks, for which it reads as few of the saved ones as it can; and, where that takes it, measure(value): what all ranks must know
of what each saved, small and of JSON, found by one of them."""
import itertools
from collections.abc import Sequence

import numpy
import torch

from . import _core
from .team import Mismatch
from .value_bytes import encode


def tokens_of(sample):
    """The most elements that a tensor, array or list of the sample has; at least 1."""
    if isinstance(sample, dict):
        return max([1, *map(tokens_of, sample.values())])
    if isinstance(sample, torch.Tensor):
        return max(1, sample.numel())
    if isinstance(sample, numpy.ndarray):
        return max(1, sample.size)
    if isinstance(sample, (list, tuple)):
        return max(len(sample), 1, *(tokens_of(one) for one in sample if isinstance(one, (dict, list, tuple, torch.Tensor, numpy.ndarray))))
    return max(1, len(sample)) if isinstance(sample, (str, bytes)) else 1


def _items(value):
    return list(value.values()) if type(value) is dict else value


class Split:
    """Items of all ranks, in the order of ranks, cut into shares of equal weight: an item is in that share in which its middle lies."""

    def __init__(self, name, weigh=None):
        self._name, self._weigh = name, weigh  # without: each item weighs 1

    def measure(self, value):
        is_rows = isinstance(value, (torch.Tensor, numpy.ndarray)) and value.ndim > 0
        if not is_rows and type(value) not in (list, tuple, bytes, dict):
            raise Mismatch(f"a {kind_of(value)} cannot be split; '{self._name}' takes lists, tuples, bytes, dicts, and tensors of at least one dim")
        return len(value) if self._weigh is None or is_rows or type(value) is bytes else sum(map(self._weigh, _items(value)))

    def take(self, measures, saved, index, count):
        total, begin, parts = sum(measures), 0, []
        for rank, weight in enumerate(measures):
            end = begin + weight
            if weight > 0 and begin * count <= total * (index + 1) and end * count >= total * index:
                value = saved[rank]
                low, high = (self._place(value, begin, total * share, count) for share in (index, index + 1))
                parts.append(dict(itertools.islice(value.items(), low, high)) if type(value) is dict else value[low:high])
            begin = end
        parts = [part for part in parts if len(part) > 0] or [saved[0][:0] if type(saved[0]) is not dict else {}]
        return joined(parts)

    def _place(self, value, begin, bound, count):
        """How many of the items have their middle before bound / count."""
        if self.measure(value) == len(value):  # each weighs 1: the least i with (2 (begin + i) + 1) count >= 2 bound
            return min(len(value), max(0, -(((2 * begin + 1) * count - 2 * bound) // (2 * count))))
        place = 0
        for weight in map(self._weigh, _items(value)):
            if (2 * begin + weight) * count >= 2 * bound:
                break
            begin, place = begin + weight, place + 1
        return place


def joined(parts):
    kinds = {kind_of(part) for part in parts}
    if len(kinds) > 1:
        raise Mismatch(f"ranks have saved different kinds of things: {', '.join(sorted(kinds))}")
    first = parts[0]
    if len(parts) == 1:
        return first
    if isinstance(first, torch.Tensor):
        return torch.cat(parts)
    if isinstance(first, numpy.ndarray):
        return numpy.concatenate(parts)
    if type(first) is dict:
        whole = {}
        for part in parts:
            for key, value in part.items():
                if key in whole:
                    raise Mismatch(f"two ranks have saved the key {key!r}, of which one value would be lost")
                whole[key] = value
        return whole
    return b"".join(parts) if type(first) is bytes else type(first)(itertools.chain.from_iterable(parts))


def kind_of(value):
    if isinstance(value, (torch.Tensor, numpy.ndarray)):
        return f"{type(value).__module__}.{type(value).__name__} of {value.dtype} [{', '.join(['n', *map(str, value.shape[1:])]) if value.ndim else ''}]"
    return type(value).__name__


class Sum:
    """Each rank the sum of those saved ones that fall to it, or zeros: the sum over all ranks stays."""

    def take(self, measures, saved, index, count):
        ranks = len(measures)
        falls_to = [rank * count // ranks if count <= ranks else -(-rank * count // ranks) for rank in range(ranks)]
        mine = [saved[rank] for rank in range(ranks) if falls_to[rank] == index]
        total = mine[0] if mine else zeros(saved[0])
        for one in mine[1:]:
            total = added(total, one)
        return total


def added(a, b):
    if type(a) is not type(b):
        raise Mismatch(f"a {kind_of(a)} and a {kind_of(b)} cannot be added")
    if type(a) in (int, float):
        return a + b
    if isinstance(a, (torch.Tensor, numpy.ndarray)) and a.shape == b.shape and a.dtype == b.dtype:
        return a + b
    if type(a) in (list, tuple) and len(a) == len(b):
        return type(a)(added(x, y) for x, y in zip(a, b))
    if type(a) is dict and a.keys() == b.keys():
        return {key: added(value, b[key]) for key, value in a.items()}
    raise Mismatch(f"a {kind_of(a)} cannot be added to one of another rank; 'sum' takes numbers, tensors of one shape, and lists and dicts of them")


def zeros(value):
    if isinstance(value, (torch.Tensor, numpy.ndarray)):
        return (torch if isinstance(value, torch.Tensor) else numpy).zeros_like(value)
    if type(value) in (list, tuple):
        return type(value)(zeros(one) for one in value)
    if type(value) is dict:
        return {key: zeros(one) for key, one in value.items()}
    added(value, value)  # can it be?
    return type(value)(0)


class Interleaved:
    """How many samples a rank has read of one sequence that is dealt out in turn: sample i to rank i modulo their number."""

    def measure(self, value):
        if type(value) is not int or value < 0:
            raise Mismatch(f"{value!r} is not a number of samples that were read")
        return value

    def take(self, measures, saved, index, count):
        total, ranks = sum(measures), len(measures)
        for rank, own in enumerate(measures):
            if own != (total - rank + ranks - 1) // ranks:
                raise Mismatch(f"ranks have read {measures} samples, which are not the first {total} of a sequence that is dealt out in turn: with another "
                               "number of ranks some would be lost or come twice. Save the same position on all of them, or a dict of streams to 'split'")
        return (total - index + count - 1) // count


class Same:
    """What must be the same on all ranks."""

    def measure(self, value):
        return encode(value).hex() if _is_short(value) else digest(encode(value))

    def take(self, measures, saved, index, count):
        for rank, measure in enumerate(measures):
            if measure != measures[0]:
                raise Mismatch(f"rank 0 and rank {rank} have saved different values: {_shown(saved[0])} and {_shown(saved[rank])}")
        return saved[index % len(measures)]


def _is_short(value):
    return value is None or type(value) in (bool, int, float)


def digest(content):
    return _core.digest(numpy.frombuffer(content, numpy.uint8).ctypes.data, len(content))


def _shown(value):
    text = repr(value)
    return text if len(text) < 60 else text[:57] + "..."


class Pick:
    """The value of one of the saved ranks."""

    def __init__(self, which):
        self._which = which

    def take(self, measures, saved, index, count):
        return saved[self._which(index, len(measures))]


POLICIES = {"error": None, "replicate": Pick(lambda index, saved: 0), "modulo": Pick(lambda index, saved: index % saved), "same": Same(), "sum": Sum(),
            "interleaved": Interleaved(), "split": Split("split"), "split_tokens": Split("split_tokens", tokens_of)}


class ByKey:
    """A policy for each key of a dict."""

    def __init__(self, policies):
        self._policies = {key: policy_of(policy) for key, policy in policies.items()}

    def measure(self, value):
        if type(value) is not dict:
            raise Mismatch(f"its policy is for the keys of a dict, but a {kind_of(value)} was saved")
        if value.keys() != self._policies.keys():
            raise Mismatch(f"keys and policies do not match: {sorted(map(repr, value.keys() ^ self._policies.keys()))}")
        return [within(key, policy.measure, value[key]) if hasattr(policy, "measure") else None for key, policy in self._policies.items()]

    def take(self, measures, saved, index, count):
        return {key: within(key, policy.take, [measure[number] for measure in measures], Lazy(len(saved), lambda rank, key=key: saved[rank][key]), index, count)
                for number, (key, policy) in enumerate(self._policies.items())}


def within(key, call, *arguments):
    try:
        return call(*arguments)
    except Mismatch as failure:
        raise Mismatch(f"{key!r}: {failure}") from None


class Function:
    def __init__(self, function):
        self._function = function

    def take(self, measures, saved, index, count):
        return self._function(saved, index, count)


class Lazy(Sequence):
    """What ranks have saved; read when it is asked for."""

    def __init__(self, count, read):
        self._count, self._read = count, read

    def __len__(self):
        return self._count

    def __getitem__(self, rank):
        if isinstance(rank, slice):
            return [self[one] for one in range(*rank.indices(self._count))]
        if not -self._count <= rank < self._count:
            raise IndexError(f"rank {rank} of {self._count}")
        return self._read(rank % self._count)


def check_policy(policy):
    if isinstance(policy, dict) and policy:
        for one in policy.values():
            check_policy(one)
    elif policy is not None and not callable(policy) and policy not in list(POLICIES):
        raise TypeError(f"policy {policy!r} is none of {', '.join(map(repr, POLICIES))}, a dict of them by the keys of the value, or a function")


def policy_of(policy):
    """What measures and takes; None where the answer is an error."""
    if isinstance(policy, dict):
        made = ByKey(policy)
        lacking = [key for key, one in policy.items() if policy_of(one) is None]
        if lacking:
            raise Mismatch(f"no policy for its key {lacking[0]!r}; {advice()}")
        return made
    return Function(policy) if callable(policy) else POLICIES[policy] if policy is not None else None


def advice():
    named = ", ".join(f"'{name}'" for name in POLICIES if name != "error")
    return f"give it a policy (PerRank(..., policy=…), on loading will do): {named}, a dict of these by key, or a function (saved, index, count) that makes a new value"


def policy_to_json(policy):
    """What of it is kept: not functions."""
    if isinstance(policy, dict):
        kept = {key: policy_to_json(one) for key, one in policy.items()}
        return kept if all(one is not None and type(key) is str for key, one in kept.items()) else None
    return policy if type(policy) is str else None
