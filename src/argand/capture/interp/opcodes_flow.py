"""Opcodes that decide what runs next: jumps, loops, exceptions, with blocks, generators."""

from __future__ import annotations

from argand.bytecode.instruction import Instruction
from argand.bytecode.opcodes import PY312, PY313
from argand.capture.facts.exceptions import ObservedException
from argand.capture.facts.frames import GENERATOR, STOP, YIELD, Frame, Previous
from argand.capture.facts.interfaces import Interpreter
from argand.capture.facts.values.symbolic import SymbolicBool
from argand.capture.interp.optable import enter, opcode
from argand.capture.objects import generators, iteration, operators, raising
from argand.capture.torch_functions import one_sided_branches
from argand.errors import graph_break

_V311 = (3, 11)
_V312 = (3, 12)
_V313 = (3, 13)


# ---- jumps ---------------------------------------------------------------------------------------------------------


@opcode("JUMP_FORWARD", "JUMP_BACKWARD_NO_INTERRUPT")
def jump(interp: Interpreter, frame: Frame, arg: int) -> None:
    frame.pc = arg


@opcode("JUMP_BACKWARD")
def jump_backward(interp: Interpreter, frame: Frame, arg: int) -> None:
    frame.pc = arg
    interp.count_round()


@opcode("POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_BACKWARD_IF_TRUE", until=_V311)
@opcode("POP_JUMP_IF_TRUE", since=_V312)
def pop_jump_if_true(interp: Interpreter, frame: Frame, arg: int) -> None:
    value = frame.stack[-1]
    if value is True or (value is not False and one_sided_branches.truth(interp, frame, value, True, arg)):
        if arg < frame.pc:
            interp.count_round()
        frame.pc = arg
    frame.stack.pop()


@opcode("POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_BACKWARD_IF_FALSE", until=_V311)
@opcode("POP_JUMP_IF_FALSE", since=_V312)
def pop_jump_if_false(interp: Interpreter, frame: Frame, arg: int) -> None:
    value = frame.stack[-1]
    if value is False or (value is not True and not one_sided_branches.truth(interp, frame, value, False, arg)):
        frame.pc = arg
    frame.stack.pop()


@opcode("POP_JUMP_FORWARD_IF_NONE", "POP_JUMP_BACKWARD_IF_NONE", until=_V311)
@opcode("POP_JUMP_IF_NONE", since=_V312)
def pop_jump_if_none(interp: Interpreter, frame: Frame, arg: int) -> None:
    if frame.stack.pop() is None:
        frame.pc = arg


@opcode("POP_JUMP_FORWARD_IF_NOT_NONE", "POP_JUMP_BACKWARD_IF_NOT_NONE", until=_V311)
@opcode("POP_JUMP_IF_NOT_NONE", since=_V312)
def pop_jump_if_not_none(interp: Interpreter, frame: Frame, arg: int) -> None:
    if frame.stack.pop() is not None:
        frame.pc = arg


@opcode("JUMP_IF_TRUE_OR_POP", until=_V311)
def jump_if_true_or_pop(interp: Interpreter, frame: Frame, arg: int) -> None:
    if operators.truth(interp, frame.stack[-1]):
        frame.pc = arg
    else:
        frame.stack.pop()


@opcode("JUMP_IF_FALSE_OR_POP", until=_V311)
def jump_if_false_or_pop(interp: Interpreter, frame: Frame, arg: int) -> None:
    if operators.truth(interp, frame.stack[-1]):
        frame.stack.pop()
    else:
        frame.pc = arg


@opcode("TO_BOOL", since=_V313)
def to_bool(interp: Interpreter, frame: Frame, arg: object) -> None:
    value = frame.stack[-1]
    if value is True or value is False:
        return
    # A tensor stays as it is for the conditional jump, where the graph then breaks.
    following = frame.program.instructions[frame.pc].opname
    if following.startswith("POP_JUMP_IF") and (interp.is_tensor(value) or type(value) is SymbolicBool):
        return
    frame.stack[-1] = interp.truth(value)


# ---- loops ---------------------------------------------------------------------------------------------------------


enter({"GET_ITER": lambda interp, value, arg: iteration.get_iter(interp, value)}, on_top=True)


def _prepare_for(inst: Instruction, index: dict[Instruction, int]) -> int:
    assert_target = index[inst.target] if inst.target is not None else 0
    # The exhausted iterator is popped here, so what cleans up after a natively run loop is skipped.
    return assert_target + (2 if PY313 else 1 if PY312 else 0)


@opcode("FOR_ITER", prepare=_prepare_for)
def for_iter(interp: Interpreter, frame: Frame, arg: int) -> None:
    value = iteration.iter_next(interp, frame.stack[-1])
    if value is STOP:
        if any(iterator is frame.stack[-1] for iterator in interp.unseen):
            raise graph_break(kind="end of a comprehension")
        frame.stack.pop()
        frame.pc = arg
    else:
        frame.stack.append(value)


# ---- exceptions ----------------------------------------------------------------------------------------------------


@opcode("PUSH_EXC_INFO")
def push_exc_info(interp: Interpreter, frame: Frame, arg: object) -> None:
    exc = frame.stack.pop()
    frame.stack.append(Previous(frame.exc.value))
    frame.stack.append(exc)
    frame.exc.value = exc


@opcode("POP_EXCEPT")
def pop_except(interp: Interpreter, frame: Frame, arg: object) -> None:
    frame.exc.value = frame.stack.pop().value


@opcode("CHECK_EXC_MATCH")
def check_exc_match(interp: Interpreter, frame: Frame, arg: object) -> None:
    pattern = frame.stack.pop()
    frame.stack.append(raising.matches(interp, frame.stack[-1], pattern))


@opcode("CHECK_EG_MATCH")
def check_eg_match(interp: Interpreter, frame: Frame, arg: object) -> None:
    pattern = frame.stack.pop()
    rest, match = raising.match_group(interp, frame.stack.pop(), pattern)
    if match is not None:
        frame.exc.value = match
    frame.stack.append(rest)
    frame.stack.append(match)


@opcode("PREP_RERAISE_STAR", until=_V311)
def prep_reraise_star(interp: Interpreter, frame: Frame, arg: object) -> None:
    excs = frame.stack.pop()
    frame.stack[-1] = raising.prepare_reraise_star(interp, frame.stack[-1], excs)


@opcode("RERAISE")
def reraise(interp: Interpreter, frame: Frame, arg: int) -> None:
    exc = frame.stack.pop()
    raise ObservedException(exc)


@opcode("RAISE_VARARGS")
def raise_varargs(interp: Interpreter, frame: Frame, arg: int) -> None:
    cause = frame.stack.pop() if arg == 2 else raising.NO_CAUSE
    if arg == 0:
        raise raising.reraise_current(interp, frame)
    raise raising.do_raise(interp, frame.stack.pop(), cause)


# ---- with ----------------------------------------------------------------------------------------------------------


@opcode("BEFORE_WITH")
def before_with(interp: Interpreter, frame: Frame, arg: object) -> None:
    manager = frame.stack.pop()
    enter, leave = raising.context_methods(interp, manager)
    frame.stack.append(leave)
    frame.stack.append(interp.call(enter))


@opcode("WITH_EXCEPT_START")
def with_except_start(interp: Interpreter, frame: Frame, arg: object) -> None:
    exc = frame.stack[-1]
    leave = frame.stack[-4]
    frame.stack.append(interp.call(leave, (type(exc), exc, exc.__traceback__)))


# ---- generators ----------------------------------------------------------------------------------------------------


@opcode("RETURN_GENERATOR")
def return_generator(interp: Interpreter, frame: Frame, arg: object) -> object:
    frame.result = generators.make(interp, frame)
    return GENERATOR


@opcode("YIELD_VALUE")
def yield_value(interp: Interpreter, frame: Frame, arg: object) -> object:
    frame.result = frame.stack.pop()
    return YIELD


@opcode("GET_YIELD_FROM_ITER")
def get_yield_from_iter(interp: Interpreter, frame: Frame, arg: object) -> None:
    value = frame.stack[-1]
    if type(value) is not generators.TracedGenerator:
        frame.stack[-1] = iteration.get_iter(interp, value)


@opcode("SEND")
def send(interp: Interpreter, frame: Frame, arg: int) -> None:
    value = frame.stack.pop()
    receiver = frame.stack[-1]
    done, result = iteration.send_to(interp, receiver, value)
    if not done:
        frame.stack.append(result)
        return
    if PY312:
        frame.stack.append(result)
    else:
        frame.stack[-1] = result
    frame.pc = arg


@opcode("END_SEND", since=_V312)
def end_send(interp: Interpreter, frame: Frame, arg: object) -> None:
    value = frame.stack.pop()
    frame.stack[-1] = value


@opcode("CLEANUP_THROW", since=_V312)
def cleanup_throw(interp: Interpreter, frame: Frame, arg: object) -> None:
    exc = frame.stack[-1]
    if not isinstance(exc, StopIteration):
        frame.stack.pop()
        raise ObservedException(exc)
    del frame.stack[-3:]
    frame.stack.append(None)
    frame.stack.append(exc.value)
