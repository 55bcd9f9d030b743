#!/bin/sh
# Runs the emulator's tests with its C core built under AddressSanitizer and UndefinedBehaviorSanitizer.
#
#     tests/ptx/sanitize.sh PYTHON [pytest arguments]
#
# The package is copied to build/sanitize and the core is compiled there, so the installed one stays as it is. Needs
# gcc. The first report ends the run.
set -eu

python=$(realpath -s "$1")
shift
root=$(cd "$(dirname "$0")/../.." && pwd)
copy=$root/build/sanitize
objects=$copy/objects
sanitizers=-fsanitize=address,undefined
flags="-g -fno-omit-frame-pointer -fno-sanitize-recover=all $sanitizers
  -std=gnu11 -ffp-contract=off -fno-strict-aliasing -fwrapv -pthread -fPIC -Wno-psabi"  # but for the level as in setup.py

rm -rf "$copy"
mkdir -p "$objects"
cp -r "$root/src" "$copy/"
find "$copy/src" -name '*.so' -delete
# The unrolled products take minutes to compile with the sanitizers at any level but 0.
for source in "$copy"/src/tilewright/ptx/core/*.c; do
  case $source in
    *tensor_multiply*) echo "-O0 -c $source -o $objects/$(basename "$source").o" ;;
    *) echo "-O1 -c $source -o $objects/$(basename "$source").o" ;;
  esac
done | xargs -P "$(nproc)" -L 1 gcc $flags
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
LD_PRELOAD=$preload "$python" -m pytest -p no:cacheprovider "$@"
