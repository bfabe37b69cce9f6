#!/usr/bin/env bash
# Installs what the tests need besides Python: Debian's Chromium and its driver, for the test that opens the audit's
# HTML page. Does nothing where both are there. Debian, as root or with sudo.
set -euo pipefail

if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then
    exit 0
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
    as_root=(sudo)
fi
"${as_root[@]}" apt-get update
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y --no-install-recommends chromium chromium-driver
