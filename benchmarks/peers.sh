#!/usr/bin/env bash
# Builds llama.cpp's programs from the source that the installed llama-cpp-python vendors, for comparison.
#
#   benchmarks/peers.sh [DIR]       DIR: default build/peers of this repository
#
# PYTHON  interpreter with llama-cpp-python (default: python3)
# SDIST   downloaded llama_cpp_python-VERSION.tar.gz of the installed version (default: download it)
# JOBS    number of parallel compile jobs (default: all cores)
# FLAGS   further options of CMake, such as -DGGML_CUDA=on
# TARGETS what to build (default: the programs that are compared)
#
# Takes about eight minutes on two cores. Does nothing if DIR has the programs of that version, with these FLAGS.
set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
directory=${1:-$repository/build/peers}
python=${PYTHON:-python3}
read -ra targets <<<"${TARGETS:-llama-completion llama-cli llama-speculative-simple llama-server llama-bench}"

if ! version=$("$python" -c 'from importlib.metadata import version; print(version("llama-cpp-python"))' 2>/dev/null); then
    echo "peers.sh: llama-cpp-python is not installed for $python (set PYTHON)" >&2
    exit 1
fi

built="$version${FLAGS:+ $FLAGS}"
is_built() {
    [[ -f $directory/VERSION && $(<"$directory/VERSION") == "$built" ]] || return 1
    local target
    for target in "${targets[@]}"; do
        [[ -x $directory/bin/$target || $target == llama ]] || return 1 # that one is the library
    done
}

if is_built; then
    echo "peers.sh: $directory has llama.cpp of llama-cpp-python $version"
    exit 0
fi

mkdir -p "$directory"
directory=$(cd "$directory" && pwd)
rm -f "$directory/VERSION"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

sdist=${SDIST:-}
if [[ -z $sdist ]]; then
    # Only this package from source; build tools may be wheels.
    "$python" -m pip download --no-deps --no-binary llama-cpp-python --dest "$work" "llama-cpp-python==$version"
    sdist=$work/llama_cpp_python-$version.tar.gz
fi
if [[ $(basename "$sdist") != "llama_cpp_python-$version.tar.gz" ]]; then
    echo "peers.sh: $sdist is not the source of the installed llama-cpp-python $version" >&2
    exit 1
fi

# A fixed source path, so that an interrupted build resumes.
source=$directory/source/llama_cpp_python-$version/vendor/llama.cpp
if [[ ! -f $directory/source/$version.complete ]]; then
    rm -rf "$directory/source" "$directory/cmake"
    mkdir -p "$directory/source"
    tar -xzf "$sdist" -C "$directory/source"
    touch "$directory/source/$version.complete"
fi

# CMake remembers options.
if [[ -d $directory/cmake && $(cat "$directory/cmake/FLAGS" 2>/dev/null) != "${FLAGS:-}" ]]; then
    rm -rf "$directory/cmake"
fi
mkdir -p "$directory/cmake"
echo "${FLAGS:-}" >"$directory/cmake/FLAGS"

generator=()
if command -v ninja >/dev/null; then
    generator=(-G Ninja)
fi
# As in setup/llama.cmake: GCC before 12.4 and 13.3 compiles the kernels for AMX wrongly.
if "${CXX:-c++}" -mno-amx-int8 -E -x c++ - </dev/null >/dev/null 2>&1; then
    export CFLAGS="${CFLAGS:-} -mno-amx-int8" CXXFLAGS="${CXXFLAGS:-} -mno-amx-int8"
fi
# The options of llama-cpp-python's build: shared libraries, Release, native instructions, OpenMP and RPC on.
# shellcheck disable=SC2086 # several options
cmake -S "$source" -B "$directory/cmake" ${generator[@]+"${generator[@]}"} \
    -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON -DGGML_NATIVE=ON -DGGML_OPENMP=ON -DGGML_RPC=ON \
    -DLLAMA_BUILD_SERVER=ON -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF \
    -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF ${FLAGS:-}
jobs=${JOBS:-$("$python" -c 'import os; print(len(getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))(0)))')}
cmake --build "$directory/cmake" --target "${targets[@]}" --parallel "$jobs"

ln -sfn cmake/bin "$directory/bin"
echo "$built" >"$directory/VERSION"
echo "peers.sh: built in $directory/bin"
