"""HTTP as a client meets it: on a real port, beside a real node."""

import asyncio
import json
import re
import signal
import socket
import urllib.error
import urllib.request

import pytest

from rivven.server.metrics import Measured, Sizes
from rivven.server.node import Node
from rivven.server.settings import Settings
from rivven.server.web import HttpServer, Rates, create_app, fnv1a, human_bytes, status_page


def get(port: int, path: str, method: str = "GET") -> tuple[int, dict[str, str], str]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as reply:
            return reply.status, dict(reply.headers), reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers), error.read().decode()


def beside(path, look, **options):
    """Run `look(node, ask)` beside a node with HTTP."""

    async def run():
        node = Node(Settings(data_dir=str(path / "data"), bind_port=0, http_port=0, node_id="n<1>"))
        await node.start()
        http = HttpServer(lambda: create_app(node, **options), "127.0.0.1", 0)
        await http.start()
        port = http.address[1]
        try:
            return await look(node, lambda *words: asyncio.to_thread(get, port, *words))
        finally:
            await http.stop()
            await node.stop()

    return asyncio.run(run())


def test_a_node_that_serves_is_alive_ready_and_healthy(tmp_path):
    async def look(_, ask):
        return await ask("/health/live"), await ask("/health/ready"), await ask("/health")

    live, ready, health = beside(tmp_path, look)
    assert (live[0], json.loads(live[2])) == (200, {"status": "alive"})
    assert (ready[0], json.loads(ready[2])) == (200, {"status": "ready"})
    number = fnv1a(b"n<1>")
    told = json.loads(health[2])
    assert health[0] == 200
    assert told.pop("version")
    assert told == {
        "status": "healthy",
        "node_id": number,
        "node_id_str": "n<1>",
        "is_leader": True,
        "leader_id": number,
        "cluster_mode": False,
    }


def test_a_node_that_is_not_ready_is_alive_all_the_same(tmp_path):
    async def look(node, ask):
        node.ready = False
        return await ask("/health/live"), await ask("/health/ready"), await ask("/health")

    live, ready, health = beside(tmp_path, look)
    assert (live[0], ready[0], health[0]) == (200, 503, 503)
    assert json.loads(ready[2]) == {"status": "not ready", "reason": "starting or stopping"}
    assert json.loads(health[2])["status"] == "unhealthy"


def test_a_node_that_has_not_started_says_so(tmp_path):
    async def run():
        node = Node(Settings(data_dir=str(tmp_path / "data"), bind_port=0))
        http = HttpServer(lambda: create_app(node), "127.0.0.1", 0)
        await http.start()
        try:
            paths = ["/health/live", "/health/ready", "/health", "/metrics", "/"]
            return [(await asyncio.to_thread(get, http.address[1], path))[0] for path in paths]
        finally:
            await http.stop()

    assert asyncio.run(run()) == [200, 503, 503, 503, 503]


def test_metrics_are_served_as_prometheus_wants_them(tmp_path):
    async def look(_, ask):
        return await ask("/metrics")

    code, headers, page = beside(tmp_path, look)
    assert (code, headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert 'rivven_info{node_id_str="n<1>"' in page


def test_the_page_for_people_lists_topics_escapes_everything_and_loads_nothing(tmp_path):
    async def look(node, ask):
        node.store.create_topic("orders", 3)
        return await ask("/")

    code, headers, page = beside(tmp_path, look)
    assert code == 200
    assert headers["content-type"].startswith("text/html")
    assert "<td>orders</td><td>3</td><td>0</td><td>0 B</td>" in page
    assert "n&lt;1&gt;" in page
    assert "n<1>" not in page
    assert not re.search(r"(src|href)=\"(?!/)|<script|url\(", page)
    assert headers["x-frame-options"] == "DENY"
    assert headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in headers["content-security-policy"]


@pytest.mark.parametrize(("option", "path"), [("metrics", "/metrics"), ("dashboard", "/")])
def test_what_is_turned_off_is_not_there(tmp_path, option, path):
    async def look(_, ask):
        return await ask(path), await ask("/health/live")

    gone, live = beside(tmp_path, look, **{option: False})
    assert (gone[0], live[0]) == (404, 200)


def test_other_paths_and_methods_are_refused(tmp_path):
    async def look(_, ask):
        return await ask("/etc/passwd"), await ask("/health", "POST"), await ask("/health", "HEAD")

    assert [reply[0] for reply in beside(tmp_path, look)] == [404, 405, 200]


def test_a_long_list_of_topics_is_cut(tmp_path):
    async def look(node, _):
        sizes = Sizes([Measured(f"t{number:04}", 0, 1, 1, 0, 1) for number in range(600)])
        return status_page(node, sizes, Rates(node))

    page = beside(tmp_path, look)
    assert page.count("<td>t0") == 500
    assert "and 100 topics more" in page


def test_rates_are_over_the_last_while(tmp_path):
    async def look(node, _):
        now = 0.0
        rates = Rates(node, lambda: now)
        seen = []
        for second in range(0, 40, 2):
            now = float(second)
            node.broker.stats.messages_in = 100 * second if second <= 20 else 2000
            seen.append(rates.per_second()[1][0])
        return seen

    seen = beside(tmp_path, look)
    assert seen[5] == pytest.approx(100)
    assert seen[-1] == 0


def test_a_port_in_use_is_an_error_at_the_start():
    async def run():
        with socket.create_server(("127.0.0.1", 0)) as other:
            await HttpServer(lambda: None, "127.0.0.1", other.getsockname()[1]).start()

    with pytest.raises(OSError, match="in use"):
        asyncio.run(run())


def test_signals_stay_with_the_daemon(tmp_path):
    async def look(_, ask):
        await ask("/health/live")
        return signal.getsignal(signal.SIGTERM)

    assert beside(tmp_path, look) == signal.SIG_DFL


def test_it_can_be_stopped_before_it_has_loaded():
    async def run():
        http = HttpServer(lambda: None, "127.0.0.1", 0)
        await http.start()
        await http.stop()

    asyncio.run(run())


def test_it_gives_its_port_up():
    async def run():
        async def app(_, __, ___):
            raise AssertionError("nobody asks")

        http = HttpServer(lambda: app, "127.0.0.1", 0)
        await http.start()
        port = http.address[1]
        await http.stop()
        again = HttpServer(lambda: app, "127.0.0.1", port)
        await again.start()
        await again.stop()

    asyncio.run(run())


def test_bytes_are_told_in_units():
    told = [human_bytes(count) for count in (0, 1023, 1024, 5 * 2**30, 3 * 2**40)]
    assert told == ["0 B", "1023 B", "1.0 KiB", "5.0 GiB", "3.0 TiB"]


def test_a_node_has_the_number_that_others_know_it_by():
    assert fnv1a(b"") == 0xCBF29CE484222325
    assert fnv1a(b"a") == 0xAF63DC4C8601EC8C


def connected_to(http: HttpServer, said: bytes) -> socket.socket:
    client = socket.create_connection(http.address, timeout=20)
    client.sendall(said)
    return client


def ending(client: socket.socket) -> bytes:
    """What the server says next; nothing if it hangs up, in whichever way."""
    try:
        return client.recv(1000)
    except ConnectionResetError:
        return b""


def with_plain_app(look, **options):
    """Run `look(http)` in a thread beside an app that answers anything."""

    async def app(_, __, send):
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def run():
        http = HttpServer(lambda: app, "127.0.0.1", 0, **options)
        await http.start()
        try:
            return await asyncio.to_thread(look, http)
        finally:
            await http.stop()

    return asyncio.run(run())


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: "])
def test_a_client_that_never_ends_its_headers_is_closed(said):
    def look(http):
        with connected_to(http, said) as slow:
            return ending(slow)

    assert with_plain_app(look, headers_s=0.05) == b""


def test_a_client_that_trickles_its_second_request_is_closed():
    def look(http):
        with connected_to(http, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n") as slow:
            first = slow.recv(1000)
            slow.sendall(b"GET / HTTP/1.1\r\n")
            return first, ending(slow)

    first, rest = with_plain_app(look, headers_s=1.0)
    assert first.startswith(b"HTTP/1.1 204")
    assert rest == b""


def test_there_is_a_most_of_http_clients_and_one_that_leaves_makes_room():
    asked = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"

    def ask(http):
        with connected_to(http, asked) as client:
            return ending(client)[:12]

    def look(http):
        with connected_to(http, asked) as one, connected_to(http, asked) as two:
            here = [ending(one)[:12], ending(two)[:12]]
            third = ask(http)
        for _ in range(1000):
            if ask(http):
                return here, third
        raise AssertionError("nobody gets in any more")

    here, third = with_plain_app(look, connections_max=2)
    assert here == [b"HTTP/1.1 204"] * 2
    assert third == b""
