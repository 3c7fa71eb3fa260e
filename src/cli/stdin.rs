//! Reads standard input where a verb takes it in place of a file.
//! It must not know what is in it.

use std::io::{self, Read};

use anyhow::{Context, bail};

use crate::host::files::FILE_BYTES;

/// The state of 100,000 pods is a tenth of that.
const STATE_BYTES: u64 = 4 << 30;

/// All of standard input, where it is a file that somebody has written.
pub(crate) fn read() -> anyhow::Result<String> {
    read_within(FILE_BYTES)
}

/// All of standard input, where it is the state of a cluster.
pub(crate) fn read_state() -> anyhow::Result<String> {
    read_within(STATE_BYTES)
}

fn read_within(most: u64) -> anyhow::Result<String> {
    let mut text = String::new();
    let mut limited = io::stdin().lock().take(most + 1);
    let read = limited.read_to_string(&mut text);
    read.context("read standard input")?;
    if limited.limit() == 0 {
        bail!("standard input has more than {most} bytes");
    }
    Ok(text)
}
