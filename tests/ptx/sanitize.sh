#!/bin/sh
# Runs the emulator's tests with its C core built under AddressSanitizer and UndefinedBehaviorSanitizer.
#
#     tests/ptx/sanitize.sh PYTHON [pytest arguments]
#
# The package is copied to build/sanitize and the core is compiled there, so the installed one stays as it is. Needs
# gcc. The first report ends the run. What needs no memory checked is left out: races_*.py hold the checkers against an
# oracle with a library of their own.
set -eu

python=$(realpath -s "$1")
shift
root=$(cd "$(dirname "$0")/../.." && pwd)
copy=$root/build/sanitize
objects=$copy/objects
sanitizers=-fsanitize=address,undefined
# As in setup.py, but for the level: at -O3 the sanitizers' code takes minutes to compile.
flags="-O1 -g -fno-omit-frame-pointer -fno-sanitize-recover=all $sanitizers
  -std=gnu11 -ffp-contract=off -fno-strict-aliasing -fwrapv -pthread -fPIC -Wno-psabi"

rm -rf "$copy"
mkdir -p "$objects"
cp -r "$root/src" "$copy/"
find "$copy/src" -name '*.so' -delete
core=$copy/src/tilewright/ptx/core
ls "$core"/*.c | xargs -P "$(nproc)" -I{} sh -c 'gcc '"$(echo $flags)"' -c {} -o '"$objects"'/$(basename {}).o'
gcc $sanitizers -shared -pthread "$objects"/*.o -lm -o "$copy/src/tilewright/ptx/_core.abi3.so"

# Python itself is not built with the sanitizers, so their libraries come first; libstdc++ with them, or exceptions of
# other libraries cannot be intercepted. Leaks are not looked for: Python keeps memory until the end.
preload=""
for library in libasan.so libubsan.so libstdc++.so; do
  preload="$preload $(gcc -print-file-name=$library)"
done
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1
export PYTHONPATH="$copy/src" PYTHONMALLOC=malloc

cd "$root"
LD_PRELOAD=$preload "$python" -c '
from tilewright.ptx.native import core
name = core()._name
assert "build/sanitize" in name, f"{name} is not the core with the sanitizers"
'
[ $# -gt 0 ] || set -- tests/ptx
LD_PRELOAD=$preload "$python" -m pytest -p no:cacheprovider --maxfail=1 "$@"
