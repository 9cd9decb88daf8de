"""Chat templates against transformers' apply_chat_template: the same ids, and the same tokens learned where a template marks them. The templates
are written here, with what published ones use. Runs with the Python of .deps/venv."""
import json
import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "end_to_end"))
from harness import Workspace, ingot
from transformers import PreTrainedTokenizerFast

TEMPLATES = {
    "turns between marks, a default system prompt": """{%- if messages[0]['role'] == 'system' -%}
    {%- set system = messages[0]['content'] | trim -%}
    {%- set turns = messages[1:] -%}
{%- else -%}
    {%- set system = 'You are of use.' -%}
    {%- set turns = messages -%}
{%- endif -%}
{{ bos_token + '<|head|>system\\n\\n' + system + '<|turn|>' }}
{%- for message in turns -%}
    {{- '<|head|>' + message['role'] + '\\n\\n' -}}
    {%- if message.role == 'assistant' -%}
        {%- generation -%}{{ message['content'] | trim }}<|turn|>{%- endgeneration -%}
    {%- else -%}
        {{ message['content'] | trim + '<|turn|>' }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|head|>assistant\\n\\n' }}{% endif -%}
""",
    "roles that must alternate": """{{ bos_token }}{% for message in messages if message.role != 'system' %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('user and assistant take turns') }}
{% endif %}
{% if message['role'] == 'user' %}
{{ '[ASK] ' ~ message['content'] ~ ' [/ASK]' }}
{% else %}
{% generation %}{{ ' ' + message['content'] + eos_token }}{% endgeneration %}
{% endif %}
{% endfor %}""",
    "tools, thoughts and a look back": """{%- set ns = namespace(last=-1, many=false) -%}
{%- for m in messages[::-1] -%}
    {%- if m.role == 'user' and ns.last < 0 and not(m.content is string and m.content.startswith('<tool>')) -%}
        {%- set ns.last = (messages | length) - 1 - loop.index0 -%}
    {%- endif -%}
{%- endfor -%}
{%- if tools is defined and tools -%}
    {{- '<tools>\\n' -}}
    {%- for tool in tools -%}{{ tool | tojson }}{{ '\\n' }}{%- endfor -%}
    {{- '</tools>\\n' -}}
{%- endif -%}
{%- for m in messages -%}
    {%- if m.role == 'assistant' -%}
        {%- set content = m.content -%}
        {%- if '</think>' in content -%}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') -%}
        {%- endif -%}
        {{- '<s>' + m.role + '\\n' -}}{%- generation -%}{{- content -}}
        {%- for call in m.tool_calls or [] -%}
            {{- '\\n{"name": "' ~ call.function.name ~ '", "arguments": ' ~ (call.function.arguments | tojson) ~ '}' -}}
        {%- endfor -%}
        {{- '<e>' -}}{%- endgeneration -%}{{- '\\n' -}}
    {%- else -%}
        {{- '<s>' ~ m.role ~ ' ' ~ (ns.last if loop.last else loop.index) ~ '\\n' ~ m.content ~ '<e>\\n' -}}
    {%- endif -%}
{%- endfor -%}""",
    "a macro, maps and dicts": """{% macro show(pairs, depth=0) %}
{% for key, value in pairs | dictsort %}
{{ '  ' * depth }}{{ key | title }}={{ value if value is not mapping else show(value, depth + 1) }}
{% endfor %}
{% endmacro %}
{% set names = {'user': 'Q', 'assistant': 'A', 'system': 'S'} %}
{{ show({'b': 1, 'a': {'x': [1, 'two', none, true]}}) }}
{% for message in messages %}
    {% set who = names.get(message.role, '?') %}
    {{- who }}: {% if message.role == 'assistant' %}{% generation %}{{ message.content }}{% endgeneration %}{% else %}{{ message.content | upper }}{% endif %}

{% endfor %}
{{ messages | map(attribute='role') | unique | join(', ') }} {{ messages | selectattr('role', 'equalto', 'user') | list | length }}""",
}
CONVERSATIONS = [
    {"messages": [{"role": "system", "content": " Be brief. "}, {"role": "user", "content": "Who paints the ladder?"},
                  {"role": "assistant", "content": "Anna paints the ladder."}, {"role": "user", "content": "And the \"window\"?\nSay äöü 猫."},
                  {"role": "assistant", "content": "<think>\nhm\n</think>\n\nBen does."}]},
    {"messages": [{"role": "user", "content": "Carla sells gold"}, {"role": "assistant", "content": "and buys wood."}]},
    {"messages": [{"role": "user", "content": "Weather?"},
                  {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "look", "arguments": {"city": "Köln", "days": [1, 2.5, None]}}}]},
                  {"role": "user", "content": "<tool>rain"}, {"role": "assistant", "content": "It rains."}],
     "tools": [{"name": "look", "parameters": {"city": {"type": "string"}}}]},
]


def learned_of(prefix, count):
    mask = Path(f"{prefix}.mask").read_bytes()
    assert mask[:8] == b"INGOTMSK"
    return [mask[8 + i // 8] >> (i % 8) & 1 for i in range(count)]


def main():
    with Workspace() as w:
        fast = PreTrainedTokenizerFast(tokenizer_file=str(w.path / "tokenizer" / "tokenizer.json"), bos_token="<bos>", eos_token="<eos>")
        for number, (name, template) in enumerate(TEMPLATES.items()):
            source, file, lines, prefix = w.path / "t.jinja", w.path / "tokenizer", w.path / "c.jsonl", w.path / f"chat{number}"
            source.write_text(template)
            lines.write_text("".join(json.dumps(c, ensure_ascii=False) + "\n" for c in CONVERSATIONS))
            (file / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<bos>", "eos_token": {"content": "<eos>"}}))
            expected, marks = [], []
            for c in CONVERSATIONS:
                made = fast.apply_chat_template(c["messages"], tools=c.get("tools"), chat_template=template, tokenize=True, return_dict=True,
                                                return_assistant_tokens_mask=True)
                plain = fast.apply_chat_template(c["messages"], tools=c.get("tools"), chat_template=template, tokenize=False)
                assert fast.decode(made["input_ids"]) is not None and plain
                expected += made["input_ids"]
                marks += made["assistant_masks"]
            report = json.loads(ingot("data", "tokenize", lines, "--chat", "--template", source, "--tokenizer", file, "-o", prefix, "--json")[0])
            data = Path(f"{prefix}.bin").read_bytes()
            ids = list(struct.unpack(f"<{len(data) // 2}H", data))
            assert ids == expected, (name, fast.decode(ids), fast.decode(expected))
            learned = learned_of(prefix, len(ids))
            # A token across the border of an answer counts as its own here; transformers counts by where it begins or ends.
            differing = [i for i, (a, b) in enumerate(zip(learned, marks)) if a != b]
            borders = [i for i in range(1, len(marks)) if marks[i] != marks[i - 1]]
            assert all(min(abs(i - b) for b in borders) <= 1 for i in differing), (name, differing, borders)
            assert report["documents"] == 3 and report["learned_tokens"] == sum(learned) > 0
            print(f"ok {name}: {len(ids)} ids, {sum(learned)} learned, {len(differing)} at borders otherwise")


main()
