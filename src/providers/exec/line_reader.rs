//! Reads lines of a program, with a length limit.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};

/// Size of one read.
const CHUNK: usize = 16 << 10;

/// One line, without its terminator.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ProgramLine {
    /// A complete line.
    Whole(Vec<u8>),
    /// A line that exceeds the limit. The rest of the line follows as more of these, or is dropped.
    TooLong,
}

/// Reads lines. Buffers at most the limit and one chunk.
#[derive(Debug)]
pub(crate) struct Lines<R> {
    reader: R,
    buffer: Vec<u8>,
    /// Length of the prefix without a line terminator.
    searched: usize,
    /// True if the current line has exceeded the limit.
    is_skipping: bool,
    max_bytes: usize,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    /// Creates a reader with a maximum line length.
    pub(crate) fn new(reader: R, max_bytes: usize) -> Self {
        Self { reader, buffer: Vec::new(), searched: 0, is_skipping: false, max_bytes }
    }

    /// The next line. `None` at the end; a line without a terminator is dropped. Cancel safe.
    pub(crate) async fn next_line(&mut self) -> io::Result<Option<ProgramLine>> {
        loop {
            if let Some(line) = self.buffered_line() {
                return Ok(Some(line));
            }
            if self.buffer.len() > self.max_bytes {
                (self.buffer, self.searched, self.is_skipping) = (Vec::new(), 0, true);
                return Ok(Some(ProgramLine::TooLong));
            }
            self.buffer.reserve(CHUNK);
            if self.reader.read_buf(&mut self.buffer).await? == 0 {
                return Ok(None);
            }
        }
    }

    fn buffered_line(&mut self) -> Option<ProgramLine> {
        loop {
            let new = &self.buffer[self.searched..];
            let Some(end) = new.iter().position(|byte| *byte == b'\n') else {
                self.searched = self.buffer.len();
                return None;
            };
            let following = self.buffer.split_off(self.searched + end + 1);
            let mut line = std::mem::replace(&mut self.buffer, following);
            self.searched = 0;
            line.pop();
            match std::mem::take(&mut self.is_skipping) {
                true => {}
                false if line.len() > self.max_bytes => return Some(ProgramLine::TooLong),
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
            let line = lines.next_line().await.expect("a slice reads");
            let expect =
                expect.map_or(ProgramLine::TooLong, |line| ProgramLine::Whole(line.to_vec()));
            assert_eq!(line, Some(expect), "{text:?}");
        }
        assert_eq!(lines.next_line().await.expect("a slice reads"), None, "{text:?}");
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
            match lines.next_line().await.expect("a slice reads") {
                Some(ProgramLine::TooLong) => cut += 1,
                rest => break rest,
            }
            assert!(lines.buffer.capacity() < 100_000, "no more is held than said");
        };
        assert_eq!(rest, Some(ProgramLine::Whole(b"f".to_vec())));
        assert!(cut > 1, "each part of an endless line counts");
    }
}
