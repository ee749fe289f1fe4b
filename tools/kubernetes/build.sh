#!/bin/sh
# Builds a Kubernetes control plane for the tests from Debian's source package, once, into a folder outside the
# checkout: ~/.cache/windlass/kubernetes-<version>, or $WINDLASS_KUBERNETES_BIN. Nobody packages these programs, and
# nothing is downloaded from anywhere but the Debian mirror. Takes about ten minutes and 4 GB of disk on two cores.
#
#   tools/kubernetes/build.sh            builds what is missing
#   WORK=folder tools/kubernetes/build.sh   ... keeping source and compiler cache in `folder`, to build again quickly
#   CI=true tools/kubernetes/build.sh    also installs what a real kubelet needs, whose test is left out without it
set -eu

VERSION=1.20.2
PROGRAMS=${PROGRAMS:-"kube-apiserver kube-controller-manager kube-scheduler kubelet"}
TARGET=${WINDLASS_KUBERNETES_BIN:-$HOME/.cache/windlass/kubernetes-$VERSION}
# The compiler's own packages, and three that replace copies in the source: they do not work with Go 1.18 and newer
# (the API server would crash at the first custom resource).
BUILD_PACKAGES="golang-go dpkg-dev golang-github-modern-go-reflect2-dev golang-github-modern-go-concurrent-dev
  golang-github-json-iterator-go-dev"
NODE_PACKAGES="containerd runc containernetworking-plugins busybox-static iproute2"
REPLACED="modern-go/reflect2 modern-go/concurrent json-iterator/go"

say() { echo "kubernetes: $*" >&2; }
fail() { say "$*"; exit 1; }

missing_programs() {
    for program in $PROGRAMS; do
        [ -x "$TARGET/$program" ] || printf '%s ' "$program"
    done
}

install_packages() {
    needed=
    for package in "$@"; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || needed="$needed $package"
    done
    [ -n "$needed" ] || return 0
    [ "$(id -u)" = 0 ] || fail "these packages are needed, and only root can install them: apt-get install$needed"
    say "installing$needed"
    # As root: not every /tmp is open to apt's own user.
    apt-get -qq -o APT::Sandbox::User=root update >/dev/null
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq -o APT::Sandbox::User=root --no-install-recommends $needed \
        >/dev/null
}

# The source package through apt's own machinery, with lists of its own: the system's configuration is not touched.
fetch_source() {
    [ -d "$WORK/source" ] && return 0
    mirror=$(sed -nE 's#^(deb |URIs: *).*(https?://[^ ]+/debian)/?( .*)?$#\2#p' /etc/apt/sources.list \
        /etc/apt/sources.list.d/* 2>/dev/null | head -n 1)
    mkdir -p "$WORK/apt/lists/partial" "$WORK/apt/cache/archives/partial"
    keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    echo "deb-src [signed-by=$keyring] ${mirror:-http://deb.debian.org/debian} bookworm main" >"$WORK/apt/source.list"
    set -- -qq -o "Dir::Etc::sourcelist=$WORK/apt/source.list" -o Dir::Etc::sourceparts=- \
        -o "Dir::State::lists=$WORK/apt/lists" -o "Dir::Cache=$WORK/apt/cache" -o "APT::Sandbox::User=$(id -un)"
    say "fetching the source of Kubernetes $VERSION"
    apt-get "$@" update
    (cd "$WORK" && apt-get "$@" source --download-only kubernetes)
    mkdir -p "$WORK/source.part"
    tar -xf "$WORK"/kubernetes_*.orig.tar.gz -C "$WORK/source.part" --strip-components=1
    for module in $REPLACED; do
        copy=$WORK/source.part/vendor/github.com/$module
        rm -rf "$copy" && mkdir -p "$copy"
        cp /usr/share/gocode/src/github.com/"$module"/*.go "$copy"
        cp /usr/share/gocode/src/github.com/"$module"/*.s "$copy" 2>/dev/null || true
        rm -f "$copy"/*_test.go
    done
    mv "$WORK/source.part" "$WORK/source"
}

# One file is made at build time: the description of all types that the API server publishes.
generate_openapi() {
    [ -e pkg/generated/openapi/zz_generated.openapi.go ] && return 0
    say "generating the API's description"
    go build -o "$WORK/openapi-gen" k8s.io/kubernetes/vendor/k8s.io/kube-openapi/cmd/openapi-gen
    inputs=$(grep -rlE --include='*.go' '^// *\+k8s:openapi-gen=true' pkg staging/src cmd | xargs -n 1 dirname | sort -u |
        grep -vE 'testdata|_examples|sample-apiserver|/test|code-generator|apiextensions-apiserver/examples' |
        sed -e 's#^staging/src/#k8s.io/kubernetes/vendor/#' -e 's#^\(pkg\|cmd\)/#k8s.io/kubernetes/\1/#' | paste -sd,)
    "$WORK/openapi-gen" --logtostderr -i "$inputs" -p k8s.io/kubernetes/pkg/generated/openapi \
        -O zz_generated.openapi -h hack/boilerplate/boilerplate.generatego.txt -r "$WORK/violations"
}

build() {
    export GOPATH="$WORK/gopath" GOCACHE="${GOCACHE:-$WORK/gocache}" GO111MODULE=off CGO_ENABLED=0
    mkdir -p "$GOPATH/src/k8s.io" "$TARGET"
    ln -sfn "$WORK/source" "$GOPATH/src/k8s.io/kubernetes"
    cd "$GOPATH/src/k8s.io/kubernetes"
    generate_openapi
    stamp=k8s.io/kubernetes/vendor/k8s.io/component-base/version
    for program in $(missing_programs); do
        say "building $program"
        go build -trimpath -o "$TARGET/$program.part" \
            -ldflags "-s -w -X $stamp.gitVersion=v$VERSION -X $stamp.gitMajor=1 -X $stamp.gitMinor=20" \
            "k8s.io/kubernetes/cmd/$program"
        mv "$TARGET/$program.part" "$TARGET/$program"  # whole or not at all
    done
}

command -v etcd >/dev/null || install_packages etcd-server
[ -z "${CI:-}" ] || install_packages $NODE_PACKAGES
[ -n "$(missing_programs)" ] || exit 0
command -v apt-get >/dev/null || fail "only Debian has this source package; set WINDLASS_KUBERNETES_BIN to a folder with $PROGRAMS"
if [ -z "${WORK:-}" ]; then
    WORK=$(mktemp -d "${TMPDIR:-/tmp}/windlass-kubernetes.XXXXXX")
    trap 'rm -rf "$WORK"' EXIT
fi
install_packages $BUILD_PACKAGES
fetch_source
build
say "built into $TARGET"
