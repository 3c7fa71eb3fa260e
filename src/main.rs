//! The entry point: passes the arguments to [`outrigger::cli::main`].

use std::process::ExitCode;

/// Plans and simulations allocate many small values. With mimalloc they take 10% less time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    outrigger::cli::main(std::env::args_os())
}
