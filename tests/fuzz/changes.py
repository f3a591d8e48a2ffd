"""How a world of `--mutate` is changed: each helper does one thing and keeps how to take it back.

A change is a statement, run once in each world with these helpers, `A` (the arguments) and `M` (the module) in scope.
"""

from __future__ import annotations

import gc
import operator
import types


class Changes:
    """The helpers of one world, and its stack of what can be taken back."""

    def __init__(self, module, args):
        self.undone = []
        names = ("put", "cut", "item", "cut_item", "refill", "cell", "do", "state", "var", "hook", "undo", "referent")
        self.scope = {name: getattr(self, name) for name in names}
        self.scope.update(A=args, M=module, variant=variant, inferred=inferred, with_inference=inferred)
        self.module = module
        module.__dict__.update(self.scope)

    def run(self, statement):
        """None, or the name of the exception that the statement raises."""
        try:
            exec(statement, self.module.__dict__)
        except (Exception, SystemExit) as error:
            return type(error).__name__
        return None

    def do(self, forth, back):
        forth()
        self.undone.append(back)

    def undo(self):
        if self.undone:
            self.undone.pop()()

    def undo_all(self):
        while self.undone:
            try:
                self.undone.pop()()
            except Exception:
                continue

    def put(self, holder, name, value):
        """Set an attribute; what was there in the object itself, not in its class, comes back."""
        old = own_value(holder, name, self)
        setattr(holder, name, value)
        self.undone.append((lambda: delattr(holder, name)) if old is self else (lambda: setattr(holder, name, old)))

    def cut(self, holder, name):
        old = own_value(holder, name, self)
        delattr(holder, name)
        self.undone.append(lambda: setattr(holder, name, old))

    def item(self, holder, key, value):
        there = key in holder if hasattr(holder, "keys") else True
        old = holder[key] if there else None
        holder[key] = value
        self.undone.append(
            (lambda: operator.setitem(holder, key, old)) if there else (lambda: operator.delitem(holder, key))
        )

    def cut_item(self, holder, key):
        if hasattr(holder, "keys"):
            before = list(holder.items())
            del holder[key]
            self.undone.append(lambda: (holder.clear(), holder.update(before)))
        else:
            before = list(holder)
            del holder[key]
            self.undone.append(lambda: operator.setitem(holder, slice(None), before))

    def refill(self, holder, values):
        """Other contents for a container, in the order given."""
        add = holder.update if hasattr(holder, "update") else holder.extend
        before = list(holder.items()) if hasattr(holder, "items") else list(holder)
        values = list(values)
        holder.clear()
        try:
            add(values)
        except Exception:  # a change that raises leaves no trace
            holder.clear()
            add(before)
            raise
        self.undone.append(lambda: (holder.clear(), add(before)))

    def cell(self, fn, index, value):
        held = fn.__closure__[index]
        old = held.cell_contents
        held.cell_contents = value
        self.undone.append(lambda: setattr(held, "cell_contents", old))

    def state(self, read, write, value):
        """State of the process: how it is read, how it is written."""
        old = read()
        write(value)
        self.undone.append(lambda: write(old))

    def var(self, variable, value):
        token = variable.set(value)
        self.undone.append(lambda: variable.reset(token))

    def hook(self, holder, register, fn):
        self.undone.append(getattr(holder, register)(fn).remove)

    def referent(self, proxy):
        """The mapping behind a mapping proxy."""
        if not isinstance(proxy, types.MappingProxyType):
            raise TypeError("not a mapping proxy")
        return next(r for r in gc.get_referents(proxy) if isinstance(r, dict))


def own_value(holder, name, missing):
    """What an object itself, not its class, has under a name."""
    for kept in ("__dict__", "_parameters", "_buffers", "_modules"):
        values = getattr(holder, kept, None)
        if isinstance(values, (dict, types.MappingProxyType)) and name in values:
            return values[name]
    described = next((vars(c)[name] for c in type(holder).__mro__ if name in vars(c)), None)
    return getattr(holder, name, missing) if hasattr(type(described), "__set__") else missing


def variant(cls):
    """A subclass that an object of `cls` can be given as its class."""
    body = {"__slots__": ()}
    for name, value in vars(cls).items():
        if not name.startswith("_") and callable(value):
            body[name] = lambda self, *args, **more: 8
            break
    return type(cls)(cls.__name__ + "Variant", (cls,), body)


def inferred(fn):
    """What `fn` makes in inference mode."""
    import torch

    with torch.inference_mode():
        return fn()
