"""Callbacks: how an address is checked, how a body is signed, and the one HTTP request it takes.

An address is resolved once and the connection goes to the address that was looked at, so a name
that changes its mind in between gains nothing; redirects are answers, never followed.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import socket
import ssl
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import SplitResult, urlsplit

import trio
from msgspec import Struct

from leviath.components.address import shown_url
from leviath.components.errors import SpawnError
from leviath.engine.limits import CALLBACK_HEAD_BYTES_MAX, CALLBACK_URL_CHARS_MAX

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    import h11

__all__ = ["CallbackAnswer", "CallbackRefused", "CallbackSender", "HttpCallbacks", "signature"]

Address = tuple[int, str, int]
"""(socket family, numeric host, port)."""
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")


class CallbackAnswer(Struct, frozen=True, gc=False):
    """What a receiver answered: HTTP status, its phrase, and when to come again."""

    status: int
    reason: str = ""
    retry_after_ms: int | None = None


class CallbackRefused(SpawnError):
    """An address that nothing is sent to; the message names it and the remedy."""


class CallbackSender(Protocol):
    """What carries callbacks out of the process."""

    def refuse(self, url: str) -> None:
        """Raise CallbackRefused for an address that can be seen to be unfit without asking anyone;
        called when a run is spawned."""
        ...

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> CallbackAnswer:
        """Send one POST and return what was answered.

        Raises CallbackRefused, and OSError or another exception when no answer came: the receiver
        may have it all the same. Cancelled: likewise.
        """
        ...


def signature(secret: str, body: bytes, *, timestamp_s: int | None = None) -> str:
    """The hex HMAC-SHA256 of ``body``, or of ``timestamp_s``, a dot and ``body``.

    A receiver computes it again over the bytes that it received and compares with
    ``hmac.compare_digest``.
    """
    signed = body if timestamp_s is None else str(timestamp_s).encode() + b"." + body
    return hmac.new(secret.encode(), signed, "sha256").hexdigest()


async def resolve_host(host: str, port: int) -> list[Address]:
    """The addresses of a name, in the resolver's order. Raises OSError."""
    found = await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_STREAM)
    return [
        (int(family), str(place[0]), int(place[1]))
        for family, _, _, _, place in found
        if family in (trio.socket.AF_INET, trio.socket.AF_INET6)
    ]


class HttpCallbacks:
    """Sends callbacks by HTTP/1.1, over TLS for ``https``.

    ``allow_private`` lets them go to addresses that are not on the public internet: this machine,
    a private network, a cloud's metadata service. ``ssl_context`` replaces the system's trust
    store, ``resolve`` its name resolution. Needs h11.
    """

    def __init__(
        self,
        *,
        allow_private: bool = False,
        ssl_context: ssl.SSLContext | None = None,
        resolve: Callable[[str, int], Awaitable[list[Address]]] = resolve_host,
    ) -> None:
        self._allow_private = allow_private
        self._ssl = ssl_context
        self._resolve = resolve

    def refuse(self, url: str) -> None:
        """Raise CallbackRefused for what is no address, or plainly a private one."""
        host = _ascii_host(_split(url))
        numeric = _numeric(host)
        if numeric is not None:
            self._check(url, numeric)
        elif not self._allow_private and (host == "localhost" or host.endswith(".localhost")):
            raise CallbackRefused(_private(url, host))

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> CallbackAnswer:
        """Resolve the host, look at every address, connect to the first that answers, and ask."""
        self.refuse(url)
        parts = _split(url)
        host = parts.hostname or ""
        port = parts.port or (443 if parts.scheme == "https" else 80)
        addresses = await self._resolve(host, port)
        if not addresses:
            raise OSError(f"{host} has no address")
        for _, numeric, _ in addresses:
            self._check(url, numeric)
        stream = await _connect(addresses)
        try:
            if parts.scheme == "https":
                context = self._ssl or ssl.create_default_context()
                secure = trio.SSLStream(
                    stream, context, server_hostname=host, https_compatible=True
                )
                await secure.do_handshake()
                return await _exchange(secure, parts, headers, body)
            return await _exchange(stream, parts, headers, body)
        finally:
            # Not in order: a receiver that has answered, or does not, is owed no farewell.
            await trio.aclose_forcefully(stream)

    def _check(self, url: str, numeric: str) -> None:
        if not self._allow_private and not _is_public(numeric):
            raise CallbackRefused(_private(url, numeric))


def _private(url: str, where: str) -> str:
    return (
        f"callback_url {shown_url(url)} leads to {where}, which is not on the public internet; "
        "allow it with callbacks=leviath.HttpCallbacks(allow_private=True), or in lev with "
        "--allow-private-callbacks"
    )


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname)
        _ = parts.port  # raises for what is no port
        (parts.hostname or "").encode("idna")
    except (ValueError, UnicodeError):
        fits = False
        parts = urlsplit("")
    if not fits or len(url) > CALLBACK_URL_CHARS_MAX or not _is_plain(url):
        raise CallbackRefused(
            "callback_url is no address; write http:// or https://, a host and a path, all of it "
            f"ASCII and at most {CALLBACK_URL_CHARS_MAX} characters"
        )
    if "@" in parts.netloc:
        raise CallbackRefused(
            f"callback_url {shown_url(url)} carries a user name; leave it out and check the "
            "signature instead: pass callback_secret"
        )
    return parts


def _ascii_host(parts: SplitResult) -> str:
    """The host as a resolver takes it: full-width digits and dots made plain, without a last dot.

    The parts have passed _split.
    """
    host = parts.hostname or ""
    return (host if ":" in host else host.encode("idna").decode()).removesuffix(".").lower()


def _numeric(host: str) -> str | None:
    """The address that a host spells, None for a name. Resolvers read ``127.1``, ``0x7f.1``,
    ``017700000001`` and ``2130706433`` as addresses, too."""
    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_address(host))
    with contextlib.suppress(OSError):
        return socket.inet_ntoa(socket.inet_aton(host))
    return None


def _is_plain(url: str) -> bool:
    """What may stand in a request line: a host beyond ASCII is encoded, a path is for its writer
    to escape."""
    parts = urlsplit(url)
    rest = f"{parts.path}{parts.query}"
    return rest.isascii() and not any(char <= " " or char == "\x7f" for char in url)


def _is_public(numeric: str) -> bool:
    """Whether an address, and every address that is embedded in it, is a public one."""
    if "%" in numeric:  # a zone: an address of this link
        return False
    try:
        address = ipaddress.ip_address(numeric)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address):
        stands_for = address.ipv4_mapped
        if address in _NAT64:
            stands_for = ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
        if stands_for is not None:
            return _is_public(str(stands_for))
        through = [address.sixtofour, *(address.teredo or ())]
        if not all(_is_public(str(four)) for four in through if four is not None):
            return False
    return address.is_global and not (address.is_multicast or address.is_reserved)


async def _connect(addresses: list[Address]) -> trio.SocketStream:
    """A connection to the first address that takes one. Raises the last OSError."""
    failure: OSError | None = None
    for family, host, port in addresses:
        sock = trio.socket.socket(family, trio.socket.SOCK_STREAM)
        try:
            await sock.connect((host, port))
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
        else:
            return trio.SocketStream(sock)
    assert failure is not None
    raise failure


async def _exchange(
    stream: trio.abc.Stream, parts: SplitResult, headers: Mapping[str, str], body: bytes
) -> CallbackAnswer:
    import h11

    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=CALLBACK_HEAD_BYTES_MAX)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    fields = [
        ("Host", _host_field(parts)),
        ("Content-Length", str(len(body))),
        ("Connection", "close"),
        *headers.items(),
    ]
    request = h11.Request(method="POST", target=target, headers=fields)
    data = (connection.send(request) or b"") + (connection.send(h11.Data(data=body)) or b"")
    data += connection.send(h11.EndOfMessage()) or b""
    with contextlib.suppress(trio.BrokenResourceError):
        # A receiver may answer, and hang up, before it has read the whole.
        await stream.send_all(data)
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(bytes(await stream.receive_some(65_536)))
        elif isinstance(event, h11.Response):
            return _answer(event)
        elif not isinstance(event, h11.InformationalResponse):
            raise ConnectionError("the receiver hung up without an answer")


def _host_field(parts: SplitResult) -> str:
    host = parts.hostname or ""
    named = f"[{host}]" if ":" in host else host.encode("idna").decode()
    return named if parts.port is None else f"{named}:{parts.port}"


def _answer(response: h11.Response) -> CallbackAnswer:
    fields = {bytes(name).lower(): bytes(value) for name, value in response.headers}
    after = fields.get(b"retry-after", b"")
    wait = int(after) * 1_000 if after.isdigit() and len(after) <= 9 else None
    return CallbackAnswer(response.status_code, bytes(response.reason).decode("latin-1"), wait)
