"""Which paths are served, and how a path is read: once, before anything else looks at it.

No path may lead a request, and the key that it carries, out of the `base_url` of its upstream. Servers differ in how
often they decode a path, and in whether `//` and `..;` climb. So a path that one of them could read otherwise than we
do is refused (`read_path`). Any other is matched and forwarded in one form, in which letters, digits and `-._~` are not
percent-encoded.

A path below `/v1/` goes below `base_url`. Any other one has a provider's *prefix*, as `/api/coding/v1/messages` has; it
takes the place of the final `/v1` of `base_url`. Where a key of the operator is used, only listed prefixes are served.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from unicodedata import normalize
from urllib.parse import unquote_to_bytes

from proxy.errors import BadRequest, NotHere, PathNotAllowed
from proxy.quoting import quoted

V1 = "/v1"
ADMIN = "/_condenser/"  # where the pages and the administration are
_OWN = f"{ADMIN}own/"  # what callers may ask there
_EVERYWHERE = frozenset(("/", "/livez", "/readyz", "/health", "/healthz"))
UNLISTED = "condenser.prefix"  # the key of a request's scope for the prefix of its path that no list has
OWN_PATHS = (
    "GET models",
    "GET models/*",
    "POST chat/completions",
    "POST responses",
    "POST responses/input_tokens",
    "POST responses/compact",
    "POST messages",
    "POST messages/count_tokens",
    "POST completions",
    "POST embeddings",
    "POST moderations",
    "POST compress",
    "POST rerank",
    "POST audio/*",
    "POST images/*",
)
"""The default with the operator's key: what asks a model and reads nothing stored there. `compress` goes nowhere."""
_ESCAPE = re.compile(rb"%[0-9A-Fa-f]{2}")
_CUT = re.compile(r"[;?#]")
_UNRESERVED = re.compile(rb"[A-Za-z0-9._~-]")
_HIDDEN_V1 = re.compile(rb"(?!v1)(v|%76)(1|%31)")
_V1_AND_MORE = re.compile(r"v1[^/a-z0-9]")


def read_path(raw: bytes, query: bytes = b"") -> tuple[str, bytes]:
    """The path of a request, decoded and in the form to forward; raises `BadRequest` with the code `bad_path`."""
    try:
        path = unquote_to_bytes(raw).decode()
        query.decode()
    except UnicodeDecodeError:
        raise _bad("or the query is not UTF-8") from None
    segments, hides_v1 = path.split("/")[1:], any(_HIDDEN_V1.fullmatch(part) for part in raw.split(b"/"))
    if not path.startswith("/") or b"%" in raw.split(b"/", 2)[1] or "@" in segments[0] or hides_v1:
        raise _bad("must begin with a plain segment, such as /v1")
    # A name such as `v1-x` would follow the address without a boundary wherever `/v1` is cut off.
    if _V1_AND_MORE.match(segments[0]):
        raise _bad("begins with /v1 and more in the same segment")
    if "%" in path:
        raise _bad("is percent-encoded twice")
    if not path.isprintable() or "\\" in path:
        raise _bad("holds a backslash or a control character")
    if "" in segments[:-1]:
        raise _bad("has an empty segment")
    # Before they climb, some servers cut off what follows such a character, some trim spaces, and some fold other forms
    # of a full stop.
    if any(_CUT.split(part, maxsplit=1)[0].strip() in (".", "..") for part in normalize("NFKC", path).split("/")):
        raise _bad("has segments that climb")
    return path, _ESCAPE.sub(_plain, raw)


def _plain(escape: re.Match[bytes]) -> bytes:
    char = unquote_to_bytes(escape[0])
    return char if _UNRESERVED.fullmatch(char) else escape[0]


def _bad(what: str) -> BadRequest:
    return BadRequest(f"The path {what}.", param="path", code="bad_path")


def check_listener(path: str, *, is_admin: bool) -> None:
    """Raises `NotHere` for a decoded path that the listener does not serve: that of `admin.listen`, or the other one.

    Health is at both. Metrics, pages and the administration are at the first alone, and all for callers at the other.
    """
    is_of_admin = path == "/metrics" or (path.startswith(ADMIN) and not path.startswith(_OWN))
    if path not in _EVERYWHERE and is_of_admin is not is_admin:
        where = "for requests to models" if is_admin else "of admin.listen"
        raise NotHere(f"{quoted(path)} is not served at this port; if at all, it is at the one {where}.")


class Paths:
    """The paths that are passed on: by method and path, and below which prefixes.

    `allowed` has entries such as `POST audio/*`, relative to `/v1/`; None stands for the default. `endings` are those
    of the endpoints' paths, which are served below any prefix if no setting holds a key of the operator. `keys` names
    the settings that do.
    """

    def __init__(
        self, prefixes: Iterable[str], allowed: Sequence[str] | None, endings: Iterable[str], keys: Collection[str]
    ) -> None:
        # The longest that ends at a segment, where one prefix begins another.
        by_length = sorted(prefixes, key=lambda prefix: (prefix.count("/"), len(prefix)), reverse=True)
        self._prefixes = re.compile(f"(?:{'|'.join(_glob(each, '[^/]+') for each in by_length) or '(?!)'})(?=/)")
        self._endings, self._has_keys = tuple(endings), bool(keys)
        has_upstream_key = any(key.startswith("upstream") for key in keys)
        rules = allowed if allowed is not None else OWN_PATHS if has_upstream_key else ("* *",)
        self._rules = [_rule(rule) for rule in rules]

    def check(self, method: str, path: str) -> str:
        """The prefix of a path that no list has; "" for any other path.

        Raises `PathNotAllowed` for a path of the API that is not passed on.
        """
        below, prefix = path[len(V1) :] if path.startswith(f"{V1}/") else self._below(path), ""
        if below is None:  # an unlisted prefix, a path of our own such as /livez, or one without a route
            ending = next(filter(path.endswith, self._endings), "")
            if not ending:
                return ""
            if self._has_keys:
                message = f"A key of the operator is used here, and server.prefixes lists no prefix of {quoted(path)}."
                raise PathNotAllowed(message)
            below, prefix = ending.removeprefix(V1), path.removesuffix(ending)
        asked = "GET" if method == "HEAD" else method
        if not any(verb in ("*", asked) and rule.fullmatch(below.strip("/")) for verb, rule in self._rules):
            raise PathNotAllowed(f"server.paths does not allow {method} {quoted(path)}.")
        return prefix

    def allows(self, method: str, path: str) -> bool:
        try:
            self.check(method, path)
        except PathNotAllowed:
            return False
        return True

    def _below(self, path: str) -> str | None:
        """The part of a path below a listed prefix, which may end in `/v1` or not; None if none is listed."""
        match = self._prefixes.match(path)
        return path[match.end() :].removeprefix(V1) if match else None


def _rule(text: str) -> tuple[str, re.Pattern[str]]:
    verb, _, path = text.partition(" ")
    return verb.upper(), re.compile(_glob(path.strip("/").removeprefix("v1/"), ".*"))


def _glob(text: str, star: str) -> str:
    return star.join(map(re.escape, text.rstrip("/").split("*")))
