//! Runs a test script over its stdin and stdout: one command per line, one line of JSON per
//! response.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;

/// The interval between two checks of an awaited condition, and their number: 20 s for an expected
/// 0.1 s.
pub(crate) const POLL: Duration = Duration::from_millis(10);
pub(crate) const POLLS: usize = 2000;

/// A running script. It stops when its stdin closes, so it does not outlive a test process that was
/// killed.
#[derive(Debug)]
pub(crate) struct Driven {
    child: Child,
    name: &'static str,
    /// `None` after the request to stop.
    commands: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Driven {
    /// Starts the script; errors contain `name`.
    pub(crate) fn start(mut command: Command, name: &'static str) -> Result<Driven, String> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{name}: failed to start python3: {error}"))?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(commands), Some(answers)) => Ok(Driven {
                child,
                name,
                commands: Some(commands),
                answers: BufReader::new(answers),
            }),
            _ => Err(format!("{name}: python3 started without its pipes")),
        }
    }

    /// Sends one command, and returns the response.
    pub(crate) fn ask(&mut self, command: &str) -> Result<Value, String> {
        if let Some(commands) = &mut self.commands {
            // If the script has ended, its last line has the reason, which is more useful than the
            // broken pipe.
            drop(writeln!(commands, "{command}"));
        }
        self.answer(command)
    }

    /// Reads the next line. The script has its own timeouts, so there is always one.
    pub(crate) fn answer(&mut self, question: &str) -> Result<Value, String> {
        let mut line = String::new();
        let read = self.answers.read_line(&mut line);
        read.map_err(|error| format!("{question}: failed to read the answer: {error}"))?;
        let name = self.name;
        let answer: Value = serde_json::from_str(&line)
            .map_err(|error| format!("{question}: {name} said {line:?}: {error}"))?;
        match answer["error"].as_str() {
            Some(error) => Err(error.to_owned()),
            None => Ok(answer),
        }
    }

    /// Returns whether the script ended by itself, and so cleaned up.
    pub(crate) fn stop(&mut self) -> bool {
        self.commands = None;
        for _ in 0..POLLS {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return true;
            }
            thread::sleep(POLL);
        }
        // Its children end with it.
        drop(self.child.kill());
        drop(self.child.wait());
        false
    }
}

impl Drop for Driven {
    fn drop(&mut self) {
        self.stop();
    }
}
