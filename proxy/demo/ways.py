"""The three ways to the model: direct, trimmed and condensed. Each proxy is the real app with its embedded store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from pydantic_settings import BaseSettings, PydanticBaseSettingsSource
from starlette.types import ASGIApp

from proxy.app import create_app
from proxy.demo.client import Client, Reply
from proxy.demo.conversation import Conversation, Message, Question
from proxy.demo.measures import Messages, added_ms, has_evidence
from proxy.demo.model import MODEL, ScriptedModel
from proxy.demo.prompts import PromptCounter
from proxy.demo.recorder import Recorder
from proxy.demo.server import serving
from proxy.settings import Settings

TRIMMING = "recent"
NAMES = ("trimmed", "condensed")


class Options(NamedTuple):
    """The options of the demo."""

    strategy: str
    """The strategy of the condensed way."""
    window: int
    """The window of the model, in tokens."""
    requests: int | None = None
    """How many requests to run; None for the whole conversation."""
    upstream: str | None = None
    """The base URL of a real model server; None for the scripted one."""
    model: str = MODEL
    api_key: str = "scripted"


class Exchange(NamedTuple):
    """One request on one way, and its reply. The demo itself counts the tokens, from the forwarded bytes."""

    number: int
    """The number of the request in the conversation, from 1."""
    sent: int
    """Tokens that the client sent."""
    reply: Reply
    view: Messages
    """The messages that reached the model server."""
    forwarded: int
    """Tokens that reached the model server."""
    headroom: int | None = None
    """The proxy's `X-Condenser-Headroom`."""
    action: str = "-"
    """The proxy's `X-Condenser-Action`."""
    ms: float | None = None
    """Milliseconds that the proxy added before forwarding."""

    @property
    def refused(self) -> bool:
        """Whether the request brought no message."""
        return bool(self.reply.problem)


@dataclass(slots=True)
class Way:
    """One way to the model: a client, a proxy or none, and the exchanges so far."""

    name: str
    strategy: str
    """The strategy of the proxy; "" without one."""
    client: Client
    recorder: Recorder | None
    """Records what the proxy forwards; None without a proxy."""
    counter: PromptCounter
    exchanges: list[Exchange] = field(default_factory=list)
    """The exchanges of the conversation, questions not included."""

    def ask(self, number: int, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Exchange:
        """Sends one request, and measures what was forwarded."""
        body = {"messages": messages, "tools": tools}
        reply = self.client.ask(number, messages, tools)
        sent = self.counter.prompt(body)
        if self.recorder is None:
            return Exchange(number, sent, reply, messages, sent)
        forwarded = self.recorder.view(number)
        view = forwarded.body if forwarded else {"messages": []}
        return Exchange(
            number=number,
            sent=sent,
            reply=reply,
            view=view["messages"],
            forwarded=self.counter.prompt(view),
            headroom=_int_or_none(reply.headers.get("x-condenser-headroom")),
            action=reply.headers.get("x-condenser-action", "-"),
            ms=added_ms(reply.headers.get("server-timing", "")),
        )

    def send(self, number: int, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Exchange:
        """Sends a request of the conversation, and keeps the exchange."""
        self.exchanges.append(self.ask(number, messages, tools))
        return self.exchanges[-1]


class AskedQuestion(NamedTuple):
    """A question, and its exchange on each way."""

    question: Question
    exchanges: list[Exchange]

    def evidence_reached(self, i: int) -> bool | None:
        """Whether way `i` forwarded the evidence; None if its request was refused."""
        exchange = self.exchanges[i]
        return None if exchange.refused else has_evidence(exchange.view, self.question.evidence)


def _int_or_none(text: str | None) -> int | None:
    return int(text) if text else None


class _DemoSettings(Settings):
    """Settings that ignore the environment and all files, so that the demo always shows the defaults."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The arguments are the only source."""
        return (init_settings,)


@contextmanager
def three_ways(options: Options, conversation: Conversation, counter: PromptCounter) -> Iterator[list[Way]]:
    """Yields the ways direct, trimmed and condensed, with all servers running; raises `ServerError`."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="condenser-demo-")))
        if options.upstream:
            direct, settings = options.upstream, _passing(options.upstream)
            models: list[ASGIApp] = [create_app(settings), create_app(settings)]
        else:
            scripted = ScriptedModel(conversation, options.window, counter).app
            direct, models = stack.enter_context(serving(scripted)), [scripted, scripted]
        ways = [Way("direct", "", _client(stack, direct, options, numbered=False), None, counter)]
        for name, strategy, model in zip(NAMES, (TRIMMING, options.strategy), models, strict=True):
            recorder = Recorder(model)
            proxy = _proxy(stack, recorder, strategy, options.window, folder / f"{name}.db")
            ways.append(Way(name, strategy, _client(stack, proxy, options, numbered=True), recorder, counter))
        yield ways


def _proxy(stack: ExitStack, recorder: Recorder, strategy: str, window: int, store: Path) -> str:
    """The base URL of a running proxy in front of `recorder`."""
    upstream = stack.enter_context(serving(recorder))
    settings = _DemoSettings.model_validate(
        {
            "upstream": {"base_url": upstream},
            "store": {"url": f"sqlite:///{store}"},
            "strategy": strategy,
            "window": window,
        }
    )
    return stack.enter_context(serving(create_app(settings)))


def _passing(upstream: str) -> Settings:
    """Settings of a proxy that changes nothing: a recorder uses it to reach a real model server."""
    return _DemoSettings.model_validate(
        {"upstream": {"base_url": upstream}, "store": {"url": "memory://"}, "strategy": "off"}
    )


def _client(stack: ExitStack, base_url: str, options: Options, *, numbered: bool) -> Client:
    client = Client(base_url, options.api_key, options.model, numbered=numbered)
    return stack.enter_context(closing(client))
