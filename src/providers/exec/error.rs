//! Why a program cannot be used.

use std::io;
use std::time::Duration;

use thiserror::Error;

use crate::host::text;
use crate::model::id::InstanceId;
use crate::model::instance::OfferingKey;
use crate::providers::wire_format::FormatError;

/// The protocol version.
pub(crate) const PROTOCOL: u32 = 1;

/// Why a message cannot be written, or a line is not a valid response.
#[derive(Debug, Error)]
pub(crate) enum ProtocolError {
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Format(#[from] FormatError),
    #[error("protocol version {0} is not supported; Outrigger uses version {PROTOCOL}")]
    UnsupportedVersion(u32),
    /// The program has answered the hello with this error.
    #[error("{0}")]
    HelloRefused(String),
    #[error("it refuses none of the requested offerings")]
    NoRequestedOffering,
    #[error("not a response to this call")]
    OtherCall,
    #[error("{:?} is not a valid instance id", text::bounded_line(.0))]
    InstanceId(String),
    #[error("{:?} is not a valid node name", text::bounded_line(.0))]
    NodeName(String),
    #[error("the provider id {:?} does not belong to {instance}", text::bounded_line(.provider_id))]
    ProviderId { provider_id: String, instance: InstanceId },
    #[error("{0} does not have the tags of the claim")]
    ClaimTags(InstanceId),
    #[error("{instance} is {offering}, which was not requested")]
    OtherOffering { instance: InstanceId, offering: OfferingKey },
    #[error("{0} is already terminated")]
    Terminated(InstanceId),
}

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
