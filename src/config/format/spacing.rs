//! Decides whether a space is written between two tokens of a line.

use crate::config::format::tokens::{Token, TokenKind};

/// Returns whether a space is written between two tokens of a line, given the tokens before them.
pub(super) fn is_apart(before: Option<&Token>, one: &Token, other: &Token) -> bool {
    let is_in = one.kind == TokenKind::Ident && one.text == "in";
    match (one.kind, other.kind) {
        (_, TokenKind::Newline)
        | (TokenKind::Ident, TokenKind::Open('(') | TokenKind::DoubleColon)
        | (TokenKind::DoubleColon, TokenKind::Ident)
        | (TokenKind::Dot, _)
        | (_, TokenKind::Dot | TokenKind::Comma | TokenKind::Ellipsis) => false,
        (TokenKind::Comma, _) => true,
        // Text in strings is not changed.
        (TokenKind::Text | TokenKind::Quote | TokenKind::Heredoc, _)
        | (_, TokenKind::Text | TokenKind::Unquote | TokenKind::HeredocEnd) => false,
        // `for x in [y]` is not an index.
        _ if is_in && before.is_some_and(|token| token.kind == TokenKind::Ident) => true,
        (
            TokenKind::Ident | TokenKind::Number | TokenKind::Close(_) | TokenKind::InterpEnd,
            TokenKind::Open('['),
        )
        | (TokenKind::Bang, _) => false,
        (TokenKind::Minus, _) => is_subtraction(before),
        (TokenKind::Open('{'), TokenKind::Close('}')) => false,
        (TokenKind::Open('{'), _)
        | (_, TokenKind::Close('}'))
        | (TokenKind::Interp, TokenKind::Open('{'))
        | (TokenKind::Close('}'), TokenKind::InterpEnd) => true,
        (TokenKind::InterpEnd, TokenKind::Interp) => false,
        _ => one.bracket_change() <= 0 && other.bracket_change() >= 0,
    }
}

/// Returns whether a minus after this token is a subtraction, not a sign.
fn is_subtraction(before: Option<&Token>) -> bool {
    !matches!(
        before.map(|token| token.kind),
        None | Some(
            TokenKind::Open(_)
                | TokenKind::Equal
                | TokenKind::Comma
                | TokenKind::Operator
                | TokenKind::Minus
                | TokenKind::Bang
        )
    )
}
