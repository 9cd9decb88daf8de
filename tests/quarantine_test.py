"""What the quarantine list lets through and what it refuses."""
import contextlib
import datetime
import io
import tempfile
from pathlib import Path

import quarantine

TODAY = datetime.date(2026, 11, 24)


def with_list(text):
    path = Path(tempfile.mkdtemp(prefix="ingot_quarantine_")) / "quarantine.txt"
    path.write_text(text)
    return path


def refused(call, *words):
    try:
        call()
    except quarantine.Wrong as wrong:
        assert all(word in str(wrong) for word in words), wrong
        return
    raise AssertionError(f"was not refused, though it should name {words}")


def an_entry_lasts_sixty_days():
    path = with_list("# why\n\n2026-09-25 a/b.c waits for a wall clock\n")
    quarantine.check(path, {"a/b.c"}, TODAY)
    refused(lambda: quarantine.check(path, {"a/b.c"}, TODAY + datetime.timedelta(days=1)), "a/b.c", "61 days", "waits for a wall clock")
    refused(lambda: quarantine.check(path, {"a/b.c"}, datetime.date(2026, 9, 24)), "future")


def an_entry_of_a_test_that_is_gone_is_refused():
    refused(lambda: quarantine.check(with_list("2026-11-24 a/b.c reason\n"), {"a/b.d"}, TODAY), "no test a/b.c")


def lines_without_day_or_reason_are_refused():
    refused(lambda: quarantine.entries(with_list("a/b.c is flaky\n")), ":1:", "no day")
    refused(lambda: quarantine.entries(with_list("2026-11-24 a/b.c\n")), ":1:", "reason")
    refused(lambda: quarantine.entries(with_list("2026-11-24 a/b.c one\n2026-11-24 a/b.c two\n")), "twice")


def only_tests_in_the_list_are_run_again():
    path = with_list("2026-11-24 a/b.c reason\n2026-11-24 a/b.d reason\n")
    log = path.parent / "LastTestsFailed.log"
    log.write_text("7:a/b.c\n12:a/b.d\n")
    assert quarantine.retry(path, quarantine.failed_tests(log)) == ["a/b.c", "a/b.d"]
    log.write_text("7:a/b.c\n13:a/b.e\n")
    with contextlib.redirect_stderr(io.StringIO()) as message:
        assert quarantine.main("retry", path, log) == 1
    assert "a/b.e" in message.getvalue() and "a/b.c" not in message.getvalue(), message.getvalue()


def the_list_of_the_repository_is_well_formed():
    quarantine.entries(Path(__file__).parent / "quarantine.txt")


for test in (an_entry_lasts_sixty_days, an_entry_of_a_test_that_is_gone_is_refused, lines_without_day_or_reason_are_refused,
             only_tests_in_the_list_are_run_again, the_list_of_the_repository_is_well_formed):
    test()
    print("ok", test.__name__)
