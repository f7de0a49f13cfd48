"""The window as a bar: what a real request of the demo has in it, as it was sent and as it is forwarded."""

from __future__ import annotations

import json
from typing import NamedTuple

from bench.pictures.svg import block, line, lines_of_text, picture, text
from proxy.commands.demo import WINDOW, load
from proxy.commands.replaying.play import Player, Playing, open_replay_proxy, request_ends
from proxy.settings import Settings
from proxy.settings.tables import StoreSettings
from strategies import DEFAULT

_RECORD = "[Condensed history]"


class Parts(NamedTuple):
    """Tokens of one request."""

    number: int
    window: int
    sent: int
    tools: int
    system: int
    task: int  # the first user message
    record: int
    rounds: int  # what is kept word for word
    reserve: int

    @property
    def free(self) -> int:
        return self.window - self.reserve - sum(self[3:8])


async def parts_of(number: int) -> Parts:
    """What request `number` of the demo has, once it was condensed."""
    conversation = load()
    async with open_replay_proxy(Settings.model_construct(store=StoreSettings(url="memory://"))) as proxy:
        player = Player(proxy, "", WINDOW)
        way = Playing(player, conversation, DEFAULT, "window")
        for end in [*request_ends(conversation)][:number]:
            request = await way.send(end)
        shown = [(json.loads(message.raw), message.tokens) for message in way.view]
        record = next(place for place, (value, _) in enumerate(shown) if _RECORD in str(value["content"]))
        sizes = [tokens for _, tokens in shown]
        system, task, rest = sizes[0], sum(sizes[1:record]), sum(sizes[record + 1 :])
        tools, reserve = request.overhead_tokens, player.budget().reserve
        return Parts(number, WINDOW, request.sent_tokens, tools, system, task, sizes[record], rest, reserve)


def window_bar(parts: Parts) -> str:
    left, wide, high = 20, 760, 46
    scale = wide / max(parts.sent, parts.window)
    drawn = [text(left, 28, f"Request {parts.number} of the demo in a window of {parts.window:,} tokens", kind="bold")]
    kinds = (
        ("tools", parts.tools, "fill:var(--c4)", "definitions, as sent"),
        ("system", parts.system, "fill:var(--ink)", "system message, as sent"),
        ("task", parts.task, "fill:var(--c3)", "first user message, whole"),
        ("record", parts.record, "fill:var(--c0)", "stands for the older messages"),
        ("kept rounds", parts.rounds, "fill:var(--c2)", "newest messages, as sent"),
        ("free", parts.free, "fill:var(--fill);stroke:var(--edge)", "room to grow"),
        ("reserve", parts.reserve, "fill:var(--edge)", "held back for the reply"),
    )
    top = 74
    drawn.append(text(left, top - 10, f"as the client sends it: {parts.sent:,} tokens, too many", kind="small"))
    history = parts.sent - parts.tools - parts.system - parts.task
    whole = (*kinds[:3], ("history", history, "fill:var(--c1)", ""))
    for y, shown in ((top, whole), (top + 94, kinds)):
        x = float(left)
        for name, tokens, style, _ in shown:
            drawn.append(block(x, y, scale * tokens, high, style))
            if name in ("history", "kept rounds"):
                said = f"{name} {tokens:,}"
                drawn.append(
                    f'<text x="{x + scale * tokens / 2:.1f}" y="{y + 29}" text-anchor="middle" class="bold"'
                    f' style="fill:var(--page)">{said}</text>'
                )
            elif name in ("free", "reserve"):
                drawn.append(text(x + scale * tokens / 2, y + 29, name, anchor="middle"))
            x += scale * tokens
    below = top + 94 - 10
    drawn.append(text(left, below, f"as it is forwarded: {sum(parts[3:8]):,} tokens", kind="small"))
    edge = left + scale * parts.window
    drawn += [line([(edge, top - 8), (edge, top + 94 + high + 8)], "red")]
    drawn += [
        text(edge + 6, top + 94 + 20, "window", colour="red"),
        text(edge + 6, top + 94 + 37, f"{parts.window:,}", colour="red"),
    ]
    for number, (name, tokens, style, said) in enumerate(kinds):
        x, y = left + 205 * (number % 4), top + 94 + high + 40 + 50 * (number // 4)
        drawn += [block(x, y - 11, 12, 12, style), text(x + 18, y, f"{name} {tokens:,}", kind="bold")]
        drawn += lines_of_text(x + 18, y + 17, [said])
    told = f"A request of {parts.sent:,} tokens does not fit the window of {parts.window:,}; condensed it has room."
    return picture(860, top + 94 + high + 130, told, drawn)
