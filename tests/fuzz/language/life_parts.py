"""What programs of `lives.py` are in: a module of classes and objects, statements that stand alone, and what changes between calls."""

PRELUDE = r"""
import abc, array, bisect, builtins, collections, contextlib, contextvars, copy, dataclasses, enum, functools, heapq, io, itertools, logging, math, operator
import queue, random, re, string, sys, threading, time, traceback, types, typing, warnings, weakref
import numpy, torch

LOG, RATE, GLOBAL = [], 2, None
VAR = contextvars.ContextVar("VAR", default=0)
LOCAL = threading.local()

class Plain:
    shared = []
    def __init__(self, v=1, **kw): self.v = v; self.__dict__.update(kw)
    def bump(self, by=1): self.v = self.v + by; return self
    def tell(self): return ("plain", self.v)
class Child(Plain):
    def __init__(self, *a, **kw): super().__init__(*a, **kw); self.extra = [self.v]
    def tell(self): return ("child", *super().tell())
    def bump(self, by=2): super().bump(by); __class__.shared.append(by); return self
class Slots:
    __slots__ = ("a", "b", "__weakref__")
    def __init__(self, a=1): self.a = a
class SubSlots(Slots):
    __slots__ = ("c",)
class Guarded:
    def __setattr__(self, name, value): LOG.append(("set", name)); object.__setattr__(self, name, value)
    def __delattr__(self, name): LOG.append(("del", name)); super().__delattr__(name)
    def __getattribute__(self, name):
        if name[:1] != "_": LOG.append(("get", name))
        return object.__getattribute__(self, name)
    def __getattr__(self, name):
        if name == "never": raise AttributeError(name)
        return f"?{name}"
class Prop:
    def __init__(self): self._v, self.hist = 0, []
    @property
    def v(self): return self._v
    @v.setter
    def v(self, new): self.hist.append(new); self._v = new
    @v.deleter
    def v(self): self._v = None
    @functools.cached_property
    def slow(self): self.hist.append("slow"); return [self._v]
class Desc:
    def __set_name__(self, owner, name): self.name = name
    def __get__(self, obj, owner=None): return self if obj is None else obj.__dict__.get("_" + self.name, self.name)
    def __set__(self, obj, value): obj.__dict__["_" + self.name] = value
class Arith:
    def __init__(self, v): self.v = v
    def __add__(self, o): return Arith(self.v + o.v) if isinstance(o, Arith) else NotImplemented if isinstance(o, str) else Arith(self.v + o)
    def __radd__(self, o): return Arith(o + self.v)
    def __iadd__(self, o): self.v = self.v + (o.v if isinstance(o, Arith) else o); return self
    def __mul__(self, o): return NotImplemented
    def __rmul__(self, o): return ("rmul", o)
    def __eq__(self, o): return isinstance(o, Arith) and bool(self.v == o.v)
    def __hash__(self): return 7
    def __lt__(self, o): return self.v < o.v
    def __bool__(self): LOG.append("bool"); return bool(self.v)
    def __repr__(self): return f"A({self.v})"
    def __format__(self, spec): return f"A[{spec}]"
class SubArith(Arith):
    def __radd__(self, o): return ("sub radd", o.v if isinstance(o, Arith) else o)
    def __mul__(self, o): return ("mul", super().__mul__(o) is NotImplemented)
class Seq:
    def __init__(self, items): self.items = items
    def __len__(self): return len(self.items)
    def __getitem__(self, k): return Seq(self.items[k]) if isinstance(k, slice) else self.items[k]
    def __setitem__(self, k, v): self.items[k] = v
    def __delitem__(self, k): del self.items[k]
    def __contains__(self, v): LOG.append("contains"); return any(v is one for one in self.items)
class MyList(list):
    tag = None
    def append(self, v): self.tag = v; super().append(v)
class MyDict(dict):
    def __missing__(self, k): self[k] = [k]; return self[k]
    def __setitem__(self, k, v): LOG.append(("item", k)); super().__setitem__(k, v)
class MyInt(int):
    def __add__(self, o): return MyInt(int(self) + int(o) + 1)
class MyStr(str):
    def upper(self): return MyStr("up:" + super().upper())
class Managed:
    def __init__(self, *swallow): self.swallow, self.events = swallow, []
    def __enter__(self): self.events.append("in"); return self
    def __exit__(self, kind, error, tb): self.events.append(kind and kind.__name__); return kind is not None and issubclass(kind, self.swallow or ())
@dataclasses.dataclass
class Data:
    a: int = 1
    items: list = dataclasses.field(default_factory=list)
    t: object = None
@dataclasses.dataclass(frozen=True, slots=True)
class Ice:
    a: int = 1
    items: list = dataclasses.field(default_factory=list, hash=False)
class Color(enum.Enum): RED = 1; BLUE = 2
class Bits(enum.Flag): A = 1; B = 2
class Pair(typing.NamedTuple):
    left: object; right: object = None
class Meta(type):
    def __new__(m, name, bases, space, **kw): LOG.append(("class", name, sorted(kw))); return super().__new__(m, name, bases, space)
    def __init__(cls, name, bases, space, **kw): super().__init__(name, bases, space)
    def __call__(cls, *a, **kw): LOG.append(("call", cls.__name__)); return super().__call__(*a, **kw)
    @property
    def size(cls): return len(cls.__name__)
    @classmethod
    def __prepare__(m, name, bases, **kw): return {"prepared": len(bases)}
class Base:
    kinds = {}
    def __init_subclass__(cls, key=None, **kw): super().__init_subclass__(**kw); Base.kinds[key] = cls.__name__
class Net(torch.nn.Module):
    def __init__(self): super().__init__(); self.p = torch.nn.Parameter(torch.ones(1)); self.register_buffer("b", torch.zeros(1)); self.calls = 0
    def forward(self, x): self.calls += 1; self.b = self.b + 1; return x * self.p + self.b
NET = Net()
def counter(start, step=1, seen=[]):
    count = start
    def up(by=None):
        nonlocal count
        count = count + (step if by is None else by); seen.append(by); del seen[:-2]
        return count
    def read(): return count
    up.read = read
    return up
def gen(n, log):
    total = n
    try:
        while True:
            try: got = yield total
            except KeyError as e: log.append(repr(e)); got = 100
            if got is None: got = 1
            total = total + got
            if isinstance(got, int) and got > 500: return total
    finally: log.append("closed")
def deleg(n, log):
    r = yield from gen(n, log)
    log.append(("returned", r)); yield "late"
    return r
@contextlib.contextmanager
def managed(log):
    log.append("in")
    try: yield log
    except KeyError as e: log.append(("swallowed", repr(e)))
    except ValueError as e: raise RuntimeError("other") from e
    finally: log.append("out")
@functools.lru_cache(maxsize=3)
def cached(k): LOG.append(("cached", k)); return [k]
@functools.singledispatch
def show(v): return "any"
@show.register
def _(v: int): return "int"
@show.register(list)
def _(v): return ["list"]
def mixed(a, b=5, /, c=6, *rest, d, e=7, **kw): return (a, b, c, rest, d, e, kw)
def deco(fn):
    @functools.wraps(fn)
    def wrapper(*a, **kw): wrapper.calls += 1; return fn(*a, **kw)
    wrapper.calls = 0
    return wrapper
OUTER = Plain(3, items=[1, 2])
OUTER_LIST = [1, [2], OUTER]
OUTER_DICT = {"a": 1, "b": [OUTER], 3: None}
OUTER_GEN = gen(0, LOG)
OUTER_COUNT = itertools.count(5)
OUTER_UP = counter(10)
OUTER_DEQUE = collections.deque([1, 2], maxlen=4)
OUTER_SLOTS = SubSlots(4)
OUTER_GUARDED = Guarded()
OUTER_PROP = Prop()
OUTER_ARITH = Arith(2)
OUTER_SET = {1, "a"}
OUTER_TENSORS = [torch.zeros(1), torch.ones(1)]
"""

ALONE = r"""
print("n", K, B(1), sep="-")
global GLOBAL; GLOBAL = B(X)
global RATE; RATE += 1
x = x * RATE + B(K)
LOG.append(sorted(locals())[:2])
LOG.append([show(v) for v in (B(K), [1], x)])
cached(K).append(B(1)); LOG.append((cached(K), cached(2), cached.cache_info().currsize))
class Here(Base, key=K): attr = B(K); items = [v * 2 for v in range(attr)]; ::LOG.append((Here.items, Base.kinds.pop(K)))
class Named: a, b = Desc(), Desc(); ::h = Named(); h.a = B(X); LOG.append((h.a is x, h.b, Named.b.name, vars(h)))
class Metad(metaclass=Meta, opt=B(1)): k = prepared + K; ::LOG.append((Metad().k, Metad.size))
class Outer:: ::    v = B(K) ::    class Inner: w = K + 1 ::    def m(self): return __class__.Inner.w ::LOG.append(Outer().m())
class Abs(abc.ABC): ::    @abc.abstractmethod ::    def go(self): ... ::LOG.append(Abs.__abstractmethods__); Abs()
class WithSuper(Child): ::    def __init__(self, *a): super(WithSuper, self).__init__(*a); B(0); self.z = super().tell() ::
    @classmethod ::    def new(cls, v): return super().__new__(cls) ::LOG.append((WithSuper(K).z, WithSuper.new(1).__dict__))
class Ops: ::    def __matmul__(self, o): return B("mm") ::    def __rmatmul__(self, o): return "rmm" ::    def __index__(self): return B(2) ::
    def __contains__(self, o): return B("") ::LOG.append((Ops() @ 1, 1 @ Ops(), [1, 2, 3][Ops()], 1 in Ops(), range(9)[Ops():]))
for i in range(3): ::    if i == B(1): continue ::    x = x + i ::else: LOG.append("else")
while (w := len(LOG)) % 3: LOG.append(B(w))
try: LOG.append(B(1) // (K % 2)) ::except ZeroDivisionError as e: GLOBAL = e ::else: LOG.append("fine") ::finally: LOG.append("fin")
def early(): ::    for i in range(3): ::        try: ::            if i: return B(i) ::        finally: ::
            LOG.append(("f", i)); ::            if i > K: break ::    return "broke" ::LOG.append(early())
def over(): ::    try: raise KeyError(B(1)) ::    finally: return "over" ::LOG.append(over())
def loops(): ::    fs = [] ::    for i in range(3): fs.append(lambda: B(i)) ::    return [f() for f in fs] ::LOG.append(loops())
def unbound(): ::    if K > 9: q = 1 ::    B(0); return q ::unbound()
a, (b, *c), d = K, [1, B(2), 3], x; LOG.append((a, b, c, d is x))
a = b = [B(K)]; a.append(1); LOG.append(b); del a; LOG.append(a)
del x; x = B(torch.ones(2)); LOG.append("x" in dir())
LOG.append([(a, b) for a in range(B(2)) for b in (a, K) if b])
LOG.append({**{"a": 1}, "b": B(2)} | dict(c=x))
LOG.append([y := B(K), y + 1, *(z for z in range(y) if z)])
match (B(K), x): ::    case (0 | 1 as k, t): LOG.append(("small", k, t is x)) ::    case (int(k), torch.Tensor()) if k > 2: LOG.append(k) ::    case _: LOG.append("other")
match OUTER: ::    case Child(v=v): LOG.append(("c", v)) ::    case Plain(v=v, items=[first, *_]): LOG.append((B(v), first))
match OUTER_DICT: ::    case {"a": a, **rest}: LOG.append((a, B(sorted(map(str, rest)))))
torch.manual_seed(K); x = x + torch.rand(1); B(0); LOG.append(torch.rand(1))
random.seed(B(K)); LOG.append((random.random(), random.choice([1, 2, 3]), random.sample(range(5), 2)))
numpy.random.seed(K); LOG.append(numpy.random.rand(2)); B(0); LOG.append(numpy.random.randint(9))
logging.getLogger("lives").warning("w %s", B(K))
warnings.warn(f"careful {K}")
sys.stdout.write(f"out {K}\n"); print(f"{B(K)=} {K!r:>4}", end="|", flush=True)
t = threading.Thread(target=lambda: LOG.append(("thread", K))); t.start(); t.join()
GLOBAL = [B(v) for v in map(lambda q: q * K, (1, 2))]
LOG.append((eval("x.shape[0] + 1"), eval("K", {"K": B(5)})))
exec("def ex(v): return [v]", d := {}); LOG.append(d["ex"](B(K)))
LOG.append((id(x) == id(x), x is x, [] is [], () is (), K is B(K), "ab" is "a" + "b"))
LOG.append((sys._getframe().f_code.co_name, sys._getframe().f_lineno > 0))
LOG.append(f"{x.sum().item():>8.2f} {K:03d} {B('s')!s:^5} {'%d%%' % K} {[v for v in range(K)]!r}")
raise ExceptionGroup("top", [KeyError(B(K))])
assert B(K) < 4, (K, "too large")
LOG.append(functools.reduce(lambda a, b: a + B(b), [x, 1, K]))
LOG.append(sorted([(2, "b"), (1, "a"), (2, "a")], key=lambda p: B(p[0]), reverse=True))
LOG.append(list(itertools.accumulate([x, 1, K], initial=B(0))))
LOG.append((isinstance(x, int | torch.Tensor), issubclass(Child, (Plain, B(int))), callable(x), type(x) is torch.Tensor))
LOG.append(hasattr(OUTER_GUARDED, B("zz")))
for LOG_ in (LOG,): LOG_.append(B(K)); LOG_ = None
with torch.no_grad(): x = x * B(2)
with contextlib.ExitStack() as es: es.callback(lambda: LOG.append(("late", B(1)))); x = x + 1; [][K]
return x, K, B(LOG[-1:])
LOG.append((lambda *a, k=B(K), **kw: (a, k, kw))(*[1, x], z=B(3)))
OUTER.items, OUTER_LIST[0] = [OUTER], B(OUTER.items)
OUTER_DICT["self"] = OUTER_DICT; B(0); del OUTER_DICT["self"]
async def aco(v): return B(v) + 1 ::try: aco(K).send(None) ::except StopIteration as s: LOG.append(s.value)
async def agen(): ::    for i in range(3): yield B(i) ::async def run(): return [v async for v in agen() if v] ::
try: run().send(None) ::except StopIteration as s: LOG.append(s.value)
async def wi(): ::    async with contextlib.AsyncExitStack() as s: s.callback(LOG.append, B("acb")); raise KeyError(K) ::try: wi().send(None) ::except KeyError as e: LOG.append(e)
"""

CHANGES = """
OUTER.v = 10
OUTER.items.append(at)
OUTER_LIST[0] = at
OUTER_DICT.pop("a", None)
OUTER_DICT["a"] = [at]
Plain.tell = lambda self: ("changed", self.v)
Plain.bump.__defaults__ = (5,)
Plain.extra_attr = 1
Child.__len__ = lambda self: 2
mixed.__kwdefaults__ = {"e": at}
counter.__code__ = counter_code
gen = lambda n, log: iter([n, at, n])
show.register(float)(lambda v: "float")
RATE = at
OUTER_UP.__closure__[0].cell_contents = at
OUTER.__class__ = Child
OUTER_SLOTS.b = at
del OUTER_SLOTS.a
Arith.__add__ = Arith.__radd__
Arith.__eq__ = lambda self, o: True
Color.RED.note = at
NET.forward = lambda x: x - 7
NET.training = False
NET.p.data = NET.p.data * 3
torch.set_grad_enabled(False)
VAR.set(at)
Prop.v = property(lambda self: at)
Desc.__get__ = lambda self, obj, owner=None: at
Guarded.__getattr__ = lambda self, name: at
Managed.__exit__ = lambda self, *e: True
OUTER_TENSORS[0] = torch.ones(2) * at
OUTER_TENSORS.reverse()
Seq.__iter__ = lambda self: iter([at])
MyDict.__missing__ = lambda self, k: at
Meta.size = at
LOCAL.v = at
OUTER_SET.add(at)
len = lambda v: 3
OUTER_DEQUE.append(at)
"""
