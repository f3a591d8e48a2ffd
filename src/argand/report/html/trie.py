"""The stack trie: a tree of stack frames for all stacks that led to a compile."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field

from argand.quick_dataclasses import dataclass
from argand.report.html.model import Compile
from argand.report.records import StackFrame

MAX_NODES = 5_000


@dataclass(slots=True)
class TrieNode:
    """One frame.

    Arguments:
        frame: the frame; None at the root.
        compiles: compiles whose stack ends here.
        children: frames called from here.
        below: compiles at this node and below it.
    """

    frame: StackFrame | None
    compiles: list[Compile] = field(default_factory=list)
    children: dict[StackFrame, TrieNode] = field(default_factory=dict)
    below: int = 0

    def rows(self) -> list[tuple[TrieNode, bool]]:
        """Nodes to list at one level, and whether each holds the next level.

        Where stacks part, every branch is a level of its own; a chain without branches stays flat.
        """
        children = list(self.children.values())
        if len(children) != 1:
            return [(child, bool(child.children)) for child in children]
        chain = []
        node = children[0]
        while len(node.children) == 1:
            chain.append((node, False))
            node = next(iter(node.children.values()))
        return [*chain, (node, bool(node.children))]


def build_trie(compiles: Iterable[Compile]) -> tuple[TrieNode, int]:
    """The trie of the compiles' stacks, and how many compiles it leaves out (no stack, or beyond MAX_NODES frames)."""
    root = TrieNode(None)
    nodes = left_out = 0
    for compile in compiles:
        stack = compile.stack
        if not stack or nodes > MAX_NODES:
            left_out += 1
            continue
        node = root
        node.below += 1
        for frame in stack:
            child = node.children.get(frame)
            if child is None:
                child = node.children[frame] = TrieNode(frame)
                nodes += 1
            node = child
            node.below += 1
        node.compiles.append(compile)
    return root, left_out
