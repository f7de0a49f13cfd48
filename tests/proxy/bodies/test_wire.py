"""The request body: where each member stands, and that untouched members keep their bytes."""

import json
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.bodies.message_cache import MessageCache
from proxy.bodies.wire import without_extension
from proxy.errors import BadRequest
from tests.support.chat_bodies import read

MESSAGE = '{ "role" : "user","content":"hi" }'
SPACE = st.text(" \t\n\r", max_size=3)
SLOW = settings(max_examples=settings().max_examples // 2, suppress_health_check=[HealthCheck.too_slow])
TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
KEYS = TEXT.filter(lambda key: key not in ("messages", "model", "condenser"))


def written(value: Any, ascii: bool) -> str:
    return json.dumps(value, ensure_ascii=ascii)


@st.composite
def values(draw: st.DrawFn) -> str:
    """A JSON value as some serialiser might write it."""
    simple = st.one_of(
        st.none(), st.booleans(), st.integers(), st.integers(10**30, 10**60), st.floats(allow_nan=False), TEXT
    )
    value = draw(
        st.recursive(simple, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3))
    )
    text = written(value, draw(st.booleans()))
    return draw(st.sampled_from([text, "1.50", "-0", "1E5", '"\\/\\u00e9\\ud800"', "[ ]", "{ }"]))


@st.composite
def messages(draw: st.DrawFn) -> str:
    extra = draw(st.lists(st.tuples(KEYS.filter(lambda key: key != "role"), values()), max_size=2))
    members = [('"role"', '"user"'), *((written(key, False), value) for key, value in extra)]
    return "{" + ",".join(f"{draw(SPACE)}{key}{draw(SPACE)}:{draw(SPACE)}{value}" for key, value in members) + "}"


@st.composite
def bodies(draw: st.DrawFn) -> tuple[list[tuple[str, str]], list[str], str]:
    """Members in order with their texts, the texts of the messages, and the whole."""
    listed = draw(st.lists(messages(), min_size=1, max_size=3))
    array = "[" + ",".join(f"{draw(SPACE)}{each}{draw(SPACE)}" for each in listed) + "]"
    others = draw(st.lists(st.tuples(KEYS, values()), max_size=3))
    members = [(written(key, draw(st.booleans())), value) for key, value in others]
    members.append((draw(st.sampled_from(['"messages"', '"mess\\u0061ges"'])), array))
    if draw(st.booleans()):
        members.append(('"model"', '"m"'))
    members = draw(st.permutations(members))
    pieces = [f"{draw(SPACE)}{key}{draw(SPACE)}:{draw(SPACE)}{value}{draw(SPACE)}" for key, value in members]
    mark = draw(st.sampled_from(["", "\ufeff"]))
    return members, listed, mark + draw(SPACE) + "{" + ",".join(pieces) + "}" + draw(SPACE)


@SLOW
@given(bodies())
def test_every_member_is_found_and_written_back(made: tuple[list[tuple[str, str]], list[str], str]) -> None:
    members, listed, text = made
    body = read(text.encode())
    for key, member in body.envelope.members.items():
        assert json.loads(text[member.start : member.value_start].rstrip(" \t\n\r:")) == key
        assert text[member.value_start : member.end] in [value for _, value in members]
    assert [each.raw for each in body.elements] == listed
    assert "messages" not in body.values
    assert body.spliced() == text.encode()


@SLOW
@given(bodies(), st.sampled_from(["[]", '[{"role":"user","content":"ü"}]', "[1, 2]"]))
def test_other_bytes_stay_as_they_are(made: tuple[list[tuple[str, str]], list[str], str], new: str) -> None:
    text = made[2]
    body = read(text.encode())
    at, end = body.envelope.members["messages"].value_start, body.envelope.members["messages"].end
    assert body.spliced(messages=new.encode()) == (text[:at] + new + text[end:]).encode()


@SLOW
@given(bodies(), st.integers(0, 5), st.sampled_from(["{}", "null", '{"a": [1, {"b": "}"}]}', '",}{"']), SPACE, SPACE)
def test_the_extension_is_removed_from_any_place(
    made: tuple[list[tuple[str, str]], list[str], str], place: int, value: str, before: str, behind: str
) -> None:
    members, _, _ = made
    own = [f"{key}:{each}" for key, each in members]
    place = min(place, len(own))
    with_it = [*own[:place], f'{before}"condenser"{before}:{behind}{value}{behind}', *own[place:]]
    cut = read(("{" + ",".join(with_it) + "}").encode()).spliced().decode()
    assert "condenser" not in json.loads(cut)
    assert re.sub(r"[ \t\n\r]", "", cut) == re.sub(r"[ \t\n\r]", "", "{" + ",".join(own) + "}")


def test_all_edits_are_made_at_once_with_any_model_name() -> None:
    text = '{"model":"m@off","x":[1,2],"condenser":{"a":1},"messages":[M],"y":"é"}'.replace("M", MESSAGE)
    edited = read(text.encode()).spliced(messages=b"[0]", model="m").decode()
    assert edited == '{"model":"m","x":[1,2],"messages":[0],"y":"é"}'
    for model in ["é", 'a"b', "a\\b", "\ud800", "模型", ""]:
        data = f'{{"model":"x","messages":[{MESSAGE}]}}'.encode()
        assert json.loads(read(data).spliced(model=model))["model"] == model


def test_a_member_that_stands_twice_keeps_both_its_texts() -> None:
    data = f'{{"n":1,"messages":[{MESSAGE}],"n":2,"condenser":{{}}}}'.encode()
    body = read(data)
    assert body.values.get("n") == 2
    assert body.spliced() == f'{{"n":1,"messages":[{MESSAGE}],"n":2}}'.encode()


@pytest.mark.parametrize("key", ["messages", "model", "condenser"])
def test_a_member_that_the_proxy_reads_may_stand_only_once(key: str) -> None:
    value = f"[{MESSAGE}]" if key == "messages" else '"x"'
    data = f'{{"messages":[{MESSAGE}],"{key}":{value},"{key}":{value}}}'
    with pytest.raises(BadRequest, match="twice") as raised:
        read(data.encode())
    assert raised.value.param == key


LONG = "7" * 5_000


@pytest.mark.parametrize("seen", [None, MessageCache()], ids=["whole", "apart"])
def test_a_number_that_python_would_not_read_keeps_its_bytes(seen: MessageCache | None) -> None:
    message = f'{{"role":"user","content":"x","extra":[{LONG},{{"a":-{LONG}}}]}}'
    data = f'{{"a":{LONG},"messages":[{message}],"tools":[{{"n":{LONG}}}],"condenser":{{}}}}'
    body = read(data.encode(), seen)
    assert [each.raw for each in body.elements] == [message]
    assert body.elements[0].value["content"] == "x"
    assert body.spliced() == data.replace(',"condenser":{}', "").encode()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\xff", "UTF-8 (byte 0)"),
        (b'{"messages":[{"role":"user","content":"\xc3("}]}', "UTF-8 (byte 39)"),
        (b"", "not valid JSON"),
        (b'{"a":1', "character 6"),
        (b'{"a" 1}', "':' is missing (character 5)"),
        (b'{"a":1 "b":2}', "',' is missing (character 7)"),
        (b"{7:1}", "a key must be a string (character 1)"),
        (b'{"messages":[]} {}', "something follows the object (character 16)"),
        (b"[]", "must be a JSON object"),
        (b'{"messages":[' + b"[" * 100_000, "nested too deeply"),
    ],
)
def test_the_error_says_what_is_wrong_and_where(data: bytes, says: str) -> None:
    with pytest.raises(BadRequest) as raised:
        read(data)
    assert says in raised.value.message
    assert len(raised.value.message) < 300


@SLOW
@given(st.lists(st.tuples(st.one_of(KEYS, st.just("condenser")), SPACE, values()), max_size=6), SPACE)
def test_the_extension_is_found_without_parsing(members: list[tuple[str, str, str]], space: str) -> None:
    def body(listed: list[tuple[str, str, str]]) -> str:
        inner = ",".join(f"{space}{json.dumps(key)}{each}:{value}" for key, each, value in listed)
        return f"{space}{{{space}{inner}}}"

    stripped = without_extension(body(members).encode()).decode()
    others = [each for each in members if each[0] != "condenser"]
    assert json.loads(stripped, object_pairs_hook=repr) == json.loads(body(others), object_pairs_hook=repr)
    assert len(others) < len(members) or stripped == body(members)


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (b'\xef\xbb\xbf{"condenser":{"a":"}\\",{"},"model":"m\xff"}', b'\xef\xbb\xbf{"model":"m\xff"}'),
        (b'{"a":nope,"condenser" : [1,{}] , "b":1', b'{"a":nope, "b":1'),
        (b'{"a":{"condenser":1},"b":"condenser","c":"\\"condenser\\":1,"}', None),
        (b'[{"condenser":1}]', None),
        (b'{"condenser":{"a":1', None),
        (b'"condenser":1,', None),
        (b'{"condenser":1,"a":"' + b"x" * 2_200_000, None),
        (b"", None),
    ],
)
def test_of_a_broken_body_nothing_else_is_taken(body: bytes, left: bytes | None) -> None:
    assert without_extension(body) == (body if left is None else left)
