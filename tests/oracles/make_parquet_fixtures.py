"""Writes the Parquet files that src/data/parquet_test.cpp reads. With pyarrow 26:

    python tests/oracles/make_parquet_fixtures.py src/data/testdata

Python's json says of the same rows what types.jsonl has.
"""
import datetime
import json
import math
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def types():
    when = datetime.datetime(2024, 2, 29, 23, 59, 58)
    utc = when.replace(tzinfo=datetime.timezone.utc)
    text = pa.array(["plain", 'é "q" \\ \n\r\t\x01\x00 😀', None, "", "z" * 40])
    return pa.table({
        "text": text,
        "large": pa.array(["a", None, "c", "d", "é"], pa.large_string()),
        "bytes": pa.array([b"a", "é".encode(), None, b"", b"\x7f"], pa.binary()),
        "fixed": pa.array([b"ab", b"cd", None, b"  ", b"\"\\"], pa.binary(2)),
        "word": pa.array(["x", "y", "x", None, "x"]).dictionary_encode(),
        "i8": pa.array([-128, 127, 0, None, 1], pa.int8()),
        "i64": pa.array([-2**63, 2**63 - 1, 0, None, 1], pa.int64()),
        "u8": pa.array([255, 0, None, 1, 2], pa.uint8()),
        "u64": pa.array([2**64 - 1, 0, None, 1, 2], pa.uint64()),
        "f32": pa.array([0.1, -0.0, math.nan, None, 3.4e38], pa.float32()),
        "f64": pa.array([0.1, 100.0, math.inf, None, 5e-324], pa.float64()),
        "flag": pa.array([True, False, None, True, True]),
        "day": pa.array([datetime.date(1, 1, 1), datetime.date(9999, 12, 31), None, datetime.date(1969, 12, 31), datetime.date(2024, 2, 29)]),
        "when": pa.array([when, when.replace(microsecond=7), None, datetime.datetime(1969, 12, 31, 23, 59, 59, 999999), when], pa.timestamp("us")),
        "zoned": pa.array([utc, None, utc, utc, utc.replace(microsecond=5000)], pa.timestamp("ms", "Europe/Berlin")),
        "nothing": pa.nulls(5),
        "list": pa.array([[1, None], [], None, [2, 3], [4]], pa.list_(pa.int32())),
        "deep": pa.array([[["a"], []], None, [None], [["b", None], ["c"]], []], pa.list_(pa.large_list(pa.string()))),
        "messages": pa.array([[{"role": "user", "content": "hi"}, None], None, [], [{"role": None, "content": "x"}], [{"role": "a\"b", "content": ""}]],
                             pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
        "pair": pa.array([{"a": 1, "b": [1.5]}, None, {"a": None, "b": None}, {"a": 2, "b": []}, {"a": 3, "b": [None]}],
                         pa.struct([("a", pa.int64()), ("b", pa.list_(pa.float64()))])),
    })


def plain(value):
    """A value of to_pylist() as JSON has it."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, datetime.datetime):
        return value.astimezone(datetime.timezone.utc).isoformat() if value.tzinfo else value.isoformat()
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, list):
        return [plain(v) for v in value]
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return value


def json_lines(table):
    return "".join(json.dumps({k: plain(v) for k, v in row.items()}, ensure_ascii=False, allow_nan=False) + "\n" for row in table.to_pylist())


if __name__ == "__main__":
    into = Path(sys.argv[1])
    pq.write_table(types(), into / "types.parquet", row_group_size=2, compression="zstd", write_page_checksum=True)
    # Damage reaches the values: nothing is compressed or summed up.
    pq.write_table(types(), into / "bare.parquet", row_group_size=3, compression="none", use_dictionary=["text", "word", "i64", "deep"], store_schema=True)
    (into / "types.jsonl").write_text(json_lines(types()))
    refused = pa.table({"text": ["a", "b"], "price": pa.array([1, 2]).cast(pa.decimal128(21, 2)), "image": [b"fine", b"\xff\xd8"]})
    pq.write_table(refused, into / "refused.parquet")
