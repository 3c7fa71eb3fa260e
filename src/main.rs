//! Hands the arguments to the command line, and its exit code to the caller.
//! It must not know what any verb does.

use std::process::ExitCode;

fn main() -> ExitCode {
    outrigger::cli::main(std::env::args_os())
}
