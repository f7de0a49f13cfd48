"""The policy for one request: strategy, options, window and budget. No I/O; policies are cached.

A value comes from the request, else from its session (`Controls.over`), else from the model's entry in the settings,
else from the tables there (`Settings.own`). `_ModelFacts` has the values of the settings; those of a request and its
session replace them in `_policy`.

A size that the session's upstream has refused bounds the budget, whatever the window. So do `marks.most` and a price
step, also where the window is unknown; without them nothing is condensed there.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import fields, replace
from functools import lru_cache, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from proxy.controls import MEMORY, TREATMENT, Controls, Memory, pipeline_named
from proxy.errors import BadRequest
from proxy.reasons import Reason
from proxy.runtime.lru import Lru
from proxy.servers.known import Server
from proxy.servers.windows import SOURCE, UNKNOWN, Window
from proxy.settings import Settings
from proxy.settings.profile import ANY, Profile
from proxy.settings.tables import BUNDLED_CURRENCY, JudgeRole, Mode, ModelRole, SummarizerRole
from proxy.tokens.models import ModelTable
from strategies import LADDER, LADDER_OPTIONS, TABLE, Pipeline, options_by_stage, stages
from strategies.core.budget import MIN_TRIGGER, UNLIMITED, Budget, Marks
from strategies.core.economics import Prices, is_cheaper_continued
from strategies.core.effects import JUDGE, SUMMARIZER
from strategies.core.errors import OptionError
from strategies.core.ledger import LEDGER, LedgerCaps
from strategies.core.protocol import Injecting, Injection, Judging, LedgerOptions, Strategy, Triggering, fill_options
from strategies.pipeline import with_stage_marks

if TYPE_CHECKING:
    from proxy.bodies.wire import ClientRequest
    from proxy.conversations.session import Session

_MAX_CACHED = 256
OFF = Pipeline(("off",))
RATIOS = Prices(input=1.0, cached_input=0.1, cache_write=1.0, output=5.0)
"""The ratios that most vendors' prices have, for a model whose prices are not known."""


class Policy(NamedTuple):
    """The strategy, budget, models and limits that apply to one request; by default one that does nothing."""

    pipeline: Pipeline = OFF  # the names of the strategies, as the headers show them
    stages: Sequence[Strategy] = ()  # the strategies of the pipeline, in order
    ladder: Sequence[Strategy] = ()
    """The strategies that HARD, FORCED and OVERFLOW run after the pipeline; they ask no model."""
    window: Window = Window(None, UNKNOWN)
    budget: Budget | None = None  # in tokens of the upstream; None if nothing bounds it
    size_refused: int | None = None
    """The size that the session's upstream has refused, in its tokens, if it bounds the budget."""
    prompt_window: int | None = None  # the window of the summarizer's own model
    pays_list_prices: bool = False  # whether each token costs what the model's vendor says
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
    rewrites: bool = False  # whether requests may be changed: not if they are `off`, or only observed
    asks_models: bool = False  # whether a stage asks a model
    asks_window: bool = False  # whether the server is asked for its window: not if that is set, or plays no part

    @property
    def roles(self) -> Mapping[str, ModelRole]:
        """The models that effects may name by their role."""
        return {SUMMARIZER: self.summarizer, JUDGE: self.judge}

    @property
    def prepares(self) -> bool:
        """Whether models may be asked in the background."""
        return self.background != "off"

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
        off = self._replace(pipeline=OFF, stages=(), ladder=(), judging=None, memory=MEMORY["off"])
        return off._replace(rewrites=False, asks_models=False, asks_window=False)

    def triggered_at(self, tokens: int) -> Policy:
        """The policy for a request whose client wants its history compacted at so many tokens of the upstream."""
        budget = self.budget or replace(Budget.of(round(tokens / Marks().trigger), reserve=0), ledger=self.ledger)
        return self._replace(budget=budget.triggered_at(tokens))

    def with_dropping(self) -> Policy:
        """The policy for a view with messages put back, which may be dropped without a model if they do not fit."""
        return self._replace(stages=[*self.stages, *stages(("recent",), {}, {})])


class _ModelFacts(NamedTuple):
    """What the settings and the bundled table say of one model, without its window."""

    policy: Policy  # the policy of a request without controls, without what depends on its window
    marks: Marks
    reserve: int | None
    most: int  # `marks.most`
    step: int | None  # the price step
    step_is_set: bool  # whether the settings give it, so that it holds at every upstream

    def budget(self, window: Window, reply_length: int | None, size: int | None = None) -> Budget | None:
        """The budget for a window, of which a `size` refused bounds the usable part; None if nothing bounds it."""
        if window.tokens is None:
            most = size or (UNLIMITED if self.most or self.step else None)
            return None if most is None else Budget.of(most, reserve=0, marks=self.marks)
        budget = Budget.of(
            window.tokens, reply_length=reply_length, reserve=self.reserve, marks=self.marks, max_input=window.max_input
        )
        return budget if size is None else budget.bounded(size)


class Policies:
    """Makes policies; one per app."""

    def __init__(self, settings: Settings, table: ModelTable, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.renew(settings, table)

    def renew(self, settings: Settings, table: ModelTable) -> None:
        """Makes the policies of all later requests from these settings and prices, until those change."""
        self._settings, self.table = settings, table
        self._until = table.next_change(self._clock())
        self.tables = option_tables(settings)
        self._facts = lru_cache(_MAX_CACHED)(self._read_facts)
        self._policies: Lru[Hashable, Policy] = Lru(_MAX_CACHED)
        self.lowest_mark = lru_cache(_MAX_CACHED)(self._lowest_mark)
        self.is_off = lru_cache(_MAX_CACHED)(self._is_off)

    def for_request(self, asked: ClientRequest, session: Session | None, server: Server) -> Policy:
        """The policy for a request of a session; raises `BadRequest` if an option does not fit its pipeline."""
        settings, endpoint = session.settings if session else {}, asked.body.endpoint
        policy = self.policy(asked.controls, settings, server, asked.body.envelope.reply_limit)
        if any(policy.memory) and endpoint.is_subagent(asked.headers):
            policy = policy._replace(memory=MEMORY["off"])
        if server.profile.context_management or not policy.rewrites or (threshold := asked.body.threshold) is None:
            return policy
        return policy.triggered_at(threshold)

    def policy(
        self,
        controls: Controls,
        session: Mapping[str, Any],
        server: Server,
        reply_limit: int | None = None,
    ) -> Policy:
        """The policy for a request; raises `BadRequest` if an option does not fit its pipeline.

        Requests that ask for the same, under the same windows, share one policy.
        """
        if self._clock() >= self._until:
            self.renew(self._settings, self.table)
        model, size = server.scope.model, server.size_refused.tokens if server.size_refused is not None else None
        known = server.window, server.prompt_window, server.profile, size, server.pays_list_prices
        # Options, and the session's settings, may hold any JSON value; as text they can be part of a key.
        key = (model, known, reply_limit, TREATMENT(controls), repr(controls.options), repr(session))
        return self._policies.use(key) or self._policies.put(key, self._policy(controls, session, server, reply_limit))

    def _policy(
        self, controls: Controls, session: Mapping[str, Any], server: Server, reply_limit: int | None
    ) -> Policy:
        own, asked = self._facts(server.scope.model).policy, controls.over(session)
        pipeline = asked.strategy or own.pipeline
        strategies, ledger = self._stages(pipeline, asked.options, controls.param("options"))
        memory = self._settings.memory
        if controls.memory_scope is not None and not memory.scopes:
            param = controls.param("memory-scope")
            raise BadRequest(f"{param} needs memory.scopes = true in the settings of the proxy.", param=param)
        injection, economy = _injection(strategies), asked.economy or own.economy
        judges = [stage for stage in strategies if isinstance(stage, Judging)]
        acts_otherwise = bool(judges) or any(isinstance(stage, Triggering) for stage in strategies) or economy == "auto"
        policy = own._replace(
            pipeline=pipeline,
            stages=strategies,
            judging=next(iter(judges), None),
            acts_by_size=not (pipeline.is_off or acts_otherwise or server.profile.form),
            rewrites=not (pipeline.is_off or pipeline.observe),
            asks_models=any(stage.asks for stage in strategies),
            asks_window=not (pipeline.is_off or server.window.is_set),
            ladder=() if pipeline.is_off else stages(LADDER, LADDER_OPTIONS, self._settings.options),
            window=server.window,
            prompt_window=server.prompt_window,
            pays_list_prices=server.pays_list_prices,
            size_refused=server.size_refused.tokens if server.size_refused else None,
            ledger=ledger,
            session_settings=controls.kept(session, pipeline),
            memory=self._memory(asked, pipeline, injection.unasked),
            block_passages=injection.top_k or memory.top_k,
            block_tokens=injection.max_tokens or memory.max_tokens,
            block_is_for_turn=injection.for_turn,
            economy=economy,
            strict=own.strict if asked.strict is None else asked.strict == "true",
            scope=(asked.memory_scope or "") if memory.scopes else "",
            profile=server.profile,
        )
        return self._with_budget(policy, server.scope.model, reply_limit)

    def _is_off(self, strategy: Pipeline | None, model: str) -> bool:
        """Whether a request that asks for this strategy is `off`, unless its session has another one."""
        return (strategy or self._facts(model).policy.pipeline).is_off

    def _memory(self, asked: Controls, pipeline: Pipeline, unasked: bool | None) -> Memory:
        """The uses of memory that are allowed; none if the request stores nothing: a block must last a whole turn.

        `unasked` is what the pipeline says of injection if nobody chose a memory mode.
        """
        if asked.no_store or pipeline.is_off or pipeline.observe:
            return MEMORY["off"]
        default = MEMORY["off" if unasked is False else self._settings.memory.default]
        return asked.memory or default._replace(inject=default.inject or bool(unasked))

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
            return stages(pipeline.names, options_by_stage(pipeline, others), self.tables), caps
        except OptionError as error:
            raise BadRequest(f"{param}: {error.detail}.", param=param) from None

    def prices(self, model: str) -> Prices | None:
        """The prices of a model, None if they are not known."""
        return self._facts(model).policy.prices

    def usable(self, window: int, model: str, reply_limit: int | None) -> int:
        """How much of a window a prompt may use."""
        budget = self._facts(model).budget(Window(window, SOURCE), reply_limit)
        return budget.usable if budget else 0

    def refused(self, policy: Policy, window: Window, size: int | None, model: str, reply_limit: int | None) -> Policy:
        """The policy after a refusal of its request, with the window and the size refused that hold now."""
        return self._with_budget(policy._replace(window=window, size_refused=size), model, reply_limit)

    def _with_budget(self, policy: Policy, model: str, reply_limit: int | None) -> Policy:
        """The policy with the budget for its window, its stages' own marks, and the window of its summarizer."""
        facts = self._facts(model)
        budget, step = facts.budget(policy.window, reply_limit, policy.size_refused), None
        if facts.step_is_set or policy.pays_list_prices:
            step = facts.step
        if budget is not None:
            budget = with_stage_marks(budget, policy.stages).at_most(facts.most, step)
            budget = replace(budget, prompt_window=policy.prompt_window, ledger=policy.ledger)
        is_unknown = policy.window.tokens is None and policy.size_refused is None
        return policy._replace(budget=budget, below=Reason.WINDOW_UNKNOWN if is_unknown else Reason.BELOW_MARKS)

    def _read_facts(self, model: str) -> _ModelFacts:
        own, entry = partial(self._settings.own, model=model), self._settings.for_model(model)
        prices = entry.prices.to_prices() if entry and entry.prices else None
        published = self.table.prices(model, self._clock()) if self._settings.currency == BUNDLED_CURRENCY else None
        policy = Policy(
            pipeline=pipeline_named(own("strategy")),
            summarizer=self._settings.role("summarizer", model),
            judge=self._settings.role("judge", model),
            background=own("background"),
            prices=prices or published,
            economy=own("economy"),
            strict=own("strict"),
        )
        step = policy.prices.step if policy.prices else None
        marks = own("marks")
        return _ModelFacts(
            policy, marks.to_marks(), own("reserve"), marks.most, step and step.above, step_is_set=prices is not None
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
