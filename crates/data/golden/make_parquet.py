"""Writes the Parquet files that the tests read, with pyarrow: every compression, both page
versions, dictionaries and plain pages, nulls, several row groups, other columns around the text.

    pip install pyarrow && python make_parquet.py
"""

import pyarrow as pa
import pyarrow.parquet as pq

TEXTS = [f"document {i}: naïve 日本語 {'x' * (i % 7)}" if i % 5 != 3 else None for i in range(100)]
TABLE = pa.table(
    {
        "id": pa.array(range(100), pa.int64()),
        "text": pa.array(TEXTS, pa.string()),
        "tags": pa.array([["a", "b"]] * 100, pa.list_(pa.string())),
        "meta": pa.array([{"url": f"u{i}"} for i in range(100)]),
    }
)
for name, options in {
    "plain": {"compression": "none", "use_dictionary": False},
    "snappy": {"compression": "snappy", "use_dictionary": True},
    "gzip": {"compression": "gzip", "use_dictionary": False, "data_page_version": "2.0"},
    "zstd": {"compression": "zstd", "use_dictionary": True, "data_page_version": "2.0"},
    "lz4": {"compression": "lz4", "column_encoding": {"text": "DELTA_BYTE_ARRAY"},
            "use_dictionary": False},
}.items():
    pq.write_table(TABLE, f"{name}.parquet", row_group_size=40, store_schema=False, **options)
pq.write_table(
    pa.table({"text": pa.array([b"good", b"caf\xe9"], pa.binary())}), "latin.parquet"
)
