//! Splits a command line into words and flags.

/// A flag of the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FlagValue {
    /// Its name without dashes.
    pub(super) name: String,
    /// Its value. `None` if the flag has none.
    pub(super) value: Option<String>,
}

/// Splits a string into words like a shell: at blanks, with quotes and backslashes.
pub(super) fn split_words(text: &str) -> Vec<String> {
    let (mut words, mut word) = (Vec::new(), None::<String>);
    let (mut quote, mut chars) = (None, text.chars());
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some(mark), _) if c == mark => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None | Some('"'), '\\') => match chars.next() {
                // A backslash at the end of a line continues the line.
                Some('\n') | None => {}
                Some(next) => word.get_or_insert_default().push(next),
            },
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

/// Parses the flags among the words. `takes_value` returns whether a flag without `=` takes
/// the next word as its value. It returns `None` for unknown flags.
pub(super) fn parse_flags(
    words: &[String],
    takes_value: impl Fn(&str) -> Option<bool>,
) -> (Vec<FlagValue>, Vec<String>) {
    let (mut all, mut positional) = (Vec::new(), Vec::new());
    let mut rest = words.iter().peekable();
    while let Some(word) = rest.next() {
        if word == "--" {
            break;
        }
        let Some(flag) = word.strip_prefix("--").or_else(|| word.strip_prefix('-')) else {
            positional.push(word.clone());
            continue;
        };
        if let Some((name, value)) = flag.split_once('=') {
            all.push(FlagValue { name: dashed_name(name), value: Some(value.to_owned()) });
            continue;
        }
        let name = dashed_name(flag);
        let value = rest
            .next_if(|next| match takes_value(&name) {
                Some(takes) => takes,
                None => !next.starts_with('-'),
            })
            .cloned();
        all.push(FlagValue { name, value });
    }
    (all, positional)
}

/// Names can have underscores instead of dashes.
fn dashed_name(name: &str) -> String {
    name.replace('_', "-")
}

#[cfg(test)]
mod tests {
    use super::{FlagValue, parse_flags, split_words};

    #[test]
    fn words_are_split_like_a_shell() {
        for (text, expect) in [
            ("", &[][..]),
            ("a  b\n c", &["a", "b", "c"]),
            ("--x='a b' \"c d\"", &["--x=a b", "c d"]),
            ("a\\\n b\\ c", &["a", "b c"]),
            ("'a\\b' \"\\\"\"", &["a\\b", "\""]),
            ("\"open", &["open"]),
            ("''", &[""]),
        ] {
            assert_eq!(split_words(text), expect, "{text}");
        }
    }

    #[test]
    fn flags_are_parsed_with_their_values() {
        let takes = |name: &str| match name {
            "v" | "cut" => Some(true),
            "leader-elect" => Some(false),
            _ => None,
        };
        let check = |text: &str, expect: &[(&str, Option<&str>)], positional: &[&str]| {
            let (found, left) = parse_flags(&split_words(text), takes);
            let flag = |(name, value): &(&str, Option<&str>)| FlagValue {
                name: (*name).to_owned(),
                value: value.map(str::to_owned),
            };
            assert_eq!(found, expect.iter().map(flag).collect::<Vec<_>>(), "{text}");
            assert_eq!(left, positional, "{text}");
        };
        check("-v=4 --v 5", &[("v", Some("4")), ("v", Some("5"))], &[]);
        check("--cut -10", &[("cut", Some("-10"))], &[]);
        check("--leader_elect x", &[("leader-elect", None)], &["x"]);
        check("--a b --c --d", &[("a", Some("b")), ("c", None), ("d", None)], &[]);
        check("--x=a=b -- --y", &[("x", Some("a=b"))], &[]);
    }
}
