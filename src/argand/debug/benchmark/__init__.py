"""`argand bench`: a script's compiled functions, eager against compiled.

`bench` records what a script calls and measures it, `bench_profile` takes both sides apart, with the work of operations
(`work`), `bench_reasons` says where the difference comes from, `bench_text` prints it.
"""
