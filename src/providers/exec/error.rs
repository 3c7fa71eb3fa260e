//! Why a program cannot be used.

use std::io;
use std::time::Duration;

use thiserror::Error;

use crate::providers::exec_protocol::ProtocolError;

/// Why a run of the program ended.
#[derive(Debug, Error)]
pub(crate) enum ProgramError {
    #[error("no program set")]
    NoCommand,
    #[error("cannot start {program}: {error}")]
    Start { program: String, error: io::Error },
    #[error("cannot start {0}: no pipes")]
    NoPipes(String),
    #[error(transparent)]
    Request(#[from] ProtocolError),
    #[error("its first line is not a valid hello: {0}")]
    InvalidHello(ProtocolError),
    #[error("its first line is too long for a hello")]
    HelloTooLong,
    #[error("it closed its stdout before the hello")]
    ClosedBeforeHello,
    #[error("it closed its stdout")]
    Closed,
    #[error("cannot read its stdout: {0}")]
    Read(io::Error),
    #[error("cannot write to its stdin: {0}")]
    Write(io::Error),
    #[error("it does not read its stdin")]
    StdinNotRead,
    #[error("it did not respond to {0} calls")]
    NoResponses(u32),
    #[error("{0} consecutive invalid lines")]
    InvalidLines(u32),
    #[error("no hello within {0:?}")]
    HelloTimeout(Duration),
    #[error("it exited")]
    Exited,
}
