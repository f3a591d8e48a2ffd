"""What is known of code objects whatever they are run with: which are never captured, what users say of them, how long
capture follows them, where a line of theirs stands.
"""
