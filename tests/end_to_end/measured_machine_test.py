"""Comes before the tests that train or plan: this machine is measured once, while no other test runs. Otherwise the first ones measure it
under each other's load, and later ones again when it happens to be idle."""
from harness import ingot, run_chosen


def this_machine_is_measured(w):
    for precision in ("fp32", "bf16"):
        ingot("plan", "time", w.config(**{"train.precision": precision}), timeout=500)


if __name__ == "__main__":
    run_chosen([this_machine_is_measured])
