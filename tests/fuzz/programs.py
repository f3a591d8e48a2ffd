"""Random Python functions over tensors, numbers and containers, as source text.

`program(pick)` writes one function `f(x, y, n, s, items, table, obj)`; `pick(k)` returns a number in `range(k)` and is the only
source of choice, so that hypothesis (which shrinks) and a seeded generator (which is fast) share the writer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from prelude import PRELUDE

Pick = Callable[[int], int]


TENSOR_UNARY = (
    "torch.relu({})", "{}.abs()", "-{}", "torch.sin({})", "{} * 2", "{} + 1", "{}.clone()", "{}.t().t()", "{}.clamp(min=-1)",
    "torch.sigmoid({})", "{}.reshape(4, -1).reshape(-1, 4)", "{}.flip(0)", "{}.narrow(0, 0, 2).repeat(9, 1)[: x.shape[0]]", "{}.float()", "{}.neg().exp()", "{}[:, :4]", "torch.softmax({}, -1)",
)  # fmt: skip
TENSOR_BINARY = (
    "{} + {}", "{} - {}", "{} * {}", "torch.maximum({}, {})", "{0} @ {1}.t() @ torch.ones_like({0})", "{0} / {1}.shape[0]", "{0} + torch.arange({1}.size(0)).reshape(-1, 1)", "torch.where({} > 0, {}, 0.5)",
    "torch.stack([{}, {}]).sum(0)", "torch.cat([{0}, {1}])[: len({0})]", "torch.cat([{0}, {1}])[{0}.shape[0] :]", "torch.add({}, {}, alpha=2)",
)  # fmt: skip
SIZES = ("shape[0]", "size(0) * 2", "size(-1)", "numel() // 4", "shape[0] % 3", "stride()[0]")
INT_BINARY = (
    "{} + {}",
    "{} - {}",
    "{} * {}",
    "{} % ({} or 3)",
    "max({}, {})",
    "{} // ({} or 2)",
    "min({}, {}) + 1",
    "{} ^ {}",
)
INT_UNARY = (
    "{} + 1", "-{}", "abs({})", "len(str({}))", "{} * 3 % 7", "int({} > 2)", "({} if s else 0)", "sum(range({} % 5))", "hash({})",
    "divmod({}, 4)[1]", "math.gcd({}, 12)", "operator.index({})", "(lambda q: q + 2)({})", "int(f'{{{}:03d}}')", "functools.reduce(operator.add, [{}, 1])",
)  # fmt: skip


@dataclass
class Writer:
    """State of the program being written: what is in scope, and how deep the nesting is."""

    pick: Pick
    lines: list[str] = field(default_factory=list)
    tensors: list[str] = field(default_factory=lambda: ["x", "y"])
    ints: list[str] = field(default_factory=lambda: ["n"])
    lists: list[str] = field(default_factory=lambda: ["items"])
    count: int = 0
    breaks: bool = True
    raising: bool = False

    def one(self, options: list[str] | tuple[str, ...]) -> str:
        return options[self.pick(len(options))]

    def fresh(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def tensor(self) -> str:
        if self.pick(3) == 0:
            return self.one(TENSOR_UNARY).format(self.one(self.tensors))
        if self.pick(2):
            return self.one(TENSOR_BINARY).format(self.one(self.tensors), self.one(self.tensors))
        return f"{self.one(self.tensors)} + {self.integer()}"

    def integer(self) -> str:
        kind = self.pick(4)
        if kind == 0:
            return str(self.pick(6))
        if kind == 1:
            return "(" + self.one(INT_UNARY).format(self.one(self.ints)) + ")"
        if kind == 2:
            return "(" + self.one(INT_BINARY).format(self.one(self.ints), self.one(self.ints)) + ")"
        return self.one(
            [
                f"len({self.one(self.lists)})",
                "obj.value",
                "table.get('k', 4)",
                "len(table)",
                "y.dim()",
                f"{self.one(self.tensors)}.{self.one(SIZES)}",
            ]
        )

    def condition(self) -> str:
        options = [
            f"{self.integer()} > {self.pick(5)}",
            "s",
            f"{self.integer()} in (1, 2, 3)",
            f"len({self.one(self.lists)}) % 2",
            "'k' in table",
        ]
        options += [f"0 <= {self.integer()} < 4", "not s and n", "isinstance(obj, Box)", "hasattr(obj, 'value')"]
        if self.breaks and self.pick(4) == 0:
            return f"{self.one(self.tensors)}.sum() > {self.pick(3)}"
        return self.one(options)

    def emit(self, indent: int, text: str) -> None:
        self.lines.append("    " * indent + text)

    def block(self, indent: int, depth: int, size: int) -> None:
        """Statements in a scope of their own: what they define may not exist afterwards."""
        saved = list(self.tensors), list(self.ints), list(self.lists)
        for _ in range(1 + self.pick(size)):
            self.statement(indent, depth)
        self.tensors, self.ints, self.lists = saved

    def statement(self, indent: int, depth: int) -> None:
        simple = [
            self.s_tensor,
            self.s_int,
            self.s_inplace,
            self.s_list,
            self.s_table,
            self.s_obj,
            self.s_call,
            self.s_comprehension,
        ]
        simple += [self.s_closure, self.s_unpack, self.s_string, self.s_iter, self.s_global, self.s_generator]
        if self.breaks:
            simple += [self.s_break, self.s_break, self.s_break_inside]
        if self.raising:
            simple += [self.s_data_error] * 3
        nested = [self.s_if, self.s_for, self.s_while, self.s_try, self.s_with, self.s_match]
        nested += [self.s_manager, self.s_handler, self.s_break_loop]
        if depth > 0 and self.pick(3) == 0:
            nested[self.pick(len(nested))](indent, depth - 1)
        else:
            simple[self.pick(len(simple))](indent)

    # ---- simple statements

    def s_tensor(self, indent: int) -> None:
        name = self.fresh("t")
        self.emit(indent, f"{name} = {self.tensor()}")
        self.tensors.append(name)

    def s_int(self, indent: int) -> None:
        name = self.fresh("i")
        self.emit(indent, f"{name} = {self.integer()}")
        self.ints.append(name)

    def s_data_error(self, indent: int) -> None:
        """An operation that raises for some values of its tensors."""
        text = self.one([
            "{t}[torch.tensor([0, {a}])]", "{t}.index_select(0, torch.tensor({a}))", "look_up({t}, {a})",
            "torch.gather({t}, 0, torch.full((1, 4), {a}))", "[{t}[torch.tensor(q)] for q in range({a} % 4)] or {t}",
            "torch.nn.functional.dropout({t}) + look_up({t}, {a})", "noted_look_up({t}, {a})",
        ])  # fmt: skip
        self.emit(indent, f"v{self.count} = " + text.format(t=self.one(self.tensors), a=self.integer()))

    def s_inplace(self, indent: int) -> None:
        target = self.one(self.tensors)
        if self.raising:  # a graph that writes to its inputs is not run again when it raises (docs/errors.md)
            self.emit(indent, f"{target} = {target} + 1")
            return
        self.emit(
            indent,
            self.one(
                [
                    f"{target} = {target} + 1",
                    f"{target} += 0.5",
                    f"{target}.mul_(0.5)",
                    f"{target}[0] = {self.integer()}",
                    f"{target}[:, 1:3] += 1",
                ]
            ),
        )

    def s_list(self, indent: int) -> None:
        name = self.one(self.lists)
        options = [
            f"{name}.append({self.integer()})",
            f"{name}.extend([1, {self.integer()}])",
            f"{name}.insert(0, {self.integer()})",
            f"{name}[-1:] = [7]",
        ]
        options += [
            f"{name}.append({self.one(self.tensors)})",
            f"{name} += [3]",
            f"{name}.reverse()",
            f"{name}[:0] = (1, 2)",
        ]
        if self.pick(3) == 0:
            fresh = self.fresh("l")
            self.emit(
                indent,
                f"{fresh} = "
                + self.one(
                    [
                        f"[{self.integer()}, {self.one(self.tensors)}]",
                        name,
                        f"list({name})",
                        f"{name}[::-1]",
                        f"[*{name}, 0]",
                    ]
                ),
            )
            self.lists.append(fresh)
        else:
            self.emit(indent, self.one(options))

    def s_table(self, indent: int) -> None:
        options = [
            f"table['k'] = {self.integer()}",
            f"table[{self.integer()}] = {self.one(self.tensors)}",
            "table.pop('k', None)",
            "table.update(a=1)",
        ]
        options += [
            f"table.setdefault('z', []).append({self.integer()})",
            "table = dict(table)",
            f"table = {{**table, 'm': {self.integer()}}}",
        ]
        self.emit(indent, self.one(options))

    def s_obj(self, indent: int) -> None:
        options = [
            f"obj.value = {self.integer()}",
            f"obj.bump({self.integer()})",
            f"obj.extra = {self.one(self.tensors)}",
            "obj = obj + 1",
            f"obj.history.append({self.integer()})",
        ]
        options += [
            f"obj = Box({self.integer()})",
            f"setattr(obj, 'dyn', {self.integer()})",
            "obj.__dict__['raw'] = 1",
            f"obj.value = obj.twice + {self.integer()}",
        ]
        self.emit(indent, self.one(options))

    def s_call(self, indent: int) -> None:
        name = self.fresh("i")
        call = self.one(
            [
                "helper({a})",
                "helper({a}, {b})",
                "helper({a}, {b}, 1, 2, scale=3)",
                "helper(*[{a}, {b}])",
                "helper({a}, **{{'extra': {b}}})",
                "functools.partial(helper, {a})({b})",
            ]
        )
        self.emit(indent, f"{name} = " + call.format(a=self.integer(), b=self.integer()))
        self.ints.append(name)

    def s_comprehension(self, indent: int) -> None:
        name = self.fresh("l")
        text = self.one([
            "[q + {a} for q in range({k})]", "[q for q in [1, 2, 3, {a}] if q % 2]", "list(map(lambda q: q * {a}, range({k})))",
            "sorted({{q % 3 for q in range({k} + 2)}})", "[v for _, v in sorted({{'b': {a}, 'a': 2}}.items())]", "[p * q for p in range(2) for q in range({k})]",
            "list(zip(range({k}), itertools.count({a})))", "[w for w, _ in enumerate('ab' * {k})]",
        ])  # fmt: skip
        self.emit(indent, f"{name} = " + text.format(a=self.integer(), k=self.pick(4)))
        self.lists.append(name)

    def s_closure(self, indent: int) -> None:
        fn, name = self.fresh("g"), self.fresh("i")
        state = self.fresh("c")
        self.emit(indent, f"{state} = {self.integer()}")
        self.emit(indent, f"def {fn}(q, w={self.integer()}):")
        self.emit(indent + 1, f"nonlocal {state}")
        self.emit(indent + 1, f"{state} += q")
        self.emit(indent + 1, f"return {state} * w")
        self.emit(indent, f"{name} = {fn}({self.integer()}) + {fn}(1, w=2)")
        self.ints += [name, state]

    def s_unpack(self, indent: int) -> None:
        a, b = self.fresh("i"), self.fresh("l")
        self.emit(indent, f"{a}, *{b} = [{self.integer()}, {self.integer()}, 5]")
        self.ints.append(a)
        self.lists.append(b)

    def s_string(self, indent: int) -> None:
        name = self.fresh("i")
        self.emit(
            indent,
            f"{name} = len(f'{{{self.one(self.ints)}!r:>5}}' + ','.join(str(q) for q in range({self.pick(4)})).upper())",
        )
        self.ints.append(name)

    def s_iter(self, indent: int) -> None:
        name, it = self.fresh("i"), self.fresh("it")
        self.emit(indent, f"{it} = iter([{self.integer()}, 2, 3])")
        self.emit(indent, f"{name} = next({it}) + sum({it})")
        self.ints.append(name)

    def s_global(self, indent: int) -> None:
        self.emit(
            indent, self.one(["COUNTER += 1", f"LOG.append({self.integer()})", "LOG[:] = [1]", "COUNTER = len(LOG)"])
        )

    def s_generator(self, indent: int) -> None:
        name = self.fresh("l")
        self.emit(
            indent,
            f"{name} = "
            + self.one(
                [
                    f"list(gen({self.pick(4)}))",
                    f"list(delegating({self.pick(3)}))",
                    f"[q for q in gen({self.pick(4)})]",
                    f"sorted(gen({self.pick(4)}), reverse=True)",
                ]
            ),
        )
        self.lists.append(name)

    def s_break(self, indent: int) -> None:
        self.emit(
            indent,
            self.one(
                [
                    "argand.graph_break()",
                    f"i0 = int({self.one(self.tensors)}.sum().item() > 0)",
                    f"LOG.append({self.one(self.tensors)}.tolist()[0][0] > 0)",
                ]
            ),
        )

    def s_break_inside(self, indent: int) -> None:
        """A break in a comprehension, a generator, a callback, a closure."""
        name = self.fresh("l")
        text = self.one([
            "[real(q) + {a} for q in range({k})]", "list(breaking({k}))", "[q for q in breaking({k}) if real(q) != {a}]", "[*finishing({k}), *breaking(2)]",
            "sorted([3, 1, 2], key=lambda q: real(-q))", "list(map(real, finishing({k})))", "list({{q: real(q) for q in range({k})}})", "[(lambda q=q: real(q))() for q in range({k})]",
            "[next(it) for it in [iter(breaking(2))] for _ in range(2)]", "[real(p) * q for p in range(2) for q in finishing({k})]", "list(zip(breaking({k}), finishing({k})))",
        ])  # fmt: skip
        self.emit(indent, f"{name} = " + text.format(a=self.integer(), k=self.pick(4)))
        self.lists.append(name)

    # ---- compound statements

    def s_manager(self, indent: int, depth: int) -> None:
        """A with block over managers of the program's own, with a break and maybe an exception inside."""
        swallow = self.one(["", "LookupError", "Exception", "ValueError, IndexError"])
        manager = self.one([
            "with Managed({}):", "with managed({}) as w0:", "with Managed(), managed({}):", "with contextlib.suppress({}), Managed():",
            "with contextlib.ExitStack() as stack, Managed({}):",
        ])  # fmt: skip
        self.emit(indent, "try:")
        self.emit(indent + 1, manager.format(swallow))
        if "stack" in manager:
            self.emit(indent + 2, "stack.callback(LOG.append, 'called')")
        self.block(indent + 2, depth, 2)
        self.emit(indent + 2, self.one(["argand.graph_break()", "real(1)", f"checked({self.integer()})"]))
        self.block(indent + 2, depth, 2)
        self.emit(indent + 2, self.one(["pass", f"raising({self.integer()})", "raise IndexError('w')"]))
        self.emit(indent, "except Exception as e:")
        self.emit(indent + 1, "LOG.append((type(e).__name__, str(e), type(e.__context__).__name__))")

    def s_handler(self, indent: int, depth: int) -> None:
        """Breaks in handlers: while an exception is handled, re-raised, chained, and in `finally`."""
        self.emit(indent, "try:")
        self.emit(indent + 1, "try:")
        self.block(indent + 2, depth, 2)
        self.emit(indent + 2, self.one(["raise KeyError('h')", f"checked({self.integer()})", "{}['h']", "pass"]))
        self.emit(indent + 1, "except (KeyError, IndexError) as e:")
        self.block(indent + 2, depth, 2)
        self.emit(
            indent + 2,
            self.one(["argand.graph_break()", "LOG.append(real(type(e).__name__))", f"checked({self.integer()})"]),
        )
        self.emit(indent + 2, "LOG.append((str(e), str(sys.exc_info()[1])))")
        self.emit(indent + 2, self.one(["raise", "raise ValueError('v') from e", "raise RuntimeError('r')", "pass"]))
        if self.pick(2):
            self.emit(indent + 1, "finally:")
            self.emit(indent + 2, self.one(["real(2)", "argand.graph_break()", "LOG.append('finally')"]))
            self.block(indent + 2, depth, 2)
        self.emit(indent, "except Exception as e:")
        self.emit(
            indent + 1,
            "LOG.append((type(e).__name__, str(e), type(e.__context__).__name__, type(e.__cause__).__name__))",
        )

    def s_break_loop(self, indent: int, depth: int) -> None:
        """A loop with a break of the graph in its body, over iterators of several kinds."""
        name = self.fresh("i")
        over = self.one([
            "range({k})", "finishing({k})", "breaking({k})", "iter([1, 2, 3])", "map(real, [1, 2])", "filter(None, range({k}))", "zip(range({k}), 'abcd')", "enumerate([5, 6])",
            "{{'p': 1, 'q': 2}}.items()", "list(items)", "reversed([1, 2])", "itertools.count()", "{{'p': 1, 'q': 2}}",
        ])  # fmt: skip
        self.emit(indent, f"for {name} in " + over.format(k=self.pick(4)) + ":")
        saved = list(self.tensors), list(self.ints), list(self.lists)
        self.block(indent + 1, depth, 2)
        self.emit(
            indent + 1,
            self.one(
                [
                    f"LOG.append(real({name}))",
                    "argand.graph_break()",
                    f"if {self.one(self.tensors)}.sum() > 1: LOG.append({name})",
                ]
            ),
        )
        self.block(indent + 1, depth, 2)
        self.tensors, self.ints, self.lists = saved
        stop = "break" if "count" in over else self.one(["break", "continue", "pass"])
        self.emit(indent + 1, f"if len(LOG) > {self.pick(30)}: {stop}")
        if stop == "break" and "count" in over:
            self.emit(indent + 1, f"if {name} > 2: break")
        if self.pick(3) == 0:
            self.emit(indent, "else:")
            self.block(indent + 1, depth, 2)

    def s_if(self, indent: int, depth: int) -> None:
        self.emit(indent, f"if {self.condition()}:")
        self.block(indent + 1, depth, 3)
        if self.pick(2):
            self.emit(indent, "else:")
            self.block(indent + 1, depth, 3)

    def s_for(self, indent: int, depth: int) -> None:
        name = self.fresh("i")
        self.emit(
            indent,
            f"for {name} in "
            + self.one(
                [
                    f"range({self.pick(4)})",
                    "[3, 1]",
                    f"reversed(range({self.pick(3)}))",
                    "(2, 4)",
                    f"gen({self.pick(3)})",
                ]
            )
            + ":",
        )
        self.ints.append(name)
        self.block(indent + 1, depth, 3)
        self.ints.remove(name)
        if self.pick(3) == 0:
            self.emit(indent + 1, f"if {self.condition()}:")
            self.emit(indent + 2, self.one(["break", "continue"]))
        if self.pick(4) == 0:
            self.emit(indent, "else:")
            self.block(indent + 1, depth, 2)

    def s_while(self, indent: int, depth: int) -> None:
        name = self.fresh("w")
        self.emit(indent, f"{name} = {self.pick(4)}")
        self.emit(indent, f"while {name} > 0:")
        self.emit(indent + 1, f"{name} -= 1")
        self.block(indent + 1, depth, 2)

    def s_try(self, indent: int, depth: int) -> None:
        self.emit(indent, "try:")
        self.block(indent + 1, depth, 2)
        self.emit(
            indent + 1,
            self.one(
                [
                    f"raising({self.integer()})",
                    f"1 // ({self.integer()} % 2)",
                    "items[99]",
                    "raise RuntimeError('r')",
                    "pass",
                ]
            ),
        )
        caught = self.one(
            ["(ValueError, KeyError, RuntimeError, LookupError, ArithmeticError)", "Exception", "BaseException"]
        )
        name = self.fresh("i")
        self.emit(indent, f"except {caught} as e:")
        self.emit(indent + 1, f"{name} = len(str(e)) + len(type(e).__name__)")
        self.emit(indent + 1, f"LOG.append({name})")
        if self.pick(3) == 0:
            self.emit(indent, "else:")
            self.block(indent + 1, depth, 2)
        if self.pick(3) == 0:
            self.emit(indent, "finally:")
            self.block(indent + 1, depth, 2)

    def s_with(self, indent: int, depth: int) -> None:
        self.emit(
            indent, self.one(["with torch.no_grad():", "with torch.enable_grad():", "with torch.set_grad_enabled(s):"])
        )
        self.block(indent + 1, depth, 3)

    def s_match(self, indent: int, depth: int) -> None:
        self.emit(indent, f"match {self.one(self.ints)}:")
        self.emit(indent + 1, "case 0 | 1:")
        self.block(indent + 2, depth, 2)
        self.emit(indent + 1, "case int(v) if v > 3:")
        self.block(indent + 2, depth, 2)
        self.emit(indent + 1, "case _:")
        self.block(indent + 2, depth, 2)


def program(pick: Pick, size: int = 10, breaks: bool = True, raising: bool = False) -> str:
    """Source text of one function; it returns everything that is alive at its end.

    Arguments:
        raising: with operations that raise for some values of their tensors, and without writes to tensors.
    """
    w = Writer(pick, breaks=breaks, raising=raising)
    for _ in range(2 + pick(size)):
        w.statement(1, 2)
    live = sorted({*w.tensors, *w.ints, *w.lists})
    w.emit(1, f"return ({', '.join(live)}, table, obj.value, obj.history, COUNTER)")
    return PRELUDE + "\ndef f(x, y, n, s, items, table, obj):\n    global COUNTER\n" + "\n".join(w.lines) + "\n"
