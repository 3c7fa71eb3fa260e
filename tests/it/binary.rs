//! The binary under test, run as a process of its own.
//! It must not know what it is asked to do.

use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

/// Runs the binary to its end, with this on its stdin.
pub(crate) fn run(arguments: &[&str], stdin: &str) -> Output {
    let mut child = command(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut pipe = child.stdin.take().expect("a pipe");
    // Whoever does not read it closes the pipe.
    drop(pipe.write_all(stdin.as_bytes()));
    drop(pipe);
    child.wait_with_output().expect("it ends")
}

/// The binary: the one that was built with the tests, unless `OUTRIGGER` names another, as
/// campaigns do for one that is built as packages are.
#[expect(
    clippy::disallowed_methods,
    reason = "a test reads how it is asked to run"
)]
pub(crate) fn outrigger() -> &'static str {
    static PROGRAM: OnceLock<String> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let built = env!("CARGO_BIN_EXE_outrigger").to_owned();
        std::env::var("OUTRIGGER").unwrap_or(built)
    })
}

/// The binary with these arguments, and nothing of the caller's that would change what it does.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(outrigger());
    command.args(arguments).env_remove("OUTRIGGER_CONFIG");
    command.env_remove("RUST_LOG");
    // Whatever is reached is on this host.
    for proxy in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] {
        command.env_remove(proxy).env_remove(proxy.to_lowercase());
    }
    command
}
