#!/usr/bin/env python3
"""What a library must not depend on is not on the link line of its tests, as the build's own description has it."""
import os
import re
import sys
import unittest
from pathlib import Path

BUILD = Path(os.environ["INGOT_BINARY"]).parent


def link_line(program):
    """The libraries that a test program of src/ is linked with."""
    text = (BUILD / "build.ninja").read_text()
    edge = re.search(rf"^build src/\S*/{program}: CXX_EXECUTABLE_LINKER.*?(?=^build )", text, re.M | re.S)
    assert edge, f"build.ninja has no program {program}"
    return re.search(r"^  LINK_LIBRARIES = (.*)$", edge.group(0), re.M).group(1)


class LinkLines(unittest.TestCase):
    def test_the_trainer_links_no_object_store_and_no_http_client(self):
        line = link_line("train_test")
        self.assertIn("libingot_train.a", line)
        self.assertIn("libingot_checkpoint.a", line)
        for library in ("object_store", "curl", "pugixml"):
            self.assertNotIn(library, line)

    def test_what_measures_links_no_health_checks(self):
        self.assertNotIn("libingot_health", link_line("bench_test"))

    def test_health_checks_reports_and_the_command_lines_words_link_no_torch(self):
        for program in ("health_test", "cli_test"):
            self.assertNotIn("libtorch", link_line(program), program)


if __name__ == "__main__":
    if not (BUILD / "build.ninja").exists():
        sys.exit(77)
    unittest.main()
