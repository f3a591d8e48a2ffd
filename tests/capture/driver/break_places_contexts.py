"""Breaks of the graph where contexts are entered and where state of torch's is changed."""

from __future__ import annotations

PLACES = {
    "with_user": """
y = x + 1
with Manager(log) as manager:
    y = y * 2
    BREAK
    log.append(manager.swallow)
    y = y + 1
return y
""",
    "with_user_swallows": """
y = x + 1
with Manager(log, (KeyError, ValueError)):
    y = y * 2
    BREAK
    y = y + 1
    raise KeyError("in with")
return y
""",
    "with_user_escapes": """
y = x + 1
with Manager(log):
    y = y * 2
    BREAK
    raise KeyError("in with")
""",
    "with_generator": """
y = x + 1
with managed(log) as n:
    y = y * n
    BREAK
    y = y + 1
return y
""",
    "with_generator_swallows": """
y = x + 1
with managed(log, (KeyError, ValueError)) as n:
    y = y * n
    BREAK
    raise KeyError("in with")
return y
""",
    "with_nested": """
y = x + 1
with Manager(log), managed(log) as n, Manager(log, ValueError):
    y = y * n
    BREAK
    y = y + 1
return y
""",
    "with_exit_stack": """
y = x + 1
with contextlib.ExitStack() as stack:
    stack.enter_context(Manager(log))
    stack.callback(log.append, "callback")
    y = y * 2
    BREAK
    y = y + 1
return y
""",
    "with_suppress": """
y = x + 1
with contextlib.suppress(ValueError, KeyError):
    y = y * 2
    BREAK
    y = y + 1
    raise KeyError("suppressed")
return y
""",
    "with_in_loop": """
y = x
for i in range(3):
    with Manager(log, KeyError):
        y = y + i
        BREAK
        if i == 1:
            raise KeyError(i)
        if i == 2:
            break
return y
""",
    "with_return": """
y = x + 1
with Manager(log):
    BREAK
    return y * 2
""",
    "no_grad": """
y = x.clone().requires_grad_()
with torch.no_grad():
    z = y * 2
    BREAK
    z = z + y
log.append(torch.is_grad_enabled())
return (y * 3).requires_grad, z
""",
    "set_grad_in_loop": """
y = x.clone().requires_grad_()
out = []
for flag in (True, False):
    with torch.set_grad_enabled(flag):
        z = y * 2
        BREAK
        out.append((z + 1).requires_grad)
return out, torch.is_grad_enabled()
""",
    "autocast": """
y = x.reshape(1, 3)
with torch.autocast("cpu", dtype=torch.bfloat16):
    z = y @ y.t()
    BREAK
    w = y @ y.t()
return z, w, torch.is_autocast_enabled("cpu")
""",
    "autocast_nested": """
y = x.reshape(1, 3)
with torch.autocast("cpu", dtype=torch.bfloat16):
    with torch.autocast("cpu", enabled=False):
        z = y @ y.t()
        BREAK
        w = y @ y.t()
    v = y @ y.t()
nesting = torch.autocast_increment_nesting()
torch.autocast_decrement_nesting()
return z, w, v, nesting
""",
    "inference_mode": """
y = x + 1
with torch.inference_mode():
    y = y * 2
    BREAK
    z = y + 1
return z.is_inference(), y.is_inference(), torch.is_inference_mode_enabled()
""",
    "default_device": """
y = x + 1
with torch.device("cpu"):
    BREAK
    y = y + torch.ones(3)
return y
""",
    "deterministic": """
y = x + 1
torch.use_deterministic_algorithms(True)
try:
    BREAK
    log.append(torch.are_deterministic_algorithms_enabled())
    y = y * 2
finally:
    torch.use_deterministic_algorithms(False)
return y
""",
    "default_dtype": """
y = x + 1
old = torch.get_default_dtype()
torch.set_default_dtype(torch.float64)
try:
    BREAK
    z = torch.ones(2)
finally:
    torch.set_default_dtype(old)
return y, z.dtype, torch.ones(1).dtype
""",
    "random": """
y = torch.rand(3) + x
BREAK
y = y + torch.rand(3)
for i in range(2):
    y = y * torch.rand(3)
    BREAK
return y, torch.rand(1)
""",
}
"""Place of the break -> body of the function; see break_places.py."""
