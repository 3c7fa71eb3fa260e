//! Lines for the journal, with their fields as fields of the journal: `CLUSTER=`, `POOL=`, `NODE=`.
//! It must not know what any of them says.
//!
//! The usual layer for it leaves of a line only its first words for `journalctl` to show; ours puts
//! the fields behind them as well, as they stand in a file.

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

/// Where the journal listens. Source: <https://systemd.io/JOURNAL_NATIVE_PROTOCOL>.
pub(crate) const SOCKET: &str = "/run/systemd/journal/socket";

/// Bytes of one value: more than any of ours has, and far less than a datagram may.
const VALUE_BYTES: usize = 16 << 10;

/// Characters of a name that the journal takes.
const NAME_MAX: usize = 64;

/// How long a journal that takes nothing may hold up whoever has something to say, and for how
/// long it is then left alone.
const PATIENCE: Duration = Duration::from_millis(100);
const PAUSE: Duration = Duration::from_secs(1);

/// Whether the journal takes what is said on stderr: its device and inode are those that the
/// service manager names. Source: systemd.exec(5), `JOURNAL_STREAM`.
#[expect(
    clippy::disallowed_methods,
    reason = "how a unit learns it; whoever wants another form says so"
)]
pub(crate) fn takes_stderr() -> bool {
    let stream = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    // What stands behind a descriptor, whatever it is.
    let about = fs::metadata("/proc/self/fd/2");
    about.is_ok_and(|own| stream == format!("{}:{}", own.dev(), own.ino()))
}

/// Sends lines to the journal.
pub(crate) struct Journal {
    place: PathBuf,
    line: Mutex<Connected>,
}

/// A connection, and what came of it.
struct Connected {
    socket: UnixDatagram,
    /// Lines that nobody took.
    lost: u64,
    /// When the journal is tried again.
    again: Option<Instant>,
}

impl Journal {
    /// Finds the journal that listens there.
    pub(crate) fn connect(socket: &Path) -> io::Result<Self> {
        Ok(Self {
            place: socket.to_owned(),
            line: Mutex::new(Connected {
                socket: connected(socket)?,
                lost: 0,
                again: None,
            }),
        })
    }

    /// Sends a line, also to a journal that was started anew. What it does not take is counted, and
    /// told when it takes something again: there is nowhere else to say it.
    fn send(&self, datagram: &[u8]) {
        let mut own = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        let now = clock::monotonic().into_std();
        if own.again.is_some_and(|again| now < again) {
            own.lost += 1;
            return;
        }
        let again = |own: &mut Connected| {
            own.socket = connected(&self.place)?;
            own.socket.send(datagram)
        };
        if own.socket.send(datagram).is_err() && again(&mut own).is_err() {
            own.lost += 1;
            own.again = Some(now + PAUSE);
            return;
        }
        own.again = None;
        if own.lost > 0 {
            let mut told = JournalEntry::default();
            told.field("message", "lines of the log were lost".to_owned());
            told.field("lines", own.lost.to_string());
            if own.socket.send(&told.datagram(Level::WARN)).is_ok() {
                own.lost = 0;
            }
        }
    }
}

fn connected(place: &Path) -> io::Result<UnixDatagram> {
    let own = UnixDatagram::unbound()?;
    own.connect(place)?;
    own.set_write_timeout(Some(PATIENCE))?;
    Ok(own)
}

impl<S: Subscriber> Layer<S> for Journal {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut line = JournalEntry::default();
        event.record(&mut line);
        self.send(&line.datagram(*event.metadata().level()));
    }
}

/// What an event says.
#[derive(Default)]
struct JournalEntry {
    message: String,
    fields: Vec<(&'static str, String)>,
}

impl JournalEntry {
    fn field(&mut self, name: &'static str, value: String) {
        match name {
            "message" => self.message = value,
            _ => self.fields.push((name, value)),
        }
    }

    /// The line as the journal takes it.
    fn datagram(&self, level: Level) -> Vec<u8> {
        let mut message = self.message.clone();
        for (name, value) in &self.fields {
            let plain = !value.is_empty() && !value.contains([' ', '"', '=', '\n']);
            // Writing to a text cannot fail.
            let _ = match plain {
                true => write!(message, " {name}={value}"),
                false => write!(message, " {name}={value:?}"),
            };
        }
        let mut all = Vec::new();
        append(&mut all, "MESSAGE", &message);
        append(&mut all, "PRIORITY", priority(level));
        append(&mut all, "SYSLOG_IDENTIFIER", "outrigger");
        for (name, value) in &self.fields {
            append(&mut all, &journal_name(name), value);
        }
        all
    }
}

impl Visit for JournalEntry {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.field(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.field(field.name(), format!("{value:?}"));
    }
}

/// Syslog's priorities, which `journalctl -p` selects by.
fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => "3",
        Level::WARN => "4",
        Level::INFO => "6",
        _ => "7",
    }
}

/// A name as the journal takes it: capitals, digits and underscores, a letter first.
fn journal_name(name: &str) -> String {
    let fits = |c: char| match c.to_ascii_uppercase() {
        own @ ('A'..='Z' | '0'..='9') => own,
        _ => '_',
    };
    let own: String = name.chars().map(fits).collect();
    let own = own.trim_start_matches(|c: char| !c.is_ascii_uppercase());
    own.chars().take(NAME_MAX).collect()
}

/// A field: a value of several lines goes with its length before it.
fn append(all: &mut Vec<u8>, name: &str, value: &str) {
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

    /// What a journal hears of this.
    fn heard(say: impl FnOnce()) -> Vec<u8> {
        let dir = TempDir::new().expect("a directory");
        let path = dir.path().join("socket");
        let socket = UnixDatagram::bind(&path).expect("a socket");
        socket.set_nonblocking(true).expect("a socket");
        let journal = Journal::connect(&path).expect("it listens");
        tracing::subscriber::with_default(registry().with(journal), say);
        let mut datagram = vec![0; 1 << 18];
        let length = socket.recv(&mut datagram).expect("a line");
        datagram.truncate(length);
        datagram
    }

    #[test]
    fn fields_are_fields_and_stand_in_the_line_as_well() {
        let heard = heard(|| {
            let node = String::from("ip-10-0-0-1");
            tracing::warn!(cluster = "prod", %node, usd_per_h = 0.5, why = "a b", "node stays");
        });
        let text = String::from_utf8(heard).expect("UTF-8");
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
    fn a_value_cannot_pass_for_another_field() {
        let heard = heard(|| {
            tracing::info!(
                why = "x\nPRIORITY=0",
                long = "é".repeat(VALUE_BYTES),
                "said"
            );
        });
        let end = heard.len();
        let at = |text: &[u8]| heard.windows(text.len()).position(|own| own == text);
        let why = at(b"WHY\n").expect("its name alone in its line");
        let length: [u8; 8] = heard[why + 4..why + 12].try_into().expect("a length");
        assert_eq!(u64::from_le_bytes(length), 12);
        assert_eq!(&heard[why + 12..why + 25], b"x\nPRIORITY=0\n");
        let long = at(b"LONG=").expect("a field");
        assert_eq!(end - long, "LONG=\n".len() + VALUE_BYTES);
    }

    #[test]
    fn a_journal_that_was_started_anew_is_found_and_told_what_it_missed() {
        let dir = TempDir::new().expect("a directory");
        let path = dir.path().join("socket");
        let first = UnixDatagram::bind(&path).expect("a socket");
        let journal = Journal::connect(&path).expect("it listens");
        let subscriber = registry().with(journal);
        tracing::subscriber::with_default(subscriber, || {
            drop(first);
            std::fs::remove_file(&path).expect("it is gone");
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
            assert!(next().starts_with("MESSAGE=lines of the log were lost lines=2\n"));
        });
    }

    #[test]
    fn where_no_journal_listens_it_is_said() {
        let dir = TempDir::new().expect("a directory");
        assert!(Journal::connect(&dir.path().join("none")).is_err());
    }
}
