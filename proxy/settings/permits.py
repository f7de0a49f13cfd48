"""Which controls clients may set."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from proxy.controls import KEYS, Controls
from proxy.errors import BadRequest
from proxy.quoting import quoted
from proxy.settings.values import Table, split_at_commas
from strategies import TABLE


def _control_name(value: str) -> str:
    name = value.lower()
    if name not in ("*", *KEYS):
        near = get_close_matches(name, KEYS, 1)
        hint = f"; did you mean '{near[0]}'?" if near else f"; known: {', '.join(KEYS)}, *"
        raise ValueError(f"there is no control {quoted(value)}{hint}")
    return name


_ControlNames = Annotated[tuple[Annotated[str, AfterValidator(_control_name)], ...], BeforeValidator(split_at_commas)]


class ControlSettings(Table):
    """Which controls clients may set, by header, member of the body or suffix of the model."""

    allow: _ControlNames = ("*",)
    max_window: int = Field(0, ge=0)
    """The largest window that a client may name, in tokens; 0 means no limit."""
    own_calls: bool = True
    """Clients may choose strategies that ask a model."""

    def check(self, controls: Controls) -> None:
        """Raises `BadRequest` that names a control that a client may not set, or not so."""
        for key, param in controls.params.items():
            if key not in self.allow and "*" not in self.allow:
                raise BadRequest(f"{param}: this proxy accepts no {key} from clients.", param=param)
        stages = controls.strategy.names if controls.strategy and not controls.strategy.observe else ()
        asking = next((name for name in stages if TABLE[name].make.asks), "")
        if asking and not self.own_calls:
            param = controls.param("strategy")
            raise BadRequest(f"{param}: this proxy lets no client choose {asking}, which asks a model.", param=param)
        if 0 < self.max_window < (controls.window or 0):
            param = controls.param("window")
            raise BadRequest(f"{param} may be at most {self.max_window:,} at this proxy.", param=param)
