"""Signs of life of Ray's own processes, and when the silence of an actor or of one of them ends a run."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trustme
from ray.exceptions import ActorDiedError

from rayio.engines.ray import rounds as asking
from rayio.engines.ray.actors import deaths, showing
from rayio.engines.ray.actors.deaths import Deaths
from rayio.engines.ray.cluster import connect, tls
from rayio.engines.ray.cluster.control import GCS, LAST_SECONDS, Control, raylet
from rayio.engines.ray.cluster.lost import lost_nodes
from rayio.engines.ray.cluster.pulse import PREFACE, Pulse, Sign, ring
from rayio.engines.ray.placement import ActorSpec
from rayio.engines.ray.rounds import Rounds
from rayio.errors import ClusterError, RunError
from rayio.model.planning import plan_of
from rayio.model.standing import Standing, Vigil
from rayio.place import Where
from rayio.trace.clocks import Anchor
from scenarios import scenario

OWN = raylet("here", "0123456789")


class Clock:
    """A clock that is set by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@contextlib.contextmanager
def served(answer: bytes | None) -> Iterator[str]:
    """A port whose server answers the first bytes, ends each connection at once (None), or has a stop for all (b"")."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"

        def one() -> None:
            connection, _ = server.accept()
            with connection, contextlib.suppress(ConnectionError):
                if answer is not None:
                    assert connection.recv(len(PREFACE), socket.MSG_WAITALL) == PREFACE
                    connection.sendall(answer)
                    connection.recv(1)

        def serve() -> None:
            with contextlib.suppress(OSError):  # the port is closed
                while True:
                    one()

        if answer != b"":  # the kernel accepts for a stopped process, too
            threading.Thread(target=serve, daemon=True).start()
        yield address
        server.shutdown(socket.SHUT_RDWR)


def test_a_process_that_runs_answers_and_one_that_is_stopped_does_not() -> None:
    with served(b"\0\0\x18\4") as alive, served(None) as rude, served(b"") as stopped, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        closed = f"127.0.0.1:{taken.getsockname()[1]}"
        signs = ring([alive, rude, stopped, closed], 0.5)
        assert signs == {
            alive: Sign.ANSWERED, rude: Sign.ANSWERED, stopped: Sign.SILENT, closed: Sign.REFUSED,
        }  # fmt: skip
        assert ring([alive, rude], 600) == {alive: Sign.ANSWERED, rude: Sign.ANSWERED}, "it waits for no time"
    assert ring([]) == {}


HAS_IPV6 = socket.has_ipv6 and Path("/proc/net/if_inet6").exists()


@pytest.mark.skipif(not HAS_IPV6, reason="no IPv6 here")
def test_processes_on_ipv6_are_heard_with_brackets_and_without() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        port = server.getsockname()[1]

        def serve() -> None:
            for _ in range(2):
                connection, _ = server.accept()
                with connection:
                    connection.recv(len(PREFACE), socket.MSG_WAITALL)
                    connection.sendall(b"\0")

        threading.Thread(target=serve, daemon=True).start()
        for address in (f"[::1]:{port}", f"::1:{port}"):
            assert ring([address], 600) == {address: Sign.ANSWERED}
        assert ring([f"[::1]:{port}"], 0.2) == {f"[::1]:{port}": Sign.SILENT}, "nobody serves any more"
        connect._knock(f"[::1]:{port}")  # somebody listens there
        assert Control(f"[::1]:{port}", "").address
        with pytest.raises(ClusterError, match=r"^cannot reach a Ray cluster at \[::1\]:1: Connection refused; is"):
            connect._knock("[::1]:1")


def test_metrics_of_a_node_on_ipv6_have_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    node = {"NodeID": "a", "NodeManagerAddress": "fd00::2", "MetricsExportPort": 8080}
    monkeypatch.setattr(showing, "ray", SimpleNamespace(nodes=lambda: [node]))
    assert showing.metrics_address("a") == "http://[fd00::2]:8080/metrics"


@pytest.mark.parametrize("used", ["0", "1"])
def test_tls_of_the_cluster_alone_or_of_the_client_alone_is_one_line(used: str, monkeypatch: Any) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    monkeypatch.setenv("RAY_USE_TLS", used)

    def serve(server: socket.socket, has_tls: bool) -> None:
        connection, _ = server.accept()
        with contextlib.suppress(OSError):
            if has_tls:
                connection = context.wrap_socket(connection, server_side=True)
            else:
                connection.sendall(b"\0\0\x0c\x04\0\0\0\0\0")  # the settings of HTTP/2
            connection.recv(1)
        connection.close()

    for has_tls in (False, True):
        with socket.create_server(("127.0.0.1", 0)) as server:
            threading.Thread(target=serve, args=(server, has_tls), daemon=True).start()
            address = f"127.0.0.1:{server.getsockname()[1]}"
            if has_tls == (used == "1"):
                tls.check(address, address)
                continue
            with pytest.raises(ClusterError, match="uses TLS, and this" if has_tls else "uses no TLS, and RAY_USE_TLS"):
                tls.check(address, address)


def test_processes_with_tls_are_heard_and_stopped_ones_are_not(tmp_path: Path) -> None:
    """A server of TLS ends a connection that begins with other bytes: that is a sign of life too."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    with socket.create_server(("127.0.0.1", 0)) as server, served(b"") as stopped:
        address = f"127.0.0.1:{server.getsockname()[1]}"

        def serve() -> None:
            connection, _ = server.accept()
            with contextlib.suppress(OSError):
                context.wrap_socket(connection, server_side=True)
            connection.close()

        threading.Thread(target=serve, daemon=True).start()
        assert ring([address], 600) == {address: Sign.ANSWERED}
        assert ring([address, stopped], 0.2) == {address: Sign.SILENT, stopped: Sign.SILENT}


def beating(signs: Mapping[str, Sign]) -> tuple[Pulse, Clock]:
    """The pulse of processes at addresses like their names, whose signs are set by hand."""
    clock = Clock()

    def look(addresses: Iterable[str]) -> Mapping[str, Sign]:
        return {address: signs[address] for address in addresses}

    return Pulse({name: name for name in signs}, clock, look), clock


def test_a_silence_lasts_from_the_last_answer_and_one_missed_answer_is_none() -> None:
    signs = {GCS: Sign.ANSWERED, OWN: Sign.ANSWERED}
    pulse, clock = beating(signs)
    pulse.look()
    signs[OWN] = Sign.SILENT
    for seconds in range(2, 60, 2):
        clock.now = 100.0 + seconds
        pulse.look()
        assert pulse.silence(GCS) == 0
        assert pulse.silence(OWN) == (seconds if seconds > 6 else 0)
    assert pulse.longest([GCS, OWN]) == (OWN, 58.0)
    clock.now += 1000  # this process was stopped: nobody was asked meanwhile
    assert pulse.silence(OWN) == 58
    signs[OWN] = Sign.ANSWERED
    pulse.look()
    assert pulse.longest([GCS, OWN]) == ("", 0.0)
    signs[OWN] = Sign.REFUSED
    pulse.look()
    assert pulse.is_closed(OWN)
    assert not pulse.is_closed(GCS)


def test_a_process_that_never_answered_here_is_not_watched() -> None:
    pulse, clock = beating({OWN: Sign.SILENT})
    for _ in range(100):
        clock.now += 10
        pulse.look()
    assert pulse.silence(OWN) == 0


@pytest.mark.parametrize("name", [GCS, OWN])
def test_a_silence_of_rays_own_processes_ends_a_run_at_the_deadline_and_names_it(name: str) -> None:
    signs = {GCS: Sign.ANSWERED, OWN: Sign.ANSWERED}
    pulse, clock = beating(signs)
    pulse.look()
    with socket.create_server(("127.0.0.1", 0)) as server:  # a stopped process is still connected to
        control = Control(f"127.0.0.1:{server.getsockname()[1]}", "/logs", clock, pulse, OWN)
        control.deadline = 45.0
        signs[name] = Sign.SILENT

        def looks() -> None:
            while clock.now < 200:
                clock.now += 2
                pulse.look()
                control.look()

        with pytest.raises(ClusterError) as error:
            looks()
    assert 45 <= clock.now - 100 <= 47
    assert str(error.value).startswith(f"{name} has not answered for 46 s (cluster.stall_deadline=45 s): the run is")
    assert control.patience(30.0) == LAST_SECONDS, "nobody waits long for what needs it"


def test_a_node_without_ranks_may_be_silent_as_its_workers_are_replaced() -> None:
    far = raylet("far", "abcdef01")
    signs = {GCS: Sign.ANSWERED, OWN: Sign.ANSWERED, far: Sign.ANSWERED}
    pulse, clock = beating(signs)
    pulse.look()
    signs[far] = Sign.SILENT
    with socket.create_server(("127.0.0.1", 0)) as server:
        control = Control(f"127.0.0.1:{server.getsockname()[1]}", "/logs", clock, pulse, OWN)
        control.deadline = 45.0
        for _ in range(60):
            clock.now += 2
            pulse.look()
            control.look()
        control.need({"abcdef0123"})
        with pytest.raises(ClusterError, match=r"^Ray's raylet on far \(node abcdef01\) has not answered for 120 s"):
            control.look()


@pytest.mark.parametrize(("sign", "dead"), [(Sign.REFUSED, False), (Sign.SILENT, True)], ids=["raylet", "host"])
def test_a_lost_node_is_known_by_its_closed_port_or_by_its_silence_and_rays_word(sign: Sign, dead: bool) -> None:
    far = raylet("far", "abcdef01")
    signs = {GCS: Sign.ANSWERED, OWN: Sign.ANSWERED, far: Sign.ANSWERED}
    pulse, clock = beating(signs)
    homes, alive = {"0": "0123", "1": "abcdef0199", "2": "abcdef0199"}, {"0123", "abcdef0199"}
    with socket.create_server(("127.0.0.1", 0)) as server:
        control = Control(f"127.0.0.1:{server.getsockname()[1]}", "/logs", clock, pulse, OWN)
        for _ in range(10):
            pulse.look()
            assert lost_nodes(control, homes, alive=lambda: alive) == {}
            clock.now += 2
        signs[far] = sign
        for _ in range(10):
            clock.now += 2
            pulse.look()
        if dead:
            assert lost_nodes(control, homes, alive=lambda: alive) == {}, "silent, but Ray still has it"
            alive = {"0123"}
        assert lost_nodes(control, homes, alive=lambda: alive) == {1: "abcdef0199"}


def test_deaths_by_rays_own_processes_name_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signs = {GCS: Sign.ANSWERED, OWN: Sign.ANSWERED}
    pulse, clock = beating(signs)
    monkeypatch.setattr(deaths, "oom_kills", lambda: 0)
    monkeypatch.setattr(deaths, "EVIDENCE_SECONDS", 0.0)
    known = Deaths(Control("", str(tmp_path), clock, pulse, OWN), [{"name": "rank-1", "ray_node": "0123456789"}])
    pulse.look()
    signs[OWN] = Sign.SILENT
    clock.now += 66
    pulse.look()
    for why in (known.why("rank-1", ActorDiedError()), known.why_collector(ActorDiedError())):
        assert why == f"{OWN} has not answered for 66 s"
    assert known.not_started("rank-1", ActorDiedError()).startswith(
        f"rank-1 did not start: {OWN} has not answered for 66 s ("
    )
    signs[OWN] = Sign.REFUSED
    assert known.why_collector(ActorDiedError()) == f"{OWN} has ended"
    signs[OWN] = Sign.ANSWERED
    assert known.why_collector(ActorDiedError()) == "killed"
    (tmp_path / "raylet.out").write_text(  # as Ray 2.60 writes; the raylet itself ends seconds later
        '[raylet] main.cc:1130:  reason_message: "dashboard_agent failed and raylet fate-shares with it."\n'
        "[raylet] agent_manager.cc:116: Killing agent runtime_env_agent, pid 29.\n"
    )
    assert known.why_collector(ActorDiedError()) == f"{OWN} ended with its dashboard_agent, which had died"


class Answers:
    """Ray as far as rounds use it, on a clock set by hand: actors answer at once, but for those that are stopped."""

    def __init__(self, standings: Mapping[str, list[Standing]], stopped: set[str]) -> None:
        self.standings, self.stopped = standings, stopped
        self.handles = {
            name: SimpleNamespace(standing=self._method(name), ready=self._method(name)) for name in standings
        }

    def _method(self, name: str) -> Any:
        return SimpleNamespace(remote=lambda: (name, object()))

    def wait(self, references: list[Any], **_: object) -> tuple[list[Any], list[Any]]:
        return [one for one in references if one[0] not in self.stopped], []

    def get(self, reference: Any) -> list[Standing]:
        return self.standings[reference[0]]


@pytest.mark.parametrize("deadline", [6.0, 20.0, 45.0, 600.0])
@pytest.mark.parametrize("stopped", ["reader-0-0", "queue-0", "rank-0"])
def test_a_stopped_actor_ends_a_run_a_few_seconds_after_the_deadline(
    stopped: str, deadline: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    at, start = Where(0, 0, 3), 1000
    ray = Answers(
        {
            "rank-0": [Standing("rank", "rank-0", "data_wait", at, start, start)],
            "queue-0": [Standing("queue", "queue-0", "lease", at, start, start, by="reader-0-0")],
            "reader-0-0": [],
        },
        set(),
    )
    clock = Clock()
    clock.now = 0.0
    monkeypatch.setattr(asking, "ray", ray)
    monkeypatch.setattr(asking, "time", SimpleNamespace(monotonic=clock, perf_counter_ns=lambda: int(clock.now * 1e9)))
    plan = plan_of(scenario(), modelled=True)
    specs = [ActorSpec("rank", 0, ((0,),)), ActorSpec("queue", 0, ((0,),)), ActorSpec("reader", 0, ((0, 0),))]
    assert {spec.name for spec in specs} == ray.standings.keys()
    about = [{"name": name, "pid": 77} for name in ray.standings]
    vigil = Vigil(deadline, lambda text: None)
    rounds = Rounds(plan, specs, ray.handles, about, Anchor("here", 0), vigil)
    while clock.now < 3:  # everybody is heard once
        clock.now += 0.5
        rounds.look()
    ray.stopped.add(stopped)

    def looks() -> None:
        while clock.now < 2 * deadline + 60:
            clock.now += 0.5
            rounds.look()

    with pytest.raises(RunError, match=rf"^no progress for .*{stopped}.* does not answer \(pid 77\)"):
        looks()
    assert deadline <= clock.now <= deadline + 7
    assert rounds.silent == {stopped}
