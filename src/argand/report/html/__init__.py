"""The report: a structured trace (argand's or torch.compile's) as pages that a person reads.

In: the records that `argand.report.reader` yields. Out: a folder of pages, or one page that holds them all.

    collect     one pass over the records: payloads go straight to files, only small facts stay in memory (model)
    trie, reasons, spans, provenance, compare, search, code
                what one part of the report shows, computed from those facts and files
    pages       jinja2 templates and the facts → pages; everything that a trace says is escaped there
    build       a trace → a folder; single_file: a folder → one file; serve: a folder, live, over HTTP

A trace is untrusted input: no path from it is opened, no name from it reaches the file system unless `file_names` made
it safe, and pages allow no script but the report's own (content security policy).
"""

from __future__ import annotations

from argand.report.html.build import Built, build
from argand.report.html.model import Limits

__all__ = ["Built", "Limits", "build"]
