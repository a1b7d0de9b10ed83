"""The compiled event loops: tuples of plain arrays in, arrays out. Import them lazily, since they import numba.

Semantics: virtual cut-through with one unbounded first-in first-out queue per link. The head of a message reaches a
link at ``t``. The link takes it up at ``start = max(t, free)`` and has sent its last byte at ``sent =
max(start + nbytes / bandwidth, tail)``, where ``tail`` is when the last byte arrives from the link before. The link is
free again at ``sent``. The head is at the next link at ``start + latency``, the last byte at ``sent + latency``. So a
message that meets nobody takes the sum of the latencies plus nbytes over the smallest bandwidth.

Events at one time go in the order of (op, hop); `commsim.engine.loops.heap.TIE` says what is one time.
"""
