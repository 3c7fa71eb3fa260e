//! Hints for common syntax errors, based on the text around the error.

use crate::config::diagnostic::ProblemCode;
use crate::config::report::{SpannedDiagnostic, error_at};
use crate::config::source::Span;

/// The diagnostic for a syntax error that the parser found at `offset`.
pub(super) fn explain_error(
    text: &str,
    file: usize,
    offset: usize,
    message: &str,
) -> SpannedDiagnostic {
    let offset = char_boundary(text, offset.min(text.len()));
    let line_start = text[..offset].rfind('\n').map_or(0, |index| index + 1);
    let before = &text[line_start..offset];
    let rest = text[offset..].lines().next().unwrap_or_default();
    let width = rest.chars().next().map_or(0, char::len_utf8);
    let cursor = Span::new(file, offset, offset + width);

    if message.contains("redefined attribute") {
        let name: String = rest.chars().take_while(|c| name_char(*c)).collect();
        let span = Span::new(file, offset, offset + name.len());
        let detail = format!("The argument {name:?} is set twice.");
        let finding = error_at(ProblemCode::DuplicateArgument, span, detail);
        return match first_use(text, offset, &name) {
            Some(first) => {
                let first = Span::new(file, first, first + name.len());
                finding.duplicate_of(first)
            }
            None => finding,
        };
    }
    if message.contains("at most") {
        return error_at(
            ProblemCode::LimitExceeded,
            cursor,
            format!("Too many nested levels: {message}."),
        );
    }
    if text[offset..].trim().is_empty()
        && let Some(open) = unclosed_mark(text)
    {
        let detail = match open.mark {
            '"' => "The string that starts here is not closed.",
            '<' => "The heredoc that starts here has no end.",
            _ => "The block or collection that starts here is not closed.",
        };
        let close = match open.mark {
            '[' => "add the missing ]",
            '(' => "add the missing )",
            '"' => "add the missing \"",
            '<' => "end it with its delimiter, alone on a line",
            _ => "add the missing }, or check the braces within the block",
        };
        return opened_here(Span::new(file, open.at, open.at + 1), detail, close);
    }
    if let Some(finding) = unclosed_error(text, file, offset, message) {
        return finding;
    }
    let trimmed = before.trim_end();
    if let Some(name) = trimmed.strip_suffix('=')
        && (rest.trim().is_empty() || rest.starts_with('#'))
    {
        let name = name.trim().rsplit(' ').next().unwrap_or_default();
        let end = line_start + trimmed.len();
        let detail = format!("The argument {name:?} has no value.");
        let sign = Span::new(file, end - 1, end);
        return error_at(ProblemCode::Syntax, sign, detail)
            .label("a value is missing after this")
            .help(format!("write {name} = null to leave it unset"));
    }
    let (detail, help) = common_mistake(before, rest, message);
    error_at(ProblemCode::Syntax, cursor, detail).maybe_help(help)
}

/// The error of a bracket, string or heredoc that is opened here and not closed.
fn opened_here(span: Span, detail: &str, help: &str) -> SpannedDiagnostic {
    error_at(ProblemCode::Syntax, span, detail).label("opened here").help(help)
}

/// The diagnostic if a bracket, string or heredoc before `offset` is not closed.
fn unclosed_error(
    text: &str,
    file: usize,
    offset: usize,
    message: &str,
) -> Option<SpannedDiagnostic> {
    if message.contains("heredoc end") {
        let start = text[..offset].rfind("<<")?;
        let help = "end it with its delimiter, alone on a line";
        let span = Span::new(file, start, start + 2);
        return Some(opened_here(span, "The heredoc has no end.", help));
    }
    let line_start = text[..offset].rfind('\n').map_or(0, |index| index + 1);
    let line = text[line_start..].lines().next().unwrap_or_default();
    let comment = line.trim_start().starts_with(['#', '/']);
    if !comment && line.replace("\\\"", "  ").matches('"').count() % 2 == 1 {
        let start = line_start + line.rfind('"')?;
        let help = "add the missing \", or write the string as a heredoc: <<-EOT";
        let span = Span::new(file, start, start + 1);
        return Some(opened_here(span, "The string is not closed on its line.", help));
    }
    for (expected, mark) in [("expected `]`", '['), ("expected `)`", '(')] {
        let open = unclosed_mark(&text[..offset]).filter(|open| open.mark == mark);
        if let Some(open) = open.filter(|_| message.contains(expected)) {
            let detail = match mark {
                '[' => "The list that starts here is not closed.",
                _ => "The parenthesis that starts here is not closed.",
            };
            let help = format!("add the missing {}", if mark == '[' { ']' } else { ')' });
            let span = Span::new(file, open.at, open.at + 1);
            return Some(opened_here(span, detail, &help));
        }
    }
    None
}

/// The message and hint for an error at `rest`, after `before` on the same line.
fn common_mistake(before: &str, rest: &str, message: &str) -> (String, Option<String>) {
    let trimmed = before.trim();
    let first = rest.chars().next();
    let starts_argument = {
        let name = rest.trim_start().trim_start_matches(name_char);
        rest.trim_start().starts_with(name_char) && name.trim_start().starts_with('=')
    };
    let (detail, help) = match first {
        Some('\'') => {
            ("Strings must be in double quotes.", "write \"…\" instead of '…'".to_owned())
        }
        Some(':') if trimmed.chars().all(name_char) && !trimmed.is_empty() => {
            ("Arguments are set with =, not with a colon.", format!("write {trimmed} = …"))
        }
        Some('=') if trimmed.ends_with('"') => {
            ("A block has no equals sign.", format!("write {trimmed} {{ … }}"))
        }
        Some(',') => (
            "Commas are only allowed in lists, maps and calls.",
            "write each argument on a line of its own, without commas".to_owned(),
        ),
        Some('}') if trimmed.is_empty() => {
            ("This brace closes nothing.", "remove it, or add a missing { above".to_owned())
        }
        _ if starts_argument && trimmed.contains('{') => (
            "A block on one line can have at most one argument.",
            "write each argument on a line of its own".to_owned(),
        ),
        _ if starts_argument && trimmed.contains('=') => (
            "Two arguments are on one line.",
            "write each argument on a line of its own".to_owned(),
        ),
        _ if message.contains("escape") => (
            "This escape is not supported.",
            "supported escapes: \\n, \\r, \\t, \\\", \\\\, \\uNNNN and \\UNNNNNNNN".to_owned(),
        ),
        _ => return (format!("This is not HCL: {message}."), None),
    };
    (detail.to_owned(), Some(help))
}

fn name_char(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '-'
}

fn char_boundary(text: &str, mut at: usize) -> usize {
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// The position of the first definition of an argument that is set again at `offset`, on the same
/// level of braces.
fn first_use(text: &str, offset: usize, name: &str) -> Option<usize> {
    let mut depth = 0_i64;
    let mut first = None;
    let mut end = offset;
    for line in text[..offset].split_inclusive('\n').rev() {
        let start = end - line.len();
        end = start;
        let opens = line.matches('{').count();
        let closes = line.matches('}').count();
        depth += i64::try_from(closes).unwrap_or(0);
        let content = line.trim_start();
        let after = content.strip_prefix(name).map(str::trim_start);
        if depth == 0 && after.is_some_and(|after| after.starts_with('=')) {
            first = Some(start + line.len() - content.len());
        }
        depth -= i64::try_from(opens).unwrap_or(0);
        if depth < 0 {
            break;
        }
    }
    first
}

/// An opening mark: its position, its character and the indentation of its line.
#[derive(Clone, Copy)]
struct Open {
    at: usize,
    mark: char,
    indent: usize,
}

/// The mark that is not closed. If a closing brace is indented less than the line of its opening
/// mark, that mark is assumed. Otherwise, the innermost mark that is open at the end is assumed.
fn unclosed_mark(text: &str) -> Option<Open> {
    let mut open: Vec<Open> = Vec::new();
    let mut suspect = None;
    let mut indent = 0;
    let mut blank = true;
    let mut chars = text.char_indices().peekable();
    while let Some((index, c)) = chars.next() {
        let in_text = open.last().is_some_and(|open| open.mark == '"');
        let next = chars.peek().map(|(_, c)| *c);
        match c {
            '\n' => {
                (indent, blank) = (0, true);
                continue;
            }
            ' ' | '\t' if blank => {
                indent += 1;
                continue;
            }
            '\\' if in_text => {
                chars.next();
            }
            '$' | '%' if in_text && next == Some('{') => {
                chars.next();
                open.push(Open { at: index, mark: '{', indent });
            }
            '"' if in_text => {
                open.pop();
            }
            _ if in_text => {}
            '"' => open.push(Open { at: index, mark: '"', indent }),
            '#' => skip_line(&mut chars),
            '/' if next == Some('/') => skip_line(&mut chars),
            '{' | '[' | '(' => open.push(Open { at: index, mark: c, indent }),
            '}' | ']' | ')' => {
                let last = open.pop();
                let further_left = last.filter(|last| blank && last.indent > indent);
                suspect = suspect.or(further_left);
            }
            '<' if next == Some('<') => {
                if let Some(missing) = skip_heredoc(text, index, &mut chars) {
                    return Some(missing);
                }
                (indent, blank) = (0, true);
                continue;
            }
            _ => {}
        }
        blank = false;
    }
    suspect.or_else(|| open.last().copied())
}

type Chars<'a> = std::iter::Peekable<std::str::CharIndices<'a>>;

fn skip_line(chars: &mut Chars<'_>) {
    while chars.next_if(|(_, c)| *c != '\n').is_some() {}
}

/// Skips a heredoc, or returns its start if it has no end.
fn skip_heredoc(text: &str, at: usize, chars: &mut Chars<'_>) -> Option<Open> {
    let first = text[at + 2..].lines().next().unwrap_or_default();
    let word = first.trim_start_matches('-').trim();
    if word.is_empty() || !word.chars().all(name_char) {
        return None;
    }
    let mut end = at + 2 + first.len();
    for line in text[end..].split_inclusive('\n') {
        end += line.len();
        if line.trim() == word {
            while chars.next_if(|(index, _)| *index < end).is_some() {}
            return None;
        }
    }
    Some(Open { at, mark: '<', indent: 0 })
}
