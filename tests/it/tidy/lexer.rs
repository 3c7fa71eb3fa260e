//! Splits Rust source into words, marks and literals, each with its lines, and marks those in a
//! `#[cfg(test)]` module. It contains no rule of the tree: the rules are in the parent module.

use std::ops::Range;

/// The kind of a token, as far as the rules need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// An identifier or a keyword.
    Word,
    /// One character of punctuation, or `::`.
    Mark,
    /// A string, with its content as the text, or a character or number, with none.
    Literal,
}

/// A piece of source that is neither a comment nor white space.
#[derive(Debug)]
pub(super) struct Token {
    pub(super) kind: Kind,
    pub(super) text: String,
    /// The lines it covers, counted from one.
    pub(super) first: usize,
    pub(super) last: usize,
    /// Whether it is in a module that is compiled only for tests, or declares one.
    pub(super) test: bool,
}

impl Token {
    pub(super) fn is_word(&self, text: &str) -> bool {
        self.kind == Kind::Word && self.text == text
    }

    pub(super) fn is_mark(&self, text: &str) -> bool {
        self.kind == Kind::Mark && self.text == text
    }
}

/// The tokens of a file, and separately its comments, each with its first line.
#[derive(Debug)]
pub(super) struct Lexed {
    pub(super) tokens: Vec<Token>,
    pub(super) comments: Vec<(usize, String)>,
}

/// Splits a source text. A text that does not compile gives some tokens and no panic.
pub(super) fn lex(source: &str) -> Lexed {
    let mut lexer = Lexer {
        chars: source.chars().collect(),
        at: 0,
        line: 1,
        lexed: Lexed { tokens: Vec::new(), comments: Vec::new() },
    };
    while lexer.peek(0).is_some() {
        lexer.step();
    }
    mark_test_modules(&mut lexer.lexed.tokens);
    lexer.lexed
}

/// Returns the tokens of the attribute that starts at `at`, without brackets; `None` if there is
/// none.
pub(super) fn attribute(tokens: &[Token], at: usize) -> Option<Range<usize>> {
    let is = |i: usize, mark: &str| tokens.get(i).is_some_and(|t| t.is_mark(mark));
    let open = if is(at + 1, "!") { at + 2 } else { at + 1 };
    (is(at, "#") && is(open, "[")).then(|| open + 1..closing(tokens, open))
}

/// Returns the position of the bracket that closes the one at `open`, or the end of the file.
fn closing(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0_usize;
    for (i, token) in tokens.iter().enumerate().skip(open) {
        if token.kind != Kind::Mark {
            continue;
        }
        match token.text.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return i;
        }
    }
    tokens.len()
}

fn mark_test_modules(tokens: &mut [Token]) {
    let mut at = 0;
    while at < tokens.len() {
        let start = at;
        let mut tests_only = false;
        while let Some(inside) = attribute(tokens, at) {
            let has = |word| tokens[inside.clone()].iter().any(|t| t.is_word(word));
            let cfg = tokens.get(inside.start).is_some_and(|t| t.is_word("cfg"));
            tests_only |= cfg && has("test") && !has("not");
            at = inside.end + 1;
        }
        if tokens.get(at).is_some_and(|t| t.is_word("pub")) {
            at += 1;
            if tokens.get(at).is_some_and(|t| t.is_mark("(")) {
                at = closing(tokens, at) + 1;
            }
        }
        if tests_only && tokens.get(at).is_some_and(|t| t.is_word("mod")) {
            let body = at + 2;
            let braces = tokens.get(body).is_some_and(|t| t.is_mark("{"));
            at = if braces { closing(tokens, body) } else { body };
            let end = (at + 1).min(tokens.len());
            tokens[start..end].iter_mut().for_each(|t| t.test = true);
        }
        at = at.max(start) + usize::from(at == start || tests_only);
    }
}

struct Lexer {
    chars: Vec<char>,
    at: usize,
    line: usize,
    lexed: Lexed,
}

impl Lexer {
    fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    fn bump(&mut self) -> Option<char> {
        let next = self.peek(0)?;
        self.at += 1;
        self.line += usize::from(next == '\n');
        Some(next)
    }

    fn push(&mut self, kind: Kind, text: String, first: usize) {
        let last = self.line;
        self.lexed.tokens.push(Token { kind, text, first, last, test: false });
    }

    fn step(&mut self) {
        let first = self.line;
        match (self.peek(0), self.peek(1)) {
            (Some('/'), Some('/')) => {
                let text = self.take_while(|c| c != '\n');
                self.lexed.comments.push((first, text));
            }
            (Some('/'), Some('*')) => self.block_comment(),
            (Some('"'), _) => self.string(0, false),
            (Some('\''), _) => self.quote(),
            (Some(':'), Some(':')) => {
                self.at += 2;
                self.push(Kind::Mark, "::".to_owned(), first);
            }
            (Some(c), _) if c.is_ascii_digit() => self.number(),
            (Some(c), _) if c == '_' || c.is_alphabetic() => self.word(),
            (Some(c), _) => {
                self.bump();
                if !c.is_whitespace() {
                    self.push(Kind::Mark, c.to_string(), first);
                }
            }
            (None, _) => {}
        }
    }

    fn take_while(&mut self, keep: impl Fn(char) -> bool) -> String {
        let mut text = String::new();
        while let Some(c) = self.peek(0).filter(|&c| keep(c)) {
            text.push(c);
            self.bump();
        }
        text
    }

    fn block_comment(&mut self) {
        let first = self.line;
        let mut text = String::new();
        let mut depth = 0_usize;
        while let Some(c) = self.bump() {
            text.push(c);
            match (c, self.peek(0)) {
                ('/', Some('*')) => depth += 1,
                ('*', Some('/')) => depth -= 1,
                _ => continue,
            }
            text.extend(self.bump());
            if depth == 0 {
                break;
            }
        }
        self.lexed.comments.push((first, text));
    }

    /// Reads a string from its opening quote; a raw one ends with the same number of `#` as it
    /// starts with.
    fn string(&mut self, hashes: usize, raw: bool) {
        let first = self.line;
        let mut text = String::new();
        self.bump();
        while let Some(c) = self.bump() {
            if c == '"' && (0..hashes).all(|i| self.peek(i) == Some('#')) {
                self.at += hashes;
                break;
            }
            text.push(c);
            if c == '\\' && !raw {
                text.extend(self.bump());
            }
        }
        self.push(Kind::Literal, text, first);
    }

    /// Reads a character literal, or drops a lifetime.
    fn quote(&mut self) {
        let first = self.line;
        self.bump();
        if self.peek(0) == Some('\\') {
            self.at += 2;
            self.take_while(|c| c != '\'' && c != '\n');
        } else if self.peek(1) == Some('\'') {
            self.bump();
        } else {
            self.take_while(|c| c == '_' || c.is_alphanumeric());
            return;
        }
        self.bump();
        self.push(Kind::Literal, String::new(), first);
    }

    fn number(&mut self) {
        let first = self.line;
        self.take_while(|c| c == '_' || c.is_alphanumeric());
        if self.peek(0) == Some('.') && self.peek(1).is_some_and(|c| c.is_ascii_digit()) {
            self.bump();
            self.take_while(|c| c == '_' || c.is_alphanumeric());
        }
        self.push(Kind::Literal, String::new(), first);
    }

    /// Reads a word, or the literal of which it is the prefix.
    fn word(&mut self) {
        let first = self.line;
        let mut word = self.take_while(|c| c == '_' || c.is_alphanumeric());
        let raw = matches!(word.as_str(), "r" | "br" | "cr");
        let hashes = (0..).take_while(|&i| raw && self.peek(i) == Some('#')).count();
        match self.peek(hashes) {
            Some('"') if raw || matches!(word.as_str(), "b" | "c") => {
                self.at += hashes;
                return self.string(hashes, raw);
            }
            Some('\'') if word == "b" => return self.quote(),
            Some(_) if word == "r" && hashes == 1 => {
                self.bump();
                word = self.take_while(|c| c == '_' || c.is_alphanumeric());
            }
            _ => {}
        }
        self.push(Kind::Word, word, first);
    }
}

#[cfg(test)]
mod tests {
    use super::lex;

    fn words(source: &str) -> String {
        let tokens = lex(source).tokens;
        let live = tokens.iter().filter(|t| !t.test && t.kind != super::Kind::Literal);
        live.map(|t| t.text.as_str()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn comments_and_literals_are_not_words() {
        assert_eq!(words("a /* b /* c */ d */ e // f\ng"), "a e g");
        assert_eq!(words(r##"a "b \" c" r#"d " e"# b"f" 'g' '\'' b'h' '\u{1F600}' z"##), "a z");
        assert_eq!(words("&'a str 1.5e3 0..n r#type x::y"), "& str . . n type x :: y");
    }

    #[test]
    fn test_modules_are_marked_in_any_context() {
        assert_eq!(
            words("fn a() {} #[cfg(test)] mod t { fn b() {} } fn c() {}"),
            "fn a ( ) { } fn c ( ) { }"
        );
        assert_eq!(words("#[cfg(test)] #[x] pub(crate) mod t; a"), "a");
        assert_eq!(
            words("#[cfg(all(test, unix))] mod t {} #[cfg(not(test))] mod u;"),
            "# [ cfg ( not ( test ) ) ] mod u ;"
        );
    }

    #[test]
    fn unterminated_source_does_not_panic() {
        for broken in ["\"abc", "/* abc", "#[cfg(test)] mod", "r#\"abc", "'", "#[", "b'\\"] {
            lex(broken);
        }
    }
}
