"""Ingredients of a world that come from the standard library, from functions and from the interpreter's state (see `parts.py`)."""

from __future__ import annotations

from parts import Part

# fmt: off
LIBRARY_PARTS = (
    Part(
        "functions",
        """
def first~(a, b=#, *c, d=#): return a * b + d + len(c)
def second~(a=[#, #], t={'k': #}): return a[0] + t['k']
def make~(held, deep=#):
    count = held
    def inner(k=#): return count + k + deep
    return inner
def noted~(fn):
    @functools.wraps(fn)
    def around(*args, **kw): return fn(*args, **kw) + around.bonus
    around.bonus = #
    return around
@noted~
def third~(a, k=#): return a + k
def outer~(a): return first~(a) + GLOBAL~
def ternary~(a, /, b, *, c=#): return (a, b, c)
GLOBAL~ = #
""",
        (
            "first~", "second~", "make~(#)", "make~(#, #)", "third~", "functools.partial(first~, #)", "functools.partial(first~, b=#, d=#)", "lambda *a, k=#: k", "first~.__get__(#)", "outer~",
            "functools.lru_cache(second~)", "[make~(q) for q in (1, 2, 3)]", "Plainer(#).go",
        ),
        (
            "$o()", "$o(2)", "$o(3, d=1)", "first~(2)", "second~()", "third~(1)", "outer~(2)", "$o.__defaults__", "$o.__kwdefaults__", "$o.__name__", "$o.__doc__", "$o.bonus", "getattr($o, 'note', #)",
            "$o.keywords", "$o.args", "$o.func(1)", "$o.__closure__[0].cell_contents", "$o.__code__.co_argcount", "$o.__wrapped__(1)", "len($o)", "[q() for q in $o]", "$o[0]()", "(lambda f: f(2))($o)",
            "list(map($o, [1, 2]))", "functools.partial($o, 2)()", "$o.__module__", "$o.__qualname__", "inspect.signature($o).parameters['k'].default", "sorted([3, 1, 2], key=$o)",
            "max([1, 3], key=$o)", "functools.reduce(lambda a, b: a + $o(b), [1, 2, 3])", "ternary~(1, b=2)", "GLOBAL~", "len(inspect.signature($o).parameters)", "$o.__self__.v", "callable($o)",
            "first~.__annotations__", "typing.get_type_hints(first~)", "[*map(lambda q: q + GLOBAL~, [1, 2])]",
        ),
        (
            "put(first~, '__defaults__', (#,))", "put(first~, '__kwdefaults__', {'d': #})", "put(second~, '__defaults__', ([#], {'k': #}))", "item(second~.__defaults__[0], 0, #)",
            "item(second~.__defaults__[1], 'k', #)", "put(first~, '__code__', (lambda a, b=1, *c, d=2: #).__code__)", "put($o, '__defaults__', (#,))",
            "put($o, '__code__', (lambda *a, **k: #).__code__)", "cell($o, 0, #)", "cell($o, 1, #)", "put(third~, 'bonus', #)", "put(third~.__wrapped__, '__defaults__', (#,))", "put(M, 'GLOBAL~', #)",
            "put(M, 'first~', lambda a, *b, **d: #)", "put($o, 'note', #)", "put($o, '__name__', '$s')", "item($o.keywords, 'b', #)", "put($o, '__kwdefaults__', {'k': #})", "put($o, '__doc__', '$s')",
            "put(first~, '__kwdefaults__', None)", "item(first~.__kwdefaults__, 'd', #)", "$o.__setstate__((first~, (#,), {}, {}))", "put(ternary~, '__kwdefaults__', {'c': #})",
            "put($o[0], '__defaults__', (#,))", "put($o.func, '__defaults__', (#,))", "cell($o[0], 0, #)", "put($o.__self__, 'v', #)", "put(M, 'len', lambda o: #)", "put(M, 'max', lambda *a, **k: #)",
            "put(M, 'sorted', lambda *a, **k: [#])", "put(M, 'callable', lambda o: False)", "item(first~.__annotations__, 'a', int)", "cut(third~, '__wrapped__')", "cut(M, 'GLOBAL~')",
        ),
    ),
    Part(
        "collections",
        '',
        (
            "[#, #, #]", "(#, #)", "{'k': #, 'a': #}", "{1, 2, #}", "collections.deque([#, #, #], maxlen=4)", "collections.OrderedDict(a=#, k=#)", "collections.defaultdict(lambda: #, {'k': #})",
            "collections.defaultdict(list, {'k': [#]})", "collections.Counter('aab')", "collections.ChainMap({'a': #}, {'k': #})", "types.MappingProxyType({'k': #, 'a': #})",
            "types.MappingProxyType({})", "collections.UserDict(k=#)", "collections.UserList([#, #])", "frozenset({1, 2})", "range(2, 6)", "slice(0, 2)", "[[#, #], [#]]", "{'k': {'k': #}}",
            "bytearray(b'abc')", "memoryview(bytearray(b'abcd'))", "array.array('d', [#, #])", "collections.UserString('$s')", "{}", "[]", "{'k': [#, '$s']}", "({'k': #}, [#])", "{'a': 1}.keys()",
            "{'k': 2}.values()", "iter([#, #, #])", "[('a', #), ('k', #)]", "[3, True, 1., None, '$s']",
        ),
        (
            "len($o)", "$o[0]", "$o[-1]", "$o['k']", "$o.get('k', 9)", "list($o)", "sorted($o)", "sum($o)", "'k' in $o", "2 in $o", "list($o.items())", "list($o.values())", "bool($o)", "$o.maxlen",
            "$o['absent']", "$o == [1]", "$o.maps[0]", "$o['k']['k']", "$o['k'][0]", "$o[0][0]", "dict($o)", "{**$o}", "$o.most_common(1)", "$o.default_factory()", "$o.copy()", "list(reversed($o))",
            "next(iter($o))", "$o.data", "$o.index(2)", "$o.start", "[1, 2, 3, 4][$o]", "max($o)", "$o.count(1)", "$o.parents", "$o.new_child()['k']", "$o | {'z': 1}", "bytes($o)", "$o.tolist()",
            "next($o, 5)", "min($o, default=3)", "any($o)", "all($o)", "$o[:2]", "[q for q in $o]", "{q: 1 for q in $o}", "list(zip($o, $o))", "list(enumerate($o))[-1]", "tuple($o)",
            "' '.join(map(str, $o))", "functools.reduce(lambda a, b: b, $o)", "list(itertools.chain($o, [1]))", "list(itertools.islice($o, 1, 2))", "list(itertools.accumulate($o))",
            "isinstance($o, tuple)", "$o[0] is $o[-1]", "type($o[0]).__name__", "$o.popitem", "$o.union({9})", "sorted($o, key=str)", "[*$o, 1]", "(lambda a, *b: b)(*$o)", "$o != {'k': 1}", "$o + [1]",
            "$o * 2", "$o.keys()", "operator.itemgetter('k')($o)", "operator.itemgetter(0, -1)($o)", "str($o)", "'{0}'.format($o)", "$o.typecode", "math.prod($o)", "statistics.mean($o)",
            "bisect.bisect($o, 2)", "heapq.nsmallest(1, $o)", "copy.deepcopy($o)", "json.dumps($o)", "repr($o)",
        ),
        (
            "item($o, 0, #)", "item($o, 'k', #)", "item($o, 'absent', #)", "refill($o, [#, #])", "refill($o, [])", "refill($o, [('k', #), ('a', #)])", "refill($o, list($o)[::-1])",
            "refill($o, list($o.items())[::-1])", "cut_item($o, 'k')", "cut_item($o, 0)", "do(lambda: $o.append(#), lambda: $o.pop())", "item($o['k'], 'k', #)", "item($o[0], 0, #)",
            "do(lambda: $o.add(11), lambda: $o.discard(11))", "put($o, 'default_factory', lambda: #)", "do(lambda: $o.rotate(1), lambda: $o.rotate(-1))",
            "do(lambda: $o.move_to_end('a'), lambda: $o.move_to_end('k'))", "item($o.maps[1], 'k', #)", "item($o.maps[0], 'k', #)", "item(referent($o), 'k', #)", "item(referent($o), 'new', #)",
            "cut_item(referent($o), 'k')", "item($o.data, 'k', #)", "item($o.data, 0, #)", "item($o, 0, 65)", "next($o)", "item($o['k'], 0, #)", "put($o, 'data', '$s')", "item($o, -1, #)",
            "item($o, -1, True)", "item($o, 0, 1)", "item($o, 0, 1.)", "item($o, 0, True)", "item($o, 'k', 1)", "item($o, 'k', True)", "item($o, 'k', '$s')", "item($o, 0, None)",
        ),
    ),
    Part(  # its objects are compared as texts too, and the text that they have by themselves is an address
        "getters",
        """
class Thing~:
    def __init__(self, v): self.v, self.w, self.inner = v, #, types.SimpleNamespace(v=#)
    def go(self, k=#): return self.v + k
    def __repr__(self): return 'thing'
GET~ = operator.attrgetter('v')
SOME~ = Thing~(#)
""",
        (
            "operator.itemgetter(0)", "operator.itemgetter(1)", "operator.itemgetter(1, 0)", "operator.attrgetter('v')", "operator.attrgetter('w')", "operator.attrgetter('inner.v')",
            "operator.methodcaller('go')", "operator.methodcaller('go', 2)", "operator.methodcaller('go', k=#)", "Thing~(#)", "functools.cmp_to_key(lambda a, b: b - a)", "functools.partial(max, #)",
            "functools.partial(operator.add, #)", "'{}-$s'.format", "[#, #, #].index", "{'v': #}.get", "'$s'.join",
        ),
        (
            "$o([5, 6, 7])", "$o(SOME~)", "GET~(SOME~)", "GET~($o)", "$o((1, 2))", "sorted([[1, 5], [2, 4]], key=$o)", "list(map($o, [[1, 2], [3, 4]]))", "operator.attrgetter('w', 'v')($o)",
            "operator.methodcaller('go')($o)", "str($o)", "$o.v", "$o(3)", "sorted([1, 3, 2], key=$o)", "$o.func(1, 2)", "$o('v')", "$o(['a', 'b'])", "max([SOME~, Thing~(3)], key=$o).v", "$o.inner.v",
            "functools.reduce(max, [1, 2])", "list(map($o, ['v']))", "min([[1, 2], [2, 1]], key=$o)", "repr($o)", "$o.__reduce__()[1]",
        ),
        (
            "put(SOME~, 'v', #)", "put(SOME~.inner, 'v', #)", "put(Thing~, 'go', lambda s, k=0: #)", "put(M, 'GET~', operator.attrgetter('w'))", "put($o, 'v', #)",
            "$o.__setstate__((max, (#,), {}, {}))", "put(Thing~, 'v', property(lambda s: #))", "put(SOME~, 'w', #)", "do(lambda: $o.__self__.append(#), lambda: $o.__self__.pop())",
            "item($o.__self__, 'v', #)",
        ),
    ),
    Part(
        "contexts",
        """
VAR~ = contextvars.ContextVar('VAR~', default=#)
BARE~ = contextvars.ContextVar('BARE~')
LOCAL~ = threading.local()
LOCAL~.k = #
class Local~(threading.local):
    width = #
    def __init__(self): self.v = #
""",
        (
            "LOCAL~", "VAR~", "Local~()", "contextvars.Context()",
        ),
        (
            "VAR~.get()", "BARE~.get(#)", "getattr(LOCAL~, 'k', 7.)", "LOCAL~.k", "hasattr(LOCAL~, 'k')", "LOCAL~.__dict__['k']", "$o.v", "$o.width", "getattr(LOCAL~, 'absent', #)", "vars(LOCAL~)",
            "$o.get(VAR~)", "VAR~ in $o", "hasattr($o, 'absent')", "VAR~.name", "[q for q in LOCAL~.__dict__]",
        ),
        (
            "var(VAR~, #)", "var(BARE~, #)", "put(LOCAL~, 'k', #)", "cut(LOCAL~, 'k')", "put(LOCAL~, 'absent', #)", "put($o, 'v', #)", "put(Local~, 'width', #)", "item(LOCAL~.__dict__, 'k', #)",
            "put($o, 'absent', #)", "put(M, 'VAR~', contextvars.ContextVar('V', default=#))",
        ),
    ),
    Part(  # of two objects that are hashed by their addresses, which comes first in a set differs from run to run: it holds one
        "weak references",
        """
class Target~:
    def __init__(self, v): self.v = v
    def go(self): return self.v + 1
    def __len__(self): return 4
KEPT~ = Target~(#)
KEPT_TOO~ = Target~(#)
WEAK~ = weakref.WeakValueDictionary(k=KEPT~)
WKEY~ = weakref.WeakKeyDictionary({KEPT~: #})
WSET~ = weakref.WeakSet([KEPT~])
""",
        (
            "weakref.ref(KEPT~)", "weakref.proxy(KEPT~)", "weakref.proxy(KEPT_TOO~)", "weakref.ref(KEPT_TOO~)", "weakref.WeakMethod(KEPT~.go)", "WEAK~", "WKEY~", "WSET~",
        ),
        (
            "$o().v", "$o.v", "$o.go()", "getattr($o, 'k', 3.)", "hasattr($o, 'v')", "len($o)", "$o() is KEPT~", "$o() is None", "$o['k'].v", "$o[KEPT~]", "$o.get(KEPT~)", "KEPT~ in $o", "$o()()",
            "'k' in $o", "[q.v for q in $o]", "list($o.values())[0].v", "$o == KEPT~", "bool($o)", "type($o).__name__", "isinstance($o, Target~)", "str(type($o))", "$o.__class__.__name__",
        ),
        (
            "put(KEPT~, 'v', #)", "put(KEPT~, 'k', #)", "put(KEPT_TOO~, 'v', #)", "put(KEPT_TOO~, 'k', #)", "put(Target~, 'go', lambda s: #)", "put(M, 'KEPT~', Target~(#))",
            "put(Target~, '__len__', lambda s: #)", "put(Target~, 'k', #)", "item(WEAK~, 'k', KEPT_TOO~)", "item(WKEY~, KEPT~, #)", "do(lambda: WSET~.discard(KEPT~), lambda: WSET~.add(KEPT~))", "do(lambda: (WSET~.clear(), WSET~.add(KEPT_TOO~)), lambda: (WSET~.clear(), WSET~.add(KEPT~)))",
            "cut_item(WKEY~, KEPT~)", "put(Target~, '__bool__', lambda s: False)", "put(Target~, '__eq__', lambda s, o: False)",
        ),
    ),
    Part(
        "exceptions",
        """
class Oops~(Exception):
    code = #
    def __init__(self, *args, extra=#):
        super().__init__(*args)
        self.extra = extra
class Told~(ValueError):
    def __str__(self): return 'told ' + str(self.args[0])
""",
        (
            "ValueError(#)", "ValueError('$s', #)", "Oops~('$s')", "Oops~(#, extra=#)", "Told~(#)", "KeyError('$s')", "OSError(2, '$s')", "StopIteration(#)",
            "UnicodeDecodeError('a', b'q', 0, 1, '$s')", "ImportError('$s', name='$s')", "ExceptionGroup('$s', [ValueError(#)])", "SystemExit(3)",
        ),
        (
            "str($o)", "$o.args", "$o.args[0]", "repr($o)", "$o.extra", "$o.code", 'f"{$o}"', "$o.errno", "$o.strerror", "$o.value", "$o.reason", "$o.name", "len($o.args)", "$o.__cause__",
            "$o.__context__", "'%s' % $o", "isinstance($o, ValueError)", "$o.__suppress_context__", "raised($o)", "getattr($o, '__notes__', [])", "$o.exceptions[0].args", "$o.start", "$o.msg",
            "str($o).upper()", "type($o)(1).args", "str(Oops~(3))",
        ),
        (
            "put($o, 'args', (#,))", "put($o, 'args', ('$s', #))", "put($o, 'args', ())", "put($o, 'extra', #)", "put(Oops~, 'code', #)", "put(Told~, '__str__', lambda s: '$s')", "put($o, 'errno', 5)",
            "put($o, 'strerror', '$s')", "put($o, 'value', #)", "put($o, '__cause__', KeyError(1))", "$o.add_note('$s')", "put($o, 'reason', '$s')", "put($o, 'name', '$s')",
            "put(Oops~, '__init__', lambda s, *a: None)", "put($o, '__suppress_context__', True)", "put($o, 'start', 1)", "put($o, 'code', #)", "put(Oops~, '__str__', lambda s: '$s')",
            "put($o, 'msg', '$s')", "item($o.exceptions[0].__dict__, 'q', 1)", "put($o.exceptions[0], 'args', (#,))",
        ),
    ),
    Part(
        "namespaces and modules",
        """
SPACE~ = types.SimpleNamespace(v=#, inner=types.SimpleNamespace(v=#, t=[#]))
MOD~ = types.ModuleType('fuzz_sub~')
MOD~.v = #
MOD~.go = lambda k=#: MOD~.v + k
MOD~.items = [#, #]
sys.modules['fuzz_sub~'] = MOD~
class LazyMod~(types.ModuleType):
    width = #
    @property
    def prop(self): return self.width
LAZY~ = types.ModuleType('lazy~')
LAZY~.__getattr__ = lambda name: #
""",
        (
            "SPACE~", "MOD~", "LAZY~", "types.SimpleNamespace(v=#)", "argparse.Namespace(v=#)", "LazyMod~('m~')",
        ),
        (
            "$o.v", "SPACE~.inner.v", "SPACE~.inner.t[0]", "MOD~.v", "MOD~.go()", "MOD~.items[0]", "import_value('fuzz_sub~')", "LAZY~.far", "getattr($o, 'absent', #)", "hasattr($o, 'absent')",
            "vars($o).get('v')", "dir(SPACE~)", "$o.__dict__['v']", "$o == types.SimpleNamespace(v=1)", "$o.prop", "$o.__name__", "sys.modules['fuzz_sub~'].v", "repr(SPACE~)", "'v' in vars($o)",
            "'v' in dir($o)", "len(vars($o))", "[k for k in dir($o) if k[0] != '_']", "MOD~.__dict__.get('v', 1)", "'v' in $o", "sorted(k for k in $o.__dict__ if k[0] != '_')",
        ),
        (
            "put($o, 'v', #)", "put(SPACE~.inner, 'v', #)", "item(SPACE~.inner.t, 0, #)", "put(MOD~, 'v', #)", "put(MOD~, 'go', lambda k=0: #)", "put(MOD~.go, '__defaults__', (#,))",
            "put($o, 'absent', #)", "item(MOD~.items, 0, #)", "cut($o, 'v')", "put(SPACE~, 'inner', types.SimpleNamespace(v=#, t=[1]))", "put(LAZY~, '__getattr__', lambda n: #)",
            "put(LAZY~, 'far', #)", "put(MOD~, '__class__', LazyMod~)", "put(LazyMod~, 'width', #)", "put(LazyMod~, 'prop', #)", "put(MOD~, '__getattr__', lambda n: #)", "item(vars($o), 'v', #)",
            "item(sys.modules, 'fuzz_sub~', SPACE~)", "put(M, 'MOD~', SPACE~)",
        ),
    ),
    Part(  # a codec that nothing else uses: there is one object of each, and whoever reads a text file needs that of UTF-8
        "C structures",
        """
class Point~(ctypes.Structure):
    _fields_ = [('x', ctypes.c_int), ('y', ctypes.c_double)]
    def total(self): return self.x + self.y
class Nest~(ctypes.Structure):
    _fields_ = [('p', Point~), ('n', ctypes.c_int * 2)]
""",
        (
            "Point~(2, #)", "Point~(5)", "Nest~(Point~(1, 2.), (3, 4))", "ctypes.c_int(4)", "ctypes.c_double(#)", "(ctypes.c_int * 3)(1, 2, 3)", "struct.Struct('id')", "decimal.Decimal('1.5')",
            "fractions.Fraction(3, 2)", "datetime.date(2020, 1, 2)", "datetime.timedelta(seconds=3)", "re.compile('a+')", "pathlib.PurePath('a/b')", "io.StringIO('$s')", "random.Random(3)",
            "itertools.islice(itertools.count(2), 4)", "zip([1, 2], [3, 4])", "(q for q in [1, 2])", "map(str, [1])", "uuid.UUID(int=5)", "queue.Queue()", "threading.Lock()",
            "inspect.Parameter('a', inspect.Parameter.KEYWORD_ONLY, default=3)", "types.GenericAlias(list, (int,))", "string.Template('$$a')", "datetime.datetime(2021, 2, 3, 4)",
            "re.match('(a)(b)?', 'a')", "cmath.exp(1j)", "enum.auto()", "codecs.lookup('koi8-r')", "operator.add", "time.struct_time((1, 2, 3, 4, 5, 6, 7, 8, 0))", "urllib.parse.urlparse('http://a/b')",
        ),
        (
            "$o.x", "$o.y", "$o.total()", "$o.p.x", "$o.n[0]", "$o.value", "$o[0]", "$o[1]", "list($o)", "len($o)", "$o.p.total()", "$o.size", "float($o)", "$o + 1", "$o * 2", "$o.year", "$o.days",
            "$o.pattern", "$o.name", "$o.getvalue()", "str($o)", "$o == 2", "ctypes.sizeof($o)", "bytes($o)", "$o.numerator", "int($o)", "bool($o)", "getattr($o, 'x', #)", "$o.match('aab') is None",
            "$o.qsize()", "$o.locked()", "$o.default", "$o.tm_mon", "$o.netloc", "$o.group(0)", "$o.substitute(a=1)", "repr($o)", "hash($o)", "$o < 3", "math.floor($o)", "$o.tell()", "$o.read()",
            "$o.parts", "$o.__args__", 'f"{$o}"', "$o.total_seconds()",
        ),
        (
            "put($o, 'x', 7)", "put($o, 'y', #)", "put($o.p, 'x', 6)", "item($o.n, 0, 9)", "put($o, 'value', 6)", "put($o, 'value', 2)", "item($o, 0, 7)", "item($o, 1, 5)",
            "put(Point~, 'total', lambda s: #)", "$o.write('zz')", "$o.seek(1)", "put(Point~, 'x', #)", "next($o)", "$o.put(3)", "do(lambda: $o.acquire(), lambda: $o.release())",
            "put($o, 'template', '$$a!')", "$o.seed(4)", "$o.random()", "put(Point~, '__getattr__', lambda s, n: #)",
        ),
    ),
    Part(
        "interpreter",
        """THREAD~ = threading.current_thread()
LOGGER~ = logging.Logger('fuzz~')""",
        (
            "THREAD~", "LOGGER~", "os.environ", "sys.modules", "decimal.getcontext()",
        ),
        (
            "sys.getrecursionlimit()", "gc.isenabled()", "os.environ.get('FUZZ_K', 'no')", "os.environ['FUZZ_K']", "'FUZZ_K' in os.environ", "os.getenv('FUZZ_K')", "decimal.getcontext().prec",
            "str(decimal.Decimal(1) / decimal.Decimal(3))", "threading.current_thread().name", "THREAD~.name", "LOGGER~.level", "LOGGER~.isEnabledFor(20)",
            "LOGGER~.getEffectiveLevel()", "sys.flags.optimize", "torch.is_grad_enabled()", "str(torch.get_default_dtype())", "torch.are_deterministic_algorithms_enabled()",
            "torch.is_autocast_enabled('cpu')", "torch.zeros(2).dtype == torch.float64", "torch.tensor(1.5).dtype", "torch.is_inference_mode_enabled()", "torch.backends.mkldnn.enabled",
            "sys.getswitchinterval()", "sys.path[0]", "os.getcwd()", "os.path.exists('fuzz')", "'fuzz_gone' in sys.modules", "torch.get_num_threads()", "torch.is_anomaly_enabled()",
            "(x @ torch.ones(4, 4)).dtype", "(x * 1.).requires_grad", "locale.localeconv()['decimal_point']", "sys.get_int_max_str_digits()", "torch.is_deterministic_algorithms_warn_only_enabled()",
            "torch.backends.cudnn.benchmark", "sys.gettrace() is None", "torch.get_float32_matmul_precision()", "torch._C._get_deterministic_fill_uninitialized_memory()", "sys.stdout is None",
            "sys.argv[0]", "math.pi", "signal.getsignal(signal.SIGUSR1)", "random.getstate()[1][0]",
        ),
        (
            "state(sys.getrecursionlimit, sys.setrecursionlimit, 1500)", "state(gc.isenabled, lambda v: gc.enable() if v else gc.disable(), False)", "item(os.environ, 'FUZZ_K', '$s')",
            "state(lambda: decimal.getcontext().prec, lambda v: setattr(decimal.getcontext(), 'prec', v), 5)", "put(threading.current_thread(), 'name', '$s')", "put(LOGGER~, 'level', 10)",
            "do(lambda: LOGGER~.setLevel(10), lambda: LOGGER~.setLevel(0))", "state(torch.is_grad_enabled, torch.set_grad_enabled, False)",
            "state(torch.get_default_dtype, torch.set_default_dtype, torch.float64)", "state(torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True)",
            "state(lambda: torch.is_autocast_enabled('cpu'), lambda v: torch.set_autocast_enabled('cpu', v), True)", "put(torch.backends.mkldnn, 'enabled', False)",
            "state(sys.getswitchinterval, sys.setswitchinterval, 0.01)", "do(lambda: sys.path.insert(0, '$s'), lambda: sys.path.pop(0))", "item(sys.modules, 'fuzz_gone', M)",
            "state(torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly, True)", "state(sys.get_int_max_str_digits, sys.set_int_max_str_digits, 5000)",
            "state(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, 'high')", "put(math, 'pi', 3)", "item(sys.argv, 0, '$s')", "put(torch.backends.cudnn, 'benchmark', True)",
        ),
    ),
)
# fmt: on
"""Ingredients from the library, and what belongs to the process. Iterators end: what reads an endless one in C (`list`, `sum`, `in`) cannot be interrupted."""
