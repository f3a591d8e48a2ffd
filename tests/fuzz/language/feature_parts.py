"""What `language.py` makes programs of: a module of classes and functions, and statements that use them."""

PRELUDE = """
import abc, bisect, collections, contextlib, copy, dataclasses, enum, functools, heapq, itertools, math, operator, types, typing, weakref
import torch

RATE, TABLE, LOG = 2, {"a": 1, "b": 2}, []

@dataclasses.dataclass(frozen=True)
class Frozen:
    a: int
    t: object = dataclasses.field(compare=False, repr=False)
    tags: tuple = ()
    def __post_init__(self): object.__setattr__(self, "tags", (*self.tags, self.a))

@dataclasses.dataclass(slots=True, order=True)
class Slotted:
    a: int
    b: float = 0.5
    items: list = dataclasses.field(default_factory=list, compare=False)

@dataclasses.dataclass(kw_only=True, unsafe_hash=True)
class Keywords:
    a: int
    b: int = 3
    extra: dataclasses.InitVar[int] = 0
    def __post_init__(self, extra): self.b += extra

class Color(enum.Enum):
    RED, GREEN, BLUE = 1, 2, 3
    CRIMSON = 1
    @property
    def next(self): return Color(self.value % 3 + 1)
    @classmethod
    def _missing_(cls, value): return cls.BLUE if value == "blue" else None

class Access(enum.Flag):
    R, W, X = 4, 2, 1
    RW = R | W

class Level(enum.IntEnum):
    LOW, HIGH = 1, 10

class Names(enum.StrEnum):
    FIRST = enum.auto(); SECOND = enum.auto()

class Pair(typing.NamedTuple):
    left: object
    right: int = 4
    def total(self): return self.left + self.right

class Typed:
    def __set_name__(self, owner, name): self.name = "_" + name
    def __get__(self, obj, owner=None):
        if obj is None: return self
        LOG.append(("get", self.name)); return getattr(obj, self.name, 0)
    def __set__(self, obj, value):
        if isinstance(value, str): raise TypeError(f"{self.name} is no text")
        LOG.append(("set", self.name)); setattr(obj, self.name, value)
    def __delete__(self, obj): LOG.append(("del", self.name)); delattr(obj, self.name)

class Lazy:
    def __init__(self, fn): self.fn, self.name = fn, fn.__name__
    def __get__(self, obj, owner):
        value = obj.__dict__[self.name] = self.fn(obj); LOG.append(("lazy", self.name)); return value

class Meta(type):
    def __call__(cls, *args, **kw):
        LOG.append(("make", cls.__name__)); return super().__call__(*args, **kw)
    def __getitem__(cls, key): return (cls.__name__, key)
    def __contains__(cls, key): return key in cls.known
    def __len__(cls): return len(cls.known)
    def __instancecheck__(cls, obj): return super().__instancecheck__(obj) or obj == 7

class Described(metaclass=Meta):
    known = ("p", "q")
    p, q = Typed(), Typed()
    def __init__(self, p, q): self.p, self.q = p, q
    @Lazy
    def slow(self): return self.p * 3
    def __getattr__(self, name):
        if name.startswith("auto_"): return len(name)
        raise AttributeError(f"no {name} here")

class Registered:
    members = {}
    def __init_subclass__(cls, /, key=None, **kw):
        super().__init_subclass__(**kw); Registered.members[key or cls.__name__] = cls
    def __class_getitem__(cls, item): return f"{cls.__name__}[{item}]"
class FirstKind(Registered, key="first"):
    def go(self, x): return x + 1
class SecondKind(Registered):
    def go(self, x): return x - 1

class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self): ...
    @property
    @abc.abstractmethod
    def name(self): ...
class Square(Shape):
    def __init__(self, n): self.n = n
    def area(self): return self.n ** 2
    name = "square"

class Base:
    def who(self): return ["Base"]
class Left(Base):
    def who(self): return ["Left", *super().who()]
class Right(Base):
    def who(self): return ["Right", *super().who()]
class Both(Left, Right):
    def who(self): return ["Both", *super().who()]

@functools.total_ordering
class Version:
    def __init__(self, n): self.n = n
    def __eq__(self, other): return isinstance(other, Version) and self.n == other.n
    def __lt__(self, other):
        if not isinstance(other, Version): return NotImplemented
        return self.n < other.n
    def __hash__(self): return hash(self.n)
    def __repr__(self): return f"v{self.n}"

class Cell:
    def __init__(self, v): self.v, self.reads = v, 0
    @functools.cached_property
    def half(self): self.reads += 1; return self.v / 2
    def scale(self, by, *, plus=0): return self.v * by + plus
    double = functools.partialmethod(scale, 2)
    triple = functools.partialmethod(scale, 3, plus=1)
    @functools.singledispatchmethod
    def show(self, arg): return ("other", type(arg).__name__)
    @show.register
    def _(self, arg: int): return ("int", arg + 1)
    @show.register(list)
    def _(self, arg): return ("list", len(arg))
    @staticmethod
    def stat(a, /, b, *, c=1): return a + b + c
    @classmethod
    def make(cls, v): return cls(v)
    @property
    def value(self): return self.v
    @value.setter
    def value(self, v):
        if v is None: raise ValueError("no value")
        self.v = v
    @value.deleter
    def value(self): self.v = 0
    def __copy__(self): LOG.append("copied"); return Cell(self.v)
    def __deepcopy__(self, memo): LOG.append("deep"); other = Cell(copy.deepcopy(self.v, memo)); memo[id(self)] = other; return other

class Num:
    def __init__(self, v): self.v = v
    def __add__(self, o): LOG.append("add"); return Num(self.v + getattr(o, "v", o))
    def __radd__(self, o): LOG.append("radd"); return Num(o + self.v)
    def __iadd__(self, o): LOG.append("iadd"); self.v = self.v + getattr(o, "v", o); return self
    def __matmul__(self, o): return ("matmul", o)
    def __rsub__(self, o): return NotImplemented
    def __bool__(self): LOG.append("bool"); return self.v > 2
    def __index__(self): return int(self.v)
    def __len__(self): return max(int(self.v), 0)
    def __getitem__(self, k): return k
    def __contains__(self, k): return k == self.v
    def __call__(self, *a, **k): return (a, sorted(k))
    def __iter__(self): yield self.v; yield -self.v
    def __reversed__(self): return iter("ba")
    def __format__(self, spec): return f"<{self.v}|{spec}>"
    def __round__(self, k=None): return ("round", k)
    def __divmod__(self, o): return (self.v, o)
    def __missing__(self, k): return k
    def __lt__(self, o): LOG.append("lt"); return self.v < getattr(o, "v", o)

@functools.singledispatch
def show(arg, *rest): return ("object", *rest)
@show.register(int)
def _(arg, *rest): return ("int", arg)
@show.register
def _(arg: torch.Tensor, *rest): return ("tensor", arg.shape[0])
@show.register(list)
@show.register(tuple)
def _(arg, *rest): return ("sequence", len(arg))

@functools.lru_cache(maxsize=2)
def cached(k): LOG.append(("computed", k)); return k * k

@contextlib.contextmanager
def managed(name):
    LOG.append(("in", name))
    try: yield name
    except (KeyError, ZeroDivisionError) as error: LOG.append(("seen", repr(error)))
    finally: LOG.append(("out", name))

class Deco(contextlib.ContextDecorator):
    def __enter__(self): LOG.append("deco in"); return self
    def __exit__(self, *error): LOG.append(("deco out", error[0] and error[0].__name__)); return False
@Deco()
def decorated(k): return 10 // k

def signature(a, b=2, /, c=3, *args, d, e=5, **kw): return (a, b, c, args, d, e, sorted(kw.items()))
def defaults(k, seen=[]): seen.append(k); return list(seen[-3:])

def gen(n):
    try:
        total = 0
        for i in range(n):
            got = yield (i, total)
            total += got or 0
        return total
    except KeyError as error:
        LOG.append(("gen saw", repr(error))); yield "after"
    finally: LOG.append("gen closed")
def relay(n):
    r = yield from gen(n)
    yield ("relayed", r)
    yield from [1, 2]
    return r

class Wait:
    def __init__(self, v): self.v = v
    def __await__(self): got = yield self.v; return got
async def co(v):
    a = await Wait(v)
    return a * 2
async def agen(n):
    for i in range(n):
        yield i + (await Wait(i))
async def collect(n):
    return [v async for v in agen(n) if v != 3]
class Async:
    async def __aenter__(self): LOG.append("aenter"); return await Wait(1)
    async def __aexit__(self, kind, error, tb): LOG.append(("aexit", kind and kind.__name__)); return kind is KeyError
async def with_async(k):
    async with Async() as got:
        if k % 2: raise KeyError("inside")
        return got
    return "swallowed"
def drive(c):
    sent = None
    try:
        while True: sent = c.send(sent)
    except StopIteration as stop: return stop.value

def counter(start):
    count = start
    def bump(by=1):
        nonlocal count
        count += by
        return count
    def read(): return count
    return bump, read
BUMP, READ = counter(0)
SHARED = Cell(3)
COUNTS = collections.Counter()
ORDERED = collections.OrderedDict(a=1, b=2, c=3)
RECENT = collections.deque(maxlen=3)
CHAIN = collections.ChainMap({"x": 1}, {"x": 2, "y": 3})
GROUPS = collections.defaultdict(list)
SPACE = types.SimpleNamespace(k=1)
HEAP = [5, 7, 9]
T = typing.TypeVar("T")
class Generic(typing.Generic[T]):
    def __init__(self, v: T): self.v = v
class Proto(typing.Protocol):
    def area(self): ...
RuntimeProto = typing.runtime_checkable(Proto)
class Options(typing.TypedDict, total=False):
    k: int
"""

PRELUDE_312 = """
type Alias[V] = list[V]
class Boxed[V]:
    def __init__(self, v: V): self.v = v
    def get(self) -> V: return self.v
def first[V](items: list[V]) -> V: return items[0]
"""

PARTS = r"""
f = Frozen(K, x); r = (f == Frozen(K, -x), hash(f) == hash(Frozen(K, x)), f.tags, repr(f), (x * f.a))
f = Frozen(K, x); f.a = 3
f = dataclasses.replace(Frozen(K, x), tags=("z",)); r = (f.tags, f.t.sum())
s = Slotted(K); s.b = x.sum().item() > 0; s.items.append(x); r = (s.a, s.b, len(s.items), s < Slotted(3))
s = Slotted(K); s.other = 1
r = sorted([Slotted(K), Slotted(3, 0.1), Slotted(3)]); r = [(q.a, q.b) for q in r]
k = Keywords(a=K, extra=2); r = (k, dataclasses.asdict(k), dataclasses.astuple(k), hash(k) == hash(Keywords(a=K, b=5)))
k = Keywords(K)
r = [(q.name, q.type, q.default is dataclasses.MISSING) for q in dataclasses.fields(Slotted)]
r = (Color(K), Color(K).next.name, Color["RED"] is Color.CRIMSON, list(Color), len(Color), Color.RED in Color)
r = Color("blue"); r = (r, Color(K % 3 + 1))
r = Color["NONE"]
r = (Access.R | Access.X, Access.RW & ~Access.W, Access(K % 8), bool(Access(0)), Access.R in Access.RW, list(Access.RW))
r = (Level.LOW + K, Level(10), Level.HIGH > K, x * Level.HIGH, f"{Level.LOW}", max(Level))
r = (Names.FIRST + "!", Names("second"), Names.FIRST == "first", {Names.FIRST: K}["first"])
r = {Color.RED: x, Color.BLUE: K}; r = (r[Color.CRIMSON], r.get(Color.GREEN, "none"), Color.RED.__class__.__name__)
p = Pair(x, K); r = (p.total(), p._asdict()["right"], p._replace(right=9), p[1], len(p), p == (x, K), Pair._fields)
left, right = Pair(K); r = (left, right, Pair._field_defaults, isinstance(Pair(1), tuple))
r = Pair._make([x, K, 3])
d = Described(K, x); r = (d.p, d.slow, d.slow, d.auto_abc, Described["k"], "p" in Described, len(Described))
d = Described(K, 2); del d.p; r = (d.p, "_q" in vars(d), sorted(vars(d)))
d = Described(K, "text")
d = Described(K, 1); r = d.missing
r = (isinstance(K, Described), isinstance(7, Described), isinstance("a", Described), type(Described).__name__, Described.p.name)
r = [type(v)().go(x) for v in (FirstKind(), SecondKind())]; r = (r, sorted(Registered.members), Registered["int"])
class New(Registered, key=f"k{K}"): attr = K; r = (sorted(Registered.members), New.attr); Registered.members.pop(f"k{K}")
r = Shape()
r = (Square(K).area(), Square(K).name, isinstance(Square(1), RuntimeProto), issubclass(Square, Shape), isinstance(x, RuntimeProto))
r = (Both().who(), [c.__name__ for c in Both.__mro__], super(Left, Both()).who())
r = (Version(K) >= Version(3), Version(K) <= Version(2), max(Version(1), Version(K)), sorted([Version(5), Version(K), Version(0)]), {Version(1): K}[Version(1)])
r = Version(K) < 3
c = Cell(K); r = (c.half, c.half, c.reads, c.double(), c.triple(plus=4), "half" in vars(c))
c = Cell(x); r = (c.double(plus=K), c.show(K), c.show([1]), c.show(x), c.show("s"), c.show(True))
r = (Cell.stat(K, 2), Cell.stat(K, b=3, c=4), type(Cell.make(K)).__name__, Cell.make(x).half)
r = Cell.stat(a=K, b=2)
c = Cell(K); c.value = x; r = (c.value,); del c.value; r = (*r, c.v)
c = Cell(K); c.value = None
c = Cell([K, x]); o = copy.copy(c); q = copy.deepcopy(c); r = (o.v is c.v, q.v is c.v, q.v, o.reads)
a = [K, [x, {"k": 1}]]; b = copy.deepcopy(a); b[1][1]["k"] = 5; a[1][0] is b[1][0]; r = (a, b, copy.copy(a)[1] is a[1])
a = [K]; a.append(a); b = copy.deepcopy(a); r = (b[1] is b, b[0], len(b))
SHARED.v = SHARED.v + 1; r = (SHARED.half, SHARED.reads, SHARED.v)
r = (SHARED.show(K), vars(SHARED).get("half"), SHARED.double())
n1, n2 = Num(K), Num(3); n1 += n2; r = ((n1 + n2).v, (2 + n1).v, n1 @ 4, list(n1), len(n1), 3 in n1, [10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110, 120][n2])
r = 5 - Num(K)
r = (bool(Num(K)), not Num(1), Num(K) or "empty", Num(K) and "full", Num(1) < Num(K) < Num(3), list(reversed(Num(K))))
r = (f"{Num(K):>4}", f"{Num(K)!s:.4}", round(Num(K)), round(Num(K), 2), divmod(Num(K), 3), Num(1)(K, a=1, b=x), Num(2)[1:K, ..., None])
r = (sorted([Num(K), Num(2), Num(5)], key=lambda q: -q.v)[0].v, max([Num(K), Num(2)]).v, min(Num(4), Num(K)).v)
r = [show(v, K)[:2] for v in (K, x, [1, 2], (1,), "s", True, None)]
r = (cached(K), cached(2), cached(K), cached.cache_info().maxsize)
with managed("m") as got: r = {}[K]
with managed("m"), managed("n"): r = 3 // (K - 3)
with contextlib.ExitStack() as stack: names = [stack.enter_context(managed(q)) for q in "ab"]; stack.callback(LOG.append, "cb"); stack.push(lambda *e: LOG.append(e[0] and e[0].__name__)); r = 1 // (K % 2)
with contextlib.ExitStack() as stack: stack.enter_context(managed("late")); kept = stack.pop_all(); LOG.append("kept"); kept.close(); r = K
with contextlib.suppress(KeyError, IndexError) as nothing: r = "set"; r = [1, 2][K]
with contextlib.nullcontext(K) as r: LOG.append(r)
with contextlib.closing(gen(3)) as g: r = next(g)
with contextlib.redirect_stdout(__import__("io").StringIO()) as out: print("hi", K); r = out.getvalue()
r = decorated(K)
cm = managed("hand"); got = cm.__enter__(); LOG.append(("by hand", got)); r = x + K; cm.__exit__(None, None, None)
cm = Deco(); cm.__enter__(); r = x * 2; cm.__exit__(None, None, None); r = r + K
cm = torch.no_grad(); cm.__enter__(); r = (x + K, torch.is_grad_enabled()); cm.__exit__(None, None, None); r = (*r, torch.is_grad_enabled())
r = (signature(K, d=1), signature(1, 2, 3, 4, K, d=x, z=1, y=2), signature(*[1, K], **{"d": 4, "a": 1}))
r = signature(K)
r = signature(1, c=2, d=3, b=K)
r = signature(1, 2, 3, *range(K % 4), d=0, **dict(zip("uv", (K, 1))))
r = (lambda: signature(1, d=1, **{"d": K}))()
r = defaults(K); r = (r, defaults(K, []))
def inner(a, /, *, key=K): return (a, key)
def inner(v=x.shape[0], *, w=[K]): w.append(v); return list(w)
r = [q for q in gen(K % 4)]
g = gen(4); r = [next(g), g.send(K), g.send(2)]; r.append(g.throw(KeyError("in"))); g.close()
g = relay(K % 3); r = list(g); r.append(next(g, "end"))
g = gen(2); next(g); r = g.throw(ValueError, ValueError("out"))
g = relay(3); r = [next(g), g.send(5)]; g.close(); r.append(next(g, None))
def whole(): q = yield from gen(2); LOG.append(q); return q + K
def squares(): yield from (w * w for w in range(K % 4)); return K
g = (v + K for v in range(3)); r = (next(g), g.gi_frame is not None, list(g), g.gi_frame)
r = drive(co(K)), drive(collect(K % 5)), drive(with_async(K))
c = co(K); r = (c.send(None), c.close())
r = [y for v in range(4) if (y := v * K) > 2]; r = (r, y)
r = ([last := v for v in range(K % 3 + 1)], last, {w: w2 for w in "ab" if (w2 := w + str(K))})
r = (any((hit := v) > 2 for v in (1, K, 5)), hit)
r = (BUMP(), BUMP(K), READ()); BUMP(-K)
bump, read = counter(K); bump(); r = (bump(x.shape[0]), read())
fns = [lambda: v for v in range(3)]; r = [q() for q in fns]; fns = [lambda v=v: v + K for v in range(3)]; r += [q() for q in fns]
global RATE; RATE = RATE + 1; r = (RATE, x * RATE); RATE = 2
global TABLE; TABLE = {**TABLE, "k": K}; r = (TABLE | {"a": 9}, sorted(TABLE)); TABLE = {"a": 1, "b": 2}
a, *b, c = range(K + 2); r = (a, b, c)
a, b = range(K)
(a, (b, *c)), *d = [(1, "xyz"), K, x]; r = (a, b, c, d)
r = [*range(K % 3), *"ab", *{1: 2}, *(x,)]; r = (r, {**{"a": 1}, "a": K}, {*"a", K})
*_, r = (1, 2, x)
a = b = [K]; a += [1]; b *= 2; r = (a, b, a is b)
r = (1 < K < 5, 0 <= K != 3 < 4, K == K is not None, 1 < x.shape[0] <= K, "a" in "abc" != K)
r = (f"{K:>5}|{K!r:^7}|{K:#06x}|{K=}", f"{x.shape} {x.dtype} {tuple(x.shape)!r:>12}", "%s %5.2f %r" % (K, K / 3, "q"), "{0[0]} {k:{w}}".format([K], k=1, w=4))
r = f"{x.ndim:03d}/{x.numel():,}/{x.stride()}/{x.size(0):b}/{x.device}/{x.requires_grad}"
r = ("%d" % "a")
r = "{a.k} {b[q]}".format(a=SPACE, b={"q": K}); r = (r, "{:{}}".format(K, ">4"), "{!r}".format("x"))
v = list(range(10)); r = (v[K::2], v[::-K] if K else 0, v[-2:K:-1], v[slice(None, K)], "abcdef"[::-1][K:]); v[1:K] = "xy"; del v[::3]; r = (*r, v)
v = list(range(6)); v[::2] = [K] * 3; r = (v, slice(1, K, 2).indices(5), slice(K) == slice(None, K, None))
v = list(range(6)); v[::2] = [K]
r = (x[::2].shape, x[-1:].shape, x[..., None].shape, x[K:].shape, x[:-1] + x[1:])
b = 2 ** (60 + K); r = (b, b * b, -b // 7, -b % 7, b >> 3, ~b, b.bit_length(), int(str(b)), hash(b) == hash(float(b)), b & (b - 1))
r = (-7 // K, -7 % K, divmod(-7, K), pow(3, K, 5), pow(2, -1, 5), (-K).__floordiv__(2), round(K + 0.5), round(-2.5), round(1234, -2))
r = (int("0x1f", 16), int(f"-{K}"), float(f"{K}e2"), complex(K, -0.0), (1e308 * 10), -0.0 == 0.0, math.copysign(1, -0.0))
r = int("x1")
nan = float("nan"); r = ([nan] == [nan], nan in [nan], nan == nan, [nan].index(nan), {nan: K}.get(nan), {nan: 1}.get(float("nan")), (nan,) < (nan,), max(nan, K), min(K, nan), sorted([3, nan, 1]))
z = -0.0; r = ({0.0: "a"}[z], str(z * K), [z] == [0.0], repr(min(z, 0.0)), repr(max(0.0, z)), math.atan2(z, -1.0), z + 0.0, repr(-z), repr(sum([z, z])), repr(z * x.shape[0]))
r = (math.fsum([0.1] * 10), math.isclose(K, K + 1e-10), math.gcd(K, 12), math.prod([1, K]), math.inf - K, -math.inf < K, math.floor(-0.5), math.trunc(-K / 2), math.fmod(-7, 3), math.hypot(3, K))
r = math.sqrt(K - 4)
r = (0.1 + 0.2, (K / 10).hex(), float.fromhex("0x1p-2"), (K / 4).as_integer_ratio(), (2.0).is_integer(), 1e16 + K, K / 3)
d = {"a": K, "b": 2}; r = (d.keys() & {"a"}, d.keys() | {"z"}, sorted(d.items() - {("b", 2)}), "a" in d.keys(), (("a", K) in d.items()), list(reversed(d)), d | {"c": x})
d = {"a": 1}; d |= [("b", K)]; d.setdefault("c", []).append(x); r = (d, d.pop("a"), d.pop("zz", None), list(d), d.popitem()[0])
d = {1: 2}; r = d.pop(K + 9)
d = {v: v for v in range(3)}; r = [d.pop(v) for v in d]
d = dict.fromkeys("ab", []); d["a"].append(K); r = (d, d["a"] is d["b"], dict(d, c=1), {True: 1, 1: K, 1.0: 3})
d = {"k": 1, x: 2}; r = (d[x], x in d, len(d))
b = bytes([K, 255, 65]); r = (b, b[1], b[::-1], b.hex(), b + b"q", bytearray(b).pop(), b.find(b"A"), b"%d|%s" % (K, b"z"), int.from_bytes(b, "big"), K.to_bytes(2, "little"), list(memoryview(b)[1:]))
b = bytearray(b"abc"); b[1:2] = b"XY"; b += bytes(K % 3); b.append(300)
o = ORDERED; o.move_to_end("a"); r = (list(o), o == {"a": 1, "b": 2, "c": 3}, next(reversed(o))); o.move_to_end("a", last=False); o.move_to_end("c")
o = collections.OrderedDict([("a", K), ("b", x)]); o.move_to_end("b", last=False); r = (o.popitem(last=False)[0], list(o.items()), o == collections.OrderedDict(a=K))
g = GROUPS; g[K].append(len(g)); g["n"]; r = (sorted(map(str, g)), len(g[K])); g.clear()
d = collections.defaultdict(lambda: K); d["a"] += 2; r = (d["b"], dict(d), d.get("zz"), "q" in d, repr(type(d.default_factory)))
c = collections.Counter("abca"); c.update([K, K]); c.subtract("a"); r = (c.most_common(2), c["none"], sorted(map(str, c.elements())), c + c, c & collections.Counter("ab"), +c, c.total())
COUNTS[K] += 1; r = (COUNTS.total(), COUNTS.most_common(1)); COUNTS.clear()
m = CHAIN.new_child({"z": K}); m["x"] = x; r = (m["y"], sorted(m), len(m), m.parents["x"], [sorted(q) for q in m.maps])
RECENT.append(K); RECENT.extend([1, 2]); r = (list(RECENT), RECENT.maxlen); RECENT.rotate(1); RECENT.appendleft(x.shape[0]); r = (*r, list(RECENT)); RECENT.clear()
q = collections.deque([1, x, K], 3); q.append(4); q.rotate(-1); r = (list(q), q.pop(), q.index(4), q.count(K)); q.extendleft("ab"); r = (*r, q)
q = collections.deque(range(3)); r = [q.append(v) for v in q]
r = (list(itertools.chain([1], "a", [x])), list(itertools.accumulate([1, K, 3], initial=2)), list(itertools.islice(itertools.count(K, 2), 3)), list(itertools.combinations(range(K % 4), 2)), list(itertools.permutations("ab")))
r = (list(itertools.product([0, K], "a", repeat=1)), list(itertools.zip_longest([1], [x, K], fillvalue=None)), list(itertools.starmap(operator.add, [(1, K)])), list(itertools.takewhile(lambda v: v < K, range(9))), list(itertools.dropwhile(lambda v: v < K, range(5))))
r = ([(k, list(v)) for k, v in itertools.groupby([1, 1, K, 3], lambda v: v > 2)], list(itertools.pairwise([1, K, x.shape[0]])), list(itertools.compress("abc", [1, K % 2, 1])), list(itertools.filterfalse(None, [0, K])), list(itertools.repeat(K, 2)), next(itertools.cycle([x])))
a, b = itertools.tee(iter([1, K, 3])); next(a); r = (list(a), list(b), list(itertools.combinations_with_replacement([K, 1], 2)))
it = iter([1, 2, K, 4]); r = (list(zip(it, it)), list(iter(lambda c=[0]: c.append(len(c)) or c[-1], abs(K) + 1)), next(it, "end"))
r = list(zip([1, 2], range(K), strict=True))
r = (list(map(lambda a, b: a * b, [1, 2], [x, K])), list(filter(None, [0, K, "", "a"])), sum([[1], [K]], []), sum((x, x), K), list(enumerate("ab", K)), all([K, 1]), any(v > 4 for v in (K, 1)))
r = (operator.itemgetter(1, 0)([K, x]), operator.attrgetter("k")(SPACE), operator.methodcaller("bit_length")(K), operator.countOf([1, K], 1), operator.indexOf([K], K), operator.concat([1], [K]), operator.truth(K), operator.index(K), operator.length_hint([1]), operator.matmul(Num(1), 2))
r = (operator.iadd([K], [1]), operator.ifloordiv(K, 2), operator.setitem([1], 0, 2), operator.contains([K], 3), operator.is_(K, None), operator.xor(K, 5), operator.lshift(1, K), operator.pow(2, K), operator.mod("%s", K), operator.inv(K), operator.not_(x.shape), operator.neg(x))
heapq.heappush(HEAP, K); r = (list(HEAP), heapq.heappop(HEAP)); HEAP[:] = [5, 7, 9]; r = (*r, heapq.nlargest(2, [1, K, 3]), heapq.nsmallest(1, [Num(3), Num(K)], key=lambda q: q.v)[0].v, list(heapq.merge([1, 4], [K])))
h = [3, K, 1]; heapq.heapify(h); r = (h, heapq.heappushpop(h, 2), heapq.heapreplace(h, K)); v = [1, 3, 5]; bisect.insort(v, K); r = (*r, v, bisect.bisect_left(v, 3), bisect.bisect(v, K, key=lambda q: q))
w = weakref.ref(SHARED); r = (w() is SHARED, w == weakref.ref(SHARED), weakref.getweakrefcount(SHARED) > 0)
c = Cell(K); w = weakref.ref(c); r = (w() is c, w().v); del c; r = (*r, w())
c = Cell(K); d = weakref.WeakKeyDictionary(); d[c] = K; r = (len(d), d[c]); del c; r = (*r, len(d))
c = Cell(K); weakref.finalize(c, LOG.append, ("gone", K)); r = c.v; del c; LOG.append("after")
d = weakref.WeakValueDictionary(); d["s"] = SHARED; r = (d["s"] is SHARED, list(d), d.get("z"))
r = (typing.Optional[int], list[int] == list[int], typing.get_origin(dict[str, int]), typing.get_args(dict[str, int]), Generic[int](K).v, typing.cast(int, K), isinstance(K, int | str), Options(k=K), typing.get_type_hints(Pair))
r = isinstance(K, list[int])
raise ExceptionGroup("many", [KeyError(K), ValueError("v"), ExceptionGroup("in", [TypeError(str(x.shape[0]))])])
e = ExceptionGroup("g", [KeyError(K), ValueError(1)]); m, rest = e.split(KeyError); r = (m, rest, e.subgroup(TypeError), e.derive([OSError(2)]), e.message)
e = ValueError("a", K); e.add_note(f"n{K}"); r = (e.args, e.__notes__, str(e), repr(e)); raise e from KeyError("cause")
raise KeyError("plain") from None
raise StopIteration(K)
raise (ValueError, TypeError)[K % 2]
r = next(iter([]))
r = [v for v in range(3)][K]; r = (r, undefined_name)
del q9
r = x.no_such_attribute
r = SPACE.nothing
SPACE.k = SPACE.k + K; r = (SPACE, SPACE.k); SPACE.k = 1
SPACE.t = x; r = vars(SPACE)["t"] is x; del SPACE.t; r = (r, hasattr(SPACE, "t"), getattr(SPACE, "t", "none"))
r = (setattr(SPACE, f"v{K}", 1), sorted(vars(SPACE)), delattr(SPACE, f"v{K}"))
assert K > 3, f"K is {K}"
r = types.MappingProxyType({"a": K}); r = (r["a"], r | {"b": 1}, len(r)); types.MappingProxyType({})["a"] = 1
r = (type(K).__name__, type("Dyn", (Base,), {"k": K})().k, callable(show), id(x) == id(x), isinstance(True, int), issubclass(bool, int), hash((1, K)) == hash((1, K)))
r = ("a,b,c".split(",", K), "x".join(map(str, range(K))), "abc".translate({97: "Z"}), "ab".ljust(K, "."), "Straße".casefold(), "a1".isalnum(), "abc".partition("b"), " q ".strip(), "aXbX".replace("X", "y", K), "é".encode(), "abc" < "abd")
r = frozenset([K, 1]) | {3}; r = (sorted(r), {1, 2} <= {1, 2, K}, {1} ^ {K}, {1, 2}.isdisjoint([K]), len({1, True, 1.0}), frozenset({1}) == {1})
s = {1, 2, 3}; s.discard(K); s |= {9}; s.add(x.shape[0]); s -= {2}; r = sorted(s); s.remove(77)
r = (sorted([3, 1, K], reverse=True), sorted("bA", key=str.lower), [3, 1, 2].index(K), list(reversed([1, K])))
v = [3, 1, K]; v.sort(key=lambda q: (q % 2, -q)); v.insert(1, "i"); v.extend(range(2)); r = (v, v.pop(0), v.count(1), v * 2, v == list(v), [1, 2] < [1, K]); v.remove("none")
try: LOG.append(1 // (K - 3))
for v in range(K):
while K > 3 and len(LOG) < 4: LOG.append("w")
r = functools.reduce(lambda a, b: a * b, [x, K, 2]); r = (r, functools.partial(signature, 1, d=2)(K, e=3), functools.partial(show).func is show, functools.cmp_to_key(lambda a, b: b - a)(K) < functools.cmp_to_key(lambda a, b: b - a)(1))
@functools.wraps(signature)
r = (eval("K + 1", {"K": K}), __name__, sorted(locals())[:1], "x" in dir(), len(globals()) > 5)
r = exec("LOG.append('exec')"); r = (K.__class__, (K).real, K.conjugate(), (K).bit_count(), (3.5).__trunc__())
r = range(K, 20, 3); r = (list(r), r[1], 8 in r, len(r), r[::-1], r == range(K, 20, 3), r.index(K), hash(range(0)) == hash(range(1, 1)))
r = (compile("1", "", "eval").co_name, (lambda: 0).__name__, show.__name__, signature.__defaults__, signature.__kwdefaults__, Cell.scale.__qualname__, inner_doc.__doc__ if K > 99 else None)
r = (complex(1, K) * 1j, abs(complex(3, 4)), (K + 2j).conjugate(), complex("1+2j"), 1j ** K, (1 + 0j) == 1)
r = x.new_zeros(K); r = (r.shape, torch.full((2,), K), torch.tensor([K, 1.5]), torch.arange(K).sum(), x.tolist() == x.tolist())
"""

MATCHES = r"""
match SUBJECT:
    case 0 | 1: r = "small"
    case int(v) if v > 3: r = ("int", v)
    case int(): r = "other int"
    case -1.5 | True: r = "negative"
    case str() as s: r = ("text", s)
    case Color.RED: r = "red"
    case Color(): r = "color"
    case Pair(left=l, right=4): r = ("pair", l)
    case Frozen(a=1): r = "frozen"
    case Slotted(a, b): r = (a, b)
    case []: r = "empty"
    case [one]: r = ("one", one)
    case [1, *rest, 9]: r = ("ends", rest)
    case (a, (b, c)) | [a, [b, c]]: r = (a, b, c)
    case [torch.Tensor() as t, *_]: r = ("tensor", t)
    case {"k": 1, **others}: r = ("k1", others)
    case {"k": v, "m": [_, last]}: r = (v, last)
    case {}: r = "mapping"
    case None: r = "none"
    case torch.Tensor(ndim=1): r = "vector"
    case _: r = "else"
"""

SUBJECTS = (
    "K", "(1, (2, K))", "[1, 2, K, 9]", "{'k': K % 2, 'm': [1, x]}", "{'k': K, 'm': [1, x]}", "Color(K % 3 + 1)", "Pair(K)", "Pair(x, K)", "Frozen(K % 2, x)", "Slotted(K)", "[x, K]",
    "x", "None", "'t' * K", "K / 2", "collections.OrderedDict(k=1, z=x)", "collections.deque([K])", "range(K)", "bytes(K)", "(K,)", "[]", "True", "collections.ChainMap({'k': 1})", "Num(K)",
)  # fmt: skip

BLOCKS = {
    "try": "except (ZeroDivisionError, KeyError) as error: LOG.append(repr(error))\nelse: LOG.append('else')\nfinally: LOG.append('finally')\nr = K",
    "for": "    LOG.append(v)\n    if v == 2: break\nelse: LOG.append('all')\nr = len(LOG)",
    "while": "else: LOG.append('done')\nr = len(LOG)",
    "@": "def wrapped(*a): return a\nr = (wrapped.__name__, wrapped.__wrapped__ is signature, wrapped(K))",
    "def inner(a": "r = (inner(1), inner(x, key=2), inner.__kwdefaults__ is not None); inner(a=1)",
    "def inner(v": "r = (inner(), inner(3), inner.__defaults__)",
    "def whole": "r = list(whole())",
    "def squares": "g = squares(); r = list(g)",
}
"""What goes on behind a part that begins so."""

PARTS_312 = r"""
b = Boxed(K); r = (b.get(), first([x, K]), Alias.__name__, Boxed[int](x).v, Alias[int], first.__type_params__[0].__name__)
def local[V](a: V) -> V: return (a, K)
r = f"{f'{K!r}':>{len('ab')}} {[f'{q}' for q in range(K % 3)]}"
r = list(itertools.batched(range(K), 2)); r = (r, math.sumprod([1, K], [2, 3]))
"""
