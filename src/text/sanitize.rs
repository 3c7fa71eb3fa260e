//! Truncates strings for display and replaces characters that are unsafe to display.

/// Maximum number of characters of a string in a response or log line.
const CHARS_MAX: usize = 300;

/// Returns true for control characters and for characters that hide text or change its direction.
pub fn is_unsafe(char: char) -> bool {
    char.is_control()
        || matches!(char, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(char, '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// Replaces every unsafe character with a space.
pub fn replace_unsafe(text: &str) -> impl Iterator<Item = char> {
    text.chars().map(|c| if is_unsafe(c) { ' ' } else { c })
}

/// Returns an untrusted string on one line, with at most 300 characters.
pub fn bounded_line(text: &str) -> String {
    replace_unsafe(text).take(CHARS_MAX).collect()
}
