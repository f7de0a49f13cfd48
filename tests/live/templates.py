"""Chat templates that want a certain form, and one that shows the model its tools."""

SHOWN = "{{ '<|im_start|>' + m['role'] + '\\n' + (m['content'] or '') + '<|im_end|>\\n' }}"
REPLY = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
ALTERNATES = (
    "{% set begin = 1 if messages[0]['role'] == 'system' else 0 %}"
    "{% for m in messages %}"
    "{% if m['role'] != 'system' and (m['role'] == 'user') != ((loop.index0 - begin) % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    + SHOWN
    + "{% endfor %}"
    + REPLY
)
SYSTEM_FIRST = (
    "{% for m in messages %}{% if m['role'] == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}" + SHOWN + "{% endfor %}" + REPLY
)
HERMES = (
    "{% if tools %}{{ '<|im_start|>system\\nCall a function when it helps. Functions:\\n' }}"
    "{% for tool in tools %}{{ tool | tojson }}{{ '\\n' }}{% endfor %}"
    '{{ \'Answer with <tool_call>\\n{"name": ..., "arguments": {...}}\\n</tool_call><|im_end|>\\n\' }}{% endif %}'
    "{% for m in messages %}"
    "{% if m['role'] == 'tool' %}"
    "{{ '<|im_start|>user\\n<tool_response>\\n' + m['content'] + '\\n</tool_response><|im_end|>\\n' }}"
    "{% elif m['tool_calls'] %}{{ '<|im_start|>assistant\\n' }}{% for call in m['tool_calls'] %}"
    '{{ \'<tool_call>\\n{"name": "\' + call.function.name + \'", "arguments": \' }}'
    "{{ call.function.arguments | tojson }}{{ '}\\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\\n' }}"
    "{% else %}" + SHOWN + "{% endif %}{% endfor %}" + REPLY
)
