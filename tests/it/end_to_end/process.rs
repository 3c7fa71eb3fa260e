//! The real binary as a process: its log, its shutdown and its servers.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::Duration;

use crate::binary::command;

/// The interval between two checks of an awaited event.
const TICK: Duration = Duration::from_millis(50);

/// Waits until `find` returns a value, at most this many seconds.
pub(crate) fn within<T>(seconds: u32, mut find: impl FnMut() -> Option<T>) -> Option<T> {
    for _ in 0..seconds * 20 {
        if let Some(found) = find() {
            return Some(found);
        }
        sleep(TICK);
    }
    find()
}

/// A long-running process, killed and reaped when dropped.
pub(crate) struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts the binary; stdout and stderr go to `log`.
    pub(crate) fn start(arguments: &[&str], log: &Path) -> Self {
        let mut command = command(arguments);
        command.stdin(Stdio::null());
        Self::spawn(command, log)
    }

    /// Starts a command in the same way.
    pub(crate) fn spawn(mut command: Command, log: &Path) -> Self {
        let out = File::create(log).expect("a log");
        let err = out.try_clone().expect("a second handle");
        let child = command.stdout(out).stderr(err).spawn().expect("the binary starts");
        Self { child, log: log.to_owned() }
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until the log has this, `times` times.
    pub(crate) fn logged(&self, text: &str, times: usize) {
        let found = || (self.log().matches(text).count() >= times).then_some(());
        assert!(within(15, found).is_some(), "{text:?} in:\n{}", self.log());
    }

    /// Returns the address after `before` in the log.
    pub(crate) fn address(&self, before: &str) -> String {
        self.logged(before, 1);
        let log = self.log();
        let (_, after) = log.split_once(before).expect("it is logged");
        let end = |c: char| c == '"' || c.is_whitespace();
        after.split(end).next().unwrap_or_default().to_owned()
    }

    /// Returns the address of the daemon's admin server.
    pub(crate) fn admin(&self) -> String {
        self.address("/metrics address=\"")
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id();
        let kill = Command::new("sh").args(["-c", &format!("kill -{name} {pid}")]).status();
        assert!(kill.expect("a shell").success());
    }

    /// Waits until it ends, at most this many seconds.
    pub(crate) fn ends(&mut self, seconds: u32) -> ExitStatus {
        let ended = within(seconds, || self.child.try_wait().expect("a child"));
        ended.unwrap_or_else(|| panic!("it still runs:\n{}", self.log()))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Returns the status and the whole response of a GET request.
pub(crate) fn get(address: &str, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).expect("it listens");
    let limit = Some(Duration::from_secs(5));
    stream.set_read_timeout(limit).expect("a limit");
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n").expect("sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    let status = text.split(' ').nth(1).and_then(|it| it.parse().ok());
    (status.expect("a status"), text)
}
