"""Small functions, one feature each: control flow, functions, closures."""
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
