//! The program as a child process: started without a shell, with a minimal environment, in its own
//! process group.

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
use crate::providers::exec::error::ProgramError;
use crate::providers::exec::line_reader::{Lines, ProgramLine};

/// Environment variables that every program gets.
const ALWAYS: [&str; 2] = ["PATH", "HOME"];
/// Maximum length of a stderr line. The log truncates the line further.
const ERROR_BYTES: usize = 4 << 10;
/// Maximum number of stderr lines that are logged per `WINDOW`.
const ERROR_LINES: u32 = 50;
const WINDOW: Duration = Duration::from_secs(10);
/// Time for a killed process to exit.
const REAP: Duration = Duration::from_secs(2);
/// Time to read the remaining stderr of a program that has exited.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// A running program. Dropping it kills it and its child processes.
pub(crate) struct Child {
    pub(crate) stdin: ChildStdin,
    pub(crate) lines: Lines<ChildStdout>,
    pub(crate) process: Process,
    /// Task that logs the stderr of the program.
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

/// The environment variables for the program, from those of the daemon.
#[expect(
    clippy::disallowed_methods,
    reason = "the user's program reads its own environment variables"
)]
fn program_environment(exec: &Exec) -> Vec<(String, std::ffi::OsString)> {
    let named = exec.environment.iter().map(String::as_str);
    let names = ALWAYS.into_iter().chain(named);
    names.filter_map(|name| Some((name.to_owned(), std::env::var_os(name)?))).collect()
}

impl Child {
    /// Starts a program. Lines of its stdout have at most `max_line_bytes` bytes.
    pub(crate) fn start(
        exec: &Exec,
        cluster: &ClusterName,
        max_line_bytes: usize,
    ) -> Result<Self, ProgramError> {
        let command = exec.command.split_first();
        let (program, arguments) = command.ok_or(ProgramError::NoCommand)?;
        let mut process = Command::new(program)
            .args(arguments)
            .env_clear()
            .envs(program_environment(exec))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| ProgramError::Start { program: program.clone(), error })?;
        let group = ProcessGroup::of_process(&process);
        let pipes = (process.stdin.take(), process.stdout.take(), process.stderr.take());
        let (Some(stdin), Some(stdout), Some(stderr)) = pipes else {
            return Err(ProgramError::NoPipes(program.clone()));
        };
        Ok(Self {
            stdin,
            lines: Lines::new(stdout, max_line_bytes),
            process,
            errors: Errors(tokio::spawn(log_stderr(
                cluster.clone(),
                Lines::new(stderr, ERROR_BYTES),
            ))),
            group,
        })
    }

    /// Stops the program: closes its stdin, waits for this time, then kills it with its child
    /// processes. Returns the exit status if the program exited by itself.
    pub(crate) async fn stop(self, leave: Duration) -> Option<String> {
        let Self { stdin, lines, mut process, mut errors, group } = self;
        drop((stdin, lines));
        let status = timeout(leave, process.wait()).await.ok();
        drop(group);
        if status.is_none() {
            drop(timeout(REAP, process.wait()).await);
        }
        // The last error message of the program may still be in the pipe.
        drop(timeout(LAST_WORDS, &mut errors.0).await);
        Some(status?.ok()?.to_string())
    }
}

/// Logs the stderr of a program, rate limited.
async fn log_stderr(cluster: ClusterName, mut lines: Lines<impl AsyncRead + Unpin>) {
    let mut windows = interval(WINDOW);
    let mut count = 0;
    loop {
        tokio::select! {
            line = lines.next_line() => match line {
                Ok(Some(line)) => {
                    count += 1;
                    if count <= ERROR_LINES {
                        let says = match line {
                            ProgramLine::Whole(line) => {
                                text::bounded_line(&String::from_utf8_lossy(&line))
                            }
                            ProgramLine::TooLong => "(line too long)".to_owned(),
                        };
                        tracing::info!(%cluster, says, "exec program wrote to stderr");
                    }
                }
                Ok(None) | Err(_) => return,
            },
            _ = windows.tick() => {
                let beyond = u32::saturating_sub(count, ERROR_LINES);
                if beyond > 0 {
                    tracing::warn!(%cluster, beyond, "dropped stderr lines of exec program");
                }
                count = 0;
            }
        }
    }
}
