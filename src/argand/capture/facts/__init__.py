"""What the other rooms build on: sources, kinds of values, facts about types, names, frames, how captures end.

Plain data and questions about plain objects. `interfaces` says what a room may ask of the capture above it: of the
interpreter, of the state, of the graph being recorded. What is known of code objects has a room, `code`; what is
remembered of one lives as long as it (`per_code`). What stands for values that a graph computes has another, `values`.

To add: a kind of value that is guarded in its own way goes to `classify` (and to `output.local_objects` if captured
code may make one); a new step by which a value is reached is a row of the table in `sources`.
"""
