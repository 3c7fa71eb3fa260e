//! Splits HCL into tokens without loss: the bytes between tokens are whitespace.

use std::str::Chars;

/// The kind of a token, as needed for spacing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenKind {
    Newline,
    /// A comment. A comment to the end of the line includes its line break.
    Comment,
    Ident,
    Number,
    /// `{`, `[` or `(`.
    Open(char),
    /// `}`, `]` or `)`.
    Close(char),
    /// The opening and closing quote of a string.
    Quote,
    Unquote,
    /// The first and the last line of a heredoc.
    Heredoc,
    HeredocEnd,
    /// Text between quotes or lines of a heredoc.
    Text,
    /// `${` or `%{`, or the matching `}`.
    Interp,
    InterpEnd,
    Equal,
    Dot,
    Comma,
    Ellipsis,
    DoubleColon,
    Bang,
    Minus,
    /// `:`, `?`, and every other operator. An operand follows.
    Operator,
    /// `=>`, after which a minus is treated as a subtraction, and all other tokens.
    Other,
}

/// One token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) kind: TokenKind,
    pub(super) text: String,
    /// Number of spaces before the token.
    pub(super) blanks: usize,
}

impl Token {
    pub(super) fn new(kind: TokenKind, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { kind, text, blanks: 0 }
    }

    /// Returns whether the token ends a line.
    pub(super) fn ends_line(&self) -> bool {
        self.kind == TokenKind::Newline
            || self.kind == TokenKind::Comment && self.text.ends_with('\n')
    }

    /// The change in the number of open brackets.
    pub(super) fn bracket_change(&self) -> i32 {
        match self.kind {
            TokenKind::Open(_) | TokenKind::Interp => 1,
            TokenKind::Close(_) | TokenKind::InterpEnd => -1,
            _ => 0,
        }
    }
}

/// The state of the scanner: in a template, or in an expression with a number of open braces.
#[derive(Clone, Debug)]
enum ScanMode {
    Expression {
        braces: usize,
    },
    Quoted,
    /// Lines of a heredoc up to this delimiter.
    Lines {
        end: String,
    },
}

/// Splits a string into tokens. Invalid HCL is also returned as tokens.
pub(super) fn scan_tokens(text: &str) -> Vec<Token> {
    let mut scanner = TokenScanner {
        rest: text,
        modes: vec![ScanMode::Expression { braces: 0 }],
        tokens: Vec::new(),
    };
    while !scanner.rest.is_empty() {
        match scanner.modes.last().cloned() {
            Some(ScanMode::Quoted) => scanner.scan_quoted(),
            Some(ScanMode::Lines { end }) => scanner.scan_heredoc_lines(&end),
            _ => scanner.scan_expression(),
        }
    }
    scanner.tokens
}

struct TokenScanner<'a> {
    rest: &'a str,
    modes: Vec<ScanMode>,
    tokens: Vec<Token>,
}

impl TokenScanner<'_> {
    /// Turns the next bytes into a token.
    fn push_token(&mut self, kind: TokenKind, bytes: usize) {
        let (text, rest) = self.rest.split_at(bytes);
        self.rest = rest;
        if !text.is_empty() {
            self.tokens.push(Token::new(kind, text));
        }
    }

    fn scan_expression(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t']);
        let rest = self.rest;
        let mut chars = rest.chars();
        let Some(first) = chars.next() else {
            return;
        };
        let is_inside = self.modes.len() > 1;
        let braces = match self.modes.last_mut() {
            Some(ScanMode::Expression { braces }) => braces,
            _ => return,
        };
        match first {
            '\n' => self.push_token(TokenKind::Newline, 1),
            '\r' if rest.starts_with("\r\n") => self.push_token(TokenKind::Newline, 2),
            '#' | '/' if first == '#' || rest.starts_with("//") => {
                let end = rest.find('\n').map_or(rest.len(), |index| index + 1);
                self.push_token(TokenKind::Comment, end);
            }
            '/' if rest.starts_with("/*") => {
                let end = rest[2..].find("*/").map_or(rest.len(), |index| index + 4);
                self.push_token(TokenKind::Comment, end);
            }
            '"' => {
                self.push_token(TokenKind::Quote, 1);
                self.modes.push(ScanMode::Quoted);
            }
            '<' if rest.starts_with("<<") => self.scan_heredoc_start(),
            '{' => {
                *braces += 1;
                self.push_token(TokenKind::Open(first), 1);
            }
            '}' if *braces > 0 || !is_inside => {
                *braces = braces.saturating_sub(1);
                self.push_token(TokenKind::Close(first), 1);
            }
            '}' => {
                self.modes.pop();
                self.push_token(TokenKind::InterpEnd, 1);
            }
            '~' if rest.starts_with("~}") && is_inside => {
                self.modes.pop();
                self.push_token(TokenKind::InterpEnd, 2);
            }
            '[' | '(' => self.push_token(TokenKind::Open(first), 1),
            ']' | ')' => self.push_token(TokenKind::Close(first), 1),
            _ if is_name(first) => {
                let end = rest.find(|c| !is_in_name(c)).unwrap_or(rest.len());
                self.push_token(TokenKind::Ident, end);
            }
            _ if first.is_ascii_digit() => self.push_token(TokenKind::Number, number_length(rest)),
            _ => {
                let (kind, bytes) = operator_at_start(rest);
                self.push_token(kind, bytes);
            }
        }
    }

    fn scan_heredoc_start(&mut self) {
        let (line, _) = self.rest.split_once('\n').unwrap_or((self.rest, ""));
        let word = line.trim_start_matches("<<").trim_start_matches('-');
        let word = word.trim_end_matches('\r');
        let all = line.len() + 1;
        if word.is_empty() || !word.chars().all(is_in_name) || all > self.rest.len() {
            return self.push_token(TokenKind::Other, 2);
        }
        let end = word.to_owned();
        self.push_token(TokenKind::Heredoc, all);
        self.modes.push(ScanMode::Lines { end });
    }

    /// Text up to the closing quote or the next interpolation.
    fn scan_quoted(&mut self) {
        let mut end = 0;
        while let Some(next) = self.rest[end..].chars().next() {
            let rest = &self.rest[end..];
            match next {
                '\\' => end += 1 + rest[1..].chars().next().map_or(0, char::len_utf8),
                '"' => {
                    self.push_token(TokenKind::Text, end);
                    self.modes.pop();
                    return self.push_token(TokenKind::Unquote, 1);
                }
                _ if is_escape(rest) => end += 3,
                _ if interpolation_length(rest).is_some() => return self.put_in(end),
                _ => end += next.len_utf8(),
            }
        }
        self.push_token(TokenKind::Text, end);
    }

    /// Lines up to the delimiter or the next interpolation.
    fn scan_heredoc_lines(&mut self, end: &str) {
        let mut at = 0;
        let mut begins = self.tokens.last().is_some_and(|token| {
            token.kind == TokenKind::Heredoc
                || token.kind == TokenKind::Text && token.text.ends_with('\n')
        });
        while let Some(next) = self.rest[at..].chars().next() {
            let rest = &self.rest[at..];
            if begins {
                let line = rest.split('\n').next().unwrap_or_default();
                if line.trim() == end {
                    self.push_token(TokenKind::Text, at);
                    self.modes.pop();
                    return self
                        .push_token(TokenKind::HeredocEnd, line.trim_end_matches('\r').len());
                }
            }
            begins = next == '\n';
            match next {
                _ if is_escape(rest) => at += 3,
                _ if interpolation_length(rest).is_some() => return self.put_in(at),
                _ => at += next.len_utf8(),
            }
        }
        self.push_token(TokenKind::Text, at);
    }

    fn put_in(&mut self, at: usize) {
        self.push_token(TokenKind::Text, at);
        let bytes = interpolation_length(self.rest).unwrap_or(2);
        self.push_token(TokenKind::Interp, bytes);
        self.modes.push(ScanMode::Expression { braces: 0 });
    }
}

/// Returns whether a string starts with an escaped `${` or `%{`.
fn is_escape(text: &str) -> bool {
    text.starts_with("$${") || text.starts_with("%%{")
}

/// The length of the interpolation mark at the start of a string, if any.
fn interpolation_length(text: &str) -> Option<usize> {
    let begins = text.starts_with("${") || text.starts_with("%{");
    begins.then(|| 2 + usize::from(text[2..].starts_with('~')))
}

fn is_name(c: char) -> bool {
    unicode_ident::is_xid_start(c) || c == '_'
}

fn is_in_name(c: char) -> bool {
    unicode_ident::is_xid_continue(c) || c == '-'
}

/// The length of the number at the start of a string.
fn number_length(text: &str) -> usize {
    let mut end = digits_end(text, 0);
    if text[end..].starts_with('.') && digits_end(text, end + 1) > end + 1 {
        end = digits_end(text, end + 1);
    }
    let mut after: Chars<'_> = text[end..].chars();
    if matches!(after.next(), Some('e' | 'E')) {
        let sign = usize::from(matches!(after.next(), Some('+' | '-')));
        let exponent = digits_end(text, end + 1 + sign);
        if exponent > end + 1 + sign {
            end = exponent;
        }
    }
    end
}

/// The end of the digits that start at this byte.
fn digits_end(text: &str, from: usize) -> usize {
    text[from..].find(|c: char| !c.is_ascii_digit()).map_or(text.len(), |end| from + end)
}

/// The operator at the start of a string.
fn operator_at_start(text: &str) -> (TokenKind, usize) {
    const LONG: [(&str, TokenKind); 9] = [
        ("...", TokenKind::Ellipsis),
        ("::", TokenKind::DoubleColon),
        ("=>", TokenKind::Other),
        ("==", TokenKind::Operator),
        ("!=", TokenKind::Operator),
        ("<=", TokenKind::Operator),
        (">=", TokenKind::Operator),
        ("&&", TokenKind::Operator),
        ("||", TokenKind::Operator),
    ];
    if let Some((long, kind)) = LONG.iter().find(|(long, _)| text.starts_with(long)) {
        return (*kind, long.len());
    }
    let first = text.chars().next().unwrap_or_default();
    let kind = match first {
        '=' => TokenKind::Equal,
        '.' => TokenKind::Dot,
        ',' => TokenKind::Comma,
        '!' => TokenKind::Bang,
        '-' => TokenKind::Minus,
        ':' | '?' | '+' | '*' | '/' | '%' | '<' | '>' => TokenKind::Operator,
        _ => TokenKind::Other,
    };
    (kind, first.len_utf8())
}
