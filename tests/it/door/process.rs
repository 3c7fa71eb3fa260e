//! The real binary as a process: its log, its end, and what it serves.
//! It must not know what it is asked to do.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::Duration;

/// How often something awaited is looked for.
const TICK: Duration = Duration::from_millis(50);

/// Waits for something, for so many seconds at most.
pub(crate) fn within<T>(seconds: u32, mut find: impl FnMut() -> Option<T>) -> Option<T> {
    for _ in 0..seconds * 20 {
        if let Some(found) = find() {
            return Some(found);
        }
        sleep(TICK);
    }
    find()
}

/// Runs the binary to its end, with this on its stdin.
pub(crate) fn run(arguments: &[&str], stdin: &str) -> Output {
    let mut child = command(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut pipe = child.stdin.take().expect("a pipe");
    // Whoever does not read it closes the pipe.
    drop(pipe.write_all(stdin.as_bytes()));
    drop(pipe);
    child.wait_with_output().expect("it ends")
}

/// The binary: the one that was built with the tests, unless `OUTRIGGER` names another, as
/// campaigns do for one that is built as packages are.
#[expect(
    clippy::disallowed_methods,
    reason = "a test reads how it is asked to run"
)]
pub(crate) fn outrigger() -> &'static str {
    static PROGRAM: OnceLock<String> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let built = env!("CARGO_BIN_EXE_outrigger").to_owned();
        std::env::var("OUTRIGGER").unwrap_or(built)
    })
}

/// The binary with these arguments, and nothing of the caller's that would change what it does.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(outrigger());
    command.args(arguments).env_remove("OUTRIGGER_CONFIG");
    command.env_remove("RUST_LOG");
    // Whatever is reached is on this host.
    for proxy in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] {
        command.env_remove(proxy).env_remove(proxy.to_lowercase());
    }
    command
}

/// A process that runs on, killed and reaped when dropped.
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
        let child = command
            .stdout(out)
            .stderr(err)
            .spawn()
            .expect("the binary starts");
        Self {
            child,
            log: log.to_owned(),
        }
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until the log has this, `times` times.
    pub(crate) fn logged(&self, text: &str, times: usize) {
        let found = || (self.log().matches(text).count() >= times).then_some(());
        assert!(within(15, found).is_some(), "{text:?} in:\n{}", self.log());
    }

    /// The address after `before` in the log.
    pub(crate) fn address(&self, before: &str) -> String {
        self.logged(before, 1);
        let log = self.log();
        let (_, after) = log.split_once(before).expect("it is logged");
        let end = |c: char| c == '"' || c.is_whitespace();
        after.split(end).next().unwrap_or_default().to_owned()
    }

    /// The address at which the daemon says how it is doing.
    pub(crate) fn admin(&self) -> String {
        self.address("/metrics address=\"")
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id();
        let kill = Command::new("sh")
            .args(["-c", &format!("kill -{name} {pid}")])
            .status();
        assert!(kill.expect("a shell").success());
    }

    /// Waits for its end, for so many seconds at most.
    pub(crate) fn ends(&mut self, seconds: u32) -> ExitStatus {
        let ended = within(seconds, || self.child.try_wait().expect("a child"));
        ended.unwrap_or_else(|| panic!("it runs on:\n{}", self.log()))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The status and the whole answer of a GET.
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
