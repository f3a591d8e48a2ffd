"""What is called: functions, whose arguments are bound, classes, which are made and instantiated, native code.

`calls` takes a callable apart and asks the others; nothing else of the objects' room imports this one.
"""
