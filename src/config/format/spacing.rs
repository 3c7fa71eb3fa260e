//! Where a blank stands between two tokens of one line.
//! It must not know of lines, nor of what is aligned with what.

use crate::config::format::tokens::{Kind, Token};

/// Whether a blank stands between two tokens of a line, after what came before them.
pub(super) fn is_apart(before: Option<&Token>, one: &Token, other: &Token) -> bool {
    let is_in = one.kind == Kind::Ident && one.text == "in";
    match (one.kind, other.kind) {
        (_, Kind::Newline)
        | (Kind::Ident, Kind::Open('(') | Kind::DoubleColon)
        | (Kind::DoubleColon, Kind::Ident)
        | (Kind::Dot, _)
        | (_, Kind::Dot | Kind::Comma | Kind::Ellipsis) => false,
        (Kind::Comma, _) => true,
        // What is text stays as it is.
        (Kind::Text | Kind::Quote | Kind::Heredoc, _)
        | (_, Kind::Text | Kind::Unquote | Kind::HeredocEnd) => false,
        // `for x in [y]` is no index.
        _ if is_in && before.is_some_and(|own| own.kind == Kind::Ident) => true,
        (Kind::Ident | Kind::Number | Kind::Close(_) | Kind::InterpEnd, Kind::Open('['))
        | (Kind::Bang, _) => false,
        (Kind::Minus, _) => is_subtraction(before),
        (Kind::Open('{'), Kind::Close('}')) => false,
        (Kind::Open('{'), _)
        | (_, Kind::Close('}'))
        | (Kind::Interp, Kind::Open('{'))
        | (Kind::Close('}'), Kind::InterpEnd) => true,
        (Kind::InterpEnd, Kind::Interp) => false,
        _ => one.opens() <= 0 && other.opens() >= 0,
    }
}

/// Whether a minus after this takes something away, rather than that it stands before a number.
fn is_subtraction(before: Option<&Token>) -> bool {
    !matches!(
        before.map(|own| own.kind),
        None | Some(
            Kind::Open(_) | Kind::Equal | Kind::Comma | Kind::Operator | Kind::Minus | Kind::Bang
        )
    )
}
