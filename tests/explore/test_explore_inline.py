"""The explorer in a notebook."""

from __future__ import annotations

import re
import urllib.error
import urllib.request

import pytest

import commsim as cs
from commsim.errors import CommsimError


def _asked(address: str, **headers: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers)) as answer:
            return answer.status, answer.headers["Content-Security-Policy"]
    except urllib.error.HTTPError as error:
        return error.code, ""


@pytest.mark.slow
def test_it_is_shown_in_a_frame_and_ends() -> None:
    work = {"collective": "broadcast", "sizes": "1 MiB"}
    shown = cs.explore({"name": "n", "topology": {"preset": "dgx-a100"}, "workload": [work]})
    try:
        assert repr(shown) == f"commsim explore: {shown.address}"
        assert re.search(r'<iframe src="http://127\.0\.0\.1:\d+/[^"]+#', shown._repr_html_())
        assert "collective=broadcast" in shown.address
        page = shown.address.partition("#")[0]
        frame = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "iframe", "Sec-Fetch-Mode": "navigate"}
        status, policy = _asked(page, **frame)
        assert status == 200
        assert policy.endswith("frame-ancestors http://127.0.0.1:* http://localhost:*")
        assert _asked(page + "options", **{**frame, "Sec-Fetch-Dest": "empty"})[0] == 403  # a script of another page
        assert _asked(page, Origin="https://example.org")[0] == 403
    finally:
        shown.close()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(page)


@pytest.mark.slow
def test_a_fault_is_told() -> None:
    with pytest.raises(CommsimError, match="nothing-of-that-name"):
        cs.explore("nothing-of-that-name")
