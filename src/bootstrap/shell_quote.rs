//! Quotes strings for shells and PowerShell, and checks strings for flags.

use crate::bootstrap::BootstrapError;

/// Quotes a string as one word of a POSIX shell. In single quotes, only the closing quote is
/// special.
pub(super) fn quote_shell(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Quotes a PowerShell literal. PowerShell treats all these characters as single quotes. A doubled
/// quote is a literal quote. Source: PowerShell, about_Quoting_Rules.
pub(super) fn quote_powershell(text: &str) -> String {
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

/// Returns the string if it has only letters, digits and these characters. Such a string has no
/// special meaning for a shell, systemd or kubelet flags.
pub(super) fn checked_word<'a>(
    what: &'static str,
    text: &'a str,
    marks: &str,
) -> Result<&'a str, BootstrapError> {
    if text.chars().all(|c| c.is_ascii_alphanumeric() || marks.contains(c)) {
        return Ok(text);
    }
    Err(BootstrapError::Malformed { what, text: text.chars().take(TEXT_MAX).collect() })
}

/// Maximum number of characters of a value in an error.
const TEXT_MAX: usize = 80;
