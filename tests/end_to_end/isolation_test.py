"""Tests neither read nor write the home, the cache and the credentials of whoever runs them.

Bug: with a few trained models in ~/.cache/ingot, their record calibrated the predictions of every test's run, and one that compared
the names of metrics failed."""
import os
import pwd
import sys
from pathlib import Path

BUILD = Path(sys.argv[1]).resolve()

for name in ("HOME", "XDG_CACHE_HOME", "INGOT_CACHE"):
    assert BUILD in Path(os.environ[name]).resolve().parents, f"{name}={os.environ[name]} is not in {BUILD}"
assert Path(os.environ["HOME"]).resolve() != Path(pwd.getpwuid(os.getuid()).pw_dir).resolve()
assert not [name for name in os.environ if name.startswith("AWS_")], "credentials of the user are seen by the tests"
print("ok")
