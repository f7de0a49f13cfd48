"""The policy for one request: strategy, options, window and budget. No I/O; policies are cached.

A value comes from the request, else from its session (`Controls.over`), else from the model's entry in the settings,
else from the tables there (`Settings.own`). `_ModelFacts` has the values of the settings; those of a request and its
session replace them in `_policy`.

The window comes from the request, the settings, what the upstream's server states, or the bundled table, in this order.
A refusal that stated a smaller window replaces the last two. A size that the session's upstream has refused bounds the
budget, whatever the window. So do `marks.most` and a price step, also where the window is unknown; without them nothing
is condensed there.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import fields, replace
from functools import lru_cache, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from proxy.controls import MEMORY, Controls, Memory, pipeline_named
from proxy.errors import BadRequest
from proxy.knowledge.learned_windows import SOURCE, LearnedWindow, SizeRefused
from proxy.knowledge.profiles import ANY, LessonScope, Profile, WindowLookup
from proxy.reasons import Reason
from proxy.runtime.lru import Lru
from proxy.settings import Settings
from proxy.settings.tables import BUNDLED_CURRENCY, JudgeRole, Mode, ModelRole, SummarizerRole
from proxy.tokens.counter import Counter
from proxy.tokens.models import ModelTable, asks_for_long, no_stated_window
from strategies import LADDER, LADDER_OPTIONS, TABLE, Pipeline, options_by_stage, stages
from strategies.core.budget import MIN_TRIGGER, UNLIMITED, Budget, Marks
from strategies.core.economics import Prices, is_cheaper_continued
from strategies.core.effects import JUDGE, SUMMARIZER
from strategies.core.errors import OptionError
from strategies.core.ledger import LEDGER, LedgerCaps
from strategies.core.protocol import Injecting, Injection, Judging, LedgerOptions, Strategy, Triggering, fill_options
from strategies.pipeline import with_stage_marks

if TYPE_CHECKING:
    from proxy.request.wire import ClientRequest
    from proxy.sessions.session import Session

_MAX_CACHED = 256
OFF = Pipeline(("off",))
RATIOS = Prices(input=1.0, cached_input=0.1, cache_write=1.0, output=5.0)
"""The ratios that most vendors' prices have, for a model whose prices are not known."""
UNKNOWN = "unknown"
REQUEST = "request"
SETTINGS = "settings"
TABLE_SOURCE = "bundled table"


class Window(NamedTuple):
    """A window, and where it comes from."""

    tokens: int | None  # the context length in tokens; None if it is unknown
    source: str  # where it comes from, in words
    max_input: int | None = None  # the limit in tokens for the prompt alone, if there is one

    @property
    def is_set(self) -> bool:
        """Whether the request or the settings give the window, so the server need not be asked."""
        return self.source == REQUEST or self.source.startswith(SETTINGS)

    @property
    def is_known(self) -> bool:
        """Whether it was set, or stated by the server itself or told in a refusal: enough to refuse a request."""
        return self.is_set or self.source.startswith("stated")

    def lowered(self, stated: int) -> Window:
        """This window, or the one that a refusal states if that is smaller."""
        if self.tokens is not None and self.tokens <= stated:
            return self
        return Window(stated, SOURCE, self.max_input)

    def __str__(self) -> str:
        return UNKNOWN if self.tokens is None else str(self.tokens)


class Policy(NamedTuple):
    """The strategy, budget, models and limits that apply to one request; by default one that does nothing."""

    pipeline: Pipeline = OFF  # the names of the strategies, as the headers show them
    stages: Sequence[Strategy] = ()  # the strategies of the pipeline, in order
    ladder: Sequence[Strategy] = ()
    """The strategies that HARD, FORCED and OVERFLOW run after the pipeline; they ask no model."""
    window: Window = Window(None, UNKNOWN)
    budget: Budget | None = None  # in tokens of the upstream; None if neither the window nor a size refused is known
    size_refused: int | None = None
    """The size that the session's upstream has refused, in its tokens, if it bounds the budget."""
    summarizer: SummarizerRole = SummarizerRole()
    judge: JudgeRole = JudgeRole()
    session_settings: Mapping[str, Any] = MappingProxyType({})  # the settings that are stored with the session
    memory: Memory = MEMORY["off"]
    judging: Judging | None = None  # the stage that asks judges, if there is one
    block_passages: int = 0  # the maximum passages of a memory block
    block_tokens: int = 0  # the maximum tokens of a memory block
    block_is_for_turn: bool = False
    """Whether a memory block leaves with the next user message; else it stays until a condensation takes it in."""
    background: Mode = "off"  # when models may be asked for work that no request waits for
    scope: str = ""  # the scope in which memory cards are shared; "" if they are not
    economy: str = "off"  # `off`, `advise` or `auto`: whether the trigger is where condensing is cheapest
    prices: Prices | None = None  # those of the settings, else the published ones; None if the model has none
    strict: bool = False  # whether a request that stays over the budget is refused
    profile: Profile = ANY  # the form of requests that the upstream accepts
    ledger: LedgerCaps = LEDGER
    below: Reason = Reason.WINDOW_UNKNOWN
    """Why nothing is due below the marks: an unknown window has one mark only, and that may be far away."""
    acts_by_size: bool = False
    """Whether a request is rewritten only because of its size: no judge, no trigger of a stage, no moving mark."""

    @property
    def rewrites(self) -> bool:
        """Whether requests may be changed: not if they are `off`, or only observed."""
        return not (self.pipeline.is_off or self.pipeline.observe)

    @property
    def roles(self) -> Mapping[str, ModelRole]:
        """The models that effects may name by their role."""
        return {SUMMARIZER: self.summarizer, JUDGE: self.judge}

    @property
    def prepares(self) -> bool:
        """Whether models may be asked in the background."""
        return self.background != "off"

    @property
    def asks_models(self) -> bool:
        return any(stage.asks for stage in self.stages)

    @property
    def asks_first(self) -> bool:
        """Whether the first stage asks a model, so that every condensation costs a call."""
        return bool(self.stages) and self.stages[0].asks

    @property
    def reads_opaque(self) -> bool:
        """Whether a stage goes on behind an opaque head."""
        return any(stage.reads_opaque for stage in self.stages)

    @property
    def continues_first(self) -> bool:
        """Whether the call of the first stage reads the view from the upstream's cache."""
        if not self.asks_first:
            return False
        return self.stages[0].reads_opaque or (self.stages[0].continues and self.continues)

    @property
    def continues(self) -> bool:
        """Whether summarizers continue from the view itself."""
        if self.summarizer.form != "auto":
            return self.summarizer.form == "continue"
        is_cheaper = self.budget is not None and is_cheaper_continued(self.budget, self.costs)
        return is_cheaper and not self.summarizer.own_model

    @property
    def costs(self) -> Prices:
        """The prices by which the cheapest trigger is found: usual ratios if those of the model are not known."""
        return self.prices or RATIOS

    def off(self) -> Policy:
        """The policy for a request that is forwarded as it came."""
        return self._replace(pipeline=OFF, stages=(), ladder=(), judging=None, memory=MEMORY["off"])

    def triggered_at(self, tokens: int) -> Policy:
        """The policy for a request whose client wants its history compacted at so many tokens of the upstream."""
        budget = self.budget or replace(Budget.of(round(tokens / Marks().trigger), reserve=0), ledger=self.ledger)
        return self._replace(budget=budget.triggered_at(tokens))

    def with_dropping(self) -> Policy:
        """The policy for a view with messages put back, which may be dropped without a model if they do not fit."""
        return self._replace(stages=[*self.stages, *stages(("recent",), {}, {})])


class _ModelFacts(NamedTuple):
    """What the settings and the bundled table say of one model."""

    policy: Policy  # the policy of a request without controls, without what depends on its window
    marks: Marks
    reserve: int | None
    window: Window | None  # the window that the settings give
    listed: Window  # the window in the bundled table, for a model whose window is neither set nor stated
    most: int  # `marks.most`
    step: int | None  # the price step
    step_is_set: bool  # whether the settings give it, so that it holds at every upstream
    long: Window  # the one for a request that asks for a million tokens; the same if the model has no such window
    max_input: int | None
    is_long: bool  # whether the model's name asks for a million tokens

    def budget(self, window: Window, reply_length: int | None, size: int | None = None) -> Budget | None:
        """The budget for a window, of which a `size` refused bounds the usable part; None if nothing bounds it."""
        if window.tokens is None:
            most = size or (UNLIMITED if self.most or self.step else None)
            return None if most is None else Budget.of(most, reserve=0, marks=self.marks)
        budget = Budget.of(
            window.tokens, reply_length=reply_length, reserve=self.reserve, marks=self.marks, max_input=window.max_input
        )
        return budget if size is None else budget.bounded(size)


class Basis(NamedTuple):
    """What is known of an upstream before a request: the changing part of what a policy is made from."""

    window: Window
    prompt_window: int | None
    profile: Profile
    size_refused: int | None = None  # the size that the session's upstream has refused
    pays_table_prices: bool = False  # whether the request costs what the bundled table says


class Server(NamedTuple):
    """What is known of the server and the model that a request asks, before it is read."""

    counter: Counter
    basis: Basis
    hidden: int  # the tokens that the server adds to a prompt by itself
    size_refused: SizeRefused | None = None  # the size that bounds the session of the request


def own_threshold(asked: ClientRequest, basis: Basis) -> int | None:
    """The tokens at which the client wants its history compacted, if its server is known not to do that."""
    body = asked.body
    return None if basis.profile.context_management else body.endpoint.compact_threshold(body.values)


class Policies:
    """Makes policies; one per app.

    `discovered` gives the window that the server states for a model, `learned` the one that a refusal has stated,
    `profile` the form of requests that the model's server accepts.
    """

    def __init__(
        self,
        settings: Settings,
        table: ModelTable,
        discovered: WindowLookup = no_stated_window,
        learned: Callable[[LessonScope], LearnedWindow | None] = lambda _: None,
        profile: Callable[[LessonScope], Profile] = lambda _: ANY,
    ) -> None:
        self._profile = profile
        self._table = table
        self._discovered = discovered
        self._learned = learned
        self.renew(settings)

    def renew(self, settings: Settings) -> None:
        """Makes the policies of all later requests from these settings."""
        self._settings = settings
        self._tables = option_tables(settings)
        self._facts = lru_cache(_MAX_CACHED)(self._read_facts)
        self._policies: Lru[Hashable, Policy] = Lru(_MAX_CACHED)
        self.lowest_mark = lru_cache(_MAX_CACHED)(self._lowest_mark)

    def basis(
        self, requested: int | None, scope: LessonScope, *, is_long: bool = False, pays: Callable[[], bool] = bool
    ) -> Basis:
        """What is known before a request that asks for this window, for a million tokens (`is_long`), or for none.

        `pays` says whether it costs what the bundled table says.
        """
        facts = self._facts(scope.model)
        prompt_window = self._prompt_window(facts.policy.summarizer, scope)
        window, is_priced = self.window(requested, scope, is_long=is_long), facts.step is not None and pays()
        return Basis(window, prompt_window, self._profile(scope), pays_table_prices=is_priced)

    def for_request(self, asked: ClientRequest, session: Session | None, basis: Basis) -> Policy:
        """The policy for a request of a session; raises `BadRequest` if an option does not fit its pipeline."""
        settings, endpoint = session.settings if session else {}, asked.body.endpoint
        policy = self.policy(asked.controls, settings, asked.lesson_scope, asked.body.envelope.reply_limit, basis)
        if any(policy.memory) and endpoint.is_subagent(asked.headers):
            policy = policy._replace(memory=MEMORY["off"])
        threshold = own_threshold(asked, basis)
        return policy.triggered_at(threshold) if threshold is not None and policy.rewrites else policy

    def policy(
        self,
        controls: Controls,
        session: Mapping[str, Any],
        scope: LessonScope,
        reply_limit: int | None = None,
        basis: Basis | None = None,
    ) -> Policy:
        """The policy for a request; raises `BadRequest` if an option does not fit its pipeline.

        Requests that ask for the same, under the same windows, share one policy.
        """
        basis = basis or self.basis(controls.window, scope)
        # The session's settings may hold any JSON value; as text they can be part of a key.
        key = (scope.model, basis, reply_limit, controls.treatment, repr(session))
        return self._policies.use(key) or self._policies.put(
            key, self._policy(controls, session, scope.model, reply_limit, basis)
        )

    def _policy(
        self, controls: Controls, session: Mapping[str, Any], model: str, reply_limit: int | None, basis: Basis
    ) -> Policy:
        own, asked = self._facts(model).policy, controls.over(session)
        pipeline = asked.strategy or own.pipeline
        strategies, ledger = self._stages(pipeline, asked.options, controls.param("options"))
        memory = self._settings.memory
        if controls.memory_scope is not None and not memory.scopes:
            param = controls.param("memory-scope")
            raise BadRequest(f"{param} needs memory.scopes = true in the settings of the proxy.", param=param)
        injection, economy = _injection(strategies), asked.economy or own.economy
        judges = [stage for stage in strategies if isinstance(stage, Judging)]
        acts_otherwise = bool(judges) or any(isinstance(stage, Triggering) for stage in strategies) or economy == "auto"
        return own._replace(
            pipeline=pipeline,
            stages=strategies,
            judging=next(iter(judges), None),
            acts_by_size=not (pipeline.is_off or acts_otherwise or basis.profile.form),
            ladder=() if pipeline.is_off else stages(LADDER, LADDER_OPTIONS, self._settings.options),
            window=basis.window,
            budget=self._budget_for(strategies, ledger, basis, model, reply_limit),
            size_refused=basis.size_refused,
            below=_below(basis.window, basis.size_refused),
            ledger=ledger,
            session_settings=controls.kept(session, pipeline),
            memory=self._memory(asked, pipeline, injection.unasked),
            block_passages=injection.top_k or memory.top_k,
            block_tokens=injection.max_tokens or memory.max_tokens,
            block_is_for_turn=injection.for_turn,
            economy=economy,
            strict=own.strict if asked.strict is None else asked.strict == "true",
            scope=(asked.memory_scope or "") if memory.scopes else "",
            profile=basis.profile,
        )

    def is_off(self, controls: Controls, model: str) -> bool:
        """Whether a request is `off`, unless its session has another strategy."""
        return (controls.strategy or self._facts(model).policy.pipeline).is_off

    def _memory(self, asked: Controls, pipeline: Pipeline, unasked: bool | None) -> Memory:
        """The uses of memory that are allowed; none if the request stores nothing: a block must last a whole turn.

        `unasked` is what the pipeline says of injection if nobody chose a memory mode.
        """
        if asked.no_store or pipeline.is_off or pipeline.observe:
            return MEMORY["off"]
        default = MEMORY["off" if unasked is False else self._settings.memory.default]
        return asked.memory or default._replace(inject=default.inject or bool(unasked))

    def _prompt_window(self, summarizer: SummarizerRole, scope: LessonScope) -> int | None:
        """The window in tokens of the summarizer's model; None if the request's own model summarizes."""
        if summarizer.window is not None or summarizer.model is None:
            return summarizer.window
        place = scope.upstream if summarizer.base_url is None else summarizer.base_url
        return self.window(None, scope._replace(model=summarizer.model, upstream=place)).tokens

    def _stages(
        self, pipeline: Pipeline, options: Mapping[str, object], param: str
    ) -> tuple[list[Strategy], LedgerCaps]:
        """The stages, and the caps of the ledger; the option `said` may switch the user's words off."""
        others = dict(options)
        ledger = {"said": others.pop("said")} if "said" in others else {}
        caps = self._settings.ledger.to_caps()
        try:
            if not fill_options(LedgerOptions(), ledger).said:
                caps = replace(caps, said=0)
            return stages(pipeline.names, options_by_stage(pipeline, others), self._tables), caps
        except OptionError as error:
            raise BadRequest(f"{param}: {error.detail}.", param=param) from None

    def refused(
        self, policy: Policy, window: Window, size: int | None, scope: LessonScope, reply_limit: int | None
    ) -> Policy:
        """The policy after a refusal of its request, with the window and the size refused that hold now."""
        pays = policy.budget is not None and policy.budget.step_at is not None
        basis = Basis(window, self._prompt_window(policy.summarizer, scope), policy.profile, size, pays)
        budget = self._budget_for(policy.stages, policy.ledger, basis, scope.model, reply_limit)
        return policy._replace(window=window, budget=budget, size_refused=size, below=_below(window, size))

    def usable(self, window: int, model: str, reply_limit: int | None) -> int:
        """How much of a window a prompt may use."""
        budget = self._facts(model).budget(Window(window, SOURCE), reply_limit)
        return budget.usable if budget else 0

    def _budget_for(
        self, pipeline: Sequence[Strategy], ledger: LedgerCaps, basis: Basis, model: str, reply_limit: int | None
    ) -> Budget | None:
        """The budget for a window with these stages' own marks, and with the window of their summarizer."""
        facts = self._facts(model)
        budget = facts.budget(basis.window, reply_limit, basis.size_refused)
        if budget is None:
            return None
        step = facts.step if facts.step_is_set or basis.pays_table_prices else None
        bounded = with_stage_marks(budget, pipeline).at_most(facts.most, step)
        return replace(bounded, prompt_window=basis.prompt_window, ledger=ledger)

    def window(self, requested: int | None, scope: LessonScope, *, is_long: bool = False) -> Window:
        """A model's window: the one that is set, else the known one or the one that a refusal stated, if smaller."""
        facts = self._facts(scope.model)
        is_set = Window(requested, REQUEST) if requested is not None else facts.window
        if is_set is not None:
            return is_set
        stated, learned = self._discovered(scope), self._learned(scope)
        limit = facts.max_input or (stated.max_input if stated else None)
        known = Window(stated.window, stated.source, limit) if stated else facts.listed
        if stated and stated.is_ceiling and (facts.listed.tokens or stated.window) < stated.window:
            known = facts.listed
        # A server states the window that a request has which does not ask for more.
        if known.tokens == facts.listed.tokens and (is_long or facts.is_long):
            known = facts.long
        return known if learned is None else known.lowered(learned.tokens)

    def _read_facts(self, model: str) -> _ModelFacts:
        own, entry = partial(self._settings.own, model=model), self._settings.for_model(model)
        limit, tokens = entry.max_input if entry else None, own("window")
        source = f"{SETTINGS} for '{entry.match}'" if entry and entry.window else SETTINGS
        found = self._table.find(model)
        prices = entry.prices.to_prices() if entry and entry.prices else None
        published = self._table.prices(model) if self._settings.currency == BUNDLED_CURRENCY else None
        policy = Policy(
            pipeline=pipeline_named(own("strategy")),
            summarizer=self._settings.role("summarizer", model),
            judge=self._settings.role("judge", model),
            background=own("background"),
            prices=prices or published,
            economy=own("economy"),
            strict=own("strict"),
        )
        listed = Window(found.window, TABLE_SOURCE, limit or found.max_input) if found else Window(None, UNKNOWN)
        step = policy.prices.step if policy.prices else None
        return _ModelFacts(
            policy,
            marks=own("marks").to_marks(),
            most=own("marks").most,
            step=step and step.above,
            step_is_set=prices is not None,
            reserve=own("reserve"),
            window=Window(tokens, source, limit) if tokens else None,
            listed=listed,
            long=listed._replace(tokens=found.long) if found and found.long else listed,
            max_input=limit,
            is_long=asks_for_long(model),
        )

    def _lowest_mark(self, model: str, window: Window, reply_length: int | None) -> int | None:
        """Tokens below which nothing ever happens to a request; None if the window is unknown."""
        facts = self._facts(model)
        budget = facts.budget(window, reply_length)
        if budget is None:
            return None
        budget = budget.at_most(facts.most, facts.step)
        # What a list has grown by in its last rounds is no more than all of it.
        below_step = UNLIMITED if facts.step is None else facts.step // 2
        lowest = min(budget.prepare, budget.target, int(budget.usable * MIN_TRIGGER))
        return min(lowest, budget.fits - budget.least_headroom, below_step)


def _below(window: Window, size_refused: int | None) -> Reason:
    return Reason.WINDOW_UNKNOWN if window.tokens is None and size_refused is None else Reason.BELOW_MARKS


def _injection(strategies: Sequence[Strategy]) -> Injection:
    """What the stages say of memory blocks: of each member, what the first one says that has an opinion."""
    opinions = [stage.injection for stage in strategies if isinstance(stage, Injecting)]
    return Injection(
        next((each.unasked for each in opinions if each.unasked is not None), None),
        next((each.top_k for each in opinions if each.top_k is not None), None),
        next((each.max_tokens for each in opinions if each.max_tokens is not None), None),
        any(each.for_turn for each in opinions),
    )


def option_tables(settings: Settings) -> dict[str, dict[str, object]]:
    """The strategies' option tables.

    Options about memory that a table leaves out come from the settings of memory.
    """
    memory: dict[str, object] = {
        "memory_top_k": settings.memory.top_k,
        "memory_max_tokens": settings.memory.max_tokens,
    }
    known = {name: {option.name for option in fields(row.options)} for name, row in TABLE.items()}
    return {
        name: {key: value for key, value in memory.items() if key in options} | settings.options.get(name, {})
        for name, options in known.items()
    }
