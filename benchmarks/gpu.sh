#!/usr/bin/env bash
# Builds duo for this machine's NVIDIA card, makes the models, and measures where target and draft are best off.
#
#   benchmarks/gpu.sh [--dry-run] [--quick] [options of python -m benchmarks.gpu]
#
#   --dry-run   print every command and run none
#   --quick     the demo pair, two prompts, once: a check of a few minutes, for small cards too
#   --models TARGET DRAFT   your own: the target larger than the card, the draft a tenth of it or less
#
# PYTHON  the interpreter that the environment is made with (python3)
# ARCH    the card's compute capability without the dot, as 86 (what nvidia-smi says)
# JOBS    parallel compilers (all cores)
#
# Needs the driver, the CUDA toolkit (nvcc), a C and C++ compiler; npm for the default models, 10 GB of disk. About half
# an hour the first time, most of it compiling. Once build/gpu and build/models are there it works offline.
set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$repository"
environment=build/gpu/venv
python=$environment/bin/python
result=build/gpu/result.json

dry_run=false
options=()
for argument in "$@"; do
    if [[ $argument == --dry-run ]]; then
        dry_run=true
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

command -v nvidia-smi >/dev/null || fail "no nvidia-smi: is there an NVIDIA card, and its driver? (python -m benchmarks.gpu --cpu tries the rest)"
if ! command -v nvcc >/dev/null && [[ -x /usr/local/cuda/bin/nvcc ]]; then
    export PATH=/usr/local/cuda/bin:$PATH
fi
command -v nvcc >/dev/null || fail "no nvcc: install NVIDIA's CUDA toolkit and put its bin folder on the PATH"

arch=${ARCH:-}
if [[ -z $arch ]] && command -v nvidia-smi >/dev/null; then
    # One line for each card, as 8.6.
    arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | sort -u | tr -d '. ' | paste -sd ';' -) || true
fi
[[ $arch =~ ^[0-9]+(\;[0-9]+)*$ ]] || arch=native
flags="-DGGML_CUDA=on -DGGML_RPC=on -DCMAKE_CUDA_ARCHITECTURES=$arch"

# The marker holds what was built, so that an interrupted or another build is not taken for this one.
if [[ ! -f build/gpu/BUILT || $(<build/gpu/BUILT) != "$flags" ]]; then
    run rm -f build/gpu/BUILT
    run "${PYTHON:-python3}" -m venv "$environment"
    run "$python" -m pip install --quiet --upgrade pip
    # pip's wheel cache does not ask how a wheel was built.
    run env CMAKE_ARGS="$flags" CMAKE_BUILD_PARALLEL_LEVEL="${JOBS:-$(getconf _NPROCESSORS_ONLN)}" \
        "$python" -m pip install --no-cache-dir --no-binary llama-cpp-python --editable .
    $dry_run || echo "$flags" >build/gpu/BUILT
fi

run "$python" -m benchmarks.gpu --prepare ${options[@]+"${options[@]}"}
run "$python" -m benchmarks.gpu --json "$result" ${options[@]+"${options[@]}"}
if $dry_run; then
    echo "# which runs, in turns, with the numbers of layers that fit:"
    "${PYTHON:-python3}" -m benchmarks.gpu --dry-run --duo "$environment/bin/duo" ${options[@]+"${options[@]}"}
fi
