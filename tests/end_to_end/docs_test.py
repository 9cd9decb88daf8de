"""What README.md, docs/ and configs/ say of the command line is what the program takes: verbs, actions, flags and settings."""
import fnmatch
import json
import re
import subprocess
from pathlib import Path

from harness import INGOT, at_night, ingot

ROOT = Path(__file__).resolve().parents[2]
GROUPS = ("model", "data", "parallel", "optimizer", "train", "checkpoint", "resilience", "log")


def pages():
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def calls(text):
    """(words, flags) of every call of the program in a code span or an indented line; alternatives in one span are calls of their own."""
    spans = re.findall(r"`((?:build/release/)?ingot [^`]+)`", text) + re.findall(r"^ {4}\$ (?:build/release/)?(ingot .+)$", text, re.M)
    for span in spans:
        words = span.replace("\\|", "|").replace("\n", " ").split()[1:]
        verb = words[0]
        actions = words[1].split("|") if len(words) > 1 and re.fullmatch(r"[a-z][a-z|-]*", words[1]) else [None]
        flags = [flag for word in words for flag in re.findall(r"(?:^|\[)(--?[a-z][a-z-]*)", word)]
        for action in actions:
            yield verb, action, flags, span


def every_call_in_the_docs_is_taken():
    helps = {}
    seen = 0
    for page in pages():
        for verb, action, flags, span in calls(page.read_text()):
            key = (verb, action)
            if key not in helps:
                words = [verb] + ([action] if action else [])
                done = subprocess.run([INGOT, *words, "--help"], capture_output=True, text=True, timeout=60)
                assert done.returncode == 0, f"{page.name}: `{span}`: ingot {' '.join(words)} --help: {done.stderr}"
                helps[key] = done.stdout
            for flag in flags:
                assert re.search(rf"(^|[\s,]){re.escape(flag)}\b", helps[key]), f"{page.name}: `{span}`: there is no {flag}"
            seen += 1
    assert seen > 15, seen


def every_verb_is_in_the_readme():
    listed = re.findall(r"^  ([a-z]+)  ", ingot("--help")[0], re.M)
    assert len(listed) >= 7, listed
    readme = (ROOT / "README.md").read_text()
    for verb in listed:
        assert f"`ingot {verb}" in readme, f"README.md does not name ingot {verb}"


def every_setting_in_the_docs_exists():
    known = set(re.findall(r"^\s*([a-z_]+\.[a-z_0-9.]+)", ingot("train", "--settings")[0], re.M))
    assert "train.steps" in known, sorted(known)[:10]
    for page in pages():
        for name in re.findall(rf"`((?:{'|'.join(GROUPS)})\.[a-z_0-9]+)`", page.read_text()):
            assert name in known or name.endswith((".txt", ".json", ".toml")), f"{page.name}: there is no setting {name}"


def the_settings_reference_is_up_to_date():
    page = ROOT / "docs" / "settings.md"
    assert page.read_text() == ingot("train", "--settings", "--markdown")[0], "run  build/release/ingot train --settings --markdown >docs/settings.md"


def every_test_that_pages_name_exists():
    """In ctest's list, or where tests come from that this build leaves out."""
    listed = subprocess.run(["ctest", "--test-dir", str(Path(INGOT).parent), "-N"], capture_output=True, text=True, timeout=300).stdout
    tests = re.findall(r"^ +Test +#\d+: (.+)$", listed, re.M) + re.findall(r"add_test\(NAME (\S+)", (ROOT / "tests" / "CMakeLists.txt").read_text())
    for source in (ROOT / "src").rglob("*_test.cpp"):
        folder = source.relative_to(ROOT / "src").parts[0]
        tests += [f"{folder}/{suite}.{name}" for suite, name in re.findall(r"^TEST(?:_F|_P)?\((\w+),\s*(\w+)\)", source.read_text(), re.M)]
    groups = {test.split("/")[0] for test in tests}
    for page, least in (("papers", 40), ("data", 10)):
        patterns = [p for p in re.findall(r"`([a-z_]+/[^`\s]+)`", (ROOT / "docs" / f"{page}.md").read_text())
                    if p.split("/")[0] in groups and not p.startswith("benchmarks/") and not re.search(r"\.(cpp|h|toml|md|gz|zst)$", p) and ("*" in p or not list((ROOT / "src").glob(p + "*")))]
        assert len(patterns) >= least, patterns
        for pattern in patterns:
            assert fnmatch.filter(tests, pattern), f"docs/{page}.md: no test is called {pattern}"


# What the configurations to copy say of themselves: parameters, 10^9 tokens of the phases, contexts.
COPIED = {
    "dense-100m": (134_515_008, [10], [2048]),
    "dense-1b": (1_484_916_736, [100], [4096]),
    "dense-8b": (8_190_735_360, [1000], [4096]),
    "moe-1b-active": (6_919_161_856, [200], [4096]),
    "hybrid-1b": (1_387_915_648, [50], [2048]),
    "zaya1-base": (8_840_488_784, [8000, 4000, 1200], [4096, 4096, 32768]),
    "zaya1-8b": (8_840_488_784, [8000, 4000, 1200, 660], [4096, 4096, 32768, 131072]),
}


BY_DAY = {"dense-100m", "moe-1b-active", "hybrid-1b", "zaya1-8b"}  # a dense model, an MoE, a hybrid, and all phases of a recipe


def every_config_is_taken():
    """But for its data, of which there is none here: sizes are checked and the plan printed without allocating the model. By day of some of the large ones."""
    configs = {config.stem: config for config in sorted((ROOT / "configs").glob("*.toml"))}
    assert COPIED.keys() <= configs.keys(), configs
    for name, config in configs.items():
        if name in COPIED.keys() - BY_DAY and not at_night():
            continue
        phases = json.loads(ingot("train", config, "--dry-run", "--json", timeout=300)[0])["phases"]
        assert all(phase["memory_bytes"]["peak"] > 0 for phase in phases), (config, phases)
        if name not in COPIED:
            continue
        parameters, tokens, contexts = COPIED[name]
        text = config.read_text()
        assert {phase["parameters"] for phase in phases} == {parameters}, (config, phases)
        assert [phase["seq_len"] for phase in phases] == contexts, (config, phases)
        assert [int(found) for found in re.findall(r"^tokens = (\d+)$", text, re.M)] == [billions * 10**9 for billions in tokens], config
        assert re.search(r"\bours\b", text, re.I), f"{config} does not say which values are ours"


if __name__ == "__main__":
    for test in (every_call_in_the_docs_is_taken, every_verb_is_in_the_readme, every_setting_in_the_docs_exists, the_settings_reference_is_up_to_date,
                 every_test_that_pages_name_exists, every_config_is_taken):
        test()
        print("ok", test.__name__, flush=True)
