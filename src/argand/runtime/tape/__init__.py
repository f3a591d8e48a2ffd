"""Compiled graphs on autograd's tape: what runs in each training step, also where nothing was captured or traced.

In: a compiled forward, something that has the compiled backwards, and a `plan.Plan`, which says in plain values what
moves where. Out: a function of the forward's inputs whose results carry gradients.

* `plan`: the plan. `moves`: saved tensors and gradients in, gradients of the inputs out.
* `double_backward`: gradients that are differentiated once more. `gradients`: either kind, from what a call has kept.
* `result_nodes`: nodes between the graph's and each result. `function`: the function.
"""
