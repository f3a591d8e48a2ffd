"""Subjects of `lives.py`: containers, objects of classes, classes, functions.

Of each kind, how one comes into being (`=`), what is done to it (`!`), what is asked of it (`?`). `S` is the subject, `O` another one of the
program, `K` a number, `X` a tensor; `B(...)` gives back its argument, perhaps behind a graph break; `::` begins a line.
"""

OBJECTS = r"""
= [K, 2, X]
= OUTER_LIST
= MyList([K, 1])
! S.append(K)
! S.append(O)
! S[0] = B(O)
! S[1:2] = [O, B(K), X]
! S[::2] = [K] * len(S[::2])
! S += [B(K)]
! S *= 2; del S[4:]
! S.extend(v for v in range(B(2)))
! S.insert(0, S[-1]); S.reverse(); del S[5:]
! S.sort(key=lambda v: (str(type(v)), B(0)))
! del S[B(0)]
! S.remove(K)
! S[:] = S[1:] + S[:1]
! for v in S: S.append(v) if len(S) < 6 else B(None)
! S.clear(); S.append(X)
? (len(S), S is OUTER_LIST, S[0] is S[-1])
? S[:B(2)]
? [*S, B(1), *S[1:]]
? S.index(2)
? S.pop()
? S.copy()
? [v for v in S if B(v is not None)]
? list(zip(S, B(S), S[1:]))
? (S == S.copy(), S != [], O in S)
? next(iter(S))
? max(S)
? getattr(S, "tag", B(0))
? tuple(reversed(S))
= {"a": K, "t": X}
= OUTER_DICT
= MyDict(a=K)
= collections.defaultdict(list, a=1)
= collections.OrderedDict(a=K, b=X)
= collections.ChainMap({}, {"a": 1}, OUTER_DICT)
= collections.Counter("aab")
! S["n"] = B(K)
! S[K] = X
! S["o"] = O
! S.update(q=B(1), a=O)
! S.update({K: S.get(K)})
! S.setdefault("l", []).append(K) if isinstance(S.get("l", []), list) else B(0)
! del S["a"]
! S.pop("n", None); S["a"] = B(3)
! S |= {"z": X}
! for k in S: S[B("new")] = 1
! for k in list(S): S[k] = S.pop(k)
! [S.pop(k) for k in list(S)[3:]]
! S["l"][0] = B(O)
? list(S)
? list(S.items())
? (len(S), "a" in S, S.get("zz", B(4)))
? S["missing"]
? (S.keys() & {"a", "n"}) == {"a"}
? {**S, "w": B(K)}
? {v: k for k, v in S.items() if isinstance(v, int)}
? S.popitem()
? S.copy() == S
? dict(S)
? S.values()
? S.keys() | {B("q")}
? "{a}".format(**{"a": S["a"]})
? sorted(map(str, S), reverse=True)
? next(iter(S.items()), B(None))
= {K, "a", (1, 2)}
= OUTER_SET
= frozenset([K, "a"])
! S |= {B(K)}
! S = S | {"o"}
! S.add(K)
! S.discard(B("a"))
! S -= {K}
! S ^= {1, B(2)}
! S.update(range(B(3)))
? sorted(map(str, S))
? (len(S), K in S, S >= {K})
? S & {K, 1, "a"}
? S == {K}
? S.pop() if len(S) == 1 else B(1)
? S.isdisjoint(B([K]))
= collections.deque([K, X], maxlen=3)
= OUTER_DEQUE
! S.append(O)
! S.appendleft(B(K))
! S.rotate(1)
! S.extend([B(1), 2])
! S[0] = X
! S.popleft(); S.append(K)
! for v in S: S.append(B(v))
? list(S)
? (S.maxlen, len(S), S[-1] is S[0])
? S.pop()
? S.copy()
? O in S
= Plain(K)
= OUTER
= Child(X)
= copy.copy(OUTER)
= Plain(v=K, w=[O], items=[])
= types.SimpleNamespace(v=K, items=[1])
! S.v = B(O)
! S.v = S.v + K
! S.bump(B(K)).bump()
! S.items = [S, X]
! S.items.append(B(K))
! S.__dict__["w"] = K
! vars(S).update(u=B(X))
! del S.v; S.v = B(2)
! setattr(S, f"n{K}", O)
! S.__class__ = Child if type(S) is Plain else B(type(S))
! S.shared.append(K); del S.shared[:-3]
! S.tell = lambda: ("own", K)
! S.bump = types.MethodType(lambda self, by=0: B(self), S)
! S.me = S
? S.v
? (S.v, B(1), S.v)
? S.tell()
? sorted(vars(S))
? S.__dict__
? hasattr(S, "w") and S.w
? getattr(S, "items", B("none"))
? type(S).__name__
? (isinstance(S, Child), S.bump == S.bump, S.bump)
? copy.copy(S)
? copy.deepcopy(S)
? operator.attrgetter("v")(S)
? S.shared is Plain.shared
? [m for m in dir(S) if m[0] != "_"]
= Slots(K)
= OUTER_SLOTS
= SubSlots(X)
! S.a = B(K)
! S.b = O
! del S.a; S.a = 1
! S.c = B(X)
! S.d = 1
! S.a = [S]
? (S.a, hasattr(S, "b"), hasattr(S, "c"))
? S.b
? weakref.ref(S)() is B(S)
? hasattr(S, "__dict__")
? copy.copy(S).a
= Guarded()
= OUTER_GUARDED
! S.v = K
! S.w = B(O)
! del S.v
! S._h = X
! object.__setattr__(S, "v", B(K))
? S.v
? S.other
? S.never
? (hasattr(S, "q"), B(0), getattr(S, "never", 3))
? sorted(S.__dict__)
? S._h
= Prop()
= OUTER_PROP
! S.v = B(K)
! S.v += 1
! del S.v
! S.slow.append(B(K))
! del S.slow
! S.__dict__["slow"] = O
! S.hist = S.hist[-2:]
? S.v
? S.slow
? (S.hist, S._v)
? Prop.v.fget(S)
? S.slow is S.slow
= type("Dyn", (Plain,), {"k": K, "hi": lambda self: ("hi", self.k)})
= Meta("Made", (), {"k": B(K), "hi": lambda self: ("meta hi", self.k)}, flag=1)
! S.k = O
! S.j = B(X)
! S.hi = lambda self: ("new hi", K)
! S.__len__ = lambda self: B(5)
! S.__call__ = lambda self, *a: a
! S.__eq__ = lambda self, o: B("eq")
! S.__bool__ = lambda self: B(False)
! S.__getattr__ = lambda self, name: f"g{name}"
! setattr(S, "p", property(lambda self: B(self.k)))
! del S.k; S.k = 4
! S.st = staticmethod(lambda *a: a); S.cm = classmethod(lambda cls, *a: (cls.__name__, B(a)))
! S.__name__ = "Renamed"
! S.__add__ = lambda self, o: B(("added", o))
! S.__iter__ = lambda self: iter([1, B(2)])
? S().hi()
? S.k
? len(S())
? S()(K, B(2))
? S() == 1
? bool(S())
? S().p
? S().zzz
? S().st(1) + S().cm(B(2))
? (S.__name__, S.__mro__[1:], S.__bases__ == (object,))
? getattr(S, "size", None)
? [*S()]
? S() + B(1)
? type(S)
= Arith(K)
= OUTER_ARITH
= SubArith(K)
= Arith(X)
! S += 1
! S += B(Arith(2))
! S = S + K
! S = B(1) + S
! S.v = K
! S = sum([Arith(1), Arith(K)], S)
? S
? Arith(1) + S
? S * 3
? 3 * S
? S == B(Arith(K))
? {S: 1, Arith(K): B(2)}
? not S
? S and B(1)
? S < B(Arith(3))
? sorted([Arith(2), S, Arith(0)])
? f"{S:>5}{B(1)}{S!r}"
? S + "text"
? "text" + S
? len({S, Arith(K), B(S)})
? S in [Arith(K)]
? operator.iadd(S, 1) is S
= Seq([K, 1, X])
! S[0] = B(O)
! del S[1]
! S[0:1] = [3, 4]
! S.items.append(S)
! S[B(0)] += 1
? list(S)
? (1 in S, len(S), S[-1])
? S[B(0):2].items
? [*S, *B(S)]
? next(iter(S))
? list(reversed(S))
? list(enumerate(S, B(1)))
? S[7]
? bool(S)
= counter(K)
= OUTER_UP
= counter(X)
! S()
! S(B(3))
! S.extra = B(O)
! S.__defaults__ = (B(5),)
! S = functools.partial(S, K)
! S = deco(S)
! S.read.note = K
? S()
? (B(S()), S())
? S.read() if hasattr(S, "read") else B(0)
? [S() for _ in range(2)]
? getattr(S, "extra", None)
? getattr(S, "calls", None)
? S.__closure__[0].cell_contents if getattr(S, "__closure__", None) else B(1)
? S.__name__
? max([1, 2], key=lambda v: S(v) is None)
= lambda *a, **kw: (a, kw, K)
= functools.partial(mixed, K, d=B(X))
= mixed
= deco(mixed)
= functools.partial(lambda *a, **kw: (a, kw), B(K), q=O)
! S.attr = [K]
! S = functools.partial(S, 1)
! S = (lambda f: lambda *a, **kw: (B(0), f(*a, **kw)))(S)
! S.__doc__ = "doc"
? S(1, d=2)
? S(1, 2, 3, 4, d=B(5), z=O)
? S(*[1, B(2)], **{"d": K})
? S(b=1, d=1)
? S(1, 2)
? S(*(v for v in range(B(2))), d=0, **{"d": 1})
? getattr(S, "attr", None)
? S(1, 2, c=B(4), d=4)[:2]
"""
