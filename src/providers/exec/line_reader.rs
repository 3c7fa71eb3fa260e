//! Lines from a program that may write anything: as long as the limit, and no longer.
//! It must not know what the lines say.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};

/// Room for what is read at once.
const CHUNK: usize = 16 << 10;

/// One line, without its end.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ProgramLine {
    /// A whole line.
    Whole(Vec<u8>),
    /// So many bytes without an end that nobody waits for it. What is left of the line follows as
    /// more of these, or not at all.
    TooLong,
}

/// Reads lines, of which it never holds more than the limit and a chunk.
#[derive(Debug)]
pub(crate) struct Lines<R> {
    from: R,
    held: Vec<u8>,
    /// How much of it has no end of a line in it.
    searched: usize,
    /// The line that is being read was too long already.
    skips: bool,
    longest: usize,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    /// Lines of up to so many bytes.
    pub(crate) fn new(from: R, longest: usize) -> Self {
        Self {
            from,
            held: Vec::new(),
            searched: 0,
            skips: false,
            longest,
        }
    }

    /// The next line; none at the end, where a line without an end is none. Whoever stops to wait
    /// for it loses nothing.
    pub(crate) async fn next(&mut self) -> io::Result<Option<ProgramLine>> {
        loop {
            if let Some(line) = self.held_line() {
                return Ok(Some(line));
            }
            if self.held.len() > self.longest {
                (self.held, self.searched, self.skips) = (Vec::new(), 0, true);
                return Ok(Some(ProgramLine::TooLong));
            }
            self.held.reserve(CHUNK);
            if self.from.read_buf(&mut self.held).await? == 0 {
                return Ok(None);
            }
        }
    }

    fn held_line(&mut self) -> Option<ProgramLine> {
        loop {
            let new = &self.held[self.searched..];
            let Some(end) = new.iter().position(|byte| *byte == b'\n') else {
                self.searched = self.held.len();
                return None;
            };
            let rest = self.held.split_off(self.searched + end + 1);
            let mut line = std::mem::replace(&mut self.held, rest);
            self.searched = 0;
            line.pop();
            match std::mem::take(&mut self.skips) {
                true => {}
                false if line.len() > self.longest => return Some(ProgramLine::TooLong),
                false => return Some(ProgramLine::Whole(line)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Lines, ProgramLine};

    async fn check(text: &[u8], expect: &[Option<&[u8]>]) {
        let mut lines = Lines::new(text, 4);
        for expect in expect {
            let line = lines.next().await.expect("a slice reads");
            let expect = expect.map_or(ProgramLine::TooLong, |line| {
                ProgramLine::Whole(line.to_vec())
            });
            assert_eq!(line, Some(expect), "{text:?}");
        }
        assert_eq!(lines.next().await.expect("a slice reads"), None, "{text:?}");
    }

    #[tokio::test]
    async fn a_line_is_whole_or_too_long() {
        check(b"", &[]).await;
        check(b"a\n\nbcde\n", &[Some(b"a"), Some(b""), Some(b"bcde")]).await;
        check(b"no end", &[None]).await;
        check(b"ab", &[]).await;
        check(b"abcde\nf\n", &[None, Some(b"f")]).await;
        let long = [&[b'x'; 100_000][..], b"\nf\n"].concat();
        let mut lines = Lines::new(&long[..], 4);
        let mut cut = 0;
        let rest = loop {
            match lines.next().await.expect("a slice reads") {
                Some(ProgramLine::TooLong) => cut += 1,
                rest => break rest,
            }
            assert!(lines.held.capacity() < 100_000, "no more is held than said");
        };
        assert_eq!(rest, Some(ProgramLine::Whole(b"f".to_vec())));
        assert!(cut > 1, "each part of an endless line counts");
    }
}
