"""The room for the cache of a replica, as its scheduler counts it."""

from __future__ import annotations

from commsim.generation.memory import replica_memory
from commsim.generation.replica import Replica
from commsim.generation.scheduler import CacheRoom


def room_of(replica: Replica, longest: int) -> CacheRoom:
    """The room of all groups of a replica, for requests of so many tokens at most.

    Layers with a window keep no more than it of a longer sequence, and count as what they keep of the longest.
    """
    memory = replica_memory(replica)
    per_token, share = memory.cache_bytes_per_token, memory.windowed_share
    grows, kept = per_token, 0.0
    if memory.window and longest > memory.window:
        grows, kept = per_token * (1.0 - share), per_token * share * memory.window
    return CacheRoom(memory.cache_room_bytes * memory.groups, grows, memory.state_bytes + kept)
