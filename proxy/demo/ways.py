"""The three ways to the model: direct, trimmed, condensed. Each proxy is the real app on its embedded store."""

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
from proxy.demo.measures import Messages, added_ms, reaches
from proxy.demo.model import MODEL, ScriptedModel
from proxy.demo.prompts import PromptCounter
from proxy.demo.recorder import Recorder
from proxy.demo.server import serving
from proxy.settings import Settings

TRIMMING = "recent"
NAMES = ("trimmed", "condensed")


class Options(NamedTuple):
    """What is to be run; without `upstream` the scripted model server answers."""

    strategy: str
    window: int
    requests: int | None = None
    upstream: str | None = None
    model: str = MODEL
    api_key: str = "scripted"


class Done(NamedTuple):
    """What became of one request on one way; token figures as counted by the demo from the bytes forwarded."""

    number: int
    sent: int
    reply: Reply
    view: Messages
    forwarded: int
    headroom: int | None = None
    action: str = "-"
    ms: float | None = None

    @property
    def refused(self) -> bool:
        """Whether no message came back."""
        return bool(self.reply.problem)


@dataclass(slots=True)
class Way:
    """One client, what stands between it and the model, and what became of its requests."""

    name: str
    strategy: str
    client: Client
    recorder: Recorder | None
    counter: PromptCounter
    done: list[Done] = field(default_factory=list)

    def ask(self, number: int, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Done:
        """Sends one request; looks at what was forwarded."""
        body = {"messages": messages, "tools": tools}
        reply = self.client.ask(number, messages, tools)
        sent = self.counter.prompt(body)
        if self.recorder is None:
            return Done(number, sent, reply, messages, sent)
        forwarded = self.recorder.view(number)
        view = forwarded.body if forwarded else {"messages": []}
        return Done(
            number=number,
            sent=sent,
            reply=reply,
            view=view["messages"],
            forwarded=self.counter.prompt(view),
            headroom=_whole(reply.headers.get("x-condenser-headroom")),
            action=reply.headers.get("x-condenser-action", "-"),
            ms=added_ms(reply.headers.get("server-timing", "")),
        )

    def go(self, number: int, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Done:
        """Sends a request of the conversation, and keeps what became of it."""
        self.done.append(self.ask(number, messages, tools))
        return self.done[-1]


class Asked(NamedTuple):
    """A question and what became of it on each way."""

    question: Question
    done: list[Done]

    def reached(self, i: int) -> bool | None:
        """Whether way `i` forwarded the evidence; None where its request was refused."""
        done = self.done[i]
        return None if done.refused else reaches(done.view, self.question.evidence)


def _whole(text: str | None) -> int | None:
    return int(text) if text else None


class _DemoSettings(Settings):
    """Settings of nobody's machine: the demo shows the defaults, whatever the environment says."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments only."""
        return (init_settings,)


@contextmanager
def three_ways(options: Options, conversation: Conversation, counter: PromptCounter) -> Iterator[list[Way]]:
    """Yields direct, trimmed and condensed, with all servers running; raises `ServerError`."""
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
    """A proxy that changes nothing: what a recorder stands before where the model is real."""
    return _DemoSettings.model_validate(
        {"upstream": {"base_url": upstream}, "store": {"url": "memory://"}, "strategy": "off"}
    )


def _client(stack: ExitStack, base_url: str, options: Options, *, numbered: bool) -> Client:
    client = Client(base_url, options.api_key, options.model, numbered=numbered)
    return stack.enter_context(closing(client))
