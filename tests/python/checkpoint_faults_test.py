"""benchmarks/checkpoint_faults.py: whatever happens to a checkpoint of ingot, no load gives wrong tensors and no save costs the last good one.
The same trials see torch.save fail. INGOT_BINARY is the program, PYTHONPATH begins with the built package."""
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import checkpoint_faults as faults
from checkpoint_fault_ranks import NEW, Fork


def measured(folder, *words):
    package = os.environ["PYTHONPATH"].split(os.pathsep)[0]
    found, _ = faults.measure(faults.arguments(["--folder", str(folder), "--package", package, "--program", os.environ["INGOT_BINARY"], *words]))
    return found


def outcomes(trials):
    return {trial.outcome for trial in trials}


NIGHT = bool(os.environ.get("INGOT_NIGHT"))


def ingot_is_never_wrong_nor_lost(folder):
    for kind, trials in measured(folder, "--systems", "ingot", "--trials", "5" if NIGHT else "2", "--saves", "3" if NIGHT else "2", "--seed", "7")["ingot"].items():
        for trial in trials:
            assert trial.outcome in ("clear", "right"), f"{kind}: {trial}"
            if trial.outcome == "clear":
                assert trial.notes == ["found by verify"], f"{kind}: {trial}"
        if kind in faults.SAVES:
            assert outcomes(trials) == {"right"}, f"{kind}: {trials}"
        else:
            assert "clear" in outcomes(trials), f"{kind}: {trials}"


def the_same_trials_see_others_fail(folder):
    kinds = ["a file of an older checkpoint", "two ranks' files swapped", "full disk, same path"]
    found = measured(folder, "--systems", "torch.save", "--trials", "2", "--saves", "3", "--kinds", *kinds)["torch.save"]
    assert outcomes(found[kinds[0]]) == outcomes(found[kinds[1]]) == {"wrong"}, found
    assert "lost" in outcomes(found[kinds[2]]), found


def a_load_that_dies_is_a_crash(folder):
    fork = Fork(lambda: None, lambda _: os.abort())
    fork.go()
    assert fork.wait(2, 20)
    assert faults.judged(fork.end(), [NEW], [])[:2] == ("crash", "the load ended with -6")


for test in (ingot_is_never_wrong_nor_lost, the_same_trials_see_others_fail, a_load_that_dies_is_a_crash):
    with tempfile.TemporaryDirectory() as name:
        test(Path(name) / "trials")
    print(test.__name__, flush=True)
