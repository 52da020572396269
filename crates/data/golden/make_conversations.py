"""Writes conversations as Parquet, with pyarrow and with datasets, and the same rows as JSON Lines
without nulls: lists of structs, structs of lists, nested lists, null columns, several row groups.

    pip install pyarrow datasets && python make_conversations.py
"""

import json

import datasets
import pyarrow as pa
import pyarrow.parquet as pq

NUM = 30


def turns(i, role="role", content="content", names=("user", "assistant")):
    text = [f"Question {i}, naïve 日本語 {'x' * (i % 7)}?", f"Answer {i}.\n\"quoted\""]
    return [{role: names[n % 2], content: text[n % 2]} for n in range(2 + 2 * (i % 3))]


def called(i):
    messages = turns(i)
    if i % 5 == 0:
        call = {"function": {"name": "add", "arguments": json.dumps({"a": i})}}
        messages[1:1] = [
            {"role": "assistant", "content": None, "tool_calls": [call] * (1 + i % 2)},
            {"role": "tool", "content": str(i), "name": "add"},
        ]
    return messages


MESSAGE = pa.struct([("role", pa.string()), ("content", pa.string())])
TOOLS = json.dumps([{"name": "add"}])
openai = [{"messages": called(i), "tools": TOOLS, "score": i / 4} for i in range(NUM)]
names = ("human", "gpt")
sharegpt = [
    {"conversations": turns(i, "from", "value", names), "system": "Be brief." if i % 2 else None}
    for i in range(NUM)
]
alpaca = [
    {"instruction": f"Say {i}.", "input": None, "output": f"It is {i}."} for i in range(NUM)
]
trl = [{"prompt": turns(i)[:1], "completion": turns(i)[1:2]} for i in range(NUM)]
pairs = [
    {
        "prompt": f"Say {i}.",
        "chosen": [{"role": "assistant", "content": f"yes {i}"}],
        "rejected": [{"role": "assistant", "content": "no"}],
    }
    for i in range(NUM)
]
sequence = [{"messages": turns(i)} for i in range(NUM)]
edges = [
    {"messages": None, "input": 3, "output": True, "prompt": None},
    {"messages": [], "input": None, "output": None, "prompt": 0.5},
    {"messages": [None, {"role": None, "content": None}], "input": -1, "output": False},
    {"messages": [{"role": "user", "content": ""}], "input": 2**40},
]


def without_nulls(value):
    if isinstance(value, dict):
        return {k: without_nulls(v) for k, v in value.items() if v is not None}
    return [without_nulls(v) for v in value] if isinstance(value, list) else value


def write(name, rows, schema=None, **options):
    table = pa.Table.from_pylist(rows, schema)
    pq.write_table(table, f"{name}.parquet", row_group_size=12, **options)


READ = ["messages", "conversations", "instruction", "input", "output", "prompt", "completion",
        "chosen", "rejected", "system", "tools"]
for name, rows in globals().copy().items():
    if isinstance(rows, list) and rows and isinstance(rows[0], dict):
        with open(f"{name}.jsonl", "w") as file:
            for row in rows:
                row = {key: value for key, value in row.items() if key in READ}
                print(json.dumps(without_nulls(row), ensure_ascii=False), file=file)

datasets.Dataset.from_list(openai).to_parquet("openai.parquet", batch_size=12)
large = pa.struct([("from", pa.large_string()), ("value", pa.large_string())])
write(
    "sharegpt",
    sharegpt,
    pa.schema([("conversations", pa.large_list(large)), ("system", pa.string())]),
    compression="zstd",
    data_page_version="2.0",
)
write("alpaca", alpaca, compression="gzip")
write(
    "trl",
    trl,
    pa.schema([("prompt", pa.list_(MESSAGE)), ("completion", pa.list_(MESSAGE))]),
    compression="none",
    use_dictionary=False,
    use_compliant_nested_type=False,
)
write("pairs", pairs, compression="snappy", store_schema=False)
features = datasets.Features(
    {"messages": datasets.Sequence({"role": datasets.Value("string"),
                                    "content": datasets.Value("string")})}
)
columns = {"messages": [{key: [turn[key] for turn in row["messages"]] for key in ("role", "content")}
                        for row in sequence]}
datasets.Dataset.from_dict(columns, features=features).to_parquet("sequence.parquet", batch_size=12)
write(
    "edges",
    edges,
    pa.schema([("messages", pa.list_(MESSAGE)), ("input", pa.int64()), ("output", pa.bool_()),
               ("prompt", pa.float32())]),
)
write(
    "refused",
    [{"messages": {"a": "b"}}],
    pa.schema([("messages", pa.map_(pa.string(), pa.string()))]),
)
