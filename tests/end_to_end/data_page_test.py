"""`ingot data inspect -o PAGE.html`: its numbers are those of data with planted copies, and nothing of a document is more than text."""
import json
import re
from html.parser import HTMLParser

from harness import expect_error, ingot, run_chosen

EVIL = "</script><script>document.title='owned'</script> \x1b[31m \u202e txt \ufeff & <b>"


class Page(HTMLParser):
    """Elements of a page, and the JSON of its numbers."""

    def __init__(self, path):
        super().__init__()
        self.tags, self.texts, self.open = [], [], []
        self.text = path.read_text()
        self.feed(self.text)
        self.numbers = json.loads(re.search(r'id="numbers">(.*?)</script>', self.text, re.S)[1])

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.open.append(tag)

    def handle_endtag(self, tag):
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
            self.texts.append(data)

    def visible(self):
        return "".join(self.texts)


def write_documents(work, texts, name):
    lines = work.path / f"{name}.jsonl"
    lines.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    ingot("data", "tokenize", lines, "-o", work.path / name, "--tokenizer", work.path / "tokenizer")
    return work.path / name


def planted():
    """90 documents of their own, one that is there 7 times, and one twice."""
    texts = [f"document number {i} " + "word " * (i % 37) for i in range(90)]
    return texts + ["seven times the same"] * 7 + [EVIL] * 2


def check_dataset(dataset, page_text):
    assert dataset["documents"] == dataset["compared_documents"] == 99, dataset
    assert dataset["repeated_documents"] == 7, dataset
    assert sum(b["documents"] for b in dataset["lengths"]) == 99 and sum(b["tokens"] for b in dataset["lengths"]) == dataset["tokens"]
    assert dataset["counted_tokens"] == dataset["tokens"] and dataset["unlearned_tokens"] == 0
    assert "7 documents (7.07 %) are copies" in page_text, page_text[:2000]


def copies_and_lengths_are_those_of_the_data(work):
    data, file = write_documents(work, planted(), "d"), work.path / "page.html"
    out = ingot("data", "inspect", data, "--tokenizer", work.path / "tokenizer", "-o", file, "--json")[0]
    page = Page(file)
    assert json.loads(out) == page.numbers
    check_dataset(page.numbers["datasets"][0], page.visible())
    most = page.numbers["duplicates"]["most_repeated"]
    assert [(m["document"], m["copies"]) for m in most] == [(90, 7), (97, 2)], most
    plain = json.loads(ingot("data", "inspect", data, "--tokenizer", work.path / "tokenizer", "--json")[0])
    assert plain["tokens"] == page.numbers["datasets"][0]["tokens"] and plain["largest_id"] == page.numbers["vocabulary"]["largest_id"]
    encoded = sum(len(text.encode()) for text in planted())
    decoded = page.numbers["datasets"][0]["decoded_bytes"]
    assert abs(decoded - encoded) < 0.02 * encoded, (decoded, encoded)
    vocabulary = page.numbers["vocabulary"]
    assert vocabulary["used"] + vocabulary["never_used"] == vocabulary["size"] == 384 and vocabulary["outside"] == 0
    assert vocabulary["most_frequent"][0]["count"] >= vocabulary["most_frequent"][1]["count"] > 0


def hostile_documents_are_text(work):
    data, file = write_documents(work, [EVIL] * 3, "evil"), work.path / "page.html"
    ingot("data", "inspect", data, "--tokenizer", work.path / "tokenizer", "-o", file)
    page = Page(file)
    assert not any(c in page.text for c in "\x1b\u202e\ufeff\0")
    assert "owned" not in re.search(r"<title>(.*?)</title>", page.text)[1]
    tags = {tag for tag, _ in page.tags}
    assert "b" not in tags and "img" not in tags, tags
    assert sum(tag == "script" for tag, _ in page.tags) == page.text.count("</script>")
    assert not any(name.startswith("on") or name in ("src", "href") for _, attributes in page.tags for name in attributes)
    assert "default-src 'none'" in page.text and "U+202E" in page.visible() and "U+001B" in page.visible()


def a_run_is_shown_as_it_is_fed(work):
    one, two = write_documents(work, planted(), "one"), write_documents(work, [f"other {i}" for i in range(200)], "two")
    extra = "".join(f'[[data.sources]]\npath = "{path}"\nweight = {weight}\n' for path, weight in ((one, 2), (two, 1)))
    config = work.config(extra=extra, **{"data.packing": "best_fit", "data.validation_fraction": 0.0})
    file = work.path / "run.html"
    out = ingot("data", "inspect", "--config", config, "--set", "train.steps=30", "-o", file, "--json", "--samples", 2)[0]
    page = Page(file)
    assert json.loads(out) == page.numbers
    assert [d["documents"] for d in page.numbers["datasets"]][1:] == [99, 200]
    (phase,) = page.numbers["phases"]
    assert phase["samples"] == 30 * 4 and phase["seq_len"] == 48 and phase["packing"] == "best_fit"
    assert sum(s["samples"] for s in phase["sources"]) == 120
    for source in phase["sources"]:
        assert source["row_tokens"] + source["padding"] == 48 * source["read_rows"] and source["read_rows"] == source["rows"], source
        assert abs(source["epochs"] * source["rows"] - source["samples"]) < 1e-6, source
    assert 59 <= phase["sources"][1]["samples"] <= 61, phase  # 2 of 4
    assert sum(attributes.get("class") == "shown" for _, attributes in page.tags) == 2
    assert "First samples of the run" in page.visible()


def wrong_calls_say_what_is_wrong(work):
    data = work.path / "tokens"
    expect_error("data", "inspect", status=2, words=("prefix", "--config"))
    expect_error("data", "inspect", data, "--config", "c.toml", status=2, words=("not both",))
    expect_error("data", "inspect", data, "--set", "train.steps=1", status=2, words=("--config",))
    expect_error("data", "inspect", data, "-o", "page.txt", status=2, words=(".html",))
    expect_error("data", "inspect", "--config", work.config(), status=2, words=("-o", "--json"))
    ingot("data", "train-tokenizer", work.path / "text.txt", "-o", work.path / "smaller", "--vocab-size", 355)
    ingot("data", "inspect", data, "--tokenizer", work.path / "smaller", "-o", work.path / "p.html", status=3)
    assert "the data is of another tokenizer" in (work.path / "p.html").read_text()


run_chosen([copies_and_lengths_are_those_of_the_data, hostile_documents_are_text, a_run_is_shown_as_it_is_fed, wrong_calls_say_what_is_wrong])
