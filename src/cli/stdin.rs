//! Reads standard input for verbs that accept it instead of a file.

use std::io::{self, Read};

use anyhow::{Context, bail};

use crate::host::files::FILE_BYTES;

/// Size limit of a cluster's state: ten times the size of the state of 100,000 pods.
const STATE_BYTES: u64 = 4 << 30;

/// Reads standard input up to the size limit of a configuration file.
pub(crate) fn read_config_text() -> anyhow::Result<String> {
    read_within(FILE_BYTES)
}

/// Reads standard input up to the size limit of a cluster's state.
pub(crate) fn read_state() -> anyhow::Result<String> {
    read_within(STATE_BYTES)
}

fn read_within(limit: u64) -> anyhow::Result<String> {
    let mut text = String::new();
    let mut limited = io::stdin().lock().take(limit + 1);
    let read = limited.read_to_string(&mut text);
    read.context("cannot read standard input")?;
    if limited.limit() == 0 {
        bail!("standard input has more than {limit} bytes");
    }
    Ok(text)
}
