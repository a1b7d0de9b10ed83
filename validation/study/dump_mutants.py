"""Hostile dumps: mutants of sound ones, and bombs made by hand; each is a name and bytes."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import random
import re
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

_VALUES = (
    b"NaN", b"Infinity", b"-1", b"1e999", b"99999999999999999999999999", b"null", b"true", b'"x"', b"[]", b"{}",
    b"1e300", b"9223372036854775808", b"0.5", b"[[[[[[]]]]]]", b'"\\ud800"', b"-0", b"9" * 5000,
)  # fmt: skip


def mutants(whole: bytes, count: int, seed: int) -> Iterator[bytes]:
    """So many damaged copies: cut, bits and bytes changed, pieces doubled, left out or moved, values replaced."""
    draw = random.Random(seed)
    packed = whole[:2] == b"\x1f\x8b"
    plain = gzip.decompress(whole) if packed else whole
    for _ in range(count):
        inside = packed and draw.random() < 0.8
        data = bytearray(plain if inside else whole)
        for _ in range(draw.choice((1, 1, 2, 8))):
            data = _damaged(data, draw)
        yield gzip.compress(bytes(data), 1) if inside else bytes(data)


def _damaged(data: bytearray, draw: random.Random) -> bytearray:
    if not data:
        return data
    at, length = draw.randrange(len(data)), draw.choice((1, 4, 64, 1024))
    kind = draw.randrange(7)
    if kind == 0:
        return data[:at]
    if kind == 1:
        data[at] ^= 1 << draw.randrange(8)
        return data
    if kind == 2:
        data[at : at + length] = draw.randbytes(length)
        return data
    if kind == 3:
        return data[:at] + data[at : at + length] * 2 + data[at + length :]
    if kind == 4:
        return data[:at] + data[at + length :]
    values = list(
        re.finditer(rb'(?<=[:\[, ])(-?[0-9.]+|"[^"]{0,60}"|true|false|null)(?=[,\]}\s])', bytes(data[at : at + 4096]))
    )
    if not values:
        return data[:at]
    value = draw.choice(values)
    return data[: at + value.start()] + draw.choice(_VALUES) + data[at + value.end() :]


class _Runs:
    """A pickle of it would run a command where it is unpickled."""

    def __init__(self, function: object, *arguments: object) -> None:
        self._call = (function, arguments)

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self._call


def pickles_that_run(canary: Path) -> Iterator[tuple[str, bytes]]:
    """Pickles that would make the file `canary` if anything in them were executed."""
    import os
    import subprocess

    command = f"touch {canary}"
    for protocol in range(6):
        for function, arguments in (
            (os.system, (command,)),
            (subprocess.call, (["touch", str(canary)],)),
            (eval, (f"open({str(canary)!r}, 'w')",)),
            (Path.touch, (canary,)),
        ):
            entry = {"entries": [_Runs(function, *arguments)], "version": "2.10"}
            yield f"{function.__name__}-{protocol}", pickle.dumps(entry, protocol)
    text = command.encode()
    yield "global", b"\x80\x02cos\nsystem\n(S'" + text + b"'\ntR."
    yield "inst", b"\x80\x02(S'" + text + b"'\nios\nsystem\n."
    yield "obj", b"\x80\x02(cos\nsystem\nS'" + text + b"'\no."
    yield "stack-global", b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c" + bytes([len(text)]) + text + b"\x85R."
    yield "extension", b"\x80\x02\x82\x01."
    yield "persistent", b"\x80\x02Pos\n."
    yield "build", b"\x80\x02}q\x00}b."
    yield "newobj", b"\x80\x02cos\nsystem\n)\x81."
    yield "after-stop", pickle.dumps({"entries": []}, 2) + b"cos\nsystem\n(S'" + text + b"'\ntR."


def bombs() -> Iterator[tuple[str, bytes]]:
    """What is small and would become large, deep or slow."""
    yield "empty", b""
    yield "zeros", bytes(1 << 20)
    for name, head in (("nothing", b""), ("trace", b'{"traceEvents": ['), ("flight", b'{"entries": [')):
        packer = zlib.compressobj(9, wbits=31)
        packed = io.BytesIO()
        packed.write(packer.compress(head))
        for _ in range(512):
            packed.write(packer.compress(b" " * (1 << 20) if head else bytes(1 << 20)))
        packed.write(packer.flush())
        yield f"gzip-{name}", packed.getvalue()
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("zeros", bytes(64 << 20))
    yield "zip", archive.getvalue()
    for name, key in (("trace", "traceEvents"), ("flight", "entries"), ("ras", 'nccl_version": 1, "communicators')):
        start = b'{"' + key.encode() + b'": ['
        yield f"deep-list-{name}", start + b"[" * 200_000
        yield f"deep-object-{name}", start + b'{"a":' * 200_000
        yield f"deep-closed-{name}", start + b"[" * 50_000 + b"]" * 50_000 + b"]}"
        yield f"long-number-{name}", start + b"9" * 2_000_000 + b"]}"
        yield f"long-text-{name}", start + b'"' + b"a" * 8_000_000 + b'"]}'
        yield f"no-end-{name}", start + b"{}," * 1_000_000
        yield f"bytes-{name}", start + bytes(range(256)) * 1000
    yield "head-only", b'{"a": "' + b"x" * (20 << 20) + b'"'
    yield "deep-pickle", b"\x80\x02" + b"]" * 900_000 + b"a" * 899_999 + b"."
    deep = b"]" * 200_000 + b"a" * 199_999
    entry = b"X\x0e\x00\x00\x00profiling_nameX\x05\x00\x00\x00a:red" + b"X\x0d\x00\x00\x00process_group(" + deep + b"t"
    number = b"X\x11\x00\x00\x00collective_seq_idK\x01"
    yield "deep-name", b"\x80\x02}(X\x07\x00\x00\x00entries](}(" + number + entry + b"ueu."
    yield "long-pickle", b"\x80\x02" + b"N0" * 4_000_000 + b"."
    yield "memo", b"\x80\x02Nr\xff\xff\xff\x7f."
    yield "huge-bytes", b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f."
    yield "huge-text", b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x0f."
    yield "huge-integer", b"\x80\x02\x8b\xff\xff\xff\x7f" + b"\xff" * 1000 + b"."
    yield "long-integer", b"\x80\x02\x8b" + (1 << 20).to_bytes(4, "little") + b"\x7f" * (1 << 20) + b"."
    laughs = b"\x80\x02]q\x00" + b"".join(
        b"]q" + bytes([i + 1]) + b"(" + (b"h" + bytes([i])) * 10 + b"e" for i in range(100)
    )
    yield "laughs", laughs + b"."
    yield "itself", b"\x80\x02}q\x00X\x07\x00\x00\x00entriesq\x01]q\x02(h\x00h\x02eu."
    yield (
        "hash",
        pickle.dumps({"entries": [{"profiling_name": "nccl:all_reduce", "frames": list(range(1000))}] * 5000}, 2),
    )
    yield "rank-range", json.dumps({"entries": [], "version": "2.1", "pg_config": {"0": {"ranks": [1 << 19]}}}).encode()


def many(count: int, kind: str) -> bytes:
    """A trace or a flight recorder of so many calls."""
    if kind == "trace":
        args = (
            '"args": {"Collective name": "allreduce", "In msg nelems": 8, "dtype": "Float", "Process Group Name": "0"}'
        )
        event = f'{{"ph": "X", "cat": "kernel", "name": "ncclDevKernel_X", "ts": %d, "dur": 5, {args}}}'
        return ('{"traceEvents": [' + ",".join(event % i for i in range(count)) + "]}").encode()
    entry = (
        '{"collective_seq_id": %d, "process_group": ["0", "x"], "profiling_name": "nccl:all_reduce", '
        '"time_created_ns": %d, "state": "completed", "input_sizes": [[8]], "input_dtypes": ["Float"]}'
    )
    return ('{"entries": [' + ",".join(entry % (i, i) for i in range(count)) + '], "version": "2.10"}').encode()
