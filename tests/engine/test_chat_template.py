"""Chat templates: the texts of transformers, a sandbox that holds, and `LLM.chat`."""

import json
from datetime import datetime
from pathlib import Path

import pytest

from coachwhip import LLM, CheckpointError, RequestError, SamplingParams
from coachwhip.chat_template import ChatTemplate
from coachwhip.locate import small_model_dir
from coachwhip.tokenizer import Tokenizer
from tests.reference.chat_cases import CASES, CHATML, HELLO, TOKENS
from tests.reference.nemotron_h import Reference

GOLDEN = Path(__file__).parents[1] / "reference" / "golden" / "chat_templates.json"
TEXTS = json.loads(GOLDEN.read_text("utf-8"))["texts"]
USER = [{"role": "user", "content": "What about the Navy?"}]


def write(folder: Path, config: dict | None = None, jinja: str | None = None) -> Path:
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    if jinja is not None:
        (folder / "chat_template.jinja").write_text(jinja, "utf-8")
    return folder


def template(text: str) -> ChatTemplate:
    return ChatTemplate({"default": text}, TOKENS, "chat_template.jinja")


@pytest.mark.parametrize("name", CASES)
def test_texts_are_those_of_transformers(name, tmp_path):
    case = CASES[name]
    write(tmp_path, TOKENS | {"chat_template": case["template"]})
    text = ChatTemplate.beside(tmp_path).render(
        case["messages"],
        add_generation_prompt=case.get("add_generation_prompt", True),
        tools=case.get("tools"),
        variables=case.get("variables"),
    )
    assert text == TEXTS[name]


def test_the_file_wins_over_the_config_and_tokens_have_three_spellings(tmp_path):
    config = {
        "chat_template": "config",
        "bos_token": {"content": "<b>", "special": True},
        "eos_token": None,
        "pad_token": "<p>",
    }
    write(tmp_path, config, "{{ bos_token }}{{ eos_token }}{{ pad_token }}{{ sep_token }}")
    older = {"eos_token": {"content": "<e>"}, "pad_token": "not this"}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(older))
    assert ChatTemplate.beside(tmp_path).render(USER) == "<b><e><p>"


def test_a_model_without_a_template_and_a_broken_config(tmp_path):
    assert ChatTemplate.beside(tmp_path) is None
    assert ChatTemplate.beside(write(tmp_path, {"bos_token": "<s>"})) is None
    for wrong in (7, [{"name": "default"}], ["text"], {"default": "text"}, [{"name": 1}]):
        with pytest.raises(CheckpointError, match="chat_template"):
            ChatTemplate.beside(write(tmp_path, {"chat_template": wrong}))


def test_the_time_is_now():
    assert template("{{ strftime_now('%Y') }}").render(USER) == str(datetime.now().year)


@pytest.mark.parametrize(
    "attack",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__globals__['json'] }}",
        "{{ dict.__init__.__globals__ }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.popen('true').read() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'system'}) }}",
        "{{ namespace(__class__='x') }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 'x' %}",
        "{{ '{0.__class__}'.format(messages) }}",
        "{{ (messages | attr('__class__')).__mro__ }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{{ open('/etc/passwd') }}",
    ],
)
def test_the_sandbox_refuses_what_reaches_out(attack):
    """Refused with one line, or rendered as nothing: never as an object of Python's."""
    try:
        text = template(attack).render(USER)
    except RequestError as error:
        assert "\n" not in str(error) and "chat template" in str(error)
    else:
        assert text == ""


def test_a_template_sees_plain_data_only():
    class Text(str):
        def leak(self):
            return "leaked"

    message = {"role": "user", "content": Text("hello")}
    assert template("{{ messages[0].content }}").render([message]) == "hello"
    with pytest.raises(RequestError):
        template("{{ messages[0].content.leak() }}").render([message])
    with pytest.raises(RequestError, match=r"messages\[0\].image"):
        template("{{ messages[0].image }}").render([message | {"image": object()}])


@pytest.mark.parametrize(
    "text, part",
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ 'a' + 1 }}", "TypeError"),
        ("{{ messages[0].content / 0 }}", "TypeError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ nothing.at.all }}", "nothing"),
        ("{{ range(10 ** 9) | list }}", "Range too big"),
        ("{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(1) }}", "too deep"),
    ],
)
def test_a_failing_template_is_one_line(text, part):
    with pytest.raises(RequestError) as error:
        template(text).render(USER)
    assert error.value.field == "messages"
    assert part in str(error.value) and "\n" not in str(error.value)


def test_a_template_that_is_none_says_where():
    with pytest.raises(RequestError) as error:
        template("fine\n{% if %}").render(USER)
    assert error.value.field == "chat_template"
    assert "chat_template.jinja" in str(error.value) and "line 2" in str(error.value)
    with pytest.raises(RequestError, match="no template named default"):
        ChatTemplate({"rag": "x"}, {}).render(USER)


@pytest.mark.parametrize(
    "messages, field",
    [
        ([], "messages"),
        ("hello", "messages"),
        (5, "messages"),
        ({"role": "user", "content": "x"}, "messages"),
        (["hello"], "messages[0]"),
        ([*USER, {"content": "x"}], "messages[1].role"),
        ([{"role": 3, "content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": "x", 5: 1}], "messages[0]"),
    ],
)
def test_malformed_messages_name_the_field(messages, field):
    with pytest.raises(RequestError) as error:
        template(CHATML).render(messages)
    assert error.value.field == field


def test_the_shipped_models_template_writes_prose():
    text = ChatTemplate.beside(small_model_dir()).render(
        [
            {"role": "system", "content": "Gentlemen of the Congress: "},
            *USER,
            {"role": "assistant", "content": " it is ready."},
            {"role": "user", "content": "And the Army?"},
        ]
    )
    assert text == (
        "<s>Gentlemen of the Congress: I am asked: What about the Navy? I answer that"
        " it is ready. I am asked: And the Army? I answer that"
    )
    for role, content in (("tool", "x"), ("user", ["x"])):
        with pytest.raises(RequestError, match="chat template"):
            ChatTemplate.beside(small_model_dir()).render([{"role": role, "content": content}])


def test_special_tokens_are_added_once():
    tokenizer = Tokenizer.beside(small_model_dir())
    bos = tokenizer.encode("")
    assert bos == [1]
    assert tokenizer.encode("<s>the", add_special_tokens=False) == tokenizer.encode("the")
    assert tokenizer.encode("the", add_special_tokens=False) == tokenizer.encode("the")[1:]


@pytest.mark.slow
def test_chat_answers_as_the_reference_does():
    llm = LLM()
    params = SamplingParams(max_tokens=20)
    longer = [*USER, {"role": "assistant", "content": "It is ready."}, *USER]
    outs = llm.chat([USER, longer], params)
    reference, tokenizer = Reference.from_folder(small_model_dir()), llm.engine.tokenizer
    for out, conversation in zip(outs, (USER, longer), strict=True):
        text = llm.chat_template.render(conversation)
        assert out.prompt == text
        assert out.prompt_token_ids == tokenizer.encode(text.removeprefix("<s>"))
        assert out.prompt_token_ids.count(1) == 1
        assert out.outputs[0].token_ids == reference.greedy(out.prompt_token_ids, 20)
    (alone,) = llm.chat(USER, params)
    assert alone.outputs[0].token_ids == outs[0].outputs[0].token_ids
    for wrong in ([], [[]], "hello", [USER, [{"role": "user", "content": 5}]], 7):
        with pytest.raises(RequestError, match="messages"):
            llm.chat(wrong, params)
    with pytest.raises(RequestError, match="max_model_len is 4096"):
        llm.chat([{"role": "user", "content": "the " * 4500}], params)
    assert not llm.engine.has_unfinished


@pytest.mark.slow
def test_a_model_that_cannot_chat_says_so(tiny_folder):
    llm = LLM(str(tiny_folder("nemotron_dense")), dtype="float32", max_model_len=128)
    with pytest.raises(RequestError, match=r"no tokenizer\.json"):
        llm.chat(HELLO)
    llm.engine.tokenizer = Tokenizer.beside(small_model_dir())
    with pytest.raises(RequestError, match="no chat template"):
        llm.chat(HELLO)
