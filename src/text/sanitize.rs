//! What must not stand in a text that people read, and how such a text is cut and cleaned.
//! It must not know who reads it, nor who wrote it.

/// The longest text, in characters, that goes into an answer or a line of the log.
const CHARS_MAX: usize = 300;

/// Control characters, and those that hide text or turn its direction.
pub fn disturbs(char: char) -> bool {
    char.is_control()
        || matches!(char, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(char, '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// A text without what disturbs: every such character is a space.
pub fn plain(text: &str) -> impl Iterator<Item = char> {
    text.chars().map(|it| if disturbs(it) { ' ' } else { it })
}

/// A text of others, at most 300 characters long and on one line.
pub fn bounded(text: &str) -> String {
    plain(text).take(CHARS_MAX).collect()
}
