"""The state of a data loader, saved by some number of ranks and workers and loaded by another: what was read and is not used yet is kept, every
token of it once."""
import copy

from .policies import Lazy, advice, kind_of, policy_of, within
from .rank_state import PerRank
from .team import Mismatch

# What torchdata's StatefulDataLoader calls its parts.
SNAPSHOT, WORKERS, STEPS = "_snapshot", "_worker_snapshots", "_steps_since_snapshot"
FETCHER, ITERATOR, DATASET = "fetcher_state", "dataset_iter_state", "dataset_state"


class LoaderState(PerRank):
    """A PerRank whose value is what `loader.state_dict()` gives and `loader.load_state_dict()` takes: torchdata's StatefulDataLoader, or any object
    that has both, a dataset that packs, say. Where as many ranks load as saved, with as many workers, each loader gets its own state back.
    Otherwise the policy is for the states of datasets, of which each worker of each rank has one: what it calls a rank is then a worker."""

    def __init__(self, loader, policy=None, index=None, count=None):
        for name in ("state_dict", "load_state_dict"):
            if not callable(getattr(loader, name, None)):
                raise TypeError(f"a {type(loader).__module__}.{type(loader).__qualname__} has no {name}()")
        super().__init__(None, policy, index, count)
        self.loader = loader

    def content(self):
        return self.loader.state_dict()

    def put(self, value):
        self.loader.load_state_dict(value)

    def applied(self, policy, saved_count, count):
        return Workers(self.loader, policy, saved_count == count)


class Workers:
    """A policy for states of loaders, by one for the states of datasets in them."""

    def __init__(self, loader, policy, same_ranks):
        self._loader, self._policy, self._same_ranks = loader, policy, same_ranks
        self._workers = max(1, getattr(loader, "num_workers", 1))

    def measure(self, value):
        """Of each worker what the policy must know; nothing where each gets its own."""
        count = len(_snapshots(value) or [value])
        if self._same_ranks and count == self._workers:
            return [None] * count
        policy = self._of_datasets(count)
        return [within(f"worker {number}", policy.measure, unit) if hasattr(policy, "measure") else None for number, unit in enumerate(units_of(value))]

    def _of_datasets(self, saved_workers):
        policy = policy_of(self._policy)
        if policy is None:
            raise Mismatch(f"it was saved with {saved_workers} workers and is loaded with {self._workers}; {advice()}")
        return policy

    def take(self, measures, saved, index, count):
        if self._same_ranks and len(measures[index]) == self._workers:
            return saved[index]
        policy = self._of_datasets(len(measures[0]))
        known = [measure for own in measures for measure in own]
        if hasattr(policy, "measure") and None in known:
            raise Mismatch("ranks saved it with different numbers of workers, and some load it with as many as they had")
        units = [(rank, worker) for rank, own in enumerate(measures) for worker in range(len(own))]
        whole = Lazy(len(units), lambda unit: units_of(saved[units[unit][0]])[units[unit][1]])
        first, everywhere = index * self._workers, count * self._workers
        return with_units(self._loader.state_dict(), [policy.take(known, whole, first + worker, everywhere) for worker in range(self._workers)])


def _snapshots(state):
    """Of the workers of torchdata's loader, the loader itself where it has none; None: it is another loader's state."""
    if not isinstance(state, dict):
        raise Mismatch(f"the state of a loader is a {kind_of(state)}, not a dict")
    if SNAPSHOT in state and WORKERS in state[SNAPSHOT]:
        workers = state[SNAPSHOT][WORKERS]
        return [workers[f"worker_{number}"] for number in range(len(workers))]
    return [state] if FETCHER in state and DATASET in state else None


def _holder(snapshot):
    """(dict, key) of a dataset's state: its own, or that of its iterator."""
    if snapshot[DATASET] is not None:
        return snapshot, DATASET
    if snapshot[FETCHER] is not None and snapshot[FETCHER].get(ITERATOR) is not None:
        return snapshot[FETCHER], ITERATOR
    raise Mismatch("the dataset has no state of its own (state_dict(), load_state_dict()), so that other ranks cannot go on where it was; of a dataset that is read "
                   "by index save how many samples this rank has read, as a PerRank with the policy 'interleaved'")


def units_of(state):
    """The states of datasets within the state of a loader, one for each worker."""
    snapshots = _snapshots(state)
    if snapshots is None:
        return [state]
    if state.get(STEPS):
        raise Mismatch(f"it was saved {state[STEPS]} steps after the workers' last snapshot, which others cannot repeat; make the loader with snapshot_every_n_steps=1")
    return [holder[key] for holder, key in map(_holder, snapshots)]


def with_units(state, units):
    """The state of a loader that has not begun, with these states of datasets."""
    if _snapshots(state) is None:
        return units[0]
    state = copy.deepcopy(state)
    for (holder, key), unit in zip(map(_holder, _snapshots(state)), units):
        holder[key] = unit
    return state
