//! A program as a process: started without a shell, with almost no environment, in a process group
//! of its own that ends with it. It must not know what is said to it.

use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncRead;
use tokio::process::{Child as Process, ChildStdin, ChildStdout, Command};
use tokio::task::JoinHandle;
use tokio::time::{interval, timeout};

use crate::host::text;
use crate::model::cluster::Exec;
use crate::model::id::ClusterName;
use crate::outbound::process_group::ProcessGroup;
use crate::providers::exec::line_reader::{Lines, ProgramLine};

/// Variables that every program gets.
const ALWAYS: [&str; 2] = ["PATH", "HOME"];
/// The longest line of stderr; the log cuts it further.
const ERROR_BYTES: usize = 4 << 10;
/// Lines of stderr that go into the log within `WINDOW`.
const ERROR_LINES: u32 = 50;
const WINDOW: Duration = Duration::from_secs(10);
/// Time for a killed process to be gone.
const REAP: Duration = Duration::from_secs(2);
/// Time to read what it said last.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// A running program. Dropping it kills it with all that it started.
pub(crate) struct Child {
    pub(crate) stdin: ChildStdin,
    pub(crate) lines: Lines<ChildStdout>,
    pub(crate) process: Process,
    /// What writes its stderr into the log.
    errors: Errors,
    group: ProcessGroup,
}

/// A task, aborted when dropped.
struct Errors(JoinHandle<()>);

impl Drop for Errors {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The variables a program is started with, of those that the daemon has.
#[expect(
    clippy::disallowed_methods,
    reason = "what a program of the user's own needs is in no configuration"
)]
fn environment(exec: &Exec) -> Vec<(String, std::ffi::OsString)> {
    let named = exec.environment.iter().map(String::as_str);
    let all = ALWAYS.into_iter().chain(named);
    all.filter_map(|name| Some((name.to_owned(), std::env::var_os(name)?)))
        .collect()
}

impl Child {
    /// Starts a program, or says why it cannot be. Lines of its stdout are as long as `longest`.
    pub(crate) fn start(
        exec: &Exec,
        cluster: &ClusterName,
        longest: usize,
    ) -> Result<Self, String> {
        let (program, arguments) = exec.command.split_first().ok_or("no program is named")?;
        let mut process = Command::new(program)
            .args(arguments)
            .env_clear()
            .envs(environment(exec))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| text::bounded(&format!("start {program}: {error}")))?;
        let group = ProcessGroup::of(&process);
        let pipes = (
            process.stdin.take(),
            process.stdout.take(),
            process.stderr.take(),
        );
        let (Some(stdin), Some(stdout), Some(stderr)) = pipes else {
            return Err(format!("start {program}: it has no pipes"));
        };
        Ok(Self {
            stdin,
            lines: Lines::new(stdout, longest),
            process,
            errors: Errors(tokio::spawn(tell(
                cluster.clone(),
                Lines::new(stderr, ERROR_BYTES),
            ))),
            group,
        })
    }

    /// Ends it: it may leave by itself for so long, since its stdin ends, and is killed then with
    /// all that it has started. How it ended, where it did so by itself.
    pub(crate) async fn end(self, leave: Duration) -> Option<String> {
        let Self {
            stdin,
            lines,
            mut process,
            mut errors,
            group,
        } = self;
        drop((stdin, lines));
        let status = timeout(leave, process.wait()).await.ok();
        drop(group);
        if status.is_none() {
            drop(timeout(REAP, process.wait()).await);
        }
        // Why it ended may still be on its way.
        drop(timeout(LAST_WORDS, &mut errors.0).await);
        Some(status?.ok()?.to_string())
    }
}

/// Writes what a program says on stderr into the log, but not all of it when that is too much.
async fn tell(cluster: ClusterName, mut lines: Lines<impl AsyncRead + Unpin>) {
    let mut windows = interval(WINDOW);
    let mut told = 0;
    loop {
        tokio::select! {
            line = lines.next() => match line {
                Ok(Some(line)) => {
                    told += 1;
                    if told <= ERROR_LINES {
                        let says = match line {
                            ProgramLine::Whole(line) => {
                                text::bounded(&String::from_utf8_lossy(&line))
                            }
                            ProgramLine::TooLong => "a line too long to be told".to_owned(),
                        };
                        tracing::info!(%cluster, says, "exec program");
                    }
                }
                Ok(None) | Err(_) => return,
            },
            _ = windows.tick() => {
                let beyond = u32::saturating_sub(told, ERROR_LINES);
                if beyond > 0 {
                    tracing::warn!(%cluster, beyond, "exec program says more than is told");
                }
                told = 0;
            }
        }
    }
}
