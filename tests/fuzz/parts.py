"""What a world of `--mutate` is made of: classes and functions of Python, each with objects, reads and changes of its own.

In the texts `~` is the number of the part, `#` a random number, `$s` a random word, `$o` the object at hand. A change is a
statement over the helpers of `changes.py`; what any object can be asked or have changed is not here but in `reads.py` and `mutations.py`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """One ingredient.

    Arguments:
        name: what it is about; a reducer and a person find it by this.
        text: module-level definitions.
        objects: expressions that make its objects; the first read in `reads` may use any of them.
        reads: expressions over `$o`.
        changes: statements over `$o`.
    """

    name: str
    text: str
    objects: tuple[str, ...]
    reads: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()


# fmt: off
PYTHON_PARTS = (
    Part(  # `super` by another name: CPython's instruction for `super(C, None).a` raises one error at first, another when warm
        "plain class",
        """
class Base~:
    unit = #
    def size(self): return self.a
    def through(self): return self.unit
class Plain~(Base~):
    scale = #
    names = ['$s', '$s']
    def __init__(self, a, b=#):
        self.a = a
        self.b = b
        self.items = [a, b, #]
    def grow(self, by=#, *rest, extra=#): return self.a * by + extra + len(rest)
    def size(self): return super().size() + 1
    @property
    def twice(self): return self.a * 2
    @staticmethod
    def fixed(k=#): return k + 1
    @classmethod
    def kind(cls): return cls.scale
    @functools.cached_property
    def slow(self): return self.b + 1
UP~ = super
""",
        (
            "Plain~(#)", "Plain~(#, #)", "Plain~('$s')",
        ),
        (
            "$o.a", "$o.scale", "$o.grow()", "$o.grow(2, 3, extra=1)", "$o.size()", "$o.twice", "$o.fixed()", "$o.kind()", "$o.slow", "$o.through()", "$o.names", "$o.items", "$o.unit", "Plain~.scale",
            "Plain~.size($o)", "Base~.through($o)", "getattr($o, 'extra', #)", "isinstance($o, Base~)", "$o.grow.__name__", "$o.grow.__func__.__defaults__", "UP~(Plain~, $o).size()",
        ),
        (
            "put($o, 'a', #)", "put(Plain~, 'scale', #)", "put(Base~, 'unit', #)", "put(Plain~, 'size', lambda self: #)", "put(Plain~.grow, '__defaults__', (#,))",
            "put(Plain~.grow, '__kwdefaults__', {'extra': #})", "put(Plain~, 'twice', property(lambda self: #))", "put($o, 'grow', lambda *a, **k: #)", "put(Plain~, 'twice', #)",
            "put(Base~, 'size', lambda self: #)", "put($o, 'scale', #)", "put($o, 'extra', #)", "put(Plain~, '__getattr__', lambda self, name: #)", "put(Plain~, 'fixed', staticmethod(lambda k=#: k))",
            "put(Plain~, 'kind', classmethod(lambda cls: #))", "cut($o, 'a')", "put(Plain~, '__bases__', (Other,))", "put($o, '__class__', Other)", "put($o, 'slow', #)",
        ),
    ),
    Part(
        "slots",
        """
class Slots~:
    __slots__ = ('a', 'b', 'maybe')
    def __init__(self, a, b=#):
        self.a, self.b = a, b
    def total(self): return self.a + self.b
""",
        (
            "Slots~(#)", "Slots~(#, #)",
        ),
        (
            "$o.a", "$o.b", "$o.total()", "getattr($o, 'maybe', #)", "hasattr($o, 'maybe')", "Slots~.a.__get__($o)", "$o.__slots__",
        ),
        (
            "put($o, 'a', #)", "put($o, 'b', '$s')", "put($o, 'maybe', #)", "cut($o, 'b')", "put(Slots~, 'total', lambda self: #)", "put(Slots~, 'b', property(lambda self: #))",
        ),
    ),
    Part(
        "dataclass",
        """
@dataclasses.dataclass
class Data~:
    a: float
    b: float = #
    tags: list = dataclasses.field(default_factory=lambda: ['$s'])
    def __post_init__(self): self.c = self.b
@dataclasses.dataclass(frozen=True, order=True)
class Frozen~:
    a: float
    b: float = #
""",
        (
            "Data~(#)", "Data~(#, #)", "Frozen~(#)", "Frozen~(#, #)",
        ),
        (
            "$o.a", "$o.b", "$o.a + $o.b", "dataclasses.astuple($o)", "dataclasses.asdict($o)", "[f.name for f in dataclasses.fields($o)]", "$o == Data~(3.)", "$o < Frozen~(3)", "hash($o)",
            "dataclasses.replace($o, a=3).a", "Data~(3).b", "dataclasses.is_dataclass($o)", "str($o)", "{$o: 1}.get(Frozen~(2))", "$o.__match_args__",
        ),
        (
            "object.__setattr__($o, 'a', #)", "object.__setattr__($o, 'b', '$s')", "put(Data~, 'b', #)", "put(Data~, '__post_init__', lambda self: None)", "put(Data~, '__eq__', lambda self, o: True)",
            "put(Frozen~, '__hash__', lambda self: #)", "put(Frozen~, '__lt__', lambda s, o: True)", "put(Data~.__init__, '__defaults__', (#, ['q']))", "cut_item(Data~.__dataclass_fields__, 'tags')",
        ),
    ),
    Part(
        "named tuples",
        """
Pair~ = collections.namedtuple('Pair~', 'scale step', defaults=(#,))
class Typed~(typing.NamedTuple):
    scale: float
    step: float = #
    @property
    def both(self): return self.scale + self.step
    def grown(self, k=#): return self.scale * k
class Over~(tuple):
    extra = #
    def __len__(self): return 5
    def total(self): return sum(self)
""",
        (
            "Pair~(#, #)", "Pair~(#)", "Typed~(#)", "Typed~(#, #)", "Over~((#, #))",
        ),
        (
            "$o.scale", "$o.step", "$o[0]", "$o[-1]", "$o.scale + $o.step", "$o.both", "$o.grown()", "$o._asdict()", "$o._replace(step=2).scale", "len($o)", "sum($o)", "$o._fields", "$o == (1, 2.)",
            "$o != Over~((1, 2))", "1 in $o", "$o.extra", "$o.total()", "$o + (1,)", "$o * 2", "$o.index($o[0])", "$o.count(1)", "hash($o)", "$o < (3, 3)", "sorted($o)", "max($o)", "Pair~(1).step",
            "Pair~._make([3, 4]).step", "'%s-%s' % $o", "(lambda *a: a[0])(*$o)",
        ),
        (
            "put(Typed~, 'both', property(lambda self: #))", "put(Typed~, 'grown', lambda self: #)", "put(Pair~, 'step', property(lambda self: #))", "put(Pair~.__new__, '__defaults__', (#,))",
            "put(Over~, '__len__', lambda self: #)", "put(Over~, 'extra', #)", "put(Over~, '__eq__', lambda s, o: True)", "put(Over~, '__contains__', lambda s, o: True)", "put($o, 'extra', #)",
            "put(Over~, '__iter__', lambda s: iter([#]))", "put(Over~, '__getitem__', lambda s, i: #)", "put(Pair~, '__add__', lambda s, o: #)",
        ),
    ),
    Part(
        "enums",
        """
class Color~(enum.Enum):
    RED = #
    BLUE = '$s'
    def shade(self): return self.value
class Level~(enum.IntEnum):
    LOW = 1
    HIGH = 4
class Bits~(enum.Flag):
    X = 1
    Y = 2
class Word~(str, enum.Enum):
    A = '$s'
    B = 'other'
class IntBits~(enum.IntFlag):
    P = 1
    Q = 4
""",
        (
            "Color~.RED", "Color~.BLUE", "Level~.HIGH", "Level~.LOW", "Bits~.X", "Bits~.X | Bits~.Y", "Word~.A", "IntBits~.Q", "Color~",
        ),
        (
            "$o.value", "$o.name", "$o._value_", "$o.shade()", "$o is Color~.RED", "$o == Level~.LOW", "$o in (Color~.RED, Level~.HIGH)", "$o + 1", "$o & Bits~.Y", "str($o)", "repr($o)", 'f"{$o}"',
            "Color~.RED.value", "Color~['RED'].value", "Level~(4).name", "[m.name for m in Color~]", "len(Color~)", "$o < 3", "hash($o) == hash(Color~.RED)", "int($o)", "$o.note",
            "getattr($o, 'note', #)", "Color~.__members__['BLUE'].value", "$o.upper()", "Word~.A == 'x'", "bool($o)", "{Color~.RED: 1}.get($o, 2)", "'RED' in Color~.__members__", "[1, 2, 3, 4, 5][$o]",
        ),
        (
            "put($o, '_value_', #)", "put($o, 'note', #)", "put($o, '_name_', '$s')", "put(Color~, 'shade', lambda self: #)", "put(Color~.RED, '_value_', #)",
            "put(Level~, '__str__', lambda self: '$s')", "put(Color~, '__eq__', lambda s, o: True)", "put(Level~, '__add__', lambda s, o: #)", "put(Color~, '__format__', lambda s, f: '$s')",
            "item(Color~._member_map_, 'EXTRA', Color~.RED)", "put(Word~.A, '_value_', '$s')", "put(Bits~, '__and__', lambda s, o: #)", "put(Color~, '__bool__', lambda self: False)",
        ),
    ),
    Part(
        "number subclasses",
        """
class Int~(int):
    factor = #
    @property
    def half(self): return self / 2
    def times(self, k=#): return self * k
class Float~(float):
    offset = #
    @property
    def more(self): return self + 1
class Complex~(complex):
    pass
class Index~:
    def __init__(self, v): self.v = v
    def __index__(self): return self.v
    def __float__(self): return float(self.v)
    def __int__(self): return self.v
    def __bool__(self): return self.v > 2
    def __round__(self, n=0): return self.v
    def __add__(self, o): return self.v + o
    __radd__ = __add__
    def __mul__(self, o): return self.v * o
    def __lt__(self, o): return self.v < o
    def __neg__(self): return -self.v
    def __abs__(self): return abs(self.v)
""",
        (
            "Int~(2)", "Int~(5)", "Float~(1.5)", "Float~(4.)", "Complex~(#)", "Index~(2)", "Index~(3)",
        ),
        (
            "$o.half", "$o.times()", "$o.factor", "$o.real", "$o.imag", "$o + 1", "1 + $o", "$o * 2.5", "-$o", "abs($o)", "$o.more", "$o.offset", "'a' * $o", "[1, 2] * $o",
            "list(itertools.repeat(7, $o))", "range(9)[$o]", "list(range($o))", "float($o)", "int($o)", "operator.index($o)", "bool($o)", "round($o)", "$o < 3", "'%d' % $o", 'f"{$o}"', "$o == 2",
            "hash($o)", "math.floor($o)", "'abcdef'[:$o]", "$o.is_integer()", "$o.bit_length()", "$o.conjugate()", "divmod($o, 2)", "$o ** 2", "pow(2, $o)", "sum([$o, 1])", "max($o, 3)",
            "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9][$o]", "torch.full((2,), 1. * $o)", "x * $o", "(3).__mul__($o)", "'x'.ljust($o, '-')", "'abc'.center($o)", "bytes($o)", "chr(65 + $o)", "format($o, '5.2f')",
            "math.sqrt($o)", "struct.pack('i', $o)", "complex($o)", "$o.as_integer_ratio()",
        ),
        (
            "put(Int~, 'half', property(lambda self: #))", "put(Int~, 'times', lambda self: #)", "put($o, 'factor', #)", "put($o, 'offset', #)", "put($o, 'v', 4)", "put($o, 'v', 1)",
            "put(Index~, '__index__', lambda self: 3)", "put(Float~, 'real', #)", "put(Int~, '__add__', lambda s, o: #)", "put(Index~, '__bool__', lambda s: False)",
            "put(Int~, '__index__', lambda s: 1)", "put(Float~, '__float__', lambda s: #)", "put(Index~, '__float__', lambda s: 2.5)", "put(Int~, '__mul__', lambda s, o: #)",
            "put(Index~, '__rmul__', lambda s, o: #)", "put(Int~, '__bool__', lambda s: False)", "put(Int~, '__format__', lambda s, f: '$s')", "put(Float~, '__eq__', lambda s, o: True)",
        ),
    ),
    Part(
        "text subclasses",
        """
class Str~(str):
    tag = '$s'
    def loud(self): return self.upper()
class Bytes~(bytes):
    pass
class Len~(str):
    def __len__(self): return 7
    def __str__(self): return 'shown'
    def __format__(self, spec): return 'formatted' + spec
""",
        (
            "Str~('$s')", "Str~('abc')", "Str~('longer')", "Bytes~(b'xy')", "Bytes~(b'longer')", "Len~('$s')",
        ),
        (
            "len($o)", "$o[0]", "$o[-1]", "$o.loud()", "$o.tag", "$o + 'z'", "$o * 2", "$o.upper()", "'b' in $o", "$o == 'abc'", "$o.find('c')", "$o.split('e')", "$o.startswith('a')", "str($o)",
            'f"{$o}"', "'%s' % $o", "'-'.join([$o, 'q'])", "$o.encode()", "$o.decode()", "hash($o) == hash('abc')", "{'abc': 1}.get($o, 2)", "list($o)", "$o < 'b'", "sorted($o)", "ord($o[0])",
            "'{}'.format($o)", "$o.replace('a', 'o')", "[q for q in $o]", "repr($o)", "'abcd'.startswith($o)", "'xabc'.count($o)", "int($o == 'abc')", "bytes($o)", "$o.hex()", "$o.isalpha()",
            "getattr(torch.zeros(1), $o, 5)", "re.match('a', $o) is None", "sys.intern('abc') == $o",
        ),
        (
            "put($o, 'tag', #)", "put(Str~, 'loud', lambda self: '$s')", "put(Str~, 'tag', '$s')", "put(Len~, '__len__', lambda self: #)", "put(Len~, '__str__', lambda self: '$s')",
            "put(Str~, '__len__', lambda self: 3)", "put(Str~, '__eq__', lambda s, o: True)", "put(Str~, '__hash__', lambda s: 1)", "put(Str~, '__getitem__', lambda s, i: '$s')",
            "put(Str~, '__add__', lambda s, o: '$s')", "put(Bytes~, '__len__', lambda s: 4)", "put(Str~, '__iter__', lambda s: iter(['$s']))", "put(Str~, '__contains__', lambda s, o: True)",
            "put(Str~, '__format__', lambda s, f: '$s')",
        ),
    ),
    Part(
        "container subclasses",
        """
class List~(list):
    note = #
    def total(self): return sum(self)
class Dict~(dict):
    def __missing__(self, key): return #
class Loud~(dict):
    def __getitem__(self, key): return #
    def get(self, key, d=None): return super().get(key, d)
class Set~(set):
    pass
class Froze~(frozenset):
    pass
""",
        (
            "List~([#, #])", "List~([#])", "Dict~(k=#)", "Dict~(a=#, k=#)", "Loud~(k=#)", "Set~({1, 2})", "Froze~({1, 3})",
        ),
        (
            "len($o)", "$o[0]", "$o['k']", "$o['absent']", "$o.get('k', #)", "$o.total()", "$o.note", "sum($o)", "list($o)", "sorted($o)", "'k' in $o", "list($o.items())", "list($o.values())",
            "3 in $o", "$o | {2}", "bool($o)", "dict($o)", "(lambda **k: sorted(k.items()))(**$o)", "(lambda *a: len(a))(*$o)", "$o == [1]", "$o & {1}", "{**$o}", "[*$o]", "max($o)", "$o.copy()",
            "$o[:1]", "$o + [1]", "'{k}'.format_map($o)", "'%(k)s' % $o", "operator.getitem($o, 'k')", "isinstance($o, dict)", "$o.index(1)", "$o.issubset({1, 2, 3})", "operator.itemgetter('k')($o)",
            "operator.itemgetter(0)($o)", "$o.setdefault('k', 4)", "dict.get($o, 'k')", "list.__len__($o)",
        ),
        (
            "put($o, 'note', #)", "put(Dict~, '__missing__', lambda s, k: #)", "put(Loud~, '__getitem__', lambda s, k: #)", "put(List~, '__len__', lambda s: #)",
            "put(List~, '__iter__', lambda s: iter([#]))", "put(Dict~, 'get', lambda s, k, d=0: #)", "item($o, 'k', #)", "item($o, 0, #)", "put(List~, '__getitem__', lambda s, i: #)",
            "put(List~, '__contains__', lambda s, i: True)", "put(Dict~, 'keys', lambda s: ['k'])", "put(Set~, '__contains__', lambda s, i: True)", "put(Set~, '__len__', lambda s: #)",
            "put(Dict~, '__len__', lambda s: 0)", "put(Dict~, '__iter__', lambda s: iter(['k']))", "put(Loud~, '__missing__', lambda s, k: #)", "cut(Dict~, '__missing__')", "cut(Loud~, '__getitem__')",
            "refill($o, [3, 4, 5])", "put(List~, '__eq__', lambda s, o: True)", "put(List~, '__bool__', lambda s: False)",
        ),
    ),
    Part(
        "descriptors",
        """
class Prop~(property):
    bias = #
    def __get__(self, o, t=None): return self if o is None else super().__get__(o, t) + self.bias
class Sub~(property):
    pass
class Get~:
    def __init__(self, v): self.v = v
    def __get__(self, o, t=None): return self.v
class Both~(Get~):
    def __set__(self, o, v): self.v = v
class Named~:
    def __set_name__(self, owner, name): self.key = '_' + name
    def __get__(self, o, t=None): return self if o is None else getattr(o, self.key, #)
    def __set__(self, o, v): setattr(o, self.key, v)
class Described~:
    got = Get~(#)
    both = Both~(#)
    named = Named~()
    prop = Prop~(lambda self: self.a)
    sub = Sub~(lambda self: self.a * 2)
    def __init__(self, a):
        self.a = a
        self.__dict__['got'] = #
        self.__dict__['both'] = #
    plain = property(operator.attrgetter('a'))
    part = functools.partialmethod(lambda self, k, j=#: self.a + k + j, 2)
""",
        (
            "Described~(#)", "Described~(#)",
        ),
        (
            "$o.got", "$o.both", "$o.named", "$o.prop", "$o.sub", "$o.plain", "$o.part()", "Described~.got", "Described~.both", "Described~.prop.bias", "getattr($o, 'got')", "hasattr($o, 'named')",
            "$o.a", "Described~.sub.fget($o)", "Described~.__dict__['both'].v", "Described~.sub.__doc__", "Described~.prop.__get__($o)",
        ),
        (
            "put(Get~, '__set__', lambda s, o, v: None)", "cut(Both~, '__set__')", "put(Described~.__dict__['got'], 'v', #)", "put(Described~.__dict__['both'], 'v', #)", "put($o, 'a', #)",
            "put(Prop~, 'bias', #)", "put(Prop~, '__get__', lambda s, o, t=None: #)", "put(Sub~, '__get__', lambda s, o, t=None: #)", "item($o.__dict__, 'got', #)",
            "put(Get~, '__get__', lambda s, o, t=None: #)", "put($o, '_named', #)", "put(Named~, '__get__', lambda s, o, t=None: #)", "cut(Get~, '__get__')",
            "put(Described~, 'sub', Sub~(lambda self: #))", "put(Described~.__dict__['named'], 'key', 'a')", "put(Get~, '__delete__', lambda s, o: None)", "cut(Named~, '__set__')",
            "item($o.__dict__, 'sub', #)", "put(Described~.__dict__['got'], '__class__', Both~)", "put(Described~, 'got', #)",
        ),
    ),
    Part(
        "metaclass",
        """
class Meta~(type):
    flag = #
    def __call__(cls, *args): return super().__call__(*args)
    @property
    def prop(cls): return cls.width + 1
    def make(cls): return cls.width
    def __len__(cls): return 3
    def __iter__(cls): return iter([cls.width, 2])
    def __contains__(cls, v): return v == cls.width
    def __getitem__(cls, v): return v
    def __instancecheck__(cls, o): return hasattr(o, 'width')
    def __getattr__(cls, name):
        if name == 'lazy': return cls.flag
        raise AttributeError(name)
class Built~(metaclass=Meta~):
    width = #
    def __init__(self, v=#): self.v = v
""",
        (
            "Built~()", "Built~(#)", "Built~",
        ),
        (
            "Built~.flag", "Built~.prop", "Built~.make()", "len(Built~)", "list(Built~)", "3 in Built~", "Built~[2]", "Built~(3).v", "Built~().v", "Built~.lazy", "isinstance(3, Built~)",
            "isinstance($o, Built~)", "issubclass(Built~, Other)", "type(Built~).flag", "$o.v", "$o.width", "Built~.__name__", "callable(Built~)", "getattr(Built~, 'absent', #)",
            "hasattr(Built~, 'lazy')", "bool(Built~)", "Built~ | int == 4", "str(Built~)", "Built~ == 3", "type(Built~).__name__", "Built~.__class__.flag", "hash(Built~) == 3",
        ),
        (
            "put(Meta~, 'flag', #)", "put(Meta~, '__call__', lambda c, *a: types.SimpleNamespace(v=#, width=1))", "put(Meta~, 'prop', property(lambda c: #))", "put(Meta~, 'make', lambda c: #)",
            "put(Meta~, '__len__', lambda c: #)", "put(Meta~, '__iter__', lambda c: iter([#]))", "put(Meta~, '__contains__', lambda c, v: True)", "put(Meta~, '__getitem__', lambda c, v: #)",
            "put(Meta~, '__instancecheck__', lambda c, v: False)", "put(Meta~, '__getattr__', lambda c, v: #)", "put(Built~, 'width', #)", "put(Built~, 'flag', #)",
            "put(Meta~, 'width', property(lambda c: #))", "cut(Meta~, '__call__')", "put(Built~, '__init__', lambda self, v=0: put(self, 'v', #))", "put(Meta~, '__bool__', lambda c: False)",
            "put(Meta~, '__eq__', lambda c, o: True)", "put(Meta~, '__hash__', lambda c: 3)", "put(Built~, '__new__', lambda c, *a: types.SimpleNamespace(v=#, width=1))",
            "put(Meta~, '__getattribute__', lambda c, n: #)", "put(Meta~, '__subclasscheck__', lambda c, v: True)", "put(Meta~, '__or__', lambda c, v: #)", "put(Built~.__init__, '__defaults__', (#,))",
            "put(Meta~, '__str__', lambda c: '$s')", "cut(Meta~, 'flag')", "put(Built~, '__class_getitem__', classmethod(lambda c, v: #))",
        ),
    ),
    Part(
        "abstract classes",
        """
class Abstract~(abc.ABC):
    @abc.abstractmethod
    def go(self): ...
    @classmethod
    def __subclasshook__(cls, c): return True if 'hooked' in c.__dict__ else NotImplemented
class Concrete~(Abstract~):
    def go(self): return #
class Stranger~:
    far = #
@typing.runtime_checkable
class Proto~(typing.Protocol):
    def go(self): ...
""",
        (
            "Concrete~()", "Stranger~()",
        ),
        (
            "isinstance($o, Abstract~)", "isinstance($o, Proto~)", "$o.go()", "issubclass(Stranger~, Abstract~)", "isinstance($o, collections.abc.Sized)", "isinstance($o, collections.abc.Hashable)",
            "isinstance($o, collections.abc.Callable)", "isinstance($o, collections.abc.Iterable)", "isinstance($o, (int, Abstract~))", "callable($o)", "isinstance($o, typing.Hashable)",
            "isinstance($o, numbers.Number)",
        ),
        (
            "Abstract~.register(Stranger~)", "put(Stranger~, 'hooked', 1)", "put(Stranger~, 'go', lambda self: #)", "put(Stranger~, '__len__', lambda s: 2)", "put(Stranger~, '__hash__', None)",
            "put(Stranger~, '__call__', lambda s: #)", "put(Stranger~, '__iter__', lambda s: iter([]))", "put(Concrete~, 'go', lambda self: #)", "put(Stranger~, '__bases__', (Abstract~,))",
            "numbers.Number.register(Stranger~)", "put($o, '__class__', Concrete~)", "put($o, 'go', lambda: #)",
        ),
    ),
    Part(
        "attribute hooks",
        """
class Get~:
    table = {'deep': #, 'far': #}
    def __init__(self, v): self.v = v
    def __getattr__(self, name):
        try:
            return self.table[name]
        except KeyError: raise AttributeError(name) from None
class Every~:
    def __init__(self, v): self.v = v
    def __getattribute__(self, name):
        value = object.__getattribute__(self, name)
        return value + 1 if name == 'v' else value
    def __setattr__(self, name, value): object.__setattr__(self, name, value)
    def __dir__(self): return ['v', '$s']
""",
        (
            "Get~(#)", "Every~(#)",
        ),
        (
            "$o.v", "$o.deep", "getattr($o, 'far', 1)", "getattr($o, 'absent', #)", "hasattr($o, 'deep')", "$o.deep + $o.v", "sorted(dir($o))[-1]", "vars($o)", "'v' in dir($o)", "$o.__dict__['v']",
            "object.__getattribute__($o, 'v')", "operator.attrgetter('v')($o)",
        ),
        (
            "put($o, 'v', #)", "item(Get~.table, 'deep', #)", "put(Get~, '__getattr__', lambda s, n: #)", "put($o, 'deep', #)", "put(Get~, 'far', #)", "put(Every~, '__getattribute__', lambda s, n: #)",
            "cut(Every~, '__getattribute__')", "put(Get~, 'table', {'deep': #})", "cut_item(Get~.table, 'far')", "put(Every~, '__dir__', lambda s: ['v', '$s', 'zz'])", "item(Get~.table, 'absent', #)",
            "item($o.__dict__, 'v', #)", "put($o, 'zz', #)",
        ),
    ),
    Part(
        "operators",
        """
class Op~:
    def __init__(self, v): self.v = v
    def __call__(self, k=#): return self.v + k
    def __len__(self): return int(self.v)
    def __iter__(self): return iter([self.v, 1])
    def __getitem__(self, i): return self.v if i == 0 else [][i]
    def __contains__(self, o): return o == self.v
    def __eq__(self, o): return self.v == (o.v if isinstance(o, Op~) else o)
    def __hash__(self): return hash(self.v)
    def __lt__(self, o): return self.v < (o.v if isinstance(o, Op~) else o)
    def __add__(self, o): return self.v + o
    def __rsub__(self, o): return o - self.v
    def __str__(self): return f'<{self.v}>'
    def __repr__(self): return f'Op({self.v})'
    def __format__(self, spec): return format(self.v, spec)
    def __enter__(self): return self.v
    def __exit__(self, *a): return False
    def __next__(self): return self.v
    def __reversed__(self): return iter([self.v])
    def __matmul__(self, o): return self.v * 2
    def __invert__(self): return self.v
    def __and__(self, o): return self.v
    def __bool__(self): return self.v > 2
    def __copy__(self): return Op~(self.v)
    __match_args__ = ('v',)
class Bare~:
    def __init__(self, v): self.v = v
""",
        (
            "Op~(#)", "Op~(#)", "Op~(3)", "Bare~(#)",
        ),
        (
            "$o()", "$o(2)", "len($o)", "list($o)", "$o[0]", "3 in $o", "$o == 3", "$o != Op~(3)", "hash($o)", "$o < 3", "sorted([$o, Op~(2)])", "$o + 1", "5 - $o", "str($o)", "repr($o)", 'f"{$o}"',
            'f"{$o!r:>9}"', "next($o)", "list(reversed($o))", "$o @ 1", "~$o", "bool($o)", "not $o", "$o and 1", "{Op~(3): 1}.get($o)", "len({$o, 3.})", "[$o].index(3)", "$o in [3, 2]",
            "[1, 2, $o].count(3)", "max($o, Op~(2)).v", "callable($o)", "1 if $o else 2", "any([$o, 0])", "all([$o, 1])", "list(filter(None, [$o]))", "{$o: 1}.get(3, 2)", "$o.v", "'%s' % $o",
            "print($o, file=io.StringIO())", "sum([$o], 1)", "functools.reduce(operator.add, [$o, 1, 2])", "list(map(str, [$o]))", "copy.copy($o).v", "operator.contains($o, 3)", "dict([(1, $o)])[1].v",
            "$o.__class__.__name__", "bool([] or $o)", "(3,) == ($o,)", "[$o] == [3]", "3 == $o", "min([$o, Op~(5)]).v", "min(3, $o)", "[w for w in $o]", "(lambda *a: a)(*$o)", "[*$o]", "a_match($o)",
            "with_value($o)", "list(zip($o, [1, 2]))", "list(enumerate($o))", "$o & 1", "dict.fromkeys([$o], 1).get(3)", "{3: 5}.get($o)", "{3, 4} & {$o}",
            "collections.Counter([$o, 3]).most_common(1)[0][1]", "isinstance($o, collections.abc.Container)",
        ),
        (
            "put($o, 'v', #)", "put($o, 'v', 3)", "put(Op~, '__call__', lambda s, k=0: #)", "put(Bare~, '__call__', lambda s, k=0: #)", "put(Op~, '__len__', lambda s: #)",
            "put(Bare~, '__len__', lambda s: 0)", "put(Op~, '__bool__', lambda s: False)", "put(Bare~, '__bool__', lambda s: False)", "cut(Op~, '__bool__')", "put(Op~, '__eq__', lambda s, o: True)",
            "put(Bare~, '__eq__', lambda s, o: True)", "put(Op~, '__hash__', lambda s: hash(3))", "put(Bare~, '__hash__', lambda s: hash(3))", "put(Op~, '__contains__', lambda s, o: True)",
            "put(Bare~, '__contains__', lambda s, o: True)", "put(Bare~, '__iter__', lambda s: iter([#]))", "cut(Op~, '__iter__')", "cut(Op~, '__contains__')",
            "put(Bare~, '__getitem__', lambda s, i: #)", "put(Op~, '__lt__', lambda s, o: True)", "put(Bare~, '__lt__', lambda s, o: True)", "put(Bare~, '__gt__', lambda s, o: True)",
            "put(Op~, '__str__', lambda s: '$s')", "put(Op~, '__format__', lambda s, f: '$s')", "put(Bare~, '__add__', lambda s, o: #)", "put(Bare~, '__radd__', lambda s, o: #)",
            "put(Op~, '__add__', lambda s, o: NotImplemented)", "put(Op~, '__next__', lambda s: #)", "cut(Op~, '__reversed__')", "put(Op~, '__copy__', lambda s: Op~(#))",
            "put(Op~, '__match_args__', ())", "put(Op~, '__exit__', lambda s, *a: True)", "put(Op~, '__enter__', lambda s: #)", "cut(Op~, '__hash__')", "cut(Op~, '__call__')",
            "put(Bare~, '__instancecheck__', lambda s, o: True)", "put(Bare~, '__str__', lambda s: '$s')", "put(Op~, '__ne__', lambda s, o: True)", "put(Bare~, '__rsub__', lambda s, o: #)",
            "cut(Op~, '__len__')",
        ),
    ),
    Part(
        "keys",
        """
class Key~:
    def __init__(self, v): self.v = v
    def __hash__(self): return hash(self.v)
    def __eq__(self, o): return self.v == getattr(o, 'v', o)
KEY~ = Key~(#)
TABLE~ = {KEY~: #, 3: #, '$s': #, True: #, Key~(7): #}
""",
        (
            "Key~(3)", "Key~(#)", "{Key~(2), Key~(3)}", "{Key~(2): #}", "TABLE~",
        ),
        (
            "{$o: 1}.get(3)", "TABLE~.get($o)", "TABLE~.get(3.)", "TABLE~[KEY~]", "KEY~ in TABLE~", "$o in TABLE~", "{$o, 3.}", "len({$o, 3})", "$o == 3", "hash($o)", "Key~(2) in $o",
            "[k for k in TABLE~ if k == $o]", "list(TABLE~.values())", "len($o)", "frozenset([$o]) == frozenset([3])", "dict([($o, 4)])[Key~(3)]", "TABLE~.get(1)", "$o in {3: 1}", "$o in (2, 3)",
            "[3, 2].count($o)", "{$o: 1} == {3: 1}", "{$o} | {3}",
        ),
        (
            "put($o, 'v', 3)", "put(KEY~, 'v', #)", "put(Key~, '__hash__', lambda s: 3)", "put(Key~, '__eq__', lambda s, o: True)", "put(Key~, '__eq__', lambda s, o: False)", "item(TABLE~, 3, #)",
            "item(TABLE~, Key~(3), #)", "cut_item(TABLE~, 3)", "item(TABLE~, KEY~, #)", "refill(TABLE~, [(3, #)])", "put($o, 'v', 3.)", "item(TABLE~, True, #)",
        ),
    ),
)
# fmt: on
"""Ingredients of Python's own kinds of object; the rest is in `parts_library.py` and `parts_torch.py`."""
