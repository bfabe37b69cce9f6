#!/usr/bin/env bash
# Installs what the tests need besides Python: Debian's Chromium and its driver, for the test that opens the audit's
# HTML page, and g++, for the tests of --compile. Does nothing where they are there. Debian, as root or with sudo.
set -euo pipefail

packages=()
if ! command -v chromium >/dev/null || ! command -v chromedriver >/dev/null; then
    packages+=(chromium chromium-driver)
fi
if ! command -v g++ >/dev/null; then
    packages+=(g++)
fi
if [ ${#packages[@]} -eq 0 ]; then
    exit 0
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
    as_root=(sudo)
fi
"${as_root[@]}" apt-get update
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${packages[@]}"
