"""What to do about each kind of graph break, for messages and for the pages.

A break whose place knows better gives hints of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# fmt: off
REMEDIES: Final[Mapping[str, str]] = {
    # Values that exist only when the program runs
    "data-dependent branch":
        "Compute both sides and choose with `torch.where`, or put each side into a function for `torch.cond`. A "
        "condition that never changes belongs outside the compiled function: pass it in as a bool.",
    "data-dependent value":
        "Go on computing with the tensor itself. What Python must have, such as a number to print, is read from the "
        "result after the call.",
    "data-dependent size":
        "Keep the shape with `torch.where(mask, x, other)` instead of selecting elements, or state what is known of "
        "the size with `torch._check`.",
    "dynamic output shape":
        "Keep the shape with `torch.where(mask, x, other)`, multiply by the mask, or give the size (`output_size=`, "
        "`num_classes=`).",
    "data-dependent text":
        "Format after the call of the compiled function. Sizes and dtypes of tensors may be formatted anywhere.",
    "value that is not known inspected":
        "Ask for single attributes with `hasattr`, or look at the object outside the compiled function.",
    "exception about a value that is not known": "Convert the value before the call, or compute with tensors.",
    "tensor state known only at run time": "Ask outside the compiled function and pass the answer in.",
    "tensor flag of a result": "Ask the input, or clear the bit first with `resolve_conj()` or `resolve_neg()`.",
    "result of unknown size":
        "Call it outside the compiled function. An operation of your own: give it a fake implementation with "
        "`torch.library.register_fake`.",
    "scale that is a tensor": "Pass the scales as plain numbers.",
    "autograd graph inspected":
        "Read it outside the compiled function, from the results. To know whether there is one, ask "
        "`y.requires_grad`.",
    "random number of Python's": "Draw the number outside and pass it in, or draw a tensor: `torch.rand(())`.",
    "random number generator": "Draw the numbers before and hand them in, or use a generator of the CPU.",
    "condition that changes by itself": "Read the value once, outside the compiled function, and pass it in.",
    "number too large": "Compare outside the compiled function, or pass the number as a tensor.",
    "tensor larger than memory": "Compute it in parts, or work with smaller tensors that are expanded.",
    # Operations that may raise
    "operation that may raise inside a try block":
        "Move the operation out of the block, or check the values before it.",
    "effect before an operation that may raise":
        "Call the operation that may raise first, or return values instead of storing them.",
    "effect behind an operation that may raise inside a try block":
        "Move the operation that may raise out of the block.",
    "torch call raises an exception": "Check the arguments on the line that is named.",
    "call that capture cannot evaluate": "Call it outside the compiled function.",
    # Effects on the world outside
    "print":
        "Print the result after the call. To see values in passing while debugging, leave the break: only speed is "
        "lost.",
    "input or output": "Read before the call and pass in what was read; write what the function returned.",
    "dynamic code": "Make a function of the code once, outside, and call that.",
    "lock": "Take the lock around the call of the compiled function.",
    "change of the stance": "Set the stance around the call of the compiled function.",
    "graph break on request": "Remove the call to have one graph.",
    "call of a function that is not to be compiled":
        "Remove the mark, or call the function before or after the compiled part.",
    "torch function with outside effects": "Call it outside the compiled function.",
    "import hook": "Import the module at the top of the file.",
    "import of an object that is no module": "Import it at the top of the file.",
    "table of imported modules":
        "Import outside the compiled function. Looking up one name in `sys.modules` is captured.",
    "globals written as a dict": "Write to a name: `global name`, then `name = value`.",
    # Native code
    "call of native code that is not known":
        "Call it before or after the compiled part. If it only computes on tensors, wrap it in a Python function "
        "marked with `argand.allow_in_graph`.",
    "call of a library that is not captured": "Call it before or after the compiled part.",
    "native object from outside": "Pass what is needed of it as a list, tuple, number or string.",
    "iterator from outside":
        "Pass the list itself and make the iterator inside, or read the values outside and pass them in.",
    "iterator from before a graph break":
        "Remove the break before it, which is reported too; or make a list of it before that place.",
    "native object from before a graph break":
        "Remove the break before it, which is reported too; or take from it what is needed before that place.",
    "loop that goes on after a graph break":
        "Remove the break in the loop, which is reported too: this one goes with it.",
    "end of a comprehension": "Move the operation that breaks the graph out of the comprehension.",
    "Python object used by native code": "Convert the object to a list, dict, number or string first.",
    "native code that calls Python": "Read the attribute outside the compiled function.",
    "native code that warns": "Do what the warning says.",
    "native descriptor used by hand": "Read the attribute by its name: `obj.name`.",
    "native attribute written": "Set it outside the compiled function.",
    "lru_cache statistics": "Call it outside the compiled function.",
    "cached function that reads what can change":
        "Pass what it reads as an argument, or call it outside the compiled function.",
    "cached function with another wrapped one": "Leave `__wrapped__` as `functools.lru_cache` sets it.",
    "decimal arithmetic": "Compute with them outside the compiled function, or with floats.",
    # numpy
    "call of numpy":
        "Use the torch function of the same meaning on tensors, or call numpy outside the compiled function.",
    "numpy array from outside": "Pass a list, or a tensor: `torch.from_numpy` shares the memory.",
    "numpy on values from outside": "Use the torch function of the same meaning, on tensors.",
    "numpy arrays that share memory": "Copy one of them, or make the view inside the compiled function.",
    "numpy's error settings": "Look for bad values in the results, and let numpy warn or be silent meanwhile.",
    # Containers and keys
    "container with very many elements": "Make a tensor of it, or use it outside the compiled function.",
    "dict key from outside": "Use strings, numbers, classes or enum members as keys.",
    "set of objects from outside": "Use a set of strings, numbers, classes or enum members.",
    "set whose order depends on its history": "Use a dict, or sort the elements.",
    "deque with methods of its own": "Use a plain deque, and give the class methods with names of their own.",
    "OrderedDict out of step": "Call the OrderedDict's own methods.",
    "key whose hash or equality changes": "Use keys whose `__hash__` and `__eq__` depend on nothing that changes.",
    # Objects and classes
    "class definition": "Define the class outside the compiled function.",
    "class under construction": "Define the class outside the compiled function.",
    "class of an object changed": "Assign `__class__` outside the compiled function, or make a new object.",
    "class that changes too often": "Do not change the class while the program runs: keep what varies in an object.",
    "class that its metaclass compares or reads":
        "Leave these methods out of the metaclass, or use the class outside the compiled function.",
    "instance check of a protocol":
        'Check outside the compiled function, or test for the attribute: `hasattr(obj, "name")`.',
    "copying an object": "Copy the object outside the compiled function.",
    "object with a finalizer":
        "Make the object outside the compiled function, or let go of what it holds in a method that is called, such "
        "as `close()`.",
    "object dropped": "Keep it until the compiled function has returned.",
    # Attributes
    "class attribute deleted": "Delete it outside the compiled function, or set it to None.",
    "attribute deleted": "Delete it outside the compiled function, or set it to None.",
    "attribute that raises": "Read it outside the compiled function.",
    "module attribute written": "Set it outside the compiled function.",
    "annotations made by asking for them":
        'Read it outside the compiled function, or with `vars(module).get("__annotations__")`.',
    "namespace that the class defines itself":
        "Give the property another name, or use such objects outside the compiled function.",
    # Generators and exceptions
    "generator as root": "Iterate over it in a compiled function: generators that are used up there are inlined.",
    "async function": "Call the compiled function from the asynchronous one, not the other way around.",
    "generator dropped": "Call its `close()` outside the compiled function, or let the loop run to its end.",
    "generator held by a traceback": "Close the generator in a `finally` block, or use it up before what may raise.",
    "exception in an abandoned generator": "Close the generator, or let its loop run to its end.",
    "frame of a generator":
        "Do not read `gi_frame` in compiled code. Whether a generator has ended, `inspect.getgeneratorstate` tells "
        "outside.",
    "raise of an exception from outside": "Raise a new exception: `raise Error(...) from old`.",
    "exception from outside": "Change it outside the compiled function.",
    "exception state from outside": "Pass the exception as an argument.",
    "traceback inspected": "Inspect tracebacks outside the compiled function.",
    "graph break inside an except block": "Move the operation that breaks the graph out of the block.",
    # Tensors
    "argument that a graph cannot hold": "Convert the object to a tensor or a number before the call.",
    "input that a graph cannot hold":
        "Pass a plain tensor (`to_dense()`), or use this value outside the compiled function.",
    "argument cannot be captured":
        "See the reason that comes with it; or pass such a value to a function of its own, and compile the rest.",
    "tensor of a class that graphs cannot hold":
        "Make it outside the compiled function, or use a class that defines `__torch_function__` only.",
    "tensor object made":
        "Make it outside the compiled function. In place of a class's constructor, `tensor.as_subclass(cls)` is "
        "captured.",
    "tensor constructor": "Use `x.clone().detach()`, and `requires_grad_()` where needed.",
    "tensor from foreign memory": "Make the tensor outside the compiled function and pass it as an argument.",
    "tensor of unknown origin":
        "Make the tensor inside the compiled function with a torch function, or pass it as an argument.",
    "tensors on different devices": "Move the tensors to one device before the compiled function.",
    "write to an expanded tensor": "Write to a copy: `x.expand(...).clone()`.",
    "size of a subclass changed in place": "Use the operation without the underscore, which makes a new tensor.",
    "tensor attribute assignment": "Set it outside the compiled function.",
    "attribute of a tensor written": "Set the attribute first, or read single attributes.",
    "attributes of a tensor looked at": "Read single attributes with `getattr`.",
    "autograd state of an input changed": "Do it before the call of the compiled function.",
    "legacy tensor type name": "Use `x.to(dtype)`.",
    "hook on a tensor":
        "Register the hook outside the compiled function. Hooks on results of the compiled part are captured.",
    "gradient inside the graph":
        "Do the whole computation in the compiled function, use `torch.func.grad`, or differentiate outside.",
    # torch's functions, objects and modes
    "part of torch that is not captured": "Call it before or after the compiled part.",
    "torch function that cannot be observed": "Call it outside the compiled function.",
    "torch function that is not known": "Call it outside the compiled function.",
    "torch object that is not known":
        "Call the Python module or function that it was made of, or call it outside the compiled function.",
    "torch function of an object": "Define `__torch_function__` in the class.",
    "torch function without an implementation": "Handle this function in `__torch_function__`.",
    "argument of a function that is called while capturing": "Pass it inputs of the compiled function.",
    "recurrent layer of unusual arguments":
        "Use `torch.nn.LSTM`, `torch.nn.GRU`, `torch.nn.RNN`, or call the function as they do.",
    "composed function under autocast": "Call it outside autocast, or under `torch.autocast(..., enabled=False)`.",
    "mode entered before": "Move what breaks the graph out of the block, or put the block outside.",
    "mode left that was entered before": "Move what breaks the graph out of the block, or put the block outside.",
    "modes left out of order": "Enter and leave modes with `with` statements, without a graph break between.",
    "torch-function modes disabled": "Use `torch._C.DisableTorchFunctionSubclass()`, which leaves modes on.",
    "graph ends inside a torch-function mode": "Move what breaks the graph out of the block. Its reason is told too.",
    "graph ends where torch functions are disabled":
        "Move what breaks the graph out of the block. Its reason is told too.",
    # Functions given to functions
    "control flow operator":
        "Make the functions return tensors of the same sizes, strides and types; draw random numbers before the call.",
    "flex_attention":
        "Return one scalar from `score_mod` and one bool from `mask_mod`; look random numbers and tables up in "
        "tensors that are made before.",
    "activation checkpoint": "Pass `use_reentrant=False` and no `context_fn`.",
    "autograd.Function":
        "Write it with `forward` and `backward` alone: forward returns a tensor or a tuple of tensors, backward a "
        "gradient or None for each argument.",
    "autograd.Function returns its input": "Return a new tensor from forward, such as `x.view_as(x)` or `x.clone()`.",
    "function transform": "Say `device=x.device` where the tensor is made.",
    "vmap": "Check `in_dims`: one number or None for each argument, within its dimensions.",
    "random numbers in a function transform": "Draw the numbers outside and pass them in.",
    "argument of a subgraph": "Let the function read the object from its surroundings instead of passing it.",
    "subclass in a subgraph": "Pass plain tensors: `x.as_subclass(torch.Tensor)`.",
    "side effect in a subgraph": "Return what it computes instead, or change the object after the call.",
    "write in a subgraph": "Make it return a new tensor.",
    "tensor leaves a subgraph": "Return the tensor from the function.",
    # Limits of capture
    "unsupported Python construct": "Move it out of the compiled function.",
    "inlining too deep": "Make the recursion a loop, or raise `argand.config.inline_limit`.",
    "loop too long":
        "Compile the body of the loop as a function of its own, leave out rounds that do nothing, or compute with "
        "whole tensors instead of one element a round.",
    "long stretch of plain Python": "Do this part outside the compiled function and pass in what it computes.",
    "capture takes too long":
        "Move the long part out of the compiled function, compile its body instead, or raise the limit.",
    "too many restarts": "Compile the parts between the breaks as functions of their own.",
    "frame looked at": "Move such calls to a function of its own, or remove the break that is told with it.",
    "program not repeatable":
        "Look for what changes from one run to the next, such as a counter that native code keeps, and pass it in.",
    "value cannot be rebuilt":
        "Make the object outside the compiled function, or be done with it before what breaks the graph.",
    "compiling failed": "Fix the error that is told with it, or leave the function out with `argand.disable`.",
    "error inside argand": "Please report it, with the lines that the warning shows.",
}
# fmt: on
