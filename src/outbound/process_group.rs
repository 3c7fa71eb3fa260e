//! The process group of a program. Dropping it kills the program and its child processes.

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::Child;

/// A process group, killed when dropped.
pub(crate) struct ProcessGroup(Option<Pid>);

impl ProcessGroup {
    /// The process group of its first process.
    pub(crate) fn of_process(process: &Child) -> Self {
        let id = process.id().and_then(|id| i32::try_from(id).ok());
        Self(id.and_then(Pid::from_raw))
    }

    /// Drops the group without killing the remaining processes.
    pub(crate) fn keep_alive(mut self) {
        self.0 = None;
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let Some(pid) = self.0.take() {
            // An empty group needs no signal.
            let _killed = kill_process_group(pid, Signal::KILL);
        }
    }
}
