"""What a page of another site, many tabs, an upload without end and a kill do to the explorer: nothing is lost."""

from __future__ import annotations

import http.server
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from explorer import Explorer

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow

FOREIGN = """<!doctype html><title>elsewhere</title><script>
const token = "%s", results = {};
async function attempt(name, path, options) {
  try { const r = await fetch(token + path, options); results[name] = r.type + " " + r.status + " " + await r.text(); }
  catch (fault) { results[name] = "refused"; }
}
function load(name, tag, path) {
  return new Promise((done) => {
    const e = document.createElement(tag);
    e.onload = () => { results[name] = "loaded"; done(); };
    e.onerror = () => { results[name] = "refused"; done(); };
    e.src = token + path;
    document.head.append(e);
  });
}
(async () => {
  await attempt("read", "options", {});
  await attempt("opaque", "options", {mode: "no-cors"});
  await attempt("ask", "ask", {method: "POST", mode: "no-cors", body: '{"key":"x","question":"curve","state":{}}'});
  await load("script", "script", "static/main.js");
  window.results = results;
})();
</script>"""


@pytest.fixture
def elsewhere(explorer: Explorer) -> Iterator[str]:
    """The address of a page of another site, which even knows the explorer's address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = (FOREIGN % explorer.address).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


def test_a_page_of_another_site_reads_nothing(explorer: Explorer, browser: Browser, elsewhere: str) -> None:
    page = browser.new_page()
    page.goto(elsewhere)
    page.wait_for_function("() => window.results")
    results = page.evaluate("window.results")
    assert results["read"] == "refused"
    assert results["script"] == "refused"
    assert results["opaque"] in ("refused", "opaque 0 ")
    assert results["ask"] in ("refused", "opaque 0 ")
    page.close()


def test_fifty_tabs_are_all_answered(explorer: Explorer, browser: Browser) -> None:
    context = browser.new_context()
    pages = [context.new_page() for _ in range(50)]
    for i, page in enumerate(pages):
        page.goto(f"{explorer.address}#nodes=1&sizes={i + 1}+MiB", wait_until="commit")
    for i, page in enumerate(pages):
        page.wait_for_selector("body[data-answered]", timeout=120_000)
        assert page.is_hidden("#error")
        assert page.evaluate("document.querySelector('tbody td').textContent") == f"{i + 1} MiB"
    context.close()


def test_after_a_kill_the_page_keeps_its_state_and_a_new_explorer_takes_it(browser: Browser) -> None:
    first = Explorer()
    page = browser.new_page()
    page.goto(first.address + "#nodes=2&rate=200+Gb%2Fs&sizes=1+MiB")
    page.wait_for_selector("body[data-answered]", timeout=60_000)
    shown = page.text_content("tbody tr")
    first.process.kill()
    first.end()
    page.select_option("#control-collective", "all_gather")
    page.wait_for_selector("#error:visible", timeout=20_000)
    error = page.text_content("#error") or ""
    assert "was ended" in error
    assert page.text_content("tbody tr") == shown
    fragment = page.evaluate("location.hash")
    assert fragment in error
    second = Explorer(fragment)
    assert second.address.endswith("#nodes=2&rate=200+Gb%2Fs&sizes=1+MiB&collective=all_gather")
    page.goto(second.address)
    page.reload()
    page.wait_for_selector("body[data-answered]", timeout=60_000)
    assert "all_gather" in (page.text_content(".sentences p") or "")
    page.close()
    second.end()


def test_a_killed_explorer_leaves_no_process_behind() -> None:
    made = Explorer("--port", "0")
    port = int(made.address.split(":")[2].split("/")[0])
    with socket.create_connection(("127.0.0.1", port), timeout=20) as one:
        one.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"403" in one.recv(200)
    children = _children(made.process.pid)
    assert children
    made.process.kill()
    made.end()
    for _ in range(600):  # one that still imports ends after that
        if not any(_alive(pid) for pid in children):
            break
        threading.Event().wait(0.1)
    assert not any(_alive(pid) for pid in children)


def _children(pid: int) -> list[int]:
    out = subprocess.run(["ps", "-e", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    pairs = [tuple(map(int, line.split())) for line in out.splitlines()]
    found, row = [], [pid]
    while row:
        row = [child for child, parent in pairs if parent in row]
        found += row
    return found


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_many_connections_are_bounded(explorer: Explorer) -> None:
    port = int(explorer.address.split(":")[2].split("/")[0])
    held = []
    try:
        for _ in range(200):
            one = socket.create_connection(("127.0.0.1", port), timeout=20)
            one.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n")  # and no more
            held.append(one)
        last = socket.create_connection(("127.0.0.1", port), timeout=20)
        held.append(last)
        last.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"503" in last.recv(200)
    finally:
        for one in held:
            one.close()
    threading.Event().wait(0.5)
    with socket.create_connection(("127.0.0.1", port), timeout=20) as again:
        again.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"403" in again.recv(200)


def test_an_upload_without_end_is_cut_off(explorer: Explorer) -> None:
    host, path = explorer.address.removeprefix("http://").split("/", 1)
    port = int(host.split(":")[1])
    with socket.create_connection(("127.0.0.1", port), timeout=60) as one:
        head = f"POST /{path.split('#')[0]}log?name=x HTTP/1.1\r\nHost: {host}\r\nContent-Length: {1 << 40}\r\n\r\n"
        one.sendall(head.encode())
        sent, piece = 0, bytes(1 << 20)
        try:
            while sent < 200 << 20:
                one.sendall(piece)
                sent += len(piece)
        except OSError:
            pass
        assert sent < 200 << 20


def test_ctrl_c_ends_it_without_a_word_too_many() -> None:
    import signal

    program = [sys.executable, "-m", "commsim", "explore", "--no-browser"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.readline()
        threading.Event().wait(1.0)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        assert process.stderr.read() == ""
