"""What the other rooms build on: sources, kinds of values, facts about types, names, and how captures end.

Nothing here looks at the state of a capture. A kind of value that is guarded in its own way is a row of `classify`; a
new step by which a value is reached is a class in `sources`. What is known of code objects has a room, `code`.
"""
