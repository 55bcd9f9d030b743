#!/bin/sh
# Runs the emulator's tests with its C core built under AddressSanitizer and UndefinedBehaviorSanitizer.
#
#     tests/ptx/sanitize.sh PYTHON [pytest arguments]
#
# The package is copied to build/sanitize and its extensions are compiled there, so the installed one stays as it is.
# Needs gcc. The first report ends the run.
set -eu

python=$(realpath -s "$1")
shift
root=$(cd "$(dirname "$0")/../.." && pwd)
copy=$root/build/sanitize
flags="-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -O1 -g"

mkdir -p "$copy"
rm -rf "$copy/src"
cp -r "$root/src" "$root/setup.py" "$root/pyproject.toml" "$root/README.md" "$root/LICENSE" "$copy/"
find "$copy/src" -name '*.so' -delete
(cd "$copy" && CC=gcc CFLAGS="$flags" LDFLAGS="-fsanitize=address,undefined" \
  "$python" setup.py --quiet build_ext --inplace --build-temp "$copy/temp")

# Python itself is not built with the sanitizers, so their libraries come first; libstdc++ with them, or exceptions of
# other libraries cannot be intercepted. Leaks are not looked for: Python keeps memory until the end.
preload=""
for library in libasan.so libubsan.so libstdc++.so; do
  preload="$preload $(gcc -print-file-name=$library)"
done

cd "$root"
LD_PRELOAD="$preload" \
  ASAN_OPTIONS=detect_leaks=0:abort_on_error=0:allocator_may_return_null=1 \
  UBSAN_OPTIONS=print_stacktrace=1 \
  PYTHONPATH="$copy/src" PYTHONMALLOC=malloc \
  "$python" - <<'CHECK'
import tilewright.ptx, pathlib
found = pathlib.Path(tilewright.ptx.__file__)
assert "build/sanitize" in str(found), f"{found} is not the copy with the sanitizers"
CHECK
LD_PRELOAD="$preload" \
  ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 \
  UBSAN_OPTIONS=print_stacktrace=1 \
  PYTHONPATH="$copy/src" PYTHONMALLOC=malloc \
  "$python" -m pytest -p no:cacheprovider --maxfail=1 "${@:-tests/ptx}"
