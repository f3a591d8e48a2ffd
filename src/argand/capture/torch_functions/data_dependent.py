"""How messages speak of programs that need the value of a tensor while they are captured."""

from __future__ import annotations

from argand import errors

READS = {
    "__int__": "int() of a tensor is taken",
    "__float__": "float() of a tensor is taken",
    "__complex__": "complex() of a tensor is taken",
    "__index__": "A tensor is used as an index, a count or a bound",
    "__contains__": "A value is looked for in a tensor with `in`",
    "__array__": "A tensor is turned into a numpy array",
    "__dlpack__": "A tensor is handed to another library",
    "__reduce_ex__": "A tensor is copied or pickled",
    "__deepcopy__": "A tensor is copied by copy.deepcopy",
    "__repr__": "A tensor is turned into text",
    "__str__": "A tensor is turned into text",
    "__format__": "A tensor is formatted into text",
    "__setstate__": "A tensor is unpickled",
    "_backward_hooks": "The backward hooks of a tensor are read",
}
"""What the program does where Python calls a special method of a tensor."""


def branch(name: str) -> errors.GraphBreak:
    """The graph break for control flow that depends on a tensor."""
    return errors.graph_break(
        kind="data-dependent branch",
        context=name,
        explanation="Which way the program goes (if, while, and, or, not, assert) depends on the value of a tensor, "
        "which is known only when the program runs.",
        hints=(
            "Compute both sides and choose with torch.where(condition, a, b), or use torch.cond.",
            "If the condition does not change, decide outside the compiled function and pass a bool.",
        ),
    )
