"""Trials: something is run where it can do no harm, and how it ended is compared with how it should have.

What goes in: a function (of a graph, of a script) and limits. What comes out: an `Outcome`, and with `Fingerprint` the
answer whether two outcomes are the same failure.

* `isolation`: a function in a forked child, within limits of time and memory; `mark` says what it is at.
* `process`: a job in a new process, or in a fork of a server, where this process cannot be forked.
* `outcome`: how a run ended; `fingerprint`: what makes two failures the same one.
* `search`: what fails is made smaller, as long as it fails in the same way.
* `eager`: a graph run eagerly, and what a compiler made of it compared with that, by `argand.debug.accuracy`;
  `rounding`: eager code rounded otherwise.
* `kernels`: kernels of a compiled graph replaced.
* `surroundings`, `scope`: the state of a process, what a function can see.

Clients: the minifier, whose candidates are graphs, the doctor, whose candidates are scripts, the reproductions that
both write, and the tools that compare while a program runs (`numerics`, `audit`).
"""
