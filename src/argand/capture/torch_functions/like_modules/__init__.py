"""Calls of modules that are like one seen before: what that call loaded and recorded is done again, not interpreted.

In comes a call of a module without hooks; out goes what the program gets. `calls` decides, `template` makes of a
call that was interpreted what can be repeated, or finds that it cannot, `repeating` does it again for another module.

Why that is right: a graph with its guards is right for whatever objects pass the guards, be it a call of the compiled
function, with other layers in the places of the first ones, or a later layer of the same call. So a module whose
objects pass the guards that an earlier one needed, called with arguments that capture cannot tell from those of then,
in the same state of torch and of the program, records the same operations. What leaves more behind than loads,
operations and guards on what it loaded is interpreted each time.
"""
