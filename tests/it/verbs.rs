//! The verbs that need this process alone, run as the binary of whatever build is tested.
//! It must not know what the daemon does.

mod report;

mod missing;

use std::process::{Command, Output};

/// Runs the binary to its end, with nothing on its stdin.
fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outrigger"));
    command.args(arguments).env_remove("OUTRIGGER_CONFIG");
    command.output().expect("the binary runs")
}
