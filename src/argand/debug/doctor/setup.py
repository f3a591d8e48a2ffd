"""The statements of a script that change argand, torch or a backend: a reproduction must run them too."""

from __future__ import annotations

import ast

from argand import files

_TORCH_CALLS = ("register", "library", "config", "override", "patch", "set_default", "_register")
_QUIET = ("manual_seed", "compile", "set_num_threads", "print", "seed", "basicConfig", "filterwarnings")


def setup_of(source: str, folder: str) -> str:
    """Statements at the top level of a script that change other modules, and what they need; "" when there are none.

    They are assignments to attributes of imported modules, calls of functions that other modules of the program, or
    argand, define, and decorated definitions whose decorator comes from another module.

    Arguments:
        folder: where the script is: modules beside it must be found.
    """
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return ""
    imported = _imported(tree)
    chosen = [index for index, statement in enumerate(tree.body) if _changes(statement, imported)]
    if not chosen:
        return ""
    paths = [index for index, statement in enumerate(tree.body) if ast.unparse(statement).startswith("sys.path.")]
    needed = _closure(tree, {*chosen, *paths})
    body = [tree.body[index] for index in sorted(needed)]
    lines = ["import sys", f"sys.path.insert(0, {folder!r})"]
    return "\n".join([*lines, ast.unparse(ast.Module(body, []))])


def _imported(tree: ast.Module) -> dict[str, str]:
    """Names that import statements bind, with the module that each is from."""
    modules: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                modules[alias.asname or alias.name.split(".")[0]] = alias.name
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                modules[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return modules


def _root(node: ast.expr) -> tuple[str, str]:
    """The first name of `a.b.c` and the whole."""
    text = ast.unparse(node)
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return (node.id if isinstance(node, ast.Name) else ""), text


def _changes(statement: ast.stmt, imported: dict[str, str]) -> bool:
    if isinstance(statement, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return any(isinstance(t, (ast.Attribute, ast.Subscript)) and _root(t)[0] in imported for t in targets)
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        root, text = _root(statement.value.func)
        if root == "setattr" and statement.value.args:
            root, _ = _root(statement.value.args[0])
        return root in imported and _changes_by_call(imported[root], text)
    if isinstance(statement, ast.With):
        return False
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        for decorator in statement.decorator_list:
            root, text = _root(decorator)
            if root in imported and _changes_by_call(imported[root], text):
                return True
    return False


def _changes_by_call(module: str, text: str) -> bool:
    name = text.split("(")[0].rpartition(".")[2]
    if name in _QUIET or text.split("(")[0].endswith(("inference_mode", "no_grad", "compile", "disable")):
        return False
    top = module.split(".")[0]
    if top == "torch":
        return any(word in text for word in _TORCH_CALLS)
    if top == "argand":
        return name not in ("reset", "explain", "graph_break")
    return top not in (
        "transformers", "numpy", "os", "sys", "time", "logging", "warnings", "gc", "random", "torchvision",
    )  # fmt: skip


def _closure(tree: ast.Module, chosen: set[int]) -> set[int]:
    """The chosen statements and those that define names that they use."""
    binders: dict[str, list[int]] = {}
    for index, statement in enumerate(tree.body):
        for name in _bound(statement):
            binders.setdefault(name, []).append(index)
    todo, closure = list(chosen), set(chosen)
    while todo:
        for node in ast.walk(tree.body[todo.pop()]):
            if isinstance(node, ast.Name):
                for index in binders.get(node.id, ()):
                    if index not in closure:
                        closure.add(index)
                        todo.append(index)
    return closure


def _bound(statement: ast.stmt) -> list[str]:
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
        return [statement.name]
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return [alias.asname or alias.name.split(".")[0] for alias in statement.names]
    return [n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]


def source_of(path: str) -> str:
    """The text of a script; "" when it cannot be read."""
    try:
        return files.read_text(path, files.SCRIPT_BYTES, own=False)
    except OSError:
        return ""
