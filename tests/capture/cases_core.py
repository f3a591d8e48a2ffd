"""Small functions, one feature each: control flow, functions, closures, exceptions, with, generators, matching."""
# ruff: noqa: E501, E742, F821, F841, I001, UP, PIE, RUF, C4 - the odd spellings are what is tested

import contextlib
import functools

from .interpret import Cases

TABLE = Cases()
case, breaks = TABLE.case, TABLE.breaks
COUNTER = 0


# ---- control flow -----------------------------------------------------------------------------------------------------


@case(5)
@case(0)
@case(-3)
def branches(x):
    if x > 3:
        return "big"
    elif x == 0:
        return "zero"
    else:
        return "small"


@case(10)
def loops(n):
    out = []
    for i in range(n):
        if i % 2:
            continue
        if i > 7:
            break
        out.append(i)
    else:
        out.append("else")
    while n:
        n -= 3
        if n < 0:
            break
    else:
        out.append("while-else")
    return out, n


@case(9)
def while_else(n):
    while n:
        n -= 3
    else:
        return "done"


@case(3)
@case(0)
@case(12)
def chained(x):
    return 0 < x < 10, 1 <= x != 3, not x, x and "t", x or "f", x if x else None


@case([1, 2, 3, 4, 5])
@case([1, 2])
@case([1])
@case(())
@case("abcd")
def unpacking(seq):
    a, *b = seq
    first, *mid, last = seq
    return a, b, first, mid, last


@case((1, 2))
@case((1, 2, 3))
@case((1,))
@case(5)
@case({"k": 1, "v": 2})
@case(range(2))
def unpack_two(seq):
    a, b = seq
    return b, a


@case()
def nested_unpack():
    (a, (b, c)), [d, *e] = (1, (2, 3)), [4, 5, 6]
    for i, (j, k) in enumerate([(1, 2), (3, 4)]):
        a += i * j * k
    return a, b, c, d, e


@case()
def star_build():
    a = [1, 2]
    b = (3, 4)
    d = {"x": 1}
    e = {"x": 2, "y": 3}
    return [*a, *b, 5], (*b, *a), {*a, *b}, {**d, **e, "z": 4}, [*range(3), *"ab"]


@case(5)
def star_error(x):
    return [*x]


@case(5)
def doublestar_error(x):
    return {**x}


@case()
def walrus():
    if (n := len("abc")) > 2:
        xs = [y for x in range(5) if (y := x * n) > 3]
    return n, xs, y


@case()
def swap_many():
    a, b, c, d = 1, 2, 3, 4
    a, b = b, a
    a, b, c = c, a, b
    a, b, c, d = d, c, b, a
    return a, b, c, d


@case(1)
@case(0)
def assertion(x):
    assert x, f"message {x}"
    return "ok"


@case()
def del_local():
    x = 1
    del x
    return x


@case()
def unbound():
    if False:
        y = 1
    return y


@case()
def no_global():
    return this_name_does_not_exist


@case()
def globals_write():
    global COUNTER
    COUNTER = 5
    COUNTER += 1
    result = COUNTER
    COUNTER = 0
    return result


@case()
def global_delete():
    global FRESH
    FRESH = 1
    del FRESH
    try:
        return FRESH
    except NameError as e:
        return str(e)


@case()
def comprehensions():
    m = [[1, 2], [3, 4]]
    return (
        [x for r in m for x in r],
        {x: y for x, y in m},
        {x % 3 for r in m for x in r},
        [[x * y for x in range(3)] for y in range(2)],
        list(x for r in m for x in r if x > 1),
        [(lambda: i)() for i in range(3)],
        [f() for f in [lambda: i for i in range(3)]],
        [x for x in "a-b" if x.isalpha()],
    )


@case()
def comprehension_scope():
    x = 10
    ys = [x for x in range(3)]
    return x, ys


@case()
def comprehension_error():
    try:
        return [1 // x for x in (1, 0)]
    except ZeroDivisionError as e:
        return str(e), "x" in locals()


@case()
def slices():
    xs = list(range(10))
    xs[2:4] = ["a", "b", "c"]
    xs[::3] = [0] * len(xs[::3])
    del xs[1:3]
    t = tuple(xs)[-3:]
    return xs, t, "hello"[1:-1], xs[slice(None, None, 2)], xs[5:2]


@case()
def augmented():
    a = [1]
    b = a
    a += [2]
    a *= 2
    x = 5
    x -= 1
    x //= 2
    x **= 3
    x <<= 2
    x |= 1
    x &= 0xFF
    x ^= 3
    x >>= 1
    x %= 7
    d = {"k": [1]}
    d["k"] += [2]
    d["k"][0] -= 5
    s = "a"
    s += "b"
    s *= 3
    f = 1.0
    f /= 3
    return a, b, a is b, x, d, s, f


@case()
def in_and_is():
    a = None
    return a is None, a is not None, 1 in [1], 2 not in (1,), "a" in "cab", "x" in {"x": 1}, 3 in range(5), 3.0 in {3}


@case(3)
def recursion(n):
    def fact(k):
        return 1 if k <= 1 else k * fact(k - 1)

    def fib(k):
        return k if k < 2 else fib(k - 1) + fib(k - 2)

    return fact(n), fib(n + 3)


# ---- functions and closures ---------------------------------------------------------------------------------------------


def signature(a, b=2, /, c=3, *args, d, e=5, **kw):
    return a, b, c, args, d, e, kw


def two(a, b):
    return a, b


def kwonly(*, k, z=1):
    return k, z


def none():
    return None


def defaults(a, b=1):
    return a, b


@case()
def calls_ok():
    t = (1, 2, 3, 4)
    d = {"d": 1, "e": 2, "x": 3}
    return (
        signature(1, d=4),
        signature(1, 2, 3, 4, 5, d=6, z=7),
        signature(*t, **d),
        signature(*t, 9, d=0, **{"y": 1}),
        two(b=1, a=2),
        kwonly(k=3),
        none(),
        (lambda *a, **k: (a, k))(1, b=2),
    )


for _expr in [
    "signature()", "signature(1)", "signature(d=1)", "signature(a=1, d=2)", "signature(1, b=2, d=3)", "two()", "two(1)",
    "two(1, 2, 3)", "two(1, a=2)", "two(1, 2, c=3)", "two(**{'a': 1})", "kwonly()", "kwonly(1)", "kwonly(1, k=2)",
    "kwonly(k=1, y=2)", "none(1)", "none(x=1)", "defaults()", "defaults(1, 2, 3)", "two(*5)", "two(**5)", "two(**{1: 2})",
    "two(*(1,), **{'a': 1})", "two(1, **{'b': 2}, **{'b': 3})", "(lambda x: x)()", "(lambda: 0)(1)", "5()", "None()",
    "'a'()", "[].append()", "[].append(1, 2)", "len()", "len(1, 2)", "len(5)", "{}.get()", "'a'.upper(1)", "int('x')",
    "int([])", "float('z')", "[1, 2][5]", "{}[0]", "(1,)['a']", "{[]: 1}", "{}[[]]", "set([[]])", "1 + 'a'", "'a' + 1",
    "[1] + (2,)", "-'a'", "~1.5", "1 < 'a'", "[] < 3", "None < None", "5 in 5", "1[0]", "'a'.x", "None.y", "int.z",
    "range('a')", "iter(5)", "next([])", "next(iter([]))", "list(5)", "dict([1])", "dict([(1, 2, 3)])", "sum(['a'])",
    "sum([[1], [2]], [])", "max([])", "min()", "max(1, 'a')", "sorted([1, 'a'])", "sorted([3, 1, 2], reverse=True)",
    "zip(1)", "list(zip([1], [1, 2], strict=True))", "enumerate()", "map()", "abs('a')", "divmod(1, 0)", "1 / 0",
    "1 % 0", "2 ** -1", "0 ** -1", "pow(2, 3, 5)", "pow(2, -1, 5)", "round(2.5)", "round(2.567, 2)", "hex(1.5)", "chr(-1)",
    "ord('ab')", "isinstance(1, 5)", "issubclass(1, int)", "getattr(1, 'x')", "getattr(1, 'x', 3)", "setattr(1, 'x', 2)",
    "hasattr([], 'append')", "type(1, 2)", "super()", "bytes(-1)", "'%d' % 'a'", "'%s %s' % (1,)", "'{} {}'.format(1)",
    "f'{1:z}'", "f'{[]:>3}'", "[].pop()", "{}.popitem()", "[1].remove(2)", "[].index(1)", "(1, 2).index(3)", "'a'.index('b')",
    "set().pop()", "{1: 2}.pop(3)", "'abc'[10]", "'abc'['a']", "[1, 2, 3][::0]", "slice(1).x", "object().x", "object()()",
    "object(1)", "list(1, 2)", "tuple(3)", "dict(a=1)", "dict({1: 2}, a=1)", "dict([(1, 2)], b=3)", "str(b'a', 'utf8')",
    "str(1, 2)", "bool(1, 2)", "complex('1+2j')", "int('ff', 16)", "int('0x1f', 0)", "int(1.9)", "int('9' * 5)",
    "[*None]", "{**None}", "print.x", "callable(len)", "callable(3)", "ascii('é')", "repr('é')", "bin(5)", "oct(8)",
    "all([1, 0])", "any([0, ''])", "reversed(5)", "list(reversed([1, 2]))", "list(reversed({'a': 1}))", "reversed({1})",
    "sorted([1, 2], 3)", "sorted(key=1)", "[3, 1].sort(5)", "filter(None)", "list(filter(None, [0, 1, '', 'a']))",
    "range(1, 2, 0)", "list(range(10, 0, -3))", "range(5)[2]", "range(5)[1:3]", "5 in range(3, 9, 2)", "hash('a') == hash('a')",
    "hash([])", "hash((1, []))", "type(1) is int", "type('X', (), {})().y", "int.__name__", "(5).__class__",
    "(1).bit_length()", "(1.5).is_integer()", "'a,b'.split(',')", "','.join([1])", "','.join('abc')", "'a'.join(5)",
    "'ab'.replace('a', 1)", "'x'.zfill(3)", "'%05.2f|%-4d|%x' % (1.5, 3, 255)", "f'{3.14159:.2f} {10:>5} {\"a\"!r:<5}|'",
    "'{0} {1} {0} {x}'.format(1, 2, x=3)", "'{:,}'.format(1234567)", "'{!r}'.format('a')", "'{a[0]} {b.real}'.format(a=[1], b=2)",
    "b'ab'[0]", "b'ab' + b'c'", "b'a' + 'b'", "bytes([1, 2])", "bytearray(b'ab')[0]", "memoryview(b'ab')[1]",
    "divmod(7, -2)", "divmod(-7.5, 2)", "(-7) // 2", "(-7) % 3", "7.5 // 2", "1e308 * 10", "-0.0", "1j * 1j", "abs(3+4j)",
    "(2).__add__('a')", "(2).__add__(3)", "'a'.__eq__(1)", "[].__len__()", "[1, 2].__getitem__(0)", "list.append([], 1)",
    "str.upper('a')", "str.upper(1)", "int.from_bytes(b'a', 'big')", "dict.fromkeys('ab', 0)", "list.__add__([1], [2])",
]:  # fmt: skip
    _ns = dict(signature=signature, two=two, kwonly=kwonly, none=none, defaults=defaults, __name__=__name__)
    exec(compile(f"def expression():\n    return {_expr}\n", f"<{_expr}>", "exec"), _ns)
    _ns["expression"].__doc__ = _expr
    TABLE.agreeing.append((_ns["expression"], (), {}))


@case()
def closures():
    count = 0
    log = []

    def bump(by=1):
        nonlocal count
        count += by
        log.append(count)
        return count

    bump()
    bump(5)
    return count, log


@case()
def closure_late():
    fs = []
    for i in range(3):

        def f(j=i):
            return i, j

        fs.append(f)
    return [f() for f in fs]


@case()
def free_unbound():
    def f():
        return later

    try:
        f()
    except NameError as e:
        msg = str(e)
    later = 1
    return msg, f()


@case()
def cell_delete():
    x = 1

    def f():
        return x

    del x
    try:
        f()
    except NameError as e:
        return str(e)


@case()
def nested_closure():
    def outer(a):
        def middle(b):
            def inner(c):
                nonlocal a
                a += 1
                return a + b + c

            return inner

        return middle

    g = outer(1)(2)
    return g(3), g(3)


@case()
def decorators():
    def deco(n):
        def wrap(f):
            @functools.wraps(f)
            def inner(*a, **k):
                return [n, f(*a, **k)]

            return inner

        return wrap

    @deco(1)
    @deco(2)
    def f(x, *, y=3):
        "doc"
        return x + y

    return f(1), f(1, y=5), f.__name__, f.__doc__, f.__wrapped__.__name__


@case()
def function_attributes():
    def f(a: int, b: "str" = 2, *, c=3) -> None:
        """Doc."""

    f.extra = 1
    return (
        f.__name__, f.__qualname__, f.__doc__, f.__defaults__, f.__kwdefaults__, f.__annotations__, f.extra, f.__dict__,
        f.__code__.co_argcount, f.__module__,
    )  # fmt: skip


@case()
def mutable_default():
    def f(x, acc=[]):
        acc.append(x)
        return acc

    return f(1), f(2), f(3, [])


@case()
def lambdas():
    return list(map(lambda x, y=2: x**y, [1, 2, 3])), sorted([3, 1, 2], key=lambda v: -v), (lambda: (yield))() is None


@case()
def partials():
    f = functools.partial(signature, 1, d=2)
    g = functools.partial(f, 5, e=6)
    return f(), g(7, z=8), f.func is signature, f.args, f.keywords, functools.partial(two, b=1)(2)


@case()
def reduce_and_cache():
    calls = []

    @functools.lru_cache(maxsize=None)
    def slow(n):
        calls.append(n)
        return n * 2

    return (
        slow(1),
        slow(1),
        slow(2),
        calls,
        functools.reduce(lambda a, b: a * b, [1, 2, 3, 4]),
        functools.reduce(max, [3, 1], 9),
    )


@case()
def singledispatch():
    @functools.singledispatch
    def show(x):
        return "object"

    @show.register
    def _(x: int):
        return "int"

    @show.register(list)
    def _(x):
        return "list"

    return show(1), show([]), show("a"), show(True)


# ---- exceptions -----------------------------------------------------------------------------------------------------------


class Custom(Exception):
    def __init__(self, code, *rest):
        super().__init__(code, *rest)
        self.code = code

    def __str__(self):
        return f"Custom<{self.code}>"


@case(0)
@case(1)
@case(2)
@case(3)
def try_forms(which):
    log = []
    try:
        try:
            if which == 0:
                log.append("ok")
            elif which == 1:
                raise ValueError("v")
            elif which == 2:
                raise Custom(7)
            else:
                1 / 0
        except ValueError as e:
            log.append(("V", str(e)))
        except (Custom, TypeError) as e:
            log.append(("C", str(e), e.code, e.args))
        else:
            log.append("else")
        finally:
            log.append("finally")
    except ArithmeticError as e:
        log.append(type(e).__name__)
    return log


@case()
def finally_return():
    def f():
        try:
            return 1
        finally:
            return 2

    def g():
        for i in range(3):
            try:
                continue
            finally:
                if i == 1:
                    break
        return i

    def h():
        try:
            raise KeyError("x")
        finally:
            return "swallowed"

    return f(), g(), h()


@case()
def raise_chain():
    try:
        raise ValueError("a")
    except ValueError as e:
        raise KeyError("b") from e


@case()
def raise_context():
    try:
        raise ValueError("a")
    except ValueError:
        raise KeyError("b")


@case()
def raise_from_none():
    try:
        raise ValueError("a")
    except ValueError:
        raise KeyError("b") from None


@case()
def raise_native_context():
    try:
        {}["missing"]
    except KeyError:
        [].pop()


@case()
def raise_deep_context():
    def f():
        try:
            raise ValueError(1)
        except ValueError:
            g()

    def g():
        try:
            int("x")
        except ValueError:
            raise TypeError(2)

    try:
        raise LookupError(0)
    except LookupError:
        f()


@case()
def bare_raise():
    try:
        try:
            raise ValueError("x")
        except ValueError:
            raise
    except ValueError as e:
        return str(e), e.__context__


@case()
def bare_raise_nothing():
    raise


@case()
def raise_class():
    raise Custom


@case()
def raise_bad():
    raise 5


@case()
def raise_bad_cause():
    raise ValueError from 5


@case()
def except_bad_type():
    try:
        raise ValueError(1)
    except 5:
        pass


@case()
def exception_name_deleted():
    try:
        raise ValueError("x")
    except ValueError as e:
        pass
    return e


@case()
def nested_handlers():
    log = []
    for exc in (ValueError(1), KeyError(2), IndexError(3)):
        try:
            try:
                raise exc
            except ValueError:
                log.append("v")
                try:
                    raise TypeError("inner")
                except TypeError as t:
                    log.append(str(t.__context__))
            except LookupError as e:
                log.append(type(e).__name__)
                raise RuntimeError("again") from e
        except RuntimeError as e:
            log.append((str(e), repr(e.__cause__)))
    return log


@case()
def exception_attributes():
    try:
        try:
            open_nothing = {}
            open_nothing["a"]
        except KeyError as e:
            e.add_note("n1")
            raise OSError(2, "msg", "file") from e
    except OSError as e:
        return e.errno, e.strerror, e.filename, e.__cause__.__notes__, e.args, isinstance(e, FileNotFoundError)


@case()
def stop_iteration_value():
    def g():
        yield 1
        return 9

    it = g()
    next(it)
    try:
        next(it)
    except StopIteration as e:
        return e.value


@case()
def exception_groups():
    log = []
    try:
        raise ExceptionGroup("g", [ValueError(1), TypeError(2), ExceptionGroup("h", [ValueError(3), KeyError(4)])])
    except* ValueError as e:
        log.append(("V", [str(x) for x in e.exceptions]))
    except* TypeError as e:
        log.append(("T", e.message))
    except* KeyError as e:
        log.append(("K", len(e.exceptions)))
    else:
        log.append("else")
    finally:
        log.append("fin")
    return log


@case()
def exception_group_rest():
    try:
        raise ExceptionGroup("g", [ValueError(1), OSError(2)])
    except* ValueError:
        pass


@case()
def exception_group_raise_inside():
    try:
        raise ExceptionGroup("g", [ValueError(1), OSError(2)])
    except* ValueError:
        raise KeyError("k")


@case()
def exception_group_naked():
    try:
        raise ValueError(1)
    except* ValueError as e:
        return_value = (type(e).__name__, e.exceptions[0].args)
    return return_value


@case()
def exception_group_star_bad():
    try:
        raise ValueError(1)
    except* ExceptionGroup:
        pass


# ---- with ----------------------------------------------------------------------------------------------------------------------


class Manager:
    def __init__(self, log, name, swallow=False):
        self.log, self.name, self.swallow = log, name, swallow

    def __enter__(self):
        self.log.append(f"enter {self.name}")
        return self.name

    def __exit__(self, kind, value, tb):
        self.log.append((f"exit {self.name}", kind and kind.__name__, str(value), tb is None))
        return self.swallow


@case()
def with_forms():
    log = []
    with Manager(log, "a") as a, Manager(log, "b"):
        log.append(a)
    with Manager(log, "s", True):
        raise ValueError("x")
    with Manager(log, "p") as p, Manager(log, "q") as q:
        log.append(p + q)
    return log


@case()
def with_raise():
    log = []
    try:
        with Manager(log, "a"):
            with Manager(log, "b"):
                raise KeyError("k")
    except KeyError:
        log.append("caught")
    return log


@case()
def with_return():
    log = []

    def f():
        with Manager(log, "a"):
            for i in range(3):
                with Manager(log, i):
                    if i == 1:
                        return i

    return f(), log


@case()
def with_not_a_manager():
    with 5:
        pass


@case()
def with_half():
    class Half:
        def __enter__(self):
            return 1

    with Half():
        pass


@case()
def contextmanagers():
    log = []

    @contextlib.contextmanager
    def cm(x):
        log.append(("in", x))
        try:
            yield x * 2
        except ValueError as e:
            log.append(("swallowed", str(e)))
        finally:
            log.append(("out", x))

    with cm(1) as a:
        log.append(a)
    with cm(2) as b:
        raise ValueError("inside")
    with contextlib.suppress(KeyError):
        {}[1]
    with contextlib.ExitStack() as stack:
        stack.enter_context(cm(3))
        stack.callback(log.append, "cb")
        log.append("body")
    with contextlib.nullcontext(5) as five:
        log.append(five)

    @cm(9)
    def decorated():
        log.append("decorated")

    decorated()
    return log


@case()
def contextmanager_raises():
    @contextlib.contextmanager
    def cm():
        try:
            yield
        except ValueError as e:
            raise TypeError("new") from e

    with cm():
        raise ValueError("old")


@case()
def closing():
    log = []

    class Thing:
        def close(self):
            log.append("closed")

    with contextlib.closing(Thing()) as t:
        log.append(type(t).__name__)
    return log


# ---- generators ------------------------------------------------------------------------------------------------------------------


@case()
def generator_basics():
    def count(n):
        i = 0
        while i < n:
            got = yield i
            if got:
                i = got
            else:
                i += 1
        return "end"

    g = count(5)
    out = [next(g), g.send(3), next(g)]
    out.append(list(g))
    return out, list(count(3)), sum(count(4)), tuple(count(2)), [*count(2)], max(count(5)), dict(zip(count(2), "ab"))


@case()
def yield_from():
    def inner():
        x = yield 1
        y = yield x
        return y

    def outer():
        r = yield from inner()
        yield ("r", r)
        yield from [10, 20]
        z = yield from (i for i in range(2))
        yield z

    g = outer()
    return [next(g), g.send("x"), g.send("y"), next(g), next(g), next(g), next(g), next(g)], list(g)


@case()
def generator_throw():
    log = []

    def g():
        try:
            yield 1
        except ValueError as e:
            log.append(str(e))
            yield "recovered"
        finally:
            log.append("finally")

    it = g()
    next(it)
    log.append(it.throw(ValueError("boo")))
    try:
        next(it)
    except StopIteration:
        log.append("stop")
    return log


@case()
def generator_throw_through():
    log = []

    def inner():
        try:
            yield 1
        except KeyError as e:
            log.append(("inner", str(e)))
            yield 2
            return "rv"

    def outer():
        try:
            r = yield from inner()
            log.append(r)
            yield 3
        except ValueError as e:
            log.append(("outer", str(e)))
            yield 4

    it = outer()
    log.append(next(it))
    log.append(it.throw(KeyError("k")))
    log.append(next(it))
    log.append(it.throw(ValueError, ValueError("v")))
    return log, list(it)


@case()
def generator_throw_delegate_returns():
    def inner():
        try:
            yield 1
        except KeyError:
            return "returned"

    def outer():
        r = yield from inner()
        yield r

    it = outer()
    next(it)
    return it.throw(KeyError), list(it)


@case()
def generator_close():
    log = []

    def g():
        try:
            yield 1
            yield 2
        except GeneratorExit:
            log.append("exit")
            raise
        finally:
            log.append("fin")

    it = g()
    next(it)
    it.close()
    it.close()
    unstarted = g()
    unstarted.close()
    return log, list(it), list(unstarted)


@breaks("generator held by a traceback")
def generator_close_ignored():
    def g():
        try:
            yield 1
        except GeneratorExit:
            yield 2

    it = g()
    next(it)
    it.close()


@case()
def generator_stop_iteration_inside():
    def g():
        yield 1
        raise StopIteration("x")

    return list(g())


@case()
def generator_errors():
    def g():
        yield 1

    it = g()
    try:
        it.send(5)
    except TypeError as e:
        msg = str(e)
    next(it)
    try:
        next(it)
    except StopIteration as e:
        value = e.value
    return msg, value, next(it, "default")


@case()
def generator_reentrant():
    def g():
        yield next(it)

    it = g()
    next(it)


@case()
def generator_exception_context():
    def g():
        try:
            yield 1
        except ValueError:
            raise TypeError("t")

    it = g()
    next(it)
    try:
        raise KeyError("outer")
    except KeyError:
        it.throw(ValueError("v"))


@case()
def generator_exc_state():
    import sys

    def g():
        try:
            raise ValueError("in gen")
        except ValueError:
            yield str(sys.exc_info()[1])
            yield str(sys.exc_info()[1])

    it = g()
    out = [next(it), str(sys.exc_info()[1])]
    try:
        raise KeyError("outside")
    except KeyError:
        out.append(next(it))
        out.append(str(sys.exc_info()[1]))
    return out


@case()
def generator_expressions():
    n = 3
    g = (i * n for i in range(4) if i)
    n = 10
    return list(g), any(i > 2 for i in range(5)), all(i for i in [1, 0, 1]), sorted((x for x in "cab"), reverse=True)


@case()
def generator_lazy_any():
    seen = []

    def g():
        for i in range(5):
            seen.append(i)
            yield i

    return any(i > 1 for i in g()), seen, next(i for i in g() if i > 0), seen


@case()
def generator_in_natives():
    def g():
        yield from [3, 1, 2]

    return (
        sorted(g()),
        list(enumerate(g(), 5)),
        list(map(str, g())),
        list(filter(lambda v: v > 1, g())),
        set(g()),
        "".join(str(i) for i in g()),
        dict((i, i) for i in g()),
        2 in g(),
        list(zip(g(), g())),
        min(g()),
        list(reversed(list(g()))),
    )


@case()
def generator_raises_in_native():
    def g():
        yield 1
        raise KeyError("from generator")

    try:
        list(g())
    except KeyError as e:
        first = str(e)
    return first, sum(g())


@case()
def generator_attributes():
    def named():
        yield 1

    g = named()
    import types

    return g.__name__, g.__qualname__, isinstance(g, types.GeneratorType), type(g).__name__, iter(g) is g, g.gi_running


@case()
def generator_with_finally_break():
    log = []

    def g():
        try:
            yield 1
            yield 2
        finally:
            log.append("closed")

    it = g()
    for v in it:
        break
    it.close()
    return log


@case()
def infinite_generator():
    def naturals():
        n = 0
        while True:
            yield n
            n += 1

    import itertools

    return list(itertools.islice(naturals(), 4)), list(zip(naturals(), "abc"))


# ---- match ---------------------------------------------------------------------------------------------------------------------------


class Point:
    __match_args__ = ("x", "y")

    def __init__(self, x, y):
        self.x, self.y = x, y


@case(1)
@case("two")
@case([1, 2, 3])
@case([1])
@case((1, 2))
@case({"a": 1, "b": 2})
@case({"a": {"n": [5]}})
@case(None)
@case(3.5)
@case(True)
@case(-7)
@case("abc")
@case([])
@case({})
def match_everything(v):
    match v:
        case True | False:
            return "bool"
        case 1 | -7:
            return "one"
        case int(n) if n > 5:
            return ("big", n)
        case str() as s if len(s) == 3:
            return ("s", s)
        case "two":
            return 2
        case []:
            return "empty"
        case [x]:
            return ("single", x)
        case [x, y]:
            return ("pair", x, y)
        case [first, *rest]:
            return ("list", first, rest)
        case {"a": {"n": [inner]}}:
            return ("deep", inner)
        case {"a": a, **others}:
            return ("map", a, others)
        case None:
            return "none"
        case float(f):
            return f
        case _:
            return "other"


@case()
def match_classes():
    out = []
    for v in (Point(0, 0), Point(0, 5), Point(3, 4), Point(1, 1), 5):
        match v:
            case Point(0, 0):
                out.append("origin")
            case Point(x=0, y=y):
                out.append(("y", y))
            case Point(x, y) if x == y:
                out.append(("diag", x))
            case Point(x, y):
                out.append((x, y))
            case _:
                out.append("?")
    return out


@case()
def match_too_many():
    match Point(1, 2):
        case Point(1, 2, 3):
            return 1


@case()
def match_keys_duplicate_attr():
    match Point(1, 2):
        case Point(1, x=2):
            return 1
