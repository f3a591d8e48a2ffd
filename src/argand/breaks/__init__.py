"""The catalogue of graph breaks.

`kinds` gives each kind a stable id, and says what to do about it; a break of a kind that is not there cannot be raised.
`pages/` has a page for each id: what, why, an example before and after. `page` reads one, `catalogue` collects them;
`render` makes docs/graph-breaks.md of them (`python -m argand.breaks.render > docs/graph-breaks.md`) and what `argand
breaks` prints. The pages are loaded when somebody reads them, never by a capture.
"""
