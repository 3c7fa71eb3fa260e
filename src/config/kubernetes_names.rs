//! The syntax of Kubernetes label keys, label values and resource names.

/// Maximum length of a label value, or of the name in a label key.
const NAME_MAX: usize = 63;
/// Maximum length of the prefix of a label key.
const DOMAIN_MAX: usize = 253;

/// Why a string is not a valid label value, as a sentence. `None` if it is valid.
pub(crate) fn label_value_fault(text: &str) -> Option<String> {
    if text.is_empty() {
        return None;
    }
    part_fault(text, "A label value")
}

/// Why a string is not a valid name: a label value that is not empty.
pub(crate) fn name_fault(text: &str) -> Option<String> {
    if text.is_empty() {
        return Some("A name must not be empty.".to_owned());
    }
    part_fault(text, "A name")
}

/// Why a string is not a valid label key, as a sentence. `None` if it is valid.
pub(crate) fn label_key_fault(text: &str) -> Option<String> {
    let (domain, name) = match text.split_once('/') {
        Some((domain, name)) => (Some(domain), name),
        None => (None, text),
    };
    if name.is_empty() {
        return Some("A label key must not be empty.".to_owned());
    }
    if name.contains('/') {
        return Some("A label key must have at most one slash.".to_owned());
    }
    let domain_fault = domain.and_then(|domain| {
        let is_valid = domain.len() <= DOMAIN_MAX
            && domain.split('.').all(|part| {
                !part.is_empty()
                    && part
                        .chars()
                        .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
                    && !part.starts_with('-')
                    && !part.ends_with('-')
            });
        (!is_valid)
            .then(|| "The prefix of a label key must be a DNS name in lower case.".to_owned())
    });
    domain_fault.or_else(|| part_fault(name, "The name in a label key"))
}

fn part_fault(text: &str, what: &str) -> Option<String> {
    if text.chars().count() > NAME_MAX {
        return Some(format!("{what} must have at most {NAME_MAX} characters."));
    }
    let is_valid = text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.ends_with(|c: char| c.is_ascii_alphanumeric());
    (!is_valid).then(|| {
        format!(
            "{what} must consist of letters, digits, '-', '_' and '.', and start and end with a \
             letter or digit."
        )
    })
}

/// Returns whether a string is `host:port`.
pub(super) fn is_address(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else {
        return false;
    };
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let host_fine = match bracketed {
        Some(inner) => {
            inner.contains(':') && inner.chars().all(|c| c.is_ascii_hexdigit() || c == ':')
        }
        None => {
            !host.is_empty()
                && host.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.'))
        }
    };
    host_fine && port.chars().all(|c| c.is_ascii_digit()) && port.parse::<u16>().is_ok()
}

/// Returns whether a name matches a pattern, in which `*` is any number of characters.
pub(super) fn matches_pattern(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = name.strip_prefix(parts.next().unwrap_or_default()) else {
        return false;
    };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else {
        return rest.is_empty();
    };
    for part in middle {
        match rest.find(part) {
            Some(index) => rest = &rest[index + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::{is_address, label_key_fault, label_value_fault, matches_pattern};

    #[test]
    fn label_keys_and_values_follow_kubernetes_rules() {
        for key in ["a", "example.com/team", "a_b.c-d", "x.y/A1"] {
            assert_eq!(label_key_fault(key), None, "{key:?}");
        }
        for key in ["", "/a", "a/", "a/b/c", "-a", "Example.com/a", "a b", "a..b/c"] {
            assert!(label_key_fault(key).is_some(), "{key:?}");
        }
        assert_eq!(label_value_fault(""), None);
        assert!(label_value_fault("a b").is_some());
        assert!(label_value_fault(&"a".repeat(64)).is_some());
    }

    #[test]
    fn patterns_allow_stars_at_any_position() {
        let cases = [
            ("*", "a", true),
            ("eu-*", "eu-1", true),
            ("eu-*", "us-1", false),
            ("*-1", "eu-1", true),
            ("a*b*c", "a1b2c", true),
            ("a*a", "a", false),
            ("a", "a", true),
            ("a", "ab", false),
        ];
        for (pattern, name, expect) in cases {
            assert_eq!(matches_pattern(pattern, name), expect, "{pattern} {name}");
        }
    }

    #[test]
    fn addresses_need_a_host_and_a_port() {
        for text in ["127.0.0.1:9464", "[::1]:80", "localhost:0"] {
            assert!(is_address(text), "{text:?}");
        }
        for text in ["", ":80", "localhost", "a:65536", "a:+1", "[::1]", "::1:80", "a b:1"] {
            assert!(!is_address(text), "{text:?}");
        }
    }
}
