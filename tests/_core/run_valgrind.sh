#!/bin/sh
# Runs the quick tests of argand._core that need no torch under valgrind (memcheck).
#   PYTHON=/path/to/python tests/_core/run_valgrind.sh [pytest arguments]
# Fails on invalid reads, writes and frees that have our extension on the stack. Leaks are the tests' business.
set -eu
python=${PYTHON:-python3}
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/src/argand" "$work/tests"
cp -r "$root/setup.py" "$root/pyproject.toml" "$work/"
cp -r "$root/src/argand/_core" "$work/src/argand/"
rm -f "$work"/src/argand/_core/*.so
: > "$work/src/argand/__init__.py"
cp -r "$root/tests/_core" "$work/tests/"
(cd "$work" && ARGAND_BUILD_DEBUG=1 "$python" setup.py -q build_ext --inplace --build-temp "$work/build" > "$work/log" 2>&1) || { cat "$work/log"; exit 1; }
cd "$work"
set +e
PYTHONMALLOC=malloc PYTHONPATH="$work/src" ARGAND_SANITIZER=valgrind \
    valgrind --quiet --leak-check=no --error-limit=no --num-callers=30 --main-stacksize=67108864 --log-file="$work/valgrind.log" \
    "$python" -m pytest tests/_core -q -p no:cacheprovider -p no:xdist -p no:timeout -o addopts="--import-mode=importlib" \
    --ignore=tests/_core/test_core_tensors.py --ignore=tests/_core/test_core_replay_tensors.py --ignore=tests/_core/test_core_dynamo.py --ignore=tests/_core/test_core_threads.py \
    --ignore=tests/_core/guards/test_core_equality.py -k "not test_tensors and not a_kernel_computes and not recursion" "$@"
status=$?
if grep -q "_C\.cpython" "$work/valgrind.log"; then
    grep -n "_C\.cpython" "$work/valgrind.log" | head -40
    cp "$work/valgrind.log" "${TMPDIR:-/tmp}/argand-valgrind.log"
    echo "errors with the extension on the stack: ${TMPDIR:-/tmp}/argand-valgrind.log"
    exit 1
fi
exit $status
