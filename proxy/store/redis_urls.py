"""URLs of Redis: one server, a service behind Sentinels, or a cluster.

    redis[s]://[[user]:password@]host[:port][/db][?ssl_ca_certs=...]
    redis+sentinel://[[user]:password@]host[:port][,host[:port]...]/service[/db]
    redis+cluster://[[user]:password@]host[:port][,host[:port]...]

The hosts of a service are its Sentinels. User and password are for the servers that hold the data; Sentinels that need
an account too get it by `?sentinel_username=...&sentinel_password=...`. Errors quote nothing of a URL but `shown`, its
redacted form.
"""

from __future__ import annotations

from urllib.parse import parse_qs, unquote

from proxy.store.redis import Address, Client, Cluster, Limits, Server, Service, server_options

SENTINEL_PORT = 26_379
CLUSTER_PORT = 6_379
_PLAIN = "redis://"
_SENTINEL_WORDS = {"sentinel_username": "username", "sentinel_password": "password"}


def open_client(url: str, shown: str, limits: Limits) -> Client:
    """The client of the servers of `url`, not yet connected; raises ValueError for a URL that is not valid."""
    scheme, _, place = url.partition("://")
    match scheme.lower():
        case "redis+sentinel":
            return _sentinels(place, shown, limits)
        case "redis+cluster":
            return _cluster(place, shown, limits)
    return Server(server_options(url, shown), shown=shown, limits=limits)


def _sentinels(place: str, shown: str, limits: Limits) -> Client:
    credentials, hosts, path, query = _parts(place)
    name, _, db = path.partition("/")
    if not name:
        raise ValueError(f"{shown} names no service; write redis+sentinel://host:port,host:port/service")
    options = server_options(f"{_PLAIN}{credentials}/{db}", shown)
    account = _sentinel_account(query, shown)
    service = Service(unquote(name), _addresses(hosts, SENTINEL_PORT, shown), account)
    return Server(options, shown=shown, limits=limits, service=service)


def _cluster(place: str, shown: str, limits: Limits) -> Client:
    credentials, hosts, path, query = _parts(place)
    if path not in ("", "0") or query:
        raise ValueError(f"{shown}: a cluster has one database, 0, and no options")
    options = server_options(f"{_PLAIN}{credentials}", shown)
    return Cluster(_addresses(hosts, CLUSTER_PORT, shown), options, shown=shown, limits=limits)


def _parts(place: str) -> tuple[str, str, str, str]:
    """Credentials with their @, hosts, path and options. Only the hosts may be quoted."""
    account, at, rest = place.rpartition("@")
    rest, _, query = rest.partition("?")
    hosts, _, path = rest.partition("/")
    return account + at, hosts, path, query


def _addresses(hosts: str, port: int, shown: str) -> list[Address]:
    found = []
    for host in hosts.split(","):
        options = server_options(f"{_PLAIN}{host}", shown)
        if not options.get("host"):
            raise ValueError(f"{shown} names no host, or an empty one")
        found.append((str(options["host"]), int(options.get("port", port))))
    return found


def _sentinel_account(query: str, shown: str) -> dict[str, str]:
    try:
        words = parse_qs(query, strict_parsing=bool(query))
        return {_SENTINEL_WORDS[name]: value for name, (value,) in words.items()}
    except (KeyError, ValueError):
        known = ", ".join(_SENTINEL_WORDS)
        raise ValueError(f"{shown}: the only options are {known}, once each") from None
