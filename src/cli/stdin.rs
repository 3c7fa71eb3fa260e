//! Reads standard input where a verb takes it in place of a file.
//! It must not know what is in it.

use std::io::{self, Read};

use anyhow::{Context, bail};

use crate::shell::files::FILE_BYTES;

/// All of standard input.
pub(crate) fn read() -> anyhow::Result<String> {
    let mut text = String::new();
    let mut limited = io::stdin().lock().take(FILE_BYTES + 1);
    let read = limited.read_to_string(&mut text);
    read.context("read standard input")?;
    if limited.limit() == 0 {
        bail!("standard input has more than {FILE_BYTES} bytes");
    }
    Ok(text)
}
