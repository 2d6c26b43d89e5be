#!/usr/bin/env bash
# Prepares a machine without a GPU for `make test-vulkan`, and prints the options of llama.cpp's build on stdout.
#
# Needs Mesa's software driver (lavapipe), a shader compiler and Vulkan's headers. Debian and Ubuntu: installs their
# packages if run as root, or names them. Headers older than 1.3.268, which llama.cpp cannot use (Debian 12), are
# replaced by those of Debian 13, unpacked in build/vulkan/headers; nothing else of the system changes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

packages=(mesa-vulkan-drivers libvulkan-dev glslc spirv-headers)
headers=build/vulkan/headers
least=268  # VK_HEADER_VERSION of Vulkan 1.3: the first with VK_EXT_layer_settings

fail() {
    echo "test-vulkan: $1" >&2
    exit 1
}

is_complete() {
    command -v glslc >/dev/null && [[ -f /usr/include/vulkan/vulkan_core.h ]] &&
        [[ -f /usr/include/spirv/unified1/spirv.hpp ]] && compgen -G "/usr/share/vulkan/icd.d/*.json" >/dev/null
}

is_recent() {
    local minor version
    minor=$(sed -n 's/^#define VK_HEADER_VERSION_COMPLETE VK_MAKE_API_VERSION(0, 1, \([0-9]*\),.*/\1/p' "$1")
    version=$(sed -n 's/^#define VK_HEADER_VERSION \([0-9]*\)$/\1/p' "$1")
    ((minor > 3 || version >= least))
}

if ! is_complete; then
    command -v apt-get >/dev/null || fail "install Mesa's Vulkan drivers, glslc, and the headers of Vulkan and SPIR-V"
    [[ $(id -u) == 0 ]] || fail "install the packages first: apt-get install ${packages[*]}"
    echo "test-vulkan: installing ${packages[*]}" >&2
    { apt-get update -q && apt-get install -q -y --no-install-recommends "${packages[@]}"; } >&2
    is_complete || fail "${packages[*]} are installed, but something is missing"
fi

if ! is_recent /usr/include/vulkan/vulkan_core.h && ! [[ -d $headers ]]; then
    command -v apt-get >/dev/null || fail "Vulkan's headers are older than 1.3.$least: install newer ones"
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    # The mirror that this machine uses, with another release.
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -m 1 '/debian/$') ||
        fail "Vulkan's headers are older than 1.3.$least: install newer ones"
    keys=$(ls /usr/share/keyrings/debian-archive-keyring.gpg)
    echo "deb [signed-by=$keys] $mirror trixie main" >"$work/sources.list"
    mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
    options=(-q -o "Dir::Etc::SourceList=$work/sources.list" -o Dir::Etc::SourceParts=/dev/null
        -o "Dir::State::Lists=$work/lists" -o "Dir::Cache=$work/cache" -o APT::Sandbox::User=root)
    apt-get "${options[@]}" update >&2
    (cd "$work" && apt-get "${options[@]}" download libvulkan-dev >&2)
    mkdir -p build/vulkan
    dpkg -x "$work"/libvulkan-dev_*.deb "$work/headers"
    mv "$work/headers" "$headers"
fi

echo "-DGGML_VULKAN=on $([[ ! -d $headers ]] || echo "-DVulkan_INCLUDE_DIR=$PWD/$headers/usr/include")"
