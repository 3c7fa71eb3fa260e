//! Text that a shell, PowerShell or a flag takes as text and nothing else.
//! It must not know what the text is for.

use crate::bootstrap::BootstrapError;

/// One word of a POSIX shell: nothing in single quotes is special but their end.
pub(super) fn shell(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// A literal of PowerShell, to which all these are single quotes; a doubled one is itself.
/// Source: PowerShell, about_Quoting_Rules.
pub(super) fn powershell(text: &str) -> String {
    let mut out = String::from("'");
    for c in text.chars() {
        if matches!(c, '\'' | '\u{2018}'..='\u{201b}') {
            out.push(c);
        }
        out.push(c);
    }
    out.push('\'');
    out
}

/// The text, if all of it is letters, digits and these marks: nothing that a shell, systemd or the
/// kubelet's flags would take for more than text.
pub(super) fn word<'a>(
    what: &'static str,
    text: &'a str,
    marks: &str,
) -> Result<&'a str, BootstrapError> {
    let good = |c: char| c.is_ascii_alphanumeric() || marks.contains(c);
    if text.chars().all(good) {
        return Ok(text);
    }
    Err(BootstrapError::Malformed {
        what,
        text: text.chars().take(TEXT_MAX).collect(),
    })
}

/// Characters of a text that an error repeats.
const TEXT_MAX: usize = 80;
