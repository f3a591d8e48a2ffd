"""What a user reads of breaks and recompiles: one line for each break, in the words of the program."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

import warm
from helpers import internal_names

# programs: what they do, how many breaks a reader would count, what must be said
PROGRAMS = {
    "a generator of the function's own": (
        """
        @torch.compile(backend="eager")
        def f(x):
            parts = (x * i for i in range(3))
            print(end="")
            return sum(parts)
        f(torch.ones(3))
        """,
        2,
        ("A generator that existed before the graph broke",),
    ),
    "a generator that is returned": (
        """
        torch.compile(lambda x: (part for part in x.sin()), backend="eager")(torch.ones(3))
        """,
        1,
        ("A generator made in the captured code",),
    ),
    "a loop": (
        """
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.parts = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(5))
            def forward(self, x):
                for part in self.parts:
                    x = part(x)
                    print(end="")
                return x
        run = torch.compile(Net(), backend="eager")
        for size in (2, 3, 5):
            run(torch.ones(size, 4))
        """,
        1,
        (),
    ),
    "a comprehension": (
        """
        def noisy(x):
            print(end="")
            return x
        @torch.compile(backend="eager")
        def f(x, xs):
            y = [noisy(x * i) for i in xs]
            return sum(y)
        f(torch.ones(3), [1, 2]), f(torch.ones(4), [1, 2, 3])
        """,
        1,
        (),
    ),
    "one helper of two functions": (
        """
        def noisy(x):
            print(end="")
            return x
        @torch.compile(backend="eager")
        def f(x):
            return noisy(x.sin()) + 1
        @torch.compile(backend="eager")
        def g(x):
            return noisy(x.cos()) + 2
        f(torch.ones(3)), g(torch.ones(3)), f(torch.ones(4)), g(torch.ones(4, 4))
        """,
        1,
        (),
    ),
    "a comprehension after a break": (
        """
        @torch.compile(backend="eager")
        def f(x):
            print(end="")
            return [v * 2 for v in x] + [v + 1 for v in (x, x)]
        f(torch.ones(3))
        """,
        1,
        (),
    ),
    "a value on the stack": (
        """
        import random
        def fetch(k):
            print(end="")
            return str(k)
        @torch.compile(backend="eager")
        def f(x, k):
            return x + len((fetch(k), x.sin(), fetch(k + 1))) + k
        for k in range(12):
            f(torch.ones(3), k)
        """,
        1,
        ("last reason: fetch(",),
    ),
    "sizes on the stack": (
        """
        def noisy(x):
            print(end="")
            return x
        @torch.compile(backend="eager", dynamic=False)
        def f(x):
            return x.sin() + noisy(x).cos()
        for n in range(2, 14):
            f(torch.ones(n))
        """,
        1,
        ("config.cache_size_limit",),
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_line_for_a_break_in_the_words_of_the_program(name: str, tmp_path: Path) -> None:
    text, breaks, said = PROGRAMS[name]
    script = tmp_path / "script.py"
    script.write_text("import torch\n" + textwrap.dedent(text))
    done = warm.run(["-m", "argand.cli", "run", script], imported="compiler")
    lines = [line for line in done.stderr.splitlines() if line.startswith("argand: graph break")]
    assert done.returncode == 0 and len(lines) == breaks, done.stderr
    assert not internal_names(done.stderr), done.stderr
    assert all(part in done.stderr for part in said), done.stderr
    explained = warm.run(["-m", "argand.cli", "explain", script], imported="compiler").stdout
    assert not internal_names(explained) and "iterator from outside" not in explained, explained


def test_recompiles_of_a_librarys_function_ask_for_no_change_of_it(tmp_path: Path) -> None:
    package = tmp_path / "lib" / "site-packages"
    package.mkdir(parents=True)
    (package / "helping.py").write_text(
        "import torch\ndef scale(x, n):\n    print(end='')\n    return x * len(n) + 1\n"
    )
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(package)!r})\nimport helping, torch\n"
        "@torch.compile(backend='eager', dynamic=False)\ndef f(x, n):\n    return helping.scale(x + 1, n)\n"
        "for n in range(12):\n    f(torch.ones(3), 'a' * n)\n"
    )
    done = warm.run(["-m", "argand.cli", "run", script], imported="compiler")
    told = [line for line in done.stderr.splitlines() if "what to do" in line and "this function of helping" in line]
    assert told and all("argand.disable(scale)" in line and "keep" not in line for line in told), done.stderr


@pytest.mark.parametrize("command", ["run", "explain", "doctor"])
def test_options_after_the_scripts_name_get_a_note(command: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys\nprint(sys.argv[1:])\n")
    option = {"run": "--backend", "explain": "--json", "doctor": "--time-limit"}[command]
    done = warm.run(["-m", "argand.cli", command, script, option, "8", "--own"], cwd=tmp_path, imported="compiler")
    notes = [line for line in done.stderr.splitlines() if "after the script's name" in line]
    assert len(notes) == 1 and option in notes[0] and "--own" not in notes[0], done.stderr
    quiet = warm.run(["-m", "argand.cli", command, script, "--own"], cwd=tmp_path, imported="compiler")
    assert "after the script's name" not in quiet.stderr
