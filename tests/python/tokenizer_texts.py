"""Texts that are hard on tokenizers, and what ingot makes of them (tests/tools/tokenizer_exercise.cpp)."""
import os
import random
import struct
import subprocess
import sysconfig
import unicodedata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXERCISE = os.environ.get("TOKENIZER_EXERCISE", str(ROOT / "build/release/tests/tokenizer_exercise"))

LANGUAGES = [
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. Le cœur déçu mais l'âme plutôt naïve, Louÿs rêva.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю. Η γρήγορη αλεπού πηδάει πάνω από το σκυλί.",
    "敏捷的棕色狐狸跳过懒狗。今天天气很好,我们去公园吧!色は匂へど散りぬるを 我が世誰ぞ 常ならむ カタカナも。",
    "한국어 문장도 조금 있습니다. हिन्दी में एक वाक्य। ภาษาไทยไม่มีช่องว่าง นี่คือ। தமிழ் உரை",
    "نص عربي قصير مع تشكيل: السَّلَامُ عَلَيْكُم. טקסט קצר בעברית עם נִקּוּד. 😀 👩‍👩‍👧 🏳️‍🌈 🇩🇪🇫🇷 ½ ² ³ ٣٤٥ Ⅷ",
]


def sources(megabytes):
    """English and code: Python's own library, docstrings and all."""
    size, parts = 0, []
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        parts.append(path.read_text(errors="replace"))
        size += len(parts[-1])
        if size > megabytes * 1e6:
            break
    return parts


def characters(rng):
    pools = [(0x20, 0x7F), (0xA0, 0x250), (0x300, 0x370), (0x370, 0x530), (0x5D0, 0x700), (0x900, 0xE00), (0x1E00, 0x2200), (0x2460, 0x2600),
             (0x3040, 0x3100), (0x4E00, 0x5000), (0xAC00, 0xAD00), (0xFB00, 0xFFE0), (0x1F300, 0x1F650), (1, 0x30000)]
    return chr(rng.randrange(*rng.choice(pools)))


def mixture(rng, specials):
    """A few words of one text: everything that patterns tell apart, and whatever else Unicode has."""
    pools = [
        lambda: rng.choice("the words were few And OFTEN same walkIng corpus internationalization".split()),
        lambda: rng.choice(LANGUAGES[rng.randrange(5)].split()),
        lambda: rng.choice(["'s", "'T", "'LL", "'ſ", "'", "n't", "'re", "'vE", "’s", ".", " ,", "!?", "...", "—", "$", "_", "(x)", "//", "/\n", "!\r\n\n", "¿", "##a", "[UNK]"] + specials),
        lambda: rng.choice([" ", "  ", "   ", "\n", "\n\n", "\t", "\r\n", " \n", " \n ", "\u00a0", "\u3000", "\u0085", "\u2028", "\u200b", "\u200d", " " * rng.randrange(1, 70), "\n" * 9]),
        lambda: str(rng.randrange(10 ** rng.randrange(1, 12))),
        lambda: "".join(characters(rng) for _ in range(rng.randrange(1, 6))),
        lambda: unicodedata.normalize("NFD", rng.choice(LANGUAGES).split()[0]) + "\u0301\u0323",
        lambda: rng.choice(["\x00", "\x01", "\x7f", "\x1b[0m", "\ufeff", "\ufffd"]),
    ]
    text = "".join(rng.choice(pools)() for _ in range(rng.randrange(1, 30)))
    # What Python's Unicode does not know may be a letter in newer tables; surrogates are no text.
    return "".join(c for c in text if unicodedata.category(c) not in ("Cn", "Cs"))


def texts(megabytes=2.0, seed=1, specials=()):
    """Bytes, some of them not UTF-8."""
    rng = random.Random(seed)
    out = ["", " ", "\n", "a", " a", "a ", "  \n  ", " \n \t ", " " * 4000, "x" * 3000, "ab" * 700, "word" * 400 + " " * 300, "é" * 500, "中" * 300, "\u0301" * 90, "1" * 400, "!" * 300, "\n" * 500]
    out += sources(megabytes / 2) + LANGUAGES
    size = 0
    while size < megabytes / 2 * 1e6:
        out.append(mixture(rng, list(specials)))
        size += len(out[-1].encode())
    encoded = [text.encode() for text in out]
    for _ in range(300):  # damage
        text = bytearray(rng.choice(encoded)[:200])
        for _ in range(min(len(text), 3)):
            text[rng.randrange(len(text))] = rng.randrange(256)
        encoded.append(bytes(text))
    return encoded


def as_oracle_sees(text):
    return text.decode("utf-8", "replace")


def write_texts(path, many):
    with open(path, "wb") as out:
        for text in many:
            out.write(struct.pack("<I", len(text)) + text)


def results(tokenizer, folder, many):
    """(ids, ids with special tokens, decoded bytes) of each text."""
    write_texts(folder / "texts", many)
    done = subprocess.run([EXERCISE, str(tokenizer), "ids", str(folder / "texts")], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    raw, at = done.stdout, 0

    def one(width):
        nonlocal at
        length, = struct.unpack_from("<I", raw, at)
        part = raw[at + 4:at + 4 + length * width]
        at += 4 + length * width
        return part
    for _ in many:
        first, second, decoded = one(4), one(4), one(1)
        yield [list(struct.unpack(f"<{len(part) // 4}i", part)) for part in (first, second)] + [decoded]


def message(tokenizer, folder):
    """What is said of a tokenizer that cannot be used."""
    write_texts(folder / "texts", [])
    done = subprocess.run([EXERCISE, str(tokenizer), "ids", str(folder / "texts")], capture_output=True, text=True)
    assert done.returncode == 1, done
    return done.stderr
