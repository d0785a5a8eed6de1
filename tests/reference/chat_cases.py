"""Conversations and templates whose texts by transformers are recorded in `golden/`.

The templates use what those of published models use: trimmed blocks, loop controls, namespaces,
`tojson`, macros, generation blocks, special tokens, tools.
"""

from __future__ import annotations

TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}

CHATML = """{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{% if add_generation_prompt %}
<|im_start|>assistant
{% endif %}
"""

BLOCKS = """{{ bos_token }}
{% for message in messages %}
  {% if message['role'] == 'user' %}
    [INST] {{ message['content'] | trim }} [/INST]
  {% else %}
    {% generation %}{{ message['content'] }}{{ eos_token }}{% endgeneration %}
  {% endif %}
{% endfor %}
{{ unk_token }}{{ documents is none }}{{ tools is none }}
"""

TOOLS = """{%- macro shown(tool) -%}
{{ tool.name }}({{ tool.parameters | tojson }})
{%- endmacro -%}
{%- set ns = namespace(system='', last=-1) -%}
{%- for message in messages -%}
  {%- if message.role == 'system' -%}{%- set ns.system = message.content -%}{%- continue -%}
  {%- endif -%}
  {%- set ns.last = loop.index0 -%}
{%- endfor -%}
{{ ns.system }}
{%- if tools %}
{%- for tool in tools %}
{{ shown(tool.function) }}
{{ tool | tojson(indent=2) }}
{%- endfor %}
{%- endif %}
{%- for message in messages %}
{%- if message.tool_calls %}
{%- for call in message.tool_calls %}
<call>{{ call.function.name }} {{ call.function.arguments | tojson(sort_keys=true) }}</call>
{%- endfor %}
{%- elif message.role != 'system' %}
<{{ message.role }}>{{ message.content }}</{{ message.role }}>
{%- endif %}
{%- if 'content' not in message %}(none){% endif %}
{%- if loop.index0 >= ns.last %}{% break %}{% endif %}
{%- endfor %}
{{ dict(a=1).items() | list }} {{ [1, 2, 3] | tojson(separators=(',', ':')) }}
"""

REASONING = """{% for message in messages %}
{% if message.reasoning_content is defined %}
<think>{{ message.reasoning_content }}</think>{{ message.thinking }}
{% endif %}
{{ message.content }}
{% endfor %}
{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}
"""

HELLO = [
    {"role": "user", "content": "  Hello <b>wörld</b>\n"},
    {"role": "assistant", "content": "Hi {{ 7 * 7 }}."},
    {"role": "user", "content": "Thanks & bye"},
]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather <now> in Zürich's centre & 北京",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALLS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Weather?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"type": "function", "function": {"name": "weather", "arguments": {"b": 1, "a": "ö"}}}
        ],
    },
    {"role": "tool", "content": "7 °C", "name": None},
]
REASONED = [
    {"role": "user", "content": "Why?"},
    {"role": "assistant", "content": "So.", "reasoning": "Because."},
    {"role": "assistant", "content": "So.", "thinking": "T", "reasoning_content": "R"},
]

CASES: dict[str, dict] = {
    "chatml": {"template": CHATML, "messages": HELLO},
    "chatml without prompt": {
        "template": CHATML,
        "messages": HELLO,
        "add_generation_prompt": False,
    },
    "trimmed blocks": {"template": BLOCKS, "messages": HELLO},
    "tools": {"template": TOOLS, "messages": CALLS, "tools": [WEATHER]},
    "no tools": {"template": TOOLS, "messages": CALLS},
    "reasoning": {"template": REASONING, "messages": REASONED},
    "variables": {
        "template": REASONING,
        "messages": HELLO,
        "variables": {"enable_thinking": False},
    },
    "variables win over tokens": {
        "template": BLOCKS,
        "messages": HELLO,
        "variables": {"bos_token": "[BOS]"},
    },
    "named, with tools": {
        "template": [
            {"name": "default", "template": "default"},
            {"name": "tool_use", "template": "tool_use {{ tools | length }}"},
        ],
        "messages": HELLO,
        "tools": [WEATHER],
    },
    "named, without tools": {
        "template": [
            {"name": "default", "template": "default"},
            {"name": "tool_use", "template": "tool_use"},
        ],
        "messages": HELLO,
    },
}
