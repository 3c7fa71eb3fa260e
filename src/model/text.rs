//! What must not stand in a text that people read, whoever wrote it.
//! It must not know who reads it.

/// Control characters, and those that hide text or turn its direction.
pub fn disturbs(char: char) -> bool {
    char.is_control()
        || matches!(char, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(char, '\u{2060}'..='\u{2069}' | '\u{feff}')
}
