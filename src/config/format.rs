//! The canonical format of HCL, as `terraform fmt` writes it.
//!
//! Only whitespace and a few spellings change: labels are quoted, `"${x}"` becomes `x`, and the
//! type of a variable is unquoted. Reference: `terraform fmt` 1.11, which the tests run.

// Lossless lexer for HCL.
mod tokens;
// Spaces between two tokens of a line.
mod spacing;

use std::iter::Peekable;
use std::slice::from_ref;
use std::vec::IntoIter;

use unicode_segmentation::UnicodeSegmentation;

use crate::config::diagnostic::{Diagnostic, ProblemCode};
use crate::config::format::spacing::is_apart;
use crate::config::format::tokens::{Token, TokenKind, scan_tokens};
use crate::config::parse_all;
use crate::config::report::Reporter;
use crate::config::schema::blocks;
use crate::config::source::{ConfigFiles, SourceFile};

/// Number of spaces for each level of indentation.
const INDENT: usize = 2;

/// Formats a file.
///
/// # Errors
///
/// Returns a syntax error with its range and a hint.
pub fn format(file: &SourceFile) -> Result<String, Vec<Diagnostic>> {
    let text = parsed_body(file)?;
    let mut respelled = Vec::new();
    let mut rest = scan_tokens(&text).into_iter().peekable();
    format_body(&mut rest, &mut respelled, Place::File);
    // Tokens after the body are not HCL and remain unchanged.
    respelled.extend(rest);
    let formatted = laid_out(&mut respelled);
    // The result must have the same meaning as the input.
    let again = scan_tokens(&formatted);
    if again.len() != respelled.len()
        || !again.iter().zip(&respelled).all(|(one, other)| one.text == other.text)
    {
        let detail = "Formatting would change the meaning of this file, so it is not formatted.";
        return Err(vec![Diagnostic::error(ProblemCode::Syntax, detail.to_owned())]);
    }
    parsed_body(&SourceFile::new(&*file.name, formatted))
}

/// The parsed body of a file, if it is HCL.
fn parsed_body(file: &SourceFile) -> Result<String, Vec<Diagnostic>> {
    let mut sources = ConfigFiles::default();
    let (_, findings) = parse_all(&mut sources, from_ref(file), blocks::root_block());
    if findings.is_empty() {
        return Ok(sources.text(0).to_owned());
    }
    let reporter = Reporter::new(sources);
    findings.into_iter().for_each(|finding| reporter.add(finding));
    Err(reporter.take_problems())
}

/// The kind of block a body belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    File,
    Variable,
    Block,
}

type Rest = Peekable<IntoIter<Token>>;

/// Formats the arguments and blocks of a body, up to the closing brace.
fn format_body(rest: &mut Rest, out: &mut Vec<Token>, place: Place) {
    while let Some(token) = rest.next_if(|next| next.kind != TokenKind::Close('}')) {
        let is_name = token.kind == TokenKind::Ident;
        let name = token.text.clone();
        out.push(token);
        if !is_name {
            continue;
        }
        let mut comments = Vec::new();
        while let Some(comment) = rest.next_if(|next| next.kind == TokenKind::Comment) {
            comments.push(comment);
        }
        if rest.peek().is_some_and(|next| next.kind == TokenKind::Equal) {
            out.append(&mut comments);
        }
        if let Some(equal) = rest.next_if(|next| next.kind == TokenKind::Equal) {
            out.push(equal);
            let mut value = value_tokens(rest);
            let before = count_leading(value.iter(), TokenKind::Comment);
            out.extend(value.drain(..before));
            let after = count_leading(value.iter().rev(), TokenKind::Comment);
            let after = value.split_off(value.len() - after);
            out.extend(match place {
                Place::Variable if name == "type" => type_of(value),
                _ => unwrap_interpolation(value),
            });
            out.extend(after);
            continue;
        }
        format_labels(rest, comments, out);
        let Some(brace) = rest.next_if(|next| next.kind == TokenKind::Open('{')) else {
            continue;
        };
        out.push(brace);
        let inner = match place {
            Place::File if name == "variable" => Place::Variable,
            _ => Place::Block,
        };
        format_body(rest, out, inner);
        out.extend(rest.next_if(|next| next.kind == TokenKind::Close('}')));
    }
}

/// The labels of a block, each in quotes. As with Terraform, comments between the labels are
/// dropped, and comments after them are kept.
fn format_labels(rest: &mut Rest, mut comments: Vec<Token>, out: &mut Vec<Token>) {
    let quoted = [TokenKind::Quote, TokenKind::Text, TokenKind::Unquote];
    while let Some(token) = rest.next_if(|next| {
        [TokenKind::Ident, TokenKind::Comment].contains(&next.kind) || quoted.contains(&next.kind)
    }) {
        if token.kind == TokenKind::Comment {
            comments.push(token);
            continue;
        }
        comments.clear();
        if token.kind == TokenKind::Ident {
            out.push(Token::new(TokenKind::Quote, "\""));
            out.push(Token::new(TokenKind::Text, token.text));
            out.push(Token::new(TokenKind::Unquote, "\""));
        } else {
            out.push(token);
        }
    }
    out.append(&mut comments);
}

/// The tokens of a value, up to the end of its line or of its block.
fn value_tokens(rest: &mut Rest) -> Vec<Token> {
    let mut tokens: Vec<Token> = Vec::new();
    let mut depth = 0;
    while let Some(token) =
        rest.next_if(|next| depth > 0 || !next.ends_line() && next.kind != TokenKind::Close('}'))
    {
        depth += token.bracket_change();
        tokens.push(token);
    }
    tokens
}

/// Unwraps a string that is a single interpolation, with parentheses if it spans several lines.
fn unwrap_interpolation(value: Vec<Token>) -> Vec<Token> {
    let [quote, interp, inner @ .., end, unquote] = value.as_slice() else {
        return value;
    };
    let kinds = [quote.kind, interp.kind, end.kind, unquote.kind];
    let wrapped =
        kinds == [TokenKind::Quote, TokenKind::Interp, TokenKind::InterpEnd, TokenKind::Unquote];
    if !wrapped || !interp.text.starts_with('$') || inner.is_empty() {
        return value;
    }
    let mut quotes = 0;
    for token in inner {
        match token.kind {
            TokenKind::Quote => quotes += 1,
            TokenKind::Unquote => quotes -= 1,
            // There is more than one value.
            TokenKind::Interp | TokenKind::InterpEnd if quotes == 0 => return value,
            _ => {}
        }
    }
    let before = count_leading(inner.iter(), TokenKind::Newline);
    let after = count_leading(inner.iter().rev(), TokenKind::Newline);
    let inner = inner.get(before..inner.len() - after).unwrap_or_default();
    let in_parentheses = inner.first().is_some_and(|token| token.kind == TokenKind::Open('('))
        && inner.last().is_some_and(|token| token.kind == TokenKind::Close(')'));
    let has_break = inner.iter().any(|token| token.kind == TokenKind::Newline);
    if has_break && !in_parentheses {
        let open = Token::new(TokenKind::Open('('), "(");
        let close = Token::new(TokenKind::Close(')'), ")");
        return [&[open], inner, &[close]].concat();
    }
    inner.to_vec()
}

/// The type of a variable, unquoted, with the element type of a collection.
fn type_of(value: Vec<Token>) -> Vec<Token> {
    let collections = ["list", "map", "set"];
    let (collection, element) = match value.as_slice() {
        [name] if name.kind == TokenKind::Ident && collections.contains(&&*name.text) => {
            (name.text.as_str(), "any")
        }
        [quote, name, _] if quote.kind == TokenKind::Quote => match name.text.as_str() {
            "string" => return vec![Token::new(TokenKind::Ident, "string")],
            name @ ("list" | "map") => (name, "string"),
            _ => return value,
        },
        _ => return value,
    };
    vec![
        Token::new(TokenKind::Ident, collection),
        Token::new(TokenKind::Open('('), "("),
        Token::new(TokenKind::Ident, element),
        Token::new(TokenKind::Close(')'), ")"),
    ]
}

/// The number of tokens of this kind before the first token of another kind.
fn count_leading<'a>(tokens: impl Iterator<Item = &'a Token>, kind: TokenKind) -> usize {
    tokens.take_while(|token| token.kind == kind).count()
}

/// One line: its start, its assignment and its comment. The assignment and the comment are aligned
/// with those of the adjacent lines.
struct FormattedLine {
    /// Token indices of its start, its assignment, its comment and its end.
    bounds: [usize; 4],
}

impl FormattedLine {
    fn new(all: &[Token], begins: usize, ends: usize) -> Self {
        let line = &all[begins..ends];
        let comment = match line {
            [_, .., last] if last.kind == TokenKind::Comment => ends - 1,
            _ => ends,
        };
        let lead = &all[begins..comment];
        let equal = lead.iter().skip(1).position(|token| token.kind == TokenKind::Equal);
        let assign = equal.map(|index| begins + index + 1);
        // A value that continues on the next line is not aligned.
        let assign = assign
            .filter(|from| all[*from..comment].iter().map(Token::bracket_change).sum::<i32>() == 0)
            .unwrap_or(comment);
        Self { bounds: [begins, assign, comment, ends] }
    }

    /// Whether the first, second or third part of the line has tokens.
    fn has_part(&self, number: usize) -> bool {
        self.bounds[number] < self.bounds[number + 1]
    }

    /// The tokens of the first, second or third part of the line.
    fn part<'a>(&self, number: usize, all: &'a mut [Token]) -> &'a mut [Token] {
        &mut all[self.bounds[number]..self.bounds[number + 1]]
    }
}

fn laid_out(all: &mut [Token]) -> String {
    let mut lines = Vec::new();
    let mut begins = 0;
    for index in 0..all.len() {
        if all[index].ends_line() || index + 1 == all.len() {
            lines.push(FormattedLine::new(all, begins, index + 1));
            begins = index + 1;
        }
    }
    indent_lines(&lines, all);
    for line in &lines {
        for number in [0, 1] {
            set_spaces(line.part(number, all));
        }
    }
    for number in [1, 2] {
        align_parts(&lines, number, all);
    }
    let mut text = String::new();
    for token in all {
        text.extend(std::iter::repeat_n(' ', token.blanks));
        text.push_str(&token.text);
    }
    text
}

/// Indents each line by the number of lines with open brackets. Several brackets that a line opens
/// indent the next line only once.
fn indent_lines(lines: &[FormattedLine], all: &mut [Token]) {
    let mut open: Vec<i32> = Vec::new();
    for line in lines {
        let [begins, assign, comment, _] = line.bounds;
        if all[begins].kind == TokenKind::Newline {
            continue;
        }
        // The content of a heredoc does not affect the indentation.
        let lead = all[begins..assign].iter();
        let counted = lead.take_while(|token| token.kind != TokenKind::Heredoc);
        let mut net: i32 = counted.map(Token::bracket_change).sum();
        net += all[assign..comment].iter().map(Token::bracket_change).sum::<i32>();
        let level = open.len();
        if net > 0 {
            open.push(net);
        }
        while net < 0
            && let Some(last) = open.last_mut()
        {
            *last += net;
            net = (*last).min(0);
            if *last <= 0 {
                open.pop();
            }
        }
        all[begins].blanks = INDENT * level.min(open.len());
    }
}

/// Sets the spaces between the tokens of a part of a line.
fn set_spaces(part: &mut [Token]) {
    for index in 1..part.len() {
        let before = index.checked_sub(2).map(|at| &part[at]);
        part[index].blanks = usize::from(is_apart(before, &part[index - 1], &part[index]));
    }
}

/// Aligns the parts of consecutive lines in one column.
fn align_parts(lines: &[FormattedLine], number: usize, all: &mut [Token]) {
    for chain in lines.chunk_by(|one, other| one.has_part(number) == other.has_part(number)) {
        if !chain.first().is_some_and(|line| line.has_part(number)) {
            continue;
        }
        let widths: Vec<usize> = chain
            .iter()
            .map(|line| column_width(&all[line.bounds[0]..line.bounds[number]]))
            .collect();
        let widest = widths.iter().copied().max().unwrap_or_default();
        for (line, width) in chain.iter().zip(widths) {
            line.part(number, all)[0].blanks = widest - width + 1;
        }
    }
}

/// The width of tokens in columns, with the spaces before them.
fn column_width(tokens: &[Token]) -> usize {
    tokens.iter().map(|token| token.blanks + token.text.graphemes(true).count()).sum()
}
