"""Templates that do not look at contents are told from those that do, and what is known of them is right."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiergate.tiers.template as template_module
from fakes.chat_models import CHATML, byte_level_tokenizer
from tiergate.tiers import ChatRequest, Message
from tiergate.tiers.chat import Chat
from tiergate.tiers.guard import Covered
from tiergate.tiers.template import ChatTemplate

THINKING = (Path(template_module.__file__).parent / "smollm2_thinking.jinja").read_text()
LOOP = "{% for message in messages %}{% set content = message.content %}<|im_start|>{{ BODY }}{% endfor %}"
BLIND = {
    "chatml": CHATML,
    "thinking": THINKING,
    "type": LOOP.replace("{{ BODY }}", "{% if content is string %}{{ content }}{% else %}?{% endif %}"),
    "kinds": LOOP.replace(
        "{{ BODY }}",
        "{% if content is mapping or content is number or content is none %}?"
        "{% elif content is sequence and content is iterable and content is defined %}{{ content }}{% endif %}",
    ),
    "or": LOOP.replace("BODY", "content or 'nothing'"),
    "default": LOOP.replace("BODY", "content | default('nothing', true)"),
    "sum": LOOP.replace("BODY", "messages[0].content + ' ' + content + '\\n' + content"),
    "generation": LOOP.replace("{{ BODY }}", "{% generation %}{{ content }}{% endgeneration %}"),
}
"""Contents are only joined to other text."""
PRYING = {
    "trim": "content | trim",
    "strip": "content.strip()",
    "length": "content | length",
    "first": "content[0]",
    "slice": "content[:2] + content",
    "in": "'b' in content",
    "contains": "content in 'abc'",
    "listed": "content in ['a', 'b']",
    "keyed": "content in {'a': 1}",
    "equal": "content == 'a'",
    "unequal": "content != 'a'",
    "less": "content < 'b'",
    "starts": "content.startswith('a')",
    "format": "'%s' % content",
    "formatted": "'{}'.format(content)",
    "filter-format": "'%s' | format(content)",
    "tilde": "content ~ '!'",
    "string": "content | string",
    "int": "content | int",
    "float": "content | float",
    "upper": "content is upper",
    "list": "content | list",
    "joined": "[content, content] | join('-')",
    "json": "content | tojson",
    "escape": "content | e",
    "attribute": "content | attr('missing')",
    "missing": "content.missing",
    "unique": "messages | map(attribute='content') | unique | list | length",
    "changed": "loop.changed(content)",
    "times": "content * 2",
    "message": "message",
    "messages": "messages | tojson",
    "same": "content is sameas messages[0].content",
    "escaped": "content is escaped",
    "random": "[content] | random + ''",
    "clock": "strftime_now('%Y') + content",
    "lipsum": "(lipsum() | length > 0) | string + content",
}
CAPTURING = {
    "set": "{% for message in messages %}{% set text %}{{ message.content }}{% endset %}{{ text | trim }}{% endfor %}",
    "macro": "{% macro told(text) %}{{ text }}{% endmacro %}"
    "{% for message in messages %}{{ told(message.content) | upper }}{% endfor %}",
    "filter": "{% for message in messages %}{% filter upper %}{{ message.content }}{% endfilter %}{% endfor %}",
    "block": "{% block told %}{{ messages[0].content }}{% endblock %}{{ self.told() | length }}",
    "recursive": "{% for message in messages recursive %}{{ message.content }}{% endfor %}",
    "mark": "\U000f0000{% for message in messages %}{{ message.content }}{% endfor %}",
}
TEMPLATES = {
    **BLIND,
    **{name: LOOP.replace("BODY", body) for name, body in PRYING.items()},
    **CAPTURING,
}
TOKENIZER = byte_level_tokenizer()
contents = st.text(alphabet=st.sampled_from("ab \n'1é<>|"), min_size=1, max_size=8) | st.sampled_from(
    ["</think>\nsaid", "<|im_end|>", "\U000f00000\U000f0001", "0", "7"]
)
roles = st.sampled_from(["system", "user", "assistant", "tool"])


def template(name: str) -> ChatTemplate:
    return ChatTemplate(TEMPLATES[name], {"bos_token": "<s>"}, lambda: datetime(1999, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize("name", BLIND)
@given(turns=st.lists(st.tuples(roles, contents), min_size=1, max_size=4), thinking=st.booleans())
def test_a_shape_filled_is_the_prompt(name: str, turns: list[tuple[str, str]], thinking: bool) -> None:
    made = template(name)
    messages = [Message(role=role, content=text) for role, text in turns]  # type: ignore[arg-type]
    spoken = [role for role, _ in turns]
    shape = made.shape(spoken, thinking=thinking)
    if name == "thinking" and "assistant" in spoken:
        assert shape is None
        return
    assert shape is not None
    filled = "".join(turns[part][1] if isinstance(part, int) else part for part in shape)
    assert filled == made.render(Covered(made.foreign(messages, ()), ""), spoken, thinking=thinking)


@pytest.mark.parametrize("name", [*PRYING, *CAPTURING])
def test_templates_that_pry_have_no_shape(name: str) -> None:
    assert template(name).shape(["user", "user"], thinking=False) is None


@pytest.mark.parametrize("name", TEMPLATES)
@given(turns=st.lists(st.tuples(roles, contents | st.just("")), min_size=1, max_size=3))
def test_knowing_a_shape_changes_no_prompt(name: str, turns: list[tuple[str, str]]) -> None:
    messages = tuple(Message(role=role, content=text) for role, text in turns)  # type: ignore[arg-type]
    if name in ("lipsum", "random"):
        return
    request = ChatRequest(model="m", messages=messages)
    knowing, unknowing = (Chat(template(name), TOKENIZER, opener="<think>", closer="</think>") for _ in range(2))
    unknowing.template.shape = lambda roles, *, thinking: None  # type: ignore[method-assign]
    for thinking in (False, True):
        results = []
        for chat in (knowing, unknowing):
            try:
                results.append(chat.encode(request, thinking=thinking, most=1000))
            except Exception as error:
                results.append(str(error))
        assert results[0] == results[1]


def test_only_bare_messages_have_a_shape() -> None:
    told = "{{ message.content }}{{ message.name }}{{ message.reasoning_content }}"
    made = ChatTemplate("{% for message in messages %}" + told + "{% endfor %}", {})
    assert made.bare(Message(role="user", content="a"))
    for message in (
        Message(role="user", content=""),
        Message(role="user", content="a", name="b"),
        Message(role="tool", content="a", tool_call_id="b"),
        Message(role="assistant", content="a", reasoning="b"),
    ):
        assert not made.bare(message)
    assert ChatTemplate(CHATML, {}).bare(Message(role="assistant", content="a", reasoning="b"))
