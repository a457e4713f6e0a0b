"""Where callbacks go: addresses that are refused, and names that are looked at once."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from callback_receiver import AGENT, LOCAL, ended, receiving, settled
from engine_worlds import Counting, in_trio, opened, pass_time, until
from msgspec.structs import replace

from leviath import CallbackRefused, ConfigError, HttpCallbacks, ManualClock, RunConflict
from leviath.components.world_facts import Policy
from leviath.engine.limits import CUT_INTERVAL_MS

if TYPE_CHECKING:
    from collections.abc import Callable

    from leviath.engine.callbacks import Address

TLS = Path(__file__).parents[1] / "golden" / "tls"


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1"),
        *("0.0.0.0", "224.0.0.1", "255.255.255.255", "[::1]", "[::]", "[fe80::1]", "[fc00::1]"),
        *("[::ffff:127.0.0.1]", "[::ffff:a9fe:a9fe]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]"),
        *("[ff02::1]", "localhost", "LOCALHOST", "localhost.", "a.localhost", "A.LocalHost."),
        *("127.1", "127.0.1", "0x7f.1", "0x7f000001", "2130706433", "017700000001", "0", "10.1"),
        *("127.0.0.1.", "127.1.", "0xa9fea9fe", "0x7f.0x0.0x0.0x1", "[::ffff:7f00:1]"),
        *("[::127.0.0.1]", "[fe80::1%25eth0]", "\uff11\uff12\uff17.1", "127\u30020\u30020\u30021"),
        *("\uff4c\uff4f\uff43\uff41\uff4c\uff48\uff4f\uff53\uff54", "\u2460\u2461\u2466.1"),
    ],
)
@in_trio
async def test_a_private_address_is_refused_before_a_run_exists(tmp_path: Path, host: str) -> None:
    async with opened(tmp_path / "home", [Counting("x")]) as world:
        with pytest.raises(CallbackRefused, match="allow_private"):
            await world.spawn(AGENT, task="t", workdir=tmp_path, callback_url=f"http://{host}/x")
        assert world.runs() == []


@pytest.mark.parametrize(
    "host",
    [
        *("93.184.215.14", "[2606:2800:21f:cb07:6820:80da:af6b:8b2c]", "[64:ff9b::5db8:d70e]"),
        *("0x5db8d70e", "localhost.example.org", "notlocalhost", "127.example.org", "1e3.org"),
    ],
)
def test_a_public_address_is_fit(host: str) -> None:
    HttpCallbacks().refuse(f"https://{host}/hook")


@pytest.mark.parametrize(
    "url",
    [
        *("https://user:pass@receiver.test/", "https://receiver.test/é", "https:///x"),
        *(
            "https://receiver.test:99999/",
            "gopher://receiver.test/",
            "https://r.test/" + "x" * 3_000,
        ),
    ],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(CallbackRefused, match="callback_url") as refused:
        HttpCallbacks().refuse(url)
    assert "pass@" not in str(refused.value)


class Flipping:
    """A resolver that gives another address each time it is asked."""

    def __init__(self, *addresses: Address) -> None:
        self.addresses = list(addresses)
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> list[Address]:
        self.asked.append(host)
        return [self.addresses.pop(0)]


@in_trio
async def test_a_name_is_resolved_once_and_what_was_looked_at_is_what_is_met(
    tmp_path: Path,
) -> None:
    async with receiving() as receiver, receiving() as other:
        resolve = Flipping((2, "127.0.0.1", receiver.port), (2, "127.0.0.1", other.port))
        callbacks = HttpCallbacks(allow_private=True, resolve=resolve)
        async with opened(tmp_path / "home", [Counting("x")], callbacks=callbacks) as world:
            run = await ended(world, "http://receiver.test:8080/", workdir=tmp_path)
            assert await settled(run) == "delivered"
        assert (len(receiver.got), other.connections) == (1, 0)
        assert receiver.got[0].headers["host"] == "receiver.test:8080"
    assert resolve.asked == ["receiver.test"]


@pytest.mark.parametrize("found", [["10.0.0.7"], ["93.184.215.14", "169.254.169.254"]])
@in_trio
async def test_a_name_that_leads_to_a_private_address_is_never_met(
    tmp_path: Path, found: list[str]
) -> None:
    async def resolve(host: str, port: int) -> list[Address]:
        return [(2, numeric, port) for numeric in found]

    callbacks = HttpCallbacks(resolve=resolve)
    async with opened(tmp_path / "home", [Counting("x")], callbacks=callbacks) as world:
        run = await ended(world, "https://receiver.test/hook?key=s3cret", workdir=tmp_path)
        assert await settled(run) == "refused"
        answer = run.deliveries()[-1].answer
    assert found[-1] in answer and "s3cret" not in answer


@in_trio
async def test_what_one_host_may_not_send_is_left_to_one_that_may(tmp_path: Path) -> None:
    """A run was told to call an address here; the next host is not allowed to, the one after is."""
    home, clock = tmp_path / "home", ManualClock()
    async with receiving(503) as receiver:
        async with opened(home, [Counting("x")], callbacks=LOCAL, clock=clock) as world:
            run = await ended(world, receiver.url, workdir=tmp_path)
            await until(lambda: run.deliveries()[-1].state == "waiting")
        async with opened(home, [Counting("x")], clock=clock) as world:
            run = world.run(run.run_id)
            assert await settled(run, clock) == "refused"
            assert "--allow-private-callbacks" in run.deliveries()[-1].answer
            with pytest.raises(RunConflict, match="has not told its callback address"):
                await run.forget()
            await pass_time(clock, 2 * CUT_INTERVAL_MS)
        async with opened(home, [Counting("x")], callbacks=LOCAL, clock=clock) as world:
            run = world.run(run.run_id)
            await until(lambda: run.deliveries()[-1].state == "delivered", clock)
    assert [request.headers["x-leviath-attempt"] for request in receiver.got] == ["1", "2"]


@in_trio
async def test_a_name_that_is_not_known_is_asked_for_again(tmp_path: Path) -> None:
    clock, calls = ManualClock(), [0]

    async def resolve(host: str, port: int) -> list[Address]:
        calls[0] += 1
        if calls[0] == 1:
            raise socket.gaierror(socket.EAI_AGAIN, "try again")
        return [] if calls[0] == 2 else [(2, "127.0.0.1", receiver.port)]

    callbacks = HttpCallbacks(allow_private=True, resolve=resolve)
    async with (
        receiving() as receiver,
        opened(tmp_path / "home", [Counting("x")], callbacks=callbacks, clock=clock) as world,
    ):
        run = await ended(world, "http://receiver.test/", workdir=tmp_path)
        assert await settled(run, clock) == "delivered"
    assert calls == [3]


@pytest.mark.parametrize("name", ["receiver.test", "other.test"])
@in_trio
async def test_over_tls_the_receiver_has_to_be_who_it_says(tmp_path: Path, name: str) -> None:
    clock = ManualClock()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(TLS / "receiver.pem", TLS / "receiver.key")
    trusting = ssl.create_default_context(cafile=str(TLS / "receiver.pem"))

    async def resolve(host: str, port: int) -> list[Address]:
        return [(2, "127.0.0.1", receiver.port)]

    callbacks = HttpCallbacks(allow_private=True, ssl_context=trusting, resolve=resolve)
    policy: Callable[[Policy], Policy] = lambda policy: replace(policy, deliver_attempts_max=1)  # noqa: E731
    async with (
        receiving(tls=server) as receiver,
        opened(
            tmp_path / "home", [Counting("x")], callbacks=callbacks, clock=clock, policy=policy
        ) as world,
    ):
        run = await ended(world, f"https://{name}/", workdir=tmp_path)
        state = await settled(run, clock)
    assert (state, len(receiver.got)) == (
        ("delivered", 1) if name == "receiver.test" else ("failed", 0)
    )


@pytest.mark.parametrize("callbacks", [7, object(), "https://receiver.test/"])
@in_trio
async def test_what_carries_no_callbacks_is_refused(tmp_path: Path, callbacks: Any) -> None:
    with pytest.raises(ConfigError, match="HttpCallbacks"):
        async with opened(tmp_path / "home", [], callbacks=callbacks):
            pass
