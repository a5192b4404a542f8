# Sourced: fetches Debian's source packages into the directory $work, which the caller makes.
# shellcheck shell=bash disable=SC2154

# apt-get with a state of its own: the machine's apt stays as it is, and nobody need be root. A mirror that is
# no longer updated serves too, since its packages are signed all the same.
private_apt() {
    apt-get -qq -o Dir::State="$work/state" -o Dir::State::status=/var/lib/dpkg/status \
        -o Dir::Cache="$work/cache" -o APT::Sandbox::User= -o Acquire::Check-Valid-Until=false "$@"
}

# Prints the Debian mirror that this machine's own apt sources name.
mirror() {
    private_apt update || true
    # shellcheck disable=SC2016 # apt-get expands these
    private_apt indextargets --format '$(ORIGIN) $(RELEASE) $(REPO_URI)' \
        'Created-By: Packages' 'Component: main' |
        awk '$1 == "Debian" && $2 !~ /-security/ && !uri { uri = $3 }
             END { sub("/$", "", uri); print uri }'
}

# fetch_source PACKAGE SUITE...: leaves the original source of a package in $work. It comes from the first of
# the suites that has it.
fetch_source() {
    local package=$1 uri suite sources
    shift
    mkdir -p "$work/state/lists/partial" "$work/cache/archives/partial"
    uri=$(mirror)
    [ -n "$uri" ] || die "this machine's apt sources name no Debian mirror for $package"
    sources=(-o Dir::Etc::SourceList="$work/sources.list" -o Dir::Etc::SourceParts=-)
    for suite in "$@"; do
        echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $uri $suite main" \
            >"$work/sources.list"
        if private_apt "${sources[@]}" update &&
            (cd "$work" && private_apt "${sources[@]}" source --download-only --tar-only "$package"); then
            return
        fi
    done
    say "none of $* at $uri gave the source package $package"
    return 1
}

# fetch_known_source PACKAGE VERSION DIGEST: the same for one version whose SHA-256 is known. A mirror may list a new
# version before it has it, and still have the one before.
fetch_known_source() {
    local file=$1_$2.orig.tar.bz2 uri
    uri=$(mirror)
    say "asking $uri for $file, which was there before"
    /usr/lib/apt/apt-helper -qq -o APT::Sandbox::User= \
        download-file "$uri/pool/main/${1:0:1}/$1/$file" "$work/$file" "SHA256:$3"
}
