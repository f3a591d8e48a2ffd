"""Small functions, one feature each: exceptions, with."""
# ruff: noqa: E501, E742, F821, F841, I001, UP, PIE, RUF, C4 - the odd spellings are what is tested

import contextlib
import functools

from .interpret import Cases

TABLE = Cases()
case, breaks = TABLE.case, TABLE.breaks
COUNTER = 0


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
