"""Pictures that are drawn by hand: the way of a request, a session with branches, three ways to run the proxy."""

from __future__ import annotations

from collections.abc import Sequence

from bench.pictures.svg import arrow, block, box, line, lines_of_text, picture, rule, text

_TOP, _STEP = 84, 40


def request_path() -> str:
    high = 66
    drawn = [text(16, 28, "The way of a request", kind="bold")]
    drawn += [
        box(16, 80, 90, high, "client"),
        box(140, 80, 124, high, "1 recognise", ["session and", "branch"], "c2"),
        box(294, 80, 124, high, "2 replay", ["what was made", "before"], "c2"),
        box(448, 80, 124, high, "3 measure", ["tokens against", "the window"], "c2"),
        box(754, 80, 90, high, "model", ["server"]),
        box(448, 206, 124, high, "4 condense", ["by the session's", "strategy"], "c2"),
        box(594, 206, 96, high, "5 check", ["calls with", "results"], "c2"),
        box(710, 206, 84, high, "6 record", [], "c2"),
        box(140, 326, 124, 50, "store", ["SQLite or Redis"]),
        box(448, 326, 124, 50, "a model", ["for summaries"]),
        arrow((106, 113), (140, 113)),
        arrow((264, 113), (294, 113)),
        arrow((418, 113), (448, 113)),
        arrow((572, 113), (754, 113)),
        arrow((510, 146), (510, 206)),
        arrow((572, 239), (594, 239)),
        arrow((690, 239), (710, 239)),
        arrow((794, 239), (808, 239), (808, 146)),
        arrow((799, 80), (799, 54), (61, 54), (61, 80)),
        arrow((202, 146), (202, 326), both=True, dash="4 4"),
        arrow((749, 272), (749, 400), (202, 400), (202, 376), dash="4 4"),
        arrow((510, 272), (510, 326), both=True, dash="4 4"),
        text(663, 105, "below the trigger", anchor="middle", kind="small"),
        *lines_of_text(520, 172, ["at or above", "the trigger"]),
        text(430, 48, "7 relay: the reply passes as it arrives", anchor="middle", kind="small"),
        text(430, 394, "stored before the request is forwarded", anchor="middle", kind="small"),
    ]
    told = (
        "A request is recognised, earlier condensations are replayed, it is measured, condensed if it must be, sent on."
    )
    return picture(860, 416, told, drawn)


def session_branches() -> str:
    """Messages as circles; each condensation as a bracket over what it replaces, and below what the model reads."""
    x = {str(number): 110.0 + 50 * number for number in range(1, 13)}
    main, fork = 160, 250
    names = [str(number) for number in range(1, 13)]
    edited = ["9", "10", "11", "12"]
    drawn = [text(16, 28, "A session: two branches, two condensations", kind="bold")]
    drawn += [text(16, main + 5, "main", kind="bold"), text(16, fork + 5, "b2", kind="bold", colour="c4")]
    drawn += [line([(x["1"], main), (x["12"], main)], "c1")]
    drawn += [line([(x["8"], main), (x["9"], fork), (x["12"], fork)], "c1")]
    drawn += [_message(x[name], main, name, "c2") for name in names]
    drawn += [_message(x[name], fork, f"{name}′", "c4") for name in edited]
    for first, last, y, colour, said in (
        ("1", "6", 116, "c0", "A: messages 1 to 6"),
        ("1", "10", 74, "c3", "B: messages 1 to 10, later"),
    ):
        left, right = x[first] - 16, x[last] + 16
        drawn += [line([(left, y + 12), (left, y), (right, y), (right, y + 12)], colour)]
        drawn += [text(left, y - 8, said, colour=colour)]
    drawn += lines_of_text(
        16, fork + 40, ["the user edited message 9: what followed it stays on main, the new end is b2"]
    )
    drawn += [text(x["1"] - 16, 206, "A counts on b2 too: it has messages 1 to 6", colour="c0")]
    drawn += [rule(16, 322, 844, 322), text(16, 348, "what the model reads next", kind="bold")]
    rows = (
        ("main", ["B", "11", "12"], "c2", "B is in front of messages 11 and 12"),
        ("b2", ["A", "7", "8", "9′", "10′", "11′", "12′"], "c4", "never B: it stands for messages that b2 lacks"),
    )
    for number, (name, shown, colour, said) in enumerate(rows):
        y = 376 + 48 * number
        drawn.append(text(16, y + 5, name, kind="bold", colour=colour if number else ""))
        place = 90.0
        for each in shown:
            is_record = each in "AB"
            drawn.append(_record(place, y, each) if is_record else _message(place, y, each, _colour(each)))
            place += 50
        drawn.append(text(place + 4, y + 5, said, kind="small"))
    told = "Two branches of one session share the condensation of their common beginning, and nothing else."
    return picture(860, 456, told, drawn)


def _colour(name: str) -> str:
    return "c4" if "′" in name else "c2"


def _message(x: float, y: float, name: str, colour: str) -> str:
    circle = f'<circle cx="{x}" cy="{y}" r="15" style="fill:var(--page);stroke:var(--{colour});stroke-width:2"/>'
    return circle + text(x, y + 4, name, anchor="middle", kind="small")


def _record(x: float, y: float, name: str) -> str:
    colour = "c0" if name == "A" else "c3"
    style = f"fill:var(--page);stroke:var(--{colour});stroke-width:2.5"
    return block(x - 17, y - 15, 34, 30, style) + text(x, y + 5, name, anchor="middle", kind="bold", colour=colour)


def deployments() -> str:
    drawn = [
        *_panel(16, "Laptop", ["one person; condenser wrap,", "or serve --single-user"]),
        box(36, _TOP + 10, 100, 50, "your agent"),
        box(156, _TOP + 10, 108, 50, "Condenser", [], "c2"),
        box(156, _TOP + 106, 108, 50, "SQLite file"),
        box(36, _TOP + 196, 228, 50, "model server", ["of a provider, or on this machine"]),
        arrow((136, _TOP + 35), (156, _TOP + 35)),
        arrow((210, _TOP + 60), (210, _TOP + 106), both=True, dash="4 4"),
        arrow((156, _TOP + 50), (90, _TOP + 80), (90, _TOP + 196)),
        *_panel(300, "Sidecar", ["one application; the proxy is a", "container beside it"]),
        f'<rect x="310" y="{_TOP}" width="248" height="74" rx="6" class="arrow" style="stroke-dasharray:6 4"/>',
        text(318, _TOP + 90, "one pod", kind="small"),
        box(318, _TOP + 12, 104, 50, "application"),
        box(440, _TOP + 12, 108, 50, "Condenser", [], "c2"),
        box(440, _TOP + 106, 108, 50, "a volume", ["or Redis"]),
        box(322, _TOP + 196, 226, 50, "model server"),
        arrow((422, _TOP + 37), (440, _TOP + 37)),
        arrow((494, _TOP + 62), (494, _TOP + 106), both=True, dash="4 4"),
        arrow((440, _TOP + 52), (400, _TOP + 92), (400, _TOP + 196)),
        *_panel(584, "Gateway", ["a team; replicas share Redis,", "each caller has a key"]),
        *(box(596 + 84 * place, _TOP, 76, 34, "client") for place in range(3)),
        box(596, _TOP + 60, 244, 34, "load balancer: TLS"),
        box(596, _TOP + 122, 104, 34, "Condenser", [], "c2"),
        box(596, _TOP + 162, 104, 34, "Condenser", [], "c2"),
        box(750, _TOP + 134, 90, 50, "Redis"),
        box(596, _TOP + 222, 114, 34, "provider A"),
        box(726, _TOP + 222, 114, 34, "own models"),
        *(arrow((634 + 84 * place, _TOP + 34), (634 + 84 * place, _TOP + 60)) for place in range(3)),
        arrow((648, _TOP + 94), (648, _TOP + 122)),
        arrow((700, _TOP + 148), (750, _TOP + 155), both=True, dash="4 4"),
        arrow((700, _TOP + 175), (750, _TOP + 165), both=True, dash="4 4"),
        arrow((640, _TOP + 196), (640, _TOP + 222)),
        arrow((670, _TOP + 196), (760, _TOP + 222)),
    ]
    return picture(860, 360, "Three ways to run the proxy: on a laptop, beside an application, for a team.", drawn)


def _panel(x: float, title: str, said: Sequence[str]) -> list[str]:
    border = f'<rect x="{x}" y="12" width="260" height="336" rx="8" style="fill:none;stroke:var(--edge)"/>'
    return [border, text(x + 12, 34, title, kind="bold"), *lines_of_text(x + 12, 54, said)]
