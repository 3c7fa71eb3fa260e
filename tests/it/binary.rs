//! The binary under test, run as a separate process.

use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

/// Runs the binary to its end, and writes `stdin` to its standard input.
pub(crate) fn run(arguments: &[&str], stdin: &str) -> Output {
    let mut child = command(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut pipe = child.stdin.take().expect("a pipe");
    // A binary that does not read its standard input may end before all of it is written.
    drop(pipe.write_all(stdin.as_bytes()));
    drop(pipe);
    child.wait_with_output().expect("it ends")
}

/// Returns the path of the binary: `OUTRIGGER` if it is set, which campaigns set to the binary that
/// is built as packages are, else the one that cargo built with the tests.
#[expect(clippy::disallowed_methods, reason = "a test reads how it is asked to run")]
pub(crate) fn outrigger() -> &'static str {
    static PROGRAM: OnceLock<String> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let built = env!("CARGO_BIN_EXE_outrigger").to_owned();
        std::env::var("OUTRIGGER").unwrap_or(built)
    })
}

/// Returns a command that starts the binary with these arguments. It removes the variables of the
/// environment that would change what the binary does.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(outrigger());
    command.args(arguments).env_remove("OUTRIGGER_CONFIG");
    command.env_remove("RUST_LOG");
    // Tests connect to this host alone, so no proxy may come between.
    for proxy in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] {
        command.env_remove(proxy).env_remove(proxy.to_lowercase());
    }
    command
}
