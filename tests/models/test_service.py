"""Both adapters of HTTP services, through the official SDKs, against servers that fail as the real ones do."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Sequence
from typing import Any

import pytest
from tests.models.servers import (
    Answer,
    AnthropicServer,
    Cut,
    ErrorEvent,
    Garbage,
    OpenAIServer,
    Replies,
    ScriptedServer,
    Silence,
    Status,
    Trouble,
)

from tilewright.models import Model, ModelRejected, ModelUnavailable, RetryPolicy, open_model, service
from tilewright.models.protocol import ReplyTooLarge
from tilewright.models.service import shown_address
from tilewright.records import Message, Question, Reply, Role, StopReason, Usage, to_json

KEY = "sk-test-0123456789abcdef-secret"
HASTY = RetryPolicy(attempts=3, first_wait_s=0.01, longest_wait_s=0.02)
TEXT = "Here is the kernel:\n```cuda\n__global__ void k() {}\n```\n"
QUESTION = Question(
    id="0001-1",
    system="You write kernels. " * 20,
    messages=(Message(Role.USER, "draft"), Message(Role.ASSISTANT, "what?"), Message(Role.USER, "a kernel")),
    max_output_tokens=777,
)
PROVIDERS = ("anthropic", "openai")


def serve(provider: str, replies: Replies, troubles: Sequence[Trouble | None] = ()) -> ScriptedServer:
    return (AnthropicServer if provider == "anthropic" else OpenAIServer)(replies, troubles)


def model_at(server: ScriptedServer, provider: str, notices: list[str] | None = None, **options: Any) -> Model:
    model = {"anthropic": "claude-sonnet-4-6", "openai": "gpt-4.1"}[provider]
    return open_model(
        f"{provider}:{model}",
        base_url=server.base_url,
        say=(notices if notices is not None else []).append,
        environ={"ANTHROPIC_API_KEY": KEY, "OPENAI_API_KEY": KEY},
        **{"retries": HASTY, **options},
    )


def ask(server: ScriptedServer, provider: str, **options: Any) -> tuple[Reply, list[str]]:
    model = model_at(server, provider, **options)
    texts: list[str] = []
    try:
        return model.complete(QUESTION, texts.append), texts
    finally:
        model.close()


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_reply_streams_and_is_counted(provider: str) -> None:
    answer = Answer(TEXT, input_tokens=10, output_tokens=2000, cache_read_tokens=3000, cache_write_tokens=400)
    with serve(provider, lambda body: answer) as server:
        reply, texts = ask(server, provider)
    assert reply.text == TEXT
    assert len(texts) > 3
    assert "".join(texts) == TEXT
    assert reply.stop is StopReason.END
    assert reply.usage == Usage(10, 2000, 3000, 400)
    assert reply.retries == 0
    assert 0 < reply.seconds < 10
    # 10 and 2000 and 3000 and 400 tokens at the prices of the table, by hand.
    by_hand = {
        "anthropic": (10 * 3 + 2000 * 15 + 3000 * 0.3 + 400 * 3.75) / 1e6,
        "openai": (10 * 2 + 2000 * 8 + 3000 * 0.5 + 400 * 2) / 1e6,
    }
    assert reply.dollars == pytest.approx(by_hand[provider])
    assert reply.model == f"{provider}:{ {'anthropic': 'claude-sonnet-4-6', 'openai': 'gpt-4.1'}[provider] }"


def test_the_system_text_is_sent_as_a_cached_block() -> None:
    with AnthropicServer(lambda body: TEXT) as server:
        ask(server, "anthropic")
    (request,) = server.requests
    assert request.path == "/v1/messages"
    assert request.body["system"] == [{"type": "text", "text": QUESTION.system, "cache_control": {"type": "ephemeral"}}]
    assert [(one["role"], one["content"]) for one in request.body["messages"]] == [
        ("user", "draft"),
        ("assistant", "what?"),
        ("user", "a kernel"),
    ]
    assert request.body["max_tokens"] == 777
    assert request.body["stream"] is True
    assert request.headers["authorization"] == f"Bearer {KEY}"


def test_chat_completions_get_the_system_text_first() -> None:
    with OpenAIServer(lambda body: TEXT) as server:
        ask(server, "openai")
    (request,) = server.requests
    assert request.path == "/v1/chat/completions"
    assert [one["role"] for one in request.body["messages"]] == ["system", "user", "assistant", "user"]
    assert request.body["messages"][0]["content"] == QUESTION.system
    assert request.body["stream_options"] == {"include_usage": True}
    assert request.body["max_tokens"] == 777
    assert "prompt_cache_key" not in request.body  # a field of OpenAI's own service


@pytest.mark.parametrize("provider", PROVIDERS)
def test_an_empty_system_text_is_left_out(provider: str) -> None:
    with serve(provider, lambda body: TEXT) as server:
        model_at(server, provider).complete(Question("0001-1", "", (Message(Role.USER, "hi"),)), lambda text: None)
    assert "system" not in server.requests[0].body
    assert [one["role"] for one in server.requests[0].body["messages"]] == ["user"]


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(
    "trouble",
    [
        Status(529, body={"error": {"type": "overloaded_error", "message": "Overloaded"}}),
        Status(503, body="upstream connect error"),
        Status(500),
        Status(408),
        Status(409),
        Cut(4),
        Cut(4, orderly=True),
        Cut(0),
        Garbage(3),
        ErrorEvent(4, "overloaded_error"),
    ],
    ids=repr,
)
def test_what_passes_is_asked_again(provider: str, trouble: Trouble) -> None:
    notices: list[str] = []
    with serve(provider, lambda body: TEXT, [trouble, trouble]) as server:
        reply, texts = ask(server, provider, notices=notices)
    assert reply.text == TEXT  # nothing of the reply that was cut
    assert reply.retries == 2
    assert len(server.requests) == 3
    assert len(notices) == 2
    assert "asking again" in notices[0]
    assert "".join(texts).endswith(TEXT)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_retry_after_is_honoured(provider: str) -> None:
    limited = Status(429, {"Retry-After": "0.4"}, {"error": {"type": "rate_limit_error", "message": "slow down"}})
    with serve(provider, lambda body: TEXT, [limited]) as server:
        reply, _ = ask(server, provider)
    assert reply.retries == 1
    first, second = server.requests
    assert 0.4 <= second.at_s - first.at_s < 2.0


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_server_that_asks_for_an_hour_is_given_up(provider: str) -> None:
    with (
        serve(provider, lambda body: TEXT, [Status(429, {"Retry-After": "3600"})]) as server,
        pytest.raises(ModelUnavailable, match="asks to wait 3600 s"),
    ):
        ask(server, provider)
    assert len(server.requests) == 1


@pytest.mark.parametrize("provider", PROVIDERS)
def test_it_gives_up_after_the_last_attempt(provider: str) -> None:
    with (
        serve(provider, lambda body: TEXT, [Status(503)] * 5) as server,
        pytest.raises(ModelUnavailable, match=r"did not answer in 3 attempts.*503"),
    ):
        ask(server, provider)
    assert len(server.requests) == 3


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        (400, "rejected the question"),
        (401, r"check (ANTHROPIC|OPENAI)_API_KEY"),
        (403, "may not use this model"),
        (404, "no such model"),
        (413, "larger than the service takes"),
    ],
)
def test_what_does_not_pass_fails_at_once(provider: str, status: int, sentence: str) -> None:
    body = {"error": {"type": "x", "message": "because of the moon"}}
    with (
        serve(provider, lambda body: TEXT, [Status(status, body=body)] * 3) as server,
        pytest.raises(ModelRejected, match=f"{sentence}.*because of the moon"),
    ):
        ask(server, provider)
    assert len(server.requests) == 1


def test_a_spent_account_is_not_asked_again() -> None:
    body = {"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}}
    with (
        OpenAIServer(lambda body: TEXT, [Status(429, body=body)] * 3) as server,
        pytest.raises(ModelRejected, match="nothing left to spend"),
    ):
        ask(server, "openai")
    assert len(server.requests) == 1


def test_a_bad_request_within_the_stream_is_final() -> None:
    with (
        AnthropicServer(lambda body: TEXT, [ErrorEvent(3, "invalid_request_error", "no")]) as server,
        pytest.raises(ModelRejected, match="rejected the question"),
    ):
        ask(server, "anthropic")
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("provider", "stop", "expected"),
    [
        ("anthropic", "max_tokens", StopReason.LENGTH),
        ("anthropic", "model_context_window_exceeded", StopReason.LENGTH),
        ("anthropic", "refusal", StopReason.REFUSED),
        ("anthropic", "a_reason_of_tomorrow", StopReason.END),
        ("openai", "length", StopReason.LENGTH),
        ("openai", "content_filter", StopReason.REFUSED),
        ("openai", "eos_token", StopReason.END),
    ],
)
def test_why_a_reply_stopped(provider: str, stop: str, expected: StopReason) -> None:
    with serve(provider, lambda body: Answer("half a ker", stop)) as server:
        reply, _ = ask(server, provider)
    assert reply.stop is expected
    assert reply.text == "half a ker"
    assert reply.retries == 0


@pytest.mark.parametrize(("provider", "stop"), [("anthropic", "refusal"), ("openai", "stop")])
def test_a_refusal_says_why(provider: str, stop: str) -> None:
    with serve(provider, lambda body: Answer("", stop, refusal="I would rather not.")) as server:
        reply, _ = ask(server, provider)
    assert reply.stop is StopReason.REFUSED
    assert reply.text == "I would rather not."


@pytest.mark.parametrize("provider", PROVIDERS)
def test_thinking_is_no_text(provider: str) -> None:
    with serve(provider, lambda body: Answer(TEXT, reasoning="hmm, shared memory...")) as server:
        reply, texts = ask(server, provider)
    assert reply.text == "".join(texts) == TEXT


def test_thinking_left_in_the_text_is_taken_out() -> None:
    with OpenAIServer(lambda body: f"<think>\nmaybe ```cuda\n```\n</think>\n\n{TEXT}") as server:
        reply, _ = ask(server, "openai")
    assert reply.text == TEXT


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_silent_server_is_asked_again(provider: str) -> None:
    with serve(provider, lambda body: TEXT, [Silence(3.0)]) as server:
        reply, _ = ask(server, provider, timeout_s=1.5)
    assert (reply.text, reply.retries) == (TEXT, 1)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_slow_server_is_waited_for(provider: str) -> None:
    with serve(provider, lambda body: TEXT, [Silence(0.5)]) as server:
        server.pause_s = 0.02
        reply, _ = ask(server, provider, timeout_s=300.0)
    assert (reply.text, reply.retries) == (TEXT, 0)
    assert reply.seconds > 0.5


@pytest.mark.parametrize("provider", PROVIDERS)
def test_nobody_at_the_address(provider: str) -> None:
    with serve(provider, lambda body: TEXT) as server:
        address = server.base_url
    with pytest.raises(ModelUnavailable, match="could not be reached") as caught:
        ask(server, provider)
    assert address in str(caught.value)


def test_an_address_is_shown_without_its_password() -> None:
    assert shown_address("http://me:secret@host:8000/v1/?key=1") == "http://host:8000/v1"
    assert shown_address("https://api.openai.com/v1/") == "https://api.openai.com/v1"


@pytest.mark.parametrize("provider", PROVIDERS)
def test_what_the_listener_raises_is_not_retried(provider: str) -> None:
    def complain(text: str) -> None:
        raise ValueError("the terminal is gone")

    with serve(provider, lambda body: TEXT) as server, pytest.raises(ValueError, match="the terminal is gone"):
        model_at(server, provider).complete(QUESTION, complain)
    assert len(server.requests) == 1


@pytest.mark.parametrize("rejected", [("stream_options",), ("max_tokens",), ("stream_options", "max_tokens")])
def test_fields_a_server_rejects_are_left_out(rejected: tuple[str, ...]) -> None:
    with OpenAIServer(lambda body: TEXT, rejects=rejected) as server:
        model = model_at(server, "openai")
        first = model.complete(QUESTION, lambda text: None)
        asked = len(server.requests)
        second = model.complete(QUESTION, lambda text: None)
    assert first.text == second.text == TEXT
    assert first.retries == 0
    assert asked == 1 + len(rejected)
    assert len(server.requests) == asked + 1  # what was learnt is kept
    last = server.requests[-1].body
    assert not set(rejected) & set(last)
    assert last["max_completion_tokens" if "max_tokens" in rejected else "max_tokens"] == 777


def test_a_server_that_rejects_both_names_of_the_limit() -> None:
    with (
        OpenAIServer(lambda body: TEXT, rejects=("max_tokens", "max_completion_tokens")) as server,
        pytest.raises(ModelRejected, match="max_completion_tokens"),
    ):
        ask(server, "openai")
    assert len(server.requests) == 2


def test_tokens_are_estimated_where_the_server_counts_none() -> None:
    with OpenAIServer(lambda body: Answer(TEXT, with_usage=False)) as server:
        reply, _ = ask(server, "openai")
    asked = len(QUESTION.system) + len("draft") + len("what?") + len("a kernel")
    assert reply.usage == Usage(input_tokens=-(-asked // 4), output_tokens=-(-len(TEXT) // 4))


def test_a_stream_cut_after_the_reply_is_whole_is_not_asked_again() -> None:
    last = 1 + len(range(0, len(TEXT), 4)) + 1  # the role, the pieces, the finish
    with OpenAIServer(lambda body: TEXT, [Cut(last)]) as server:
        reply, _ = ask(server, "openai")
    assert (reply.text, reply.stop, reply.retries) == (TEXT, StopReason.END, 0)
    assert reply.usage.output_tokens > 0


def test_the_fields_of_openais_own_service() -> None:
    from tilewright.models.openai_model import _Dialect

    own = _Dialect(own=True)
    fields = own.fields(QUESTION)
    assert fields["max_completion_tokens"] == 777
    assert fields["prompt_cache_key"] == own.fields(QUESTION)["prompt_cache_key"]
    assert len(fields["prompt_cache_key"]) <= 64
    assert own.learn("Unknown parameter: 'prompt_cache_key'")
    assert "prompt_cache_key" not in own.fields(QUESTION)
    assert not own.learn("the moon is full")


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("status", [400, 401, 503])
@pytest.mark.parametrize("as_text", [False, True])
def test_a_key_echoed_by_the_server_is_not_repeated(
    provider: str, status: int, as_text: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    said = f"Incorrect API key provided: {KEY}. Also {KEY}"
    body: object = said if as_text else {"error": {"type": "authentication_error", "message": said, "key": KEY}}
    notices: list[str] = []
    with (
        serve(provider, lambda body: TEXT, [Status(status, body=body)] * 3) as server,
        pytest.raises((ModelRejected, ModelUnavailable)) as caught,
    ):
        ask(server, provider, notices=notices)
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None  # the SDK's exception holds the request, and that the key
    assert KEY not in shown
    assert not as_text or "[key removed]" in shown
    assert KEY not in "".join(notices)
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("tilewright")]
    assert KEY not in "".join(ours)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_key_echoed_in_a_reply_reaches_no_record(provider: str) -> None:
    with serve(provider, lambda body: f"your key is {KEY}!") as server:
        model = model_at(server, provider)
        reply = model.complete(QUESTION, lambda text: None)
    assert reply.text == "your key is [key removed]!"
    assert KEY not in str(to_json(reply))
    assert KEY not in repr(model) + repr(vars(model)["opening"]) + repr(vars(model)["_service"])


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_server_of_ones_own_needs_no_key(provider: str) -> None:
    with serve(provider, lambda body: TEXT) as server:
        model = open_model(f"{provider}:qwen", base_url=server.base_url, environ={}, say=lambda text: None)
        reply = model.complete(QUESTION, lambda text: None)
    assert reply.text == TEXT
    assert reply.dollars is None
    assert server.requests[0].headers["authorization"] == "Bearer no-key"


def test_the_base_url_may_come_from_the_environment() -> None:
    for provider, variable in (("anthropic", "ANTHROPIC_BASE_URL"), ("openai", "OPENAI_BASE_URL")):
        with serve(provider, lambda body: TEXT) as server:
            model = open_model(f"{provider}:m", environ={variable: server.base_url}, say=lambda text: None)
            assert model.complete(QUESTION, lambda text: None).text == TEXT


def test_hugging_face_sends_its_own_token() -> None:
    with OpenAIServer(lambda body: TEXT) as server:
        environ = {"HF_TOKEN": "hf_0123456789", "OPENAI_API_KEY": KEY}
        model = open_model("hf:org/model:groq", base_url=server.base_url, environ=environ, say=lambda text: None)
        reply = model.complete(QUESTION, lambda text: None)
    assert reply.model == "hf:org/model:groq"
    (request,) = server.requests
    assert request.body["model"] == "org/model:groq"
    assert request.headers["authorization"] == "Bearer hf_0123456789"
    assert KEY not in str(request)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_an_interrupt_passes_through(provider: str) -> None:
    def interrupt(text: str) -> None:
        raise KeyboardInterrupt

    with serve(provider, lambda body: TEXT) as server:
        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            model_at(server, provider).complete(QUESTION, interrupt)
        assert time.monotonic() - started < 60
    assert len(server.requests) == 1


# -- streams that are cut are billed all the same --


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("trouble", [Cut(9), Cut(9, orderly=True), ErrorEvent(9, "overloaded_error")], ids=repr)
def test_what_a_cut_stream_cost_is_counted(provider: str, trouble: Trouble) -> None:
    answer = Answer(TEXT, input_tokens=10, output_tokens=2000, cache_read_tokens=3000, cache_write_tokens=400)
    with serve(provider, lambda body: answer, [trouble, trouble]) as server:
        reply, _ = ask(server, provider)
    # Before the cut: message_start, ping and content_block_start of one, the role of the other; then 4 characters each.
    # Anthropic counts the input at once, the other only at the end: four characters a token, then.
    asked = len(QUESTION.system) + sum(len(one.text) for one in QUESTION.messages)
    once = Usage(10, 6, 3000, 400) if provider == "anthropic" else Usage(-(-asked // 4), 8)
    assert reply.cut.usage == once + once
    assert reply.usage == Usage(10, 2000, 3000, 400) + once + once
    price = model_at(server, provider).price
    assert price is not None
    assert reply.cut.dollars == pytest.approx(2 * price.dollars(once))
    assert reply.dollars == pytest.approx(price.dollars(reply.usage))


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("trouble", [Status(529), Cut(0)], ids=repr)
def test_what_never_began_costs_nothing(provider: str, trouble: Trouble) -> None:
    with serve(provider, lambda body: TEXT, [trouble]) as server:
        reply, _ = ask(server, provider)
    assert (reply.retries, reply.cut.tokens, reply.usage) == (1, 0, Usage(100, 20))


@pytest.mark.parametrize("provider", PROVIDERS)
def test_thinking_before_the_cut_is_counted(provider: str) -> None:
    with serve(provider, lambda body: Answer(TEXT, reasoning="hmm, " * 80), [Cut(60)]) as server:
        reply, _ = ask(server, provider)
    assert 50 <= reply.cut.usage.output_tokens <= 60  # 4 characters an event


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_question_that_is_given_up_says_what_it_cost(provider: str) -> None:
    with serve(provider, lambda body: TEXT, [Cut(9)] * 3) as server, pytest.raises(ModelUnavailable) as caught:
        ask(server, provider)
    assert caught.value.cut.usage.output_tokens == 3 * (6 if provider == "anthropic" else 8)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_reply_without_end_is_given_up(provider: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MOST_REPLY_BYTES", 100)
    with serve(provider, lambda body: Answer("kernel " * 2000)) as server:
        model, texts = model_at(server, provider), []
        with pytest.raises(ReplyTooLarge, match=r"the reply of \S+ has 4 MiB or more, and a reply may have 4 MiB"):
            model.complete(QUESTION, texts.append)
        model.close()
    assert len("".join(texts)) < 14_000, "the rest was not read"
    assert len(server.requests) == 1, "it was not asked again"
