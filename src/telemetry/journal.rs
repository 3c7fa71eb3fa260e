//! Writes log lines to the systemd journal, with structured fields: `CLUSTER=`, `POOL=`, `NODE=`.
//!
//! The layer of tracing-journald puts only the message into `MESSAGE`. This layer appends the
//! fields to `MESSAGE` too, as in the text format.

use std::fmt::{Debug, Write as _};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{fs, io};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

use crate::host::clock;

/// Socket of the journal.
pub(crate) const SOCKET: &str = "/run/systemd/journal/socket";

/// Maximum size of a value in bytes: more than any value of Outrigger, and much less than the
/// datagram limit.
const VALUE_BYTES: usize = 16 << 10;

/// Maximum length of a field name.
const NAME_MAX: usize = 64;

/// How long a blocked journal may delay a log line, and for how long no lines are then sent to it.
const PATIENCE: Duration = Duration::from_millis(100);
const PAUSE: Duration = Duration::from_secs(1);

/// Returns whether stderr is connected to the journal: its device and inode match `JOURNAL_STREAM`.
/// Source: systemd.exec(5).
#[expect(
    clippy::disallowed_methods,
    reason = "systemd sets this variable; no configuration has it"
)]
pub(crate) fn is_stderr_journal() -> bool {
    let stream = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    // Metadata of the file descriptor.
    let metadata = fs::metadata("/proc/self/fd/2");
    metadata.is_ok_and(|metadata| stream == format!("{}:{}", metadata.dev(), metadata.ino()))
}

/// Writes lines to the journal.
pub(crate) struct Journal {
    place: PathBuf,
    line: Mutex<Connected>,
}

/// A connection and its state.
struct Connected {
    socket: UnixDatagram,
    /// Number of lost lines.
    lost: u64,
    /// When the next attempt to send a line is made after a failure.
    again: Option<Instant>,
}

impl Connected {
    /// Connects to a restarted journal and sends a line.
    fn reconnect(&mut self, path: &Path, datagram: &[u8]) -> io::Result<usize> {
        self.socket = connect_socket(path)?;
        self.socket.send(datagram)
    }
}

impl Journal {
    /// Connects to the journal at this path.
    pub(crate) fn connect(socket: &Path) -> io::Result<Self> {
        Ok(Self {
            place: socket.to_owned(),
            line: Mutex::new(Connected { socket: connect_socket(socket)?, lost: 0, again: None }),
        })
    }

    /// Sends a line to the journal, even if the journal has restarted. Lost lines are counted, and
    /// the count is logged when the journal accepts lines again.
    fn send_datagram(&self, datagram: &[u8]) {
        let mut connection = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        let now = clock::monotonic_now().into_std();
        if connection.again.is_some_and(|again| now < again) {
            connection.lost += 1;
            return;
        }
        if connection.socket.send(datagram).is_err()
            && connection.reconnect(&self.place, datagram).is_err()
        {
            connection.lost += 1;
            connection.again = Some(now + PAUSE);
            return;
        }
        connection.again = None;
        if connection.lost > 0 {
            let mut entry = JournalEntry::default();
            entry.set_field("message", "lost log lines".to_owned());
            entry.set_field("lines", connection.lost.to_string());
            if connection.socket.send(&entry.to_datagram(Level::WARN)).is_ok() {
                connection.lost = 0;
            }
        }
    }
}

fn connect_socket(path: &Path) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.connect(path)?;
    socket.set_write_timeout(Some(PATIENCE))?;
    Ok(socket)
}

impl<S: Subscriber> Layer<S> for Journal {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut entry = JournalEntry::default();
        event.record(&mut entry);
        self.send_datagram(&entry.to_datagram(*event.metadata().level()));
    }
}

/// The message and fields of an event.
#[derive(Default)]
struct JournalEntry {
    message: String,
    fields: Vec<(&'static str, String)>,
}

impl JournalEntry {
    fn set_field(&mut self, name: &'static str, value: String) {
        match name {
            "message" => self.message = value,
            _ => self.fields.push((name, value)),
        }
    }

    /// The line in the journal's native format.
    fn to_datagram(&self, level: Level) -> Vec<u8> {
        let mut message = self.message.clone();
        for (name, value) in &self.fields {
            let plain = !value.is_empty() && !value.contains([' ', '"', '=', '\n']);
            // Writing to a String cannot fail.
            let _ = match plain {
                true => write!(message, " {name}={value}"),
                false => write!(message, " {name}={value:?}"),
            };
        }
        let mut all = Vec::new();
        append_field(&mut all, "MESSAGE", &message);
        append_field(&mut all, "PRIORITY", priority(level));
        append_field(&mut all, "SYSLOG_IDENTIFIER", "outrigger");
        for (name, value) in &self.fields {
            append_field(&mut all, &journal_name(name), value);
        }
        all
    }
}

impl Visit for JournalEntry {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.set_field(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.set_field(field.name(), format!("{value:?}"));
    }
}

/// Syslog priorities, for `journalctl -p`.
fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => "3",
        Level::WARN => "4",
        Level::INFO => "6",
        _ => "7",
    }
}

/// A valid journal field name: capital letters, digits and underscores, starting with a letter.
fn journal_name(name: &str) -> String {
    let name: String = name
        .chars()
        .map(|c| match c.to_ascii_uppercase() {
            letter @ ('A'..='Z' | '0'..='9') => letter,
            _ => '_',
        })
        .collect();
    let name = name.trim_start_matches(|c: char| !c.is_ascii_uppercase());
    name.chars().take(NAME_MAX).collect()
}

/// Appends a field. A value with line breaks is preceded by its length.
fn append_field(all: &mut Vec<u8>, name: &str, value: &str) {
    if name.is_empty() {
        return;
    }
    let end = value.floor_char_boundary(VALUE_BYTES.min(value.len()));
    let value = value.get(..end).unwrap_or_default().as_bytes();
    all.extend_from_slice(name.as_bytes());
    if value.contains(&b'\n') {
        all.push(b'\n');
        all.extend_from_slice(&(value.len() as u64).to_le_bytes());
    } else {
        all.push(b'=');
    }
    all.extend_from_slice(value);
    all.push(b'\n');
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use tempfile::TempDir;
    use tracing_subscriber::layer::SubscriberExt;
    use tracing_subscriber::registry;

    use super::{Journal, VALUE_BYTES};

    /// The datagrams that a journal receives.
    fn received(log: impl FnOnce()) -> Vec<u8> {
        let dir = TempDir::new().expect("a directory");
        let path = dir.path().join("socket");
        let socket = UnixDatagram::bind(&path).expect("a socket");
        socket.set_nonblocking(true).expect("a socket");
        let journal = Journal::connect(&path).expect("it listens");
        tracing::subscriber::with_default(registry().with(journal), log);
        let mut datagram = vec![0; 1 << 18];
        let length = socket.recv(&mut datagram).expect("a line");
        datagram.truncate(length);
        datagram
    }

    #[test]
    fn fields_are_sent_as_journal_fields_and_in_the_message() {
        let datagram = received(|| {
            let node = String::from("ip-10-0-0-1");
            tracing::warn!(cluster = "prod", %node, usd_per_h = 0.5, why = "a b", "node stays");
        });
        let text = String::from_utf8(datagram).expect("UTF-8");
        let lines: Vec<&str> = text.lines().collect();
        let message = "MESSAGE=node stays cluster=prod node=ip-10-0-0-1 usd_per_h=0.5 why=\"a b\"";
        let expect = [
            message,
            "PRIORITY=4",
            "SYSLOG_IDENTIFIER=outrigger",
            "CLUSTER=prod",
            "NODE=ip-10-0-0-1",
            "USD_PER_H=0.5",
            "WHY=a b",
        ];
        assert_eq!(lines, expect);
    }

    #[test]
    fn multi_line_value_cannot_forge_a_field() {
        let datagram = received(|| {
            tracing::info!(why = "x\nPRIORITY=0", long = "é".repeat(VALUE_BYTES), "said");
        });
        let end = datagram.len();
        let at = |text: &[u8]| datagram.windows(text.len()).position(|window| window == text);
        let why = at(b"WHY\n").expect("its name alone in its line");
        let length: [u8; 8] = datagram[why + 4..why + 12].try_into().expect("a length");
        assert_eq!(u64::from_le_bytes(length), 12);
        assert_eq!(&datagram[why + 12..why + 25], b"x\nPRIORITY=0\n");
        let long = at(b"LONG=").expect("a field");
        assert_eq!(end - long, "LONG=\n".len() + VALUE_BYTES);
    }

    #[test]
    fn restarted_journal_receives_the_count_of_lost_lines() {
        let dir = TempDir::new().expect("a directory");
        let path = dir.path().join("socket");
        let first = UnixDatagram::bind(&path).expect("a socket");
        let journal = Journal::connect(&path).expect("it listens");
        let subscriber = registry().with(journal);
        tracing::subscriber::with_default(subscriber, || {
            drop(first);
            std::fs::remove_file(&path).expect("the socket is removed");
            tracing::info!("lost");
            tracing::info!("lost as well");
            let second = UnixDatagram::bind(&path).expect("a socket");
            second.set_nonblocking(true).expect("a socket");
            std::thread::sleep(super::PAUSE);
            tracing::info!("here");
            let next = || {
                let mut datagram = [0; 4096];
                let length = second.recv(&mut datagram).expect("a line");
                String::from_utf8_lossy(&datagram[..length]).into_owned()
            };
            assert!(next().starts_with("MESSAGE=here\n"));
            assert!(next().starts_with("MESSAGE=lost log lines lines=2\n"));
        });
    }

    #[test]
    fn connecting_to_a_missing_journal_fails() {
        let dir = TempDir::new().expect("a directory");
        assert!(Journal::connect(&dir.path().join("none")).is_err());
    }
}
