#!/bin/sh
# Runs the tests of argand._core against an AddressSanitizer build of the extension (those with tensors where torch is).
#   PYTHON=/path/to/python tests/_core/run_asan.sh [pytest arguments, e.g. -k replay]
# The build goes to a temporary folder; PYTHONMALLOC=malloc shows the sanitizer every object that CPython allocates.
set -eu
python=${PYTHON:-python3}
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/src/argand" "$work/tests"
cp -r "$root/setup.py" "$root/pyproject.toml" "$work/"
cp -r "$root/src/argand" "$work/src/"
rm -f "$work"/src/argand/_core/*.so
cp -r "$root/tests/_core" "$work/tests/"
(cd "$work" && ARGAND_BUILD_ASAN=1 "$python" setup.py -q build_ext --inplace --build-temp "$work/build" > "$work/log" 2>&1) || { cat "$work/log"; exit 1; }
cd "$work"
LD_PRELOAD="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libstdc++.so)" \
ASAN_OPTIONS=detect_leaks=0:abort_on_error=1:detect_stack_use_after_return=1 \
OMP_NUM_THREADS=1 PYTHONMALLOC=malloc PYTHONPATH="$work/src" ARGAND_SANITIZER=asan \
    "$python" -m pytest tests/_core -q -p no:cacheprovider -p no:xdist \
    --ignore=tests/_core/test_core_dynamo.py -k "not keep_memory_flat" "$@"
