#!/usr/bin/env bash
# Builds llama.cpp and duo for the local GPU, creates the models, compares placements of target and draft, also with
# llama.cpp's own program, and prints a report.
#
#   benchmarks/gpu.sh [--dry-run] [options of python -m benchmarks gpu]
#   benchmarks/gpu.sh [--dry-run] --offline DIR
#
#   --dry-run   print the commands without running them
#   --offline DIR   only fill DIR with what a machine without a network needs: see benchmarks/offline.sh
#   --pairs smollm2-f16 -r 2 -n 32   test run of a few minutes, with the demo pair; also for small GPUs
#   --minutes M time for the rounds of each pair, without building (default: 8): as many as fit, or a part of one
#   --models TARGET DRAFT   other models: the target larger than the GPU memory, the draft at most a tenth of it
#
# BACKEND cuda (default), vulkan (AMD, Intel) or metal (the default on a Mac)
# PYTHON  interpreter for the virtual environment (default: python3)
# ARCH    compute capability without the dot, such as 86 (cuda; default: as reported by nvidia-smi)
# JOBS    number of parallel compile jobs (default: all cores)
# CMAKE_ARGS  further build options
#
# Needs the driver; the CUDA toolkit (nvcc), the Vulkan SDK (glslc) or Xcode's command line tools; a C and C++ compiler;
# 20 GB of disk. The first run takes about half an hour, mostly to compile. With build/gpu and build/models it works
# offline. The report is also in build/gpu/result.md, all figures in build/gpu/result.json.
set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
environment=build/gpu/venv
python=$environment/bin/python
result=build/gpu/result.json

dry_run=false
offline=false
options=()
# Those of the scenario, which can be asked itself only after the build.
known=$(grep '^    add("-' "$repository/benchmarks/__main__.py" | grep -o '"--\{0,1\}[a-z][a-z-]*"' | tr -d '"')
for argument in "$@"; do
    if [[ $argument == -h || $argument == --help ]]; then
        sed -n '2,/^set /s/^# \{0,1\}//p' "$repository/benchmarks/gpu.sh"
        exit
    elif [[ $argument == --dry-run ]]; then
        dry_run=true
    elif [[ $argument == --offline ]]; then
        offline=true
    elif [[ $argument == --offline=* ]]; then
        offline=true
        options+=("${argument#*=}")
    else
        options+=("$argument")
    fi
done

run() {
    if $dry_run; then
        printf '%q ' "$@"
        echo
    else
        "$@"
    fi
}

fail() {
    echo "gpu.sh: $1" >&2
    $dry_run || exit 1
}

misused() {
    echo "gpu.sh: $1" >&2
    exit 2
}

if $offline; then
    [[ ${#options[@]} == 1 && -n ${options[0]} && ${options[0]} != -* ]] ||
        misused "name the folder to fill: gpu.sh --offline DIR"
    run "$repository/benchmarks/offline.sh" --offline "${options[0]}"
    exit
fi
[[ ${#options[@]} == 0 || ${options[0]} == -* ]] || misused "${options[0]}: see --help"
for option in ${options[@]+"${options[@]}"}; do
    case $option in
    --*) option=${option%%=*} ;;
    -*) option=${option:0:2} ;;
    *) continue ;;
    esac
    grep -qxe "$option" <<<"$known" || misused "no option $option: see --help, and python -m benchmarks --help"
done
cd "$repository"

backend=${BACKEND:-$([[ $(uname) == Darwin ]] && echo metal || echo cuda)}
case $backend in
cuda)
    command -v nvidia-smi >/dev/null || fail "no nvidia-smi: install the NVIDIA driver (other GPUs: BACKEND=vulkan; without a GPU: python -m benchmarks gpu)"
    if ! command -v nvcc >/dev/null && [[ -x /usr/local/cuda/bin/nvcc ]]; then
        export PATH=/usr/local/cuda/bin:$PATH
    fi
    command -v nvcc >/dev/null || fail "no nvcc: install NVIDIA's CUDA toolkit and put its bin folder on the PATH"
    arch=${ARCH:-}
    if [[ -z $arch ]] && command -v nvidia-smi >/dev/null; then
        # One line per GPU, such as 8.6.
        arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | sort -u | tr -d '. ' | paste -sd ';' -) || true
    fi
    [[ $arch =~ ^[0-9]+(\;[0-9]+)*$ ]] || arch=native
    flags="-DGGML_CUDA=on -DCMAKE_CUDA_ARCHITECTURES=$arch"
    ;;
vulkan)
    command -v glslc >/dev/null || fail "no glslc: install the Vulkan SDK, or the packages with glslc and the Vulkan headers"
    flags="-DGGML_VULKAN=on"
    ;;
metal)
    [[ $(uname) == Darwin ]] || fail "BACKEND=metal needs a Mac"
    flags="-DGGML_METAL=on"
    ;;
*)
    misused "BACKEND=$backend: use cuda, vulkan or metal"
    ;;
esac
flags+=${CMAKE_ARGS:+ $CMAKE_ARGS}

# The marker has the build flags: an interrupted or different build is repeated.
if [[ ! -f build/gpu/BUILT || $(<build/gpu/BUILT) != "$flags" ]]; then
    run rm -f build/gpu/BUILT
    # --clear: pip would keep a llama-cpp-python that was built with other flags.
    run "${PYTHON:-python3}" -m venv "$environment" --clear
    run "$python" -m pip install --quiet --upgrade pip
    # Of the bindings, Python alone: they load the libraries of the program that is compared. pip's wheel cache ignores
    # build flags.
    run env CMAKE_ARGS="-DLLAMA_BUILD=OFF -DLLAVA_BUILD=OFF" \
        "$python" -m pip install --no-cache-dir --no-binary llama-cpp-python --editable . "gguf>=0.19"
    run env PYTHON="$python" FLAGS="$flags" TARGETS="llama llama-speculative-simple" \
        "$repository/benchmarks/peers.sh" build/gpu/peers
    packages=$("${PYTHON:-python3}" -c 'import sys; print("lib/python%d.%d/site-packages" % sys.version_info[:2])')
    run ln -sfn "$repository/build/gpu/peers/bin" "$environment/$packages/llama_cpp/lib"
    $dry_run || echo "$flags" >build/gpu/BUILT
fi

run "$python" -m benchmarks gpu --minutes 8 --json "$result" --peers build/gpu/peers/bin ${options[@]+"${options[@]}"}
