#!/usr/bin/env python3
"""Renders chat templates with `transformers` and writes the texts as a golden file.

The templates are our own, with the constructs of public ones: role headers and dates (Llama 3),
tool calls and slices (Qwen 2.5, Qwen 3), alternating roles and exceptions (Mistral, Gemma 2), end
tokens per role (Phi 3, Zephyr, OLMo), namespaces, macros, methods of Python and JSON, tools as types
of Python (Hermes, Command R) and of TypeScript (GPT-OSS), calls with filtered fields (Mistral Nemo,
Llama 3.1).

    python scripts/golden/make_chat_templates.py crates/data/golden/chat_templates.json
"""

import datetime
import json
import sys

import tokenizers
import transformers
from transformers.utils import chat_template_utils

CHATML = """{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

LLAMA_3 = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "01 Jan 2000" %}
    {%- endif %}
{%- endif %}
{#- The system turn comes first, even when nothing is given. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_text = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_text = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Environment: tools\\n" }}
{%- endif %}
{{- "Today: " + date_string + "\\n\\n" }}
{{- system_text }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("one call at a time") }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + call.name + '", ' }}
        {{- '"parameters": ' }}
        {{- call.arguments | tojson }}
        {{- "}" }}
        {{- "<|eot_id|>" }}
    {%- else %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

QWEN_2_5 = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You help.' }}
    {%- endif %}
    {{- "\\n\\n# Tools\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nYou help.<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- message.content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

QWEN_3 = """{%- set ns = namespace(multi_step=true, last_query=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step = false %}
        {%- set ns.last_query = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if message.role == "assistant" %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query and (loop.last or (not loop.last and reasoning)) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

MISTRAL = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate: user, assistant, user') }}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message['role'] == 'user' %}
        {%- if loop.first and system_message is defined %}
            {{- ' [INST] ' + system_message + '\\n\\n' + message['content'] + ' [/INST]' }}
        {%- else %}
            {{- ' [INST] ' + message['content'] + ' [/INST]' }}
        {%- endif %}
    {%- elif message['role'] == 'assistant' %}
        {{- ' ' + message['content'] + eos_token}}
    {%- else %}
        {{- raise_exception('only user and assistant roles, not ' ~ message['role'] ~ ' of ' ~ user_messages | length) }}
    {%- endif %}
{%- endfor %}
"""

MISTRAL_LAST = """{{- bos_token }}
{%- for message in messages %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and messages[0]["role"] == "system" %}
            {{- "[INST]" + messages[0]["content"] + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST]" + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- message["content"]|trim + eos_token }}
    {%- endif %}
{%- endfor %}
"""

PHI_3 = """{% for message in messages %}{% if message['role'] == 'system' %}{{'<|system|>
' + message['content'] + '<|end|>
'}}{% elif message['role'] == 'user' %}{{'<|user|>
' + message['content'] + '<|end|>
'}}{% elif message['role'] == 'assistant' %}{{'<|assistant|>
' + message['content'] + '<|end|>
'}}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>
' }}{% else %}{{ eos_token }}{% endif %}"""

GEMMA_2 = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate') }}{% endif %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '
' + message['content'] | trim + '<end_of_turn>
' }}{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model
'}}{% endif %}"""

GEMMA_3 = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '\\n\\n' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}
                {{ '<image>' }}
            {%- elif item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model\\n'}}
{%- endif -%}
"""

ZEPHYR = """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>
'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}"""

OLMO = """{{ eos_token }}{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>
' + message['content'] }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>
'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>
' }}
{% endif %}
{% endfor %}"""

GENERATION = """{%- for message in messages -%}
    {{- '<|' ~ message.role ~ '|>\\n' }}
    {%- if message.role == 'assistant' %}
        {%- generation %}
            {{- message.content ~ eos_token }}
        {%- endgeneration %}
        {{- '\\n' }}
    {%- else %}
        {{- message.content ~ '\\n' }}
    {%- endif %}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"""

MACROS = """{%- macro header(role, n=1) -%}
[{{ role | capitalize }}:{{ '%02d' % n if false else n }}]
{%- endmacro -%}
{%- macro property(name, schema) %}
{{ name }}({{ schema.type | default('any') }}{% if schema.enum is defined %} of {{ schema.enum | join('|') }}{% endif %})
{%- endmacro -%}
{% if tools %}
{% for tool in tools %}
def {{ tool.function.name }}:
{%- for name, schema in tool.function.parameters.properties.items() %}
    {{ property(name, schema) }}
{%- endfor %}

{{ tool.function.parameters | tojson(indent=2) }}
{% endfor %}
{% endif %}
{% for message in messages %}
{% if message.role not in ['user', 'assistant', 'system', 'tool'] %}{% continue %}{% endif %}
{{ header(message.role, loop.index) }} {{ message.content | upper | replace('LINE', 'row') }}
{% if loop.index >= 4 %}{% break %}{% endif %}
{% endfor %}
{{- (messages | map(attribute='role') | list)[-1] }};{{ messages | length > 2 and not tools }};{{ none }}
"""

METHODS = """{%- set ns = namespace(text='', count=0) -%}
{%- for message in messages -%}
  {%- set content = message.get('content', '') -%}
  {%- if content is not string %}{% set content = content | map(attribute='text') | join(' ') %}{% endif -%}
  {%- set ns.count = ns.count + content.split() | length -%}
  {%- set ns.text = ns.text ~ message['role'].title() ~ ':' ~ content.strip().replace('  ', ' ').removeprefix('>').rstrip('!') ~ '\\n' -%}
{%- endfor -%}
{{ ns.text }}{{ ns.count }} {{ messages[-1].role.upper().lower() }} {{ messages[0].keys() | list | join(',') }}
{{- '\\n' + (messages[0].content[:3] ~ '|' ~ messages[0].content[-3:]) if messages[0].content is string else '' }}
{{ range(1, 4) | list }} {{ {'a': 1, 'b': [true, none, 1.5]} }} {{ [1e20, 0.5, -3, "é\\"\\n\\u007f", {"z": [], "y": {}}] | tojson }}
{{ {'b': 1, 'a': "<&'>"} | tojson(sort_keys=true, separators=(',', ':')) }}
{{ 7 // 2 }} {{ 7 / 2 }} {{ 7 % 4 }} {{ 2 ** 3 }} {{ 'a' 'b' if true }} {{ messages | first | length }} {{ "x,y".split(',') | last }}
{%- for key, value in {'k': 1, 'a': 2} | dictsort %} {{ key }}={{ value }}{{ "," if not loop.last }}{% endfor %}
"""

# Macros that call themselves, on the schema of a tool.
TYPES = """{%- macro python_type(schema) -%}
    {%- set names = {"string": "str", "number": "float", "boolean": "bool"} -%}
    {%- if schema.type is defined and schema.type is iterable and schema.type is not string -%}
        {%- set inner -%}
            {%- for one in schema.type -%}{{ python_type({"type": one}) }}{{ "|" if not loop.last }}{%- endfor -%}
        {%- endset -%}
        {{- "Union[" ~ inner | trim ~ "]" -}}
    {%- elif schema.type in names -%}
        {{- names[schema.type] -}}
    {%- elif schema.type == "array" -%}
        {{- "list[" + python_type(schema['items']) + "]" -}}
    {%- elif schema.type == "object" -%}
        {%- if schema.properties is defined -%}
            {{- "dict[" -}}
            {%- for name, inner in schema.properties | items -%}
                {{- name ~ ": " ~ python_type(inner) ~ (", " if not loop.last) -}}
            {%- endfor -%}
            {{- "]" -}}
        {%- else -%}
            {{- "dict" -}}
        {%- endif -%}
    {%- else -%}
        {{- "Any" -}}
    {%- endif -%}
{%- endmacro -%}
{%- if tools is iterable and tools | length > 0 -%}
    {%- for tool in tools -%}
        {%- if tool.function -%}{%- set tool = tool.function -%}{%- endif -%}
        {{- tool.name ~ "(" ~ python_type(tool.parameters) ~ ")\n" -}}
        {{- tool | tojson(indent=4) ~ "\n" -}}
        {%- set rest = namespace(fields=[]) -%}
        {%- for key, value in tool.items() if key not in ["parameters", "return"] -%}
            {%- set rest.fields = rest.fields + [key ~ "=" ~ value] -%}
        {%- endfor -%}
        {{- rest.fields | join("; ") ~ " " ~ (tool.keys() | list | reject("equalto", "name") | sort | join(",")) ~ "\n" -}}
    {%- endfor -%}
{%- endif -%}
{%- for message in messages -%}
    {%- if message.tool_calls is defined and message.tool_calls is not none -%}
        {%- for call in message.tool_calls | map(attribute="function") -%}
            {{- "[" ~ call.name ~ "(" -}}
            {%- for name, value in call.arguments | items -%}
                {{- name ~ "=" ~ value | tojson ~ ("" if loop.last else ", ") -}}
            {%- endfor -%}
            {{- ")]\n" -}}
        {%- endfor -%}
    {%- else -%}
        {{- message.role ~ ": " ~ message.content | string ~ "\n" -}}
    {%- endif -%}
{%- else -%}
    {{- "nothing" -}}
{%- endfor -%}"""

# Neighbours in a loop, captured text, empty namespaces, arithmetic on texts.
NEIGHBOURS = """{%- set ns = namespace() -%}
{%- set ns.index = 0 -%}
{%- set title %}
  {{ "=" * 3 }} {{ messages | length | string }} turns of {{ messages | map(attribute="role") | unique | join("/") }}
{% endset -%}
{{- title | trim ~ "\n" -}}
{%- for message in messages -%}
    {%- if loop.previtem is undefined or loop.previtem.role != message.role -%}
        {{- "<" ~ message.role ~ ">" -}}
    {%- endif -%}
    {%- set text = message["content"] if message["content"] is string else message["content"] | selectattr("type", "equalto", "text") | map(attribute="text") | first -%}
    {%- if text.strip().endswith("!") or "?" in text -%}
        {%- set ns.index = ns.index + 1 -%}
    {%- endif -%}
    {{- text | replace("\n", " ") | trim -}}
    {%- if loop.nextitem is defined and loop.nextitem.role == "assistant" -%}{{- " ->" -}}{%- endif -%}
    {{- "\n" -}}
{%- endfor -%}
{{- ns.index ~ " " ~ (messages | rejectattr("role", "equalto", "user") | list | length) ~ " " -}}
{{- messages[-1]["role"][::-1] ~ " " ~ (messages | last).role.find("t") ~ " " ~ messages[0].role.lstrip("u") -}}
{{- " " ~ ([3, 1, 2] | sort | map("string") | join) ~ " " ~ ([1, 2, 3] | sum) ~ " " ~ (7 is divisibleby 7) ~ " " ~ ("b" in "abc") -}}
{{- " " ~ (unknown | default("none", true)) ~ " " ~ ("" | default("empty", true)) ~ " " ~ (none is none) ~ " " ~ ("4" | int + 1) -}}
{%- if add_generation_prompt and messages[-1].role != "assistant" -%}{{- "\n<assistant>" -}}{%- endif -%}"""

TEMPLATES = {
    "chatml": CHATML,
    "llama-3": LLAMA_3,
    "qwen-2.5": QWEN_2_5,
    "qwen-3": QWEN_3,
    "mistral": MISTRAL,
    "mistral-last": MISTRAL_LAST,
    "phi-3": PHI_3,
    "gemma-2": GEMMA_2,
    "gemma-3": GEMMA_3,
    "zephyr": ZEPHYR,
    "olmo": OLMO,
    "generation": GENERATION,
    "macros": MACROS,
    "methods": METHODS,
    "types": TYPES,
    "neighbours": NEIGHBOURS,
}
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}


def turn(role, content, **fields):
    return {"role": role, "content": content, **fields}


ONE = [turn("user", "  What is 2 + 2?\n")]
PAIR = ONE + [turn("assistant", "It is 4!")]
SYSTEM = [turn("system", " Be brief. ")] + PAIR
LONG = SYSTEM + [turn("user", "And  3 + 3? Ünïcödé 日本 \"quotes\""), turn("assistant", "6\n\nline")]
THINK = [
    turn("user", "First?"),
    turn("assistant", "<think>\none\n</think>\n\nYes."),
    turn("user", "Second?"),
    turn("assistant", "<think>\ntwo\n</think>\n\nNo."),
]
CALL = {"name": "add", "arguments": {"b": 2, "a": [1.0, None, True], "text": "<é & 'q'>"}}
TOOL = [
    turn("user", "Add."),
    turn("assistant", "", tool_calls=[{"type": "function", "function": CALL}]),
    turn("tool", "3"),
    turn("assistant", "Three."),
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds.",
            "parameters": {
                "type": "object",
                "properties": {"b": {"type": "number"}, "a": {"enum": ["x", "y"]}},
                "required": ["b"],
            },
        },
    }
]
NESTED = [
    {
        "name": "find",
        "return": "str",
        "parameters": {
            "type": "object",
            "properties": {
                "names": {"type": "array", "items": {"type": "string"}},
                "at": {"type": "object", "properties": {"x": {"type": "number"}}},
                "limit": {"type": ["number", "boolean"]},
                "any": {"type": "object"},
            },
        },
    }
]
PARTS = [turn("user", [{"type": "image"}, {"type": "text", "text": " Two parts "}])]
BAD = [turn("user", "one"), turn("user", "two")]

CASES = [
    ("chatml", ONE, True, {}),
    ("chatml", LONG, False, {}),
    ("llama-3", ONE, True, {}),
    ("llama-3", LONG, False, {"date_string": "02 Feb 2022"}),
    ("llama-3", TOOL, True, {"tools": TOOLS}),
    ("qwen-2.5", ONE, True, {}),
    ("qwen-2.5", LONG, False, {}),
    ("qwen-2.5", TOOL, True, {"tools": TOOLS}),
    ("qwen-3", THINK, False, {}),
    ("qwen-3", THINK[:3], True, {"enable_thinking": False}),
    ("qwen-3", PARTS, True, {}),
    ("mistral", PAIR, False, {}),
    ("mistral", LONG, True, {}),
    ("mistral", BAD, False, {}),
    ("mistral-last", LONG, False, {}),
    ("mistral-last", LONG[:4], True, {}),
    ("phi-3", SYSTEM, False, {}),
    ("phi-3", LONG[:4], True, {}),
    ("gemma-2", ONE, True, {}),
    ("gemma-2", PAIR, False, {}),
    ("gemma-2", SYSTEM, False, {}),
    ("gemma-3", SYSTEM, True, {}),
    ("gemma-3", PARTS, True, {}),
    ("zephyr", SYSTEM, False, {}),
    ("zephyr", LONG[:4], True, {}),
    ("olmo", PAIR, False, {}),
    ("olmo", LONG[1:4], True, {}),
    ("generation", LONG, False, {}),
    ("generation", ONE, True, {}),
    ("macros", LONG, False, {}),
    ("macros", TOOL[:1], False, {"tools": TOOLS}),
    ("methods", LONG, False, {}),
    ("methods", PARTS, False, {}),
    ("types", TOOL[:2], False, {"tools": TOOLS}),
    ("types", ONE, False, {"tools": NESTED}),
    ("types", PAIR, False, {"tools": []}),
    ("neighbours", LONG, False, {}),
    ("neighbours", PARTS, True, {}),
    ("neighbours", BAD, True, {}),
]


class FixedDate(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2024, 7, 26)


def answers(rendered, spans):
    """Byte ranges of spans of characters."""
    size = lambda text: len(text.encode())
    return [[size(rendered[:start]), size(rendered[:end])] for start, end in spans]


def golden():
    """Templates, conversations and what `transformers` renders."""
    chat_template_utils.datetime = FixedDate
    vocabulary = {text: index for index, text in enumerate(["<unk>", *TOKENS.values()])}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=model, **TOKENS)
    cases = []
    for template, messages, prompt, others in CASES:
        case = {"template": template, "messages": messages, "add_generation_prompt": prompt}
        case["others"] = others
        try:
            case["text"] = tokenizer.apply_chat_template(
                messages,
                chat_template=TEMPLATES[template],
                tokenize=False,
                add_generation_prompt=prompt,
                **others,
            )
            if template == "generation":
                _, spans = chat_template_utils.render_jinja_template(
                    [messages],
                    chat_template=TEMPLATES[template],
                    return_assistant_tokens_mask=True,
                    add_generation_prompt=prompt,
                    **TOKENS,
                )
                case["answers"] = answers(case["text"], spans[0])
        except Exception as error:
            case["error"] = str(error)
        cases.append(case)
    return {
        "transformers": transformers.__version__,
        "tokens": TOKENS,
        "templates": TEMPLATES,
        "cases": cases,
    }


def main():
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump(golden(), file, ensure_ascii=False, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
