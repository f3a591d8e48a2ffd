"""Subjects of `lives.py`: iterators, values, texts, tensors, errors, managers, modules.

Of each kind, how one comes into being (`=`), what is done to it (`!`), what is asked of it (`?`). `S` is the subject, `O` another one of the
program, `K` a number, `X` a tensor; `B(...)` gives back its argument, perhaps behind a graph break; `::` begins a line.
"""

VALUES = r"""
= gen(K, LOG)
= OUTER_GEN
= deleg(K, LOG)
= gen(X, LOG)
= (B(v) + K for v in range(4))
= (v for v in [K, X, 3] if B(True))
= (lambda: (yield from [K, (yield B(1)), X]))()
! next(S)
! B(next(S, None))
! S.send(B(2))
! S.send(X)
! S.throw(KeyError("in"))
! S.throw(B(ValueError("v")))
! S.send(600)
! S.close()
! for v in S: break
! for v in itertools.islice(S, B(2)): LOG.append(v)
! OUTER_LIST[1:] = [S]
? next(S)
? next(S, B("end"))
? [v for v in itertools.islice(S, 2)]
? (S.gi_frame is None, S.gi_running, S.gi_yieldfrom is None)
? dict(zip("ab", S))
? next(S) if S.gi_frame is not None else 0
? S.__name__
? (lambda a, b: (a, b))(next(S), B(next(S)))
? S is iter(S)
= iter([K, 2, X, 4])
= itertools.count(K)
= OUTER_COUNT
= itertools.chain([K], "ab", (X,))
= itertools.cycle([K, X])
= zip([K, 2, 3], itertools.count())
= map(lambda a: B(a), [K, 2, X])
= filter(None, [K, 1, 0, 2])
= enumerate([K, X, 3], B(2))
= reversed([K, 2, 3])
= itertools.groupby([1, 1, K, 2], key=lambda v: B(v > 1))
= itertools.accumulate([1, K, 2], lambda a, b: B(a + b))
= itertools.islice(itertools.count(K), 1, 9, 2)
= itertools.tee(iter([K, 2, 3]))[0]
= itertools.product([K, 1], "a")
= itertools.permutations([K, 1, 2], 2)
= itertools.pairwise([K, 1, X])
= itertools.takewhile(lambda v: B(v) < 3, [0, K, 5])
= itertools.zip_longest([K], [1, X], fillvalue=B(0))
= itertools.starmap(lambda a, b: B((b, a)), [(1, K), (2, X), (3, 3)])
= itertools.repeat(X, 3)
= itertools.compress([K, 2, 3], [1, 0, 1])
= iter({"a": K, "b": 2}.items())
= iter(range(K + 3))
= iter("abc")
= iter(lambda c=[3]: B(c.append(c[-1] - 1) or c[-1]), 0)
= iter({K: 1, "b": 2})
= iter(Seq([K, 2, X]))
= re.finditer("a", "banana")
! next(S)
! B(next(S, None))
! for v in S: break
! for v in itertools.islice(S, B(2)): LOG.append(v)
! a, b, *_ = itertools.islice(S, 3)
! S = itertools.chain([B(0)], S)
! S = map(lambda v: (v, B(1)), S)
! OUTER_LIST[1:] = [S]
? next(S)
? next(S, B("end"))
? list(itertools.islice(S, 2))
? (next(S, 0), B(1), next(S, 0))
? type(S).__name__
? operator.length_hint(S, -1)
? [v for v, _ in zip(S, range(2))]
? S is iter(S)
? copy.copy(S)
= Data(K, t=X)
= Ice(K, [O])
! S.a = B(K)
! S.items.append(O)
! S = dataclasses.replace(S, a=B(9))
! S.new = 1
? S
? dataclasses.asdict(S)
? S == dataclasses.replace(S)
? hash(S)
? [f.name for f in dataclasses.fields(S)]
? dataclasses.astuple(S)
? copy.deepcopy(S)
? S.items is dataclasses.replace(S).items
= Pair(K, O)
= Pair(X)
! S = S._replace(right=B(K))
! S.left = 1
? S
? S._asdict()
? (*S, B(1))
? S.left is S[0]
? Pair(*S) == B(S)
? (lambda left, right: right)(**S._asdict())
= (K, X, [O])
! S = S + (B(1),)
! S += (K,)
! S[0] = 1
! S[2].append(B(K))
! S[2][0] = X
! S[2] += [K]
? S
? S[B(1):]
? (a := S)[0]
? S[-1] is S[2]
? hash(S[:1])
? S * 2
= Color(K % 2 + 1)
= Bits(K % 4)
! S = type(S)(1)
! S.value = 3
! S.note = [K]
? S
? (S.name, S.value, S is type(S)(B(S.value)))
? {S: B(1)}[type(S)(S.value)]
? [*type(S)]
? getattr(S, "note", None)
? repr(S)
? S | Bits.B
= K
= MyInt(K)
= True
= K + 0.5
= 2 ** 70 + K
= complex(K, 1)
= x.shape[0]
= float("nan")
! S += 1
! S = S * B(2)
! S = -S
! S //= 2
! S **= 2
! S = S << 1
! S = divmod(S, 3)[0]
? S
? (S is S, S == S, S in [S])
? f"{S}|{S!r:>8}|{B(1)}"
? f"{S:08.3f}"
? "%s %05.1f" % (S, S)
? S // 0
? S.__class__.__name__
? (S.bit_length(), S.to_bytes(12, "big"))
? round(S, 1)
? int(S)
? [10, 20, 30][S]
? X * S
? hash(S)
? 0 < S < B(4)
? str(S).zfill(B(6))
? range(S)
? S & 3
= "text" * (K % 3)
= MyStr("abc")
= f"{K}-{B(2)}"
= b"by\xfftes"
= bytearray(b"abc")
= string.Template("$a and $b")
! S += "q"
! S += b"q"
! S = S[1:]
! S = S.upper()
! S.append(B(65))
! S[0:1] = b"ZZ"
! S.extend(b"ab")
? S
? S.split(B("e"))
? S.partition(B(b"t"))
? S.find("e", B(1))
? S[B(0)]
? S.encode("utf-16")
? S.decode(errors="replace")
? S.substitute(a=K, b=B(2))
? f"{S:*^12}"
? S.join(["a", B("b")])
? S.translate({101: B("E")})
? "%s|%r" % (S, S)
? sorted(S)
? S.startswith(("t", B("a")))
? re.sub("[a-e]", lambda m: B(m.group().upper()), S)
? re.match("(?P<x>[a-z]+)", S)["x"]
= X
= X * 2
= OUTER_TENSORS[0]
= torch.nn.Parameter(X.detach() * 1)
! S = S + B(K)
! S.add_(1)
! S *= 2
! S[0] = B(5.0)
! S.note = [K]
! S.note.append(B(1))
! OUTER_TENSORS[0] = S
! OUTER_TENSORS.append(S); del OUTER_TENSORS[:-2]
! S = S.view(-1)
! S = S.clone().requires_grad_()
! S.t_ = O
! S.data = B(S.data * 0.5)
! S = S.detach()
! S.zero_() if S.sum() > 3 else B(0)
? S
? S is OUTER_TENSORS[0]
? S.sum().item() > 0
? getattr(S, "note", None)
? S.shape[0] + B(1)
? f"{S.shape} {S.dtype} {S.sum().item():.2f}"
? [S, B(S), S[:1]]
? S.tolist()
? S == S
? {S: B(1)}[S]
? S in [S, B(1)]
? S.numpy()[:1] if not S.requires_grad else 0
? (S.requires_grad, S.grad_fn is None, S._version >= 0)
? S.nothing
? max(S, B(S), key=lambda t: t.sum().item()) is S
= ValueError("e", K)
= KeyError(K)
= ExceptionGroup("eg", [ValueError(K), KeyError("k")])
! S.add_note(f"n{K}")
! S.extra = B(O)
! S.args = (B(K),)
! S.__cause__ = B(KeyError("c"))
! raise S
! raise S from B(None)
! raise RuntimeError("outer") from S
! try: raise S; ::except Exception as e: S = B(e)
! try: raise S; ::except ValueError as e: LOG.append(e is S); ::finally: B(0)
! try: raise S; ::except* ValueError as e: LOG.append((type(e), e.exceptions))
! try: raise S; ::except Exception: ::    try: raise TypeError(B("second")) ::    except TypeError as e: S = e
! try: raise S; ::except Exception as e: ::    LOG.append([f.name for f in traceback.extract_tb(e.__traceback__)][-1:])
? S
? (S.args, str(S), repr(S))
? getattr(S, "__notes__", B(None))
? (S.__cause__, S.__context__, S.__suppress_context__)
? S.__traceback__ is None
? S.with_traceback(B(None)) is S
? traceback.format_exception_only(S)
? S.split(ValueError)
? sys.exc_info()[0]
= Managed(KeyError)
= contextlib.ExitStack()
= managed(LOG)
= contextlib.suppress(KeyError, B(IndexError))
= contextlib.nullcontext(K)
= contextlib.closing(io.StringIO())
= threading.Lock()
= warnings.catch_warnings(record=True)
! with S: B(0)
! with S as got: raise KeyError(B(K))
! with S: LOG.append({}[K])
! with S: raise ValueError(B("in with"))
! S.callback(LOG.append, B("cb"))
! S.enter_context(Managed(ValueError))
! S.push(lambda *e: B(True))
! S = S.pop_all()
! S.__enter__(); B(0); S.__exit__(None, None, None)
! for i in range(3): ::    with S: ::        if i: break ::        B(i)
! with S, Managed(RuntimeError) as m: B(m).note = 1; raise RuntimeError("both")
! with S: warnings.warn(f"careful {K}")
? getattr(S, "events", None)
? S.close()
? type(S).__name__
? S.__enter__()
? S.__exit__(None, None, B(None))
? S.locked()
= weakref.ref(OUTER)
= weakref.WeakKeyDictionary({OUTER: K})
= weakref.WeakValueDictionary(a=OUTER)
= weakref.WeakSet([OUTER])
= weakref.proxy(OUTER)
! S.v = B(K)
! S[OUTER] = O
! S["b"] = OUTER
! S.add(B(OUTER))
! S.clear()
? len(S)
? S() is OUTER
? list(S)
? S.v
? S.tell()
? OUTER in S
? S.get("a")
= VAR
! t = S.set(B(K)); LOG.append(S.get()); S.reset(t)
! S.set(K)
! contextvars.copy_context().run(lambda: S.set(B(9)))
? S.get()
? contextvars.copy_context()[S]
= LOCAL
! S.v = K
! S.w = B(O)
! del S.v
? S.v
? getattr(S, "w", None)
? sorted(S.__dict__)
= Plain
= Child
! S.shared = [B(K)]
! S.tell = lambda self: ("patched", K)
! S.fresh = O
! S.__len__ = lambda self: 3
! del S.__len__
! S.bump = deco(S.bump) if not hasattr(S.bump, "calls") else S.bump
! S.__repr__ = lambda self: B("repr")
? S(K).tell()
? S(1).bump(B(2)).v
? getattr(S, "fresh", None)
? len(S())
? S.__subclasses__() == [Child]
? repr(S(1))[:5]
? Child(2).shared is S.shared
= sys.modules[__name__] if __name__ in sys.modules else types.ModuleType("m")
= types.ModuleType("made")
! S.RATE2 = B(K)
! setattr(S, "fn", lambda: K)
? S.RATE2
? S.fn()
? hasattr(S, "RATE2")
? S.__name__
= NET
! S.p.data = S.p.data + 1
! S.extra = [B(K)]
! S.forward = lambda x: x - B(1)
! del S.forward
! S.q = torch.nn.Parameter(torch.zeros(1))
! S.b = B(torch.ones(1))
! S.train(not S.training)
! S.register_forward_hook(lambda m, a, out: out + B(1)) if len(S._forward_hooks) < 2 else S._forward_hooks.clear()
! S.lin = torch.nn.Linear(1, 1, bias=False).requires_grad_(False) ; S.lin.weight.fill_(2)
! del S.q
? S(X)
? (S.calls, S.training)
? sorted(S.state_dict())
? [n for n, _ in S.named_parameters()]
? S.nope
? B(S)(X) + S(X)
= random.Random(K)
= array.array("i", [K, 2])
= memoryview(bytearray(b"abcd"))
= numpy.arange(3) + K
= slice(K, None, B(2))
= range(K, 9, 2)
= object()
= NotImplemented
= None
= ...
= property(lambda self: K)
= io.StringIO("a\nb\n")
= queue.Queue()
= heapq
! S[0] = B(1)
! S.append(B(4))
! S.put(B(K))
! S.write(f"w{K}")
! S += 1
! S = S[1:]
! S.heappush(OUTER_LIST2, K)
? S
? list(S)
? S[1]
? S.getvalue()
? S.get(block=False)
? S.random() < 2
? S.randint(0, B(5))
? S.readline()
? S.tolist()
? S.sum()
? (S.start, S.stop)
? S is None
? S is B(S)
? bool(S)
? S.indices(B(4))
? type(S)
? isinstance(S, (int, collections.abc.Sequence))
"""
