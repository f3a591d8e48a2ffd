"""Minimum cut of a directed graph with capacities.

Dinic's algorithm: E. A. Dinic, "Algorithm for solution of a problem of maximum flow in networks with power
estimation", Soviet Math. Doklady 11 (1970), 1277-1280. Phases of breadth-first layers and blocking flows.
"""

from __future__ import annotations

from collections import deque

INFINITE = 1 << 60


class FlowNetwork:
    """A network with integer capacities. Vertices are numbers that `vertex` hands out."""

    def __init__(self) -> None:
        self._heads: list[list[int]] = []  # per vertex, its edges; edge e and e ^ 1 are each other's reverse
        self._to: list[int] = []
        self._room: list[int] = []

    def vertex(self) -> int:
        """A new vertex."""
        self._heads.append([])
        return len(self._heads) - 1

    def edge(self, start: int, end: int, capacity: int) -> None:
        """A directed edge; capacities of `INFINITE` and more are never cut."""
        number = len(self._to)
        self._heads[start].append(number)
        self._heads[end].append(number + 1)
        self._to += (end, start)
        self._room += (capacity if capacity < INFINITE else INFINITE, 0)

    def minimum_cut(self, source: int, sink: int) -> tuple[int, list[bool]]:
        """The value of a minimum cut, and for each vertex whether it is on the source's side.

        Of all minimum cuts this is the one with the smallest source side. A value of `INFINITE` or more means that
        the two cannot be separated.
        """
        value = 0
        while value < INFINITE:
            level = self._levels(source, sink)
            if level[sink] < 0:
                break
            value += self._block(source, sink, level)
        return value, [depth >= 0 for depth in self._levels(source, -1)]

    def _levels(self, source: int, sink: int) -> list[int]:
        level = [-1] * len(self._heads)
        level[source] = 0
        queue = deque([source])
        to, room, heads = self._to, self._room, self._heads
        while queue:
            at = queue.popleft()
            below = level[at] + 1
            for edge in heads[at]:
                end = to[edge]
                if level[end] < 0 and room[edge]:
                    level[end] = below
                    if end == sink:
                        return level
                    queue.append(end)
        return level

    def _block(self, source: int, sink: int, level: list[int]) -> int:
        """Push flow along shortest paths until each has a full edge (depth first, without recursion)."""
        position = [0] * len(self._heads)
        to, room, heads = self._to, self._room, self._heads
        path: list[int] = []
        total = 0
        at = source
        while True:
            if at == sink:
                pushed = min([room[edge] for edge in path])
                total += pushed
                first_full = len(path)
                for index, edge in enumerate(path):
                    room[edge] -= pushed
                    room[edge ^ 1] += pushed
                    if room[edge] == 0 and index < first_full:
                        first_full = index
                at = to[path[first_full] ^ 1]
                del path[first_full:]
                continue
            edges, below = heads[at], level[at] + 1
            for place in range(position[at], len(edges)):
                edge = edges[place]
                if room[edge] and level[to[edge]] == below:
                    position[at] = place
                    path.append(edge)
                    at = to[edge]
                    break
            else:
                if not path:
                    return total
                position[at] = len(edges)
                at = to[path.pop() ^ 1]
                position[at] += 1
