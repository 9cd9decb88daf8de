"""The list of tests that may be run again when they fail (quarantine.txt beside this file), for scripts/test.

    quarantine.py check LIST TESTS      LIST is well-formed and not out of date; TESTS is a file with the name of every test
    quarantine.py retry LIST FAILED     prints the failed tests, one a line, if all of them may be run again

FAILED is ctest's LastTestsFailed.log. Exit status: 0 yes, 1 no, with the reason on standard error. Standard library only.
"""
import datetime
import os
import sys
from pathlib import Path

MOST_DAYS = 60


class Wrong(Exception):
    pass


def entries(path):
    """{name of a test: (day, reason)}."""
    found = {}
    for number, line in enumerate(Path(path).read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        words = line.split(maxsplit=2)
        try:
            day = datetime.date.fromisoformat(words[0])
        except ValueError:
            raise Wrong(f"{path}:{number}: '{words[0]}' is no day; a line is YYYY-MM-DD, a test's name, and the reason") from None
        if len(words) < 3:
            raise Wrong(f"{path}:{number}: a line is YYYY-MM-DD, a test's name, and the reason")
        if words[1] in found:
            raise Wrong(f"{path}:{number}: {words[1]} is there twice")
        found[words[1]] = (day, words[2])
    return found


def check(path, tests, today):
    for name, (day, reason) in entries(path).items():
        age = (today - day).days
        if age > MOST_DAYS:
            raise Wrong(f"{path}: {name} has been in quarantine for {age} days ({reason}); after {MOST_DAYS} it must be fixed or removed")
        if age < 0:
            raise Wrong(f"{path}: {name}: {day} is in the future")
        if tests is not None and name not in tests:
            raise Wrong(f"{path}: there is no test {name}")


def retry(path, failed):
    """The names of the failed tests, none of which may be outside of the list."""
    known = entries(path)
    outside = [name for name in failed if name not in known]
    if outside:
        raise Wrong(f"not in quarantine, so not run again: {', '.join(outside)}")
    return failed


def failed_tests(log):
    """ctest writes NUMBER:NAME."""
    return [line.split(":", 1)[1] for line in Path(log).read_text().splitlines() if ":" in line]


def main(action, path, names):
    today = datetime.date.fromisoformat(os.environ.get("INGOT_TODAY") or datetime.date.today().isoformat())
    try:
        if action == "check":
            check(path, set(Path(names).read_text().split()) if names else None, today)
        else:
            print("\n".join(retry(path, failed_tests(names))))
    except Wrong as wrong:
        print(wrong, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] not in ("check", "retry"):
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
