"""Chat templates for tests, in formats of real models."""

# Tools and calls as Hermes and Qwen have them. The model may think, and does unless told otherwise.
HERMES = r"""
{%- if tools -%}
    <|im_start|>system
{% if messages[0].role == "system" %}{{ messages[0].content ~ "\n\n" }}{% endif %}
    {{- "# Tools\n<tools>" }}
    {%- for tool in tools %}{{ "\n" ~ tool | tojson }}{% endfor %}
    {{- "\n</tools>\nCall a function: <tool_call>\n{\"name\": NAME, \"arguments\": OBJECT}\n</tool_call><|im_end|>\n" }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == "tool" %}
        {{- "<|im_start|>user\n<tool_response>\n" ~ message.content ~ "\n</tool_response><|im_end|>\n" }}
    {%- elif not (tools and loop.first and message.role == "system") %}
        {{- "<|im_start|>" ~ message.role ~ "\n" ~ message.content }}
        {%- for call in message.tool_calls %}
            {{- "\n<tool_call>\n{\"name\": \"" ~ call.function.name ~ "\", \"arguments\": " }}
            {{- call.function.arguments | tojson ~ "}\n</tool_call>" }}
        {%- endfor %}
        {{- "<|im_end|>\n" }}
    {%- endif %}
{%- endfor %}
{{- "<|im_start|>assistant\n" }}
{%- if enable_thinking is defined %}{{ "<think>\n" if enable_thinking else "<think>\n\n</think>\n\n" }}{% endif %}
"""

# Neither tools nor thoughts.
PLAIN = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}<assistant>"

# Tools, but calls in a format of its own.
OTHER = "{{ tools | tojson if tools }}" + PLAIN.replace(
    "{% endfor", "{{ message.tool_calls | tojson if message.tool_calls }}{% endfor"
)
