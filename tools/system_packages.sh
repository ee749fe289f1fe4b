#!/usr/bin/env bash
# Installs Debian packages that tests need, where that can be done: as root, with apt. Elsewhere it says what is missing
# and goes on: the tests that need it are skipped and say so. In CI (CI=true) a missing part is a failure.
#   tools/system_packages.sh "a reason" package=program ...
set -euo pipefail

reason=$1
shift
packages=()
for pair in "$@"; do
  PATH=$PATH:/usr/sbin:/sbin command -v "${pair#*=}" >/dev/null || packages+=("${pair%%=*}")
done
[ ${#packages[@]} -eq 0 ] && exit 0

if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
  echo "installing ${packages[*]} ($reason)"
  export DEBIAN_FRONTEND=noninteractive
  log=$(mktemp)
  apt() { apt-get -qq -o APT::Sandbox::User=root "$@" >>"$log" 2>&1; } # root: not every /tmp is open to apt's own user
  if apt update && apt install -y --no-install-recommends "${packages[@]}"; then
    rm "$log"
    exit 0
  fi
  tail -n 5 "$log"
fi
echo "not installed: ${packages[*]}. $reason; without them those tests are skipped. On Debian, as root: apt-get install ${packages[*]}"
[ "${CI:-}" != true ]
