//! Reads lines of a program, with a length limit.

use std::io;

use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};

/// Size of one read.
const CHUNK: usize = 16 << 10;

/// One line, without its terminator.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ProgramLine {
    /// A complete line.
    Whole(Vec<u8>),
    /// A line that exceeds the limit. The reader returns `TooLong` again for further parts of the
    /// line, and drops the end of the line.
    TooLong,
}

/// Reads lines. Buffers at most the limit and one chunk.
#[derive(Debug)]
pub(crate) struct Lines<R> {
    reader: BufReader<R>,
    /// The current line as far as it has been read.
    line: Vec<u8>,
    /// True if the current line has exceeded the limit.
    is_skipping: bool,
    max_bytes: usize,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    /// Creates a reader with a maximum line length.
    pub(crate) fn new(reader: R, max_bytes: usize) -> Self {
        Self {
            reader: BufReader::with_capacity(CHUNK, reader),
            line: Vec::new(),
            is_skipping: false,
            max_bytes,
        }
    }

    /// The next line. `None` at the end; a line without a terminator is dropped. Cancel safe.
    pub(crate) async fn next_line(&mut self) -> io::Result<Option<ProgramLine>> {
        loop {
            let chunk = self.reader.fill_buf().await?;
            if chunk.is_empty() {
                return Ok(None);
            }
            let end = chunk.iter().position(|byte| *byte == b'\n');
            let length = end.unwrap_or(chunk.len());
            self.line.extend_from_slice(&chunk[..length]);
            self.reader.consume(length + usize::from(end.is_some()));
            let fits = self.line.len() <= self.max_bytes;
            if fits && end.is_none() {
                continue;
            }
            let line = std::mem::take(&mut self.line);
            let was_skipping = std::mem::replace(&mut self.is_skipping, end.is_none());
            match fits {
                // The end of a line that is already known to be too long.
                _ if was_skipping && end.is_some() => {}
                true => return Ok(Some(ProgramLine::Whole(line))),
                false => return Ok(Some(ProgramLine::TooLong)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use tokio::io::AsyncWriteExt as _;

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
    async fn lines_are_read_whole_or_reported_as_too_long() {
        check(b"", &[]).await;
        check(b"a\n\nbcde\n", &[Some(b"a"), Some(b""), Some(b"bcde")]).await;
        check(b"no end", &[None]).await;
        check(b"ab", &[]).await;
        check(b"abcde\nf\n", &[None, Some(b"f")]).await;
        // Bytes that are not UTF-8 and carriage returns are left to the caller, and count.
        check(b"\xff\r\nabc\r\nabcd\r\n", &[Some(b"\xff\r"), Some(b"abc\r"), None]).await;
        check(b"abcdefghijklmn\n\n", &[None, Some(b"")]).await;
        let long = [&[b'x'; 100_000][..], b"\nf\n"].concat();
        let mut lines = Lines::new(&long[..], 4);
        let mut cut = 0;
        let rest = loop {
            match lines.next_line().await.expect("a slice reads") {
                Some(ProgramLine::TooLong) => cut += 1,
                rest => break rest,
            }
            assert!(lines.line.capacity() < 100_000, "the buffer stays small");
        };
        assert_eq!(rest, Some(ProgramLine::Whole(b"f".to_vec())));
        assert!(cut > 1, "each part of an endless line counts");
    }
    #[tokio::test]
    async fn cancelled_read_loses_no_bytes() {
        let (mut program, stdout) = tokio::io::duplex(64);
        let mut lines = Lines::new(stdout, 4);
        for (part, expect) in [
            (&b"a"[..], None),
            (b"b", None),
            (b"c\nd", Some(ProgramLine::Whole(b"abc".to_vec()))),
            (b"", None),
            (b"efgh", Some(ProgramLine::TooLong)),
            (b"ij", None),
            (b"klmnop", Some(ProgramLine::TooLong)),
            (b"q\nr", None),
            (b"\n", Some(ProgramLine::Whole(b"r".to_vec()))),
        ] {
            program.write_all(part).await.expect("the pipe has space");
            let line = lines.next_line().now_or_never();
            let line = line.map(|line| line.expect("a pipe reads").expect("it is open"));
            assert_eq!(line, expect, "{part:?}");
        }
    }
}
