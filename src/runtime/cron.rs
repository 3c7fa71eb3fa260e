//! Periodic jobs, in UTC: each body is one cheap call that may as well be lost or doubled.
//! It must not know what a job leads to.
//!
//! Only cron jobs, no repeated ones: those may stop firing (tokio-cron-scheduler issue 113).

use thiserror::Error;
use tokio_cron_scheduler::{Job, JobScheduler, JobSchedulerError};

/// Why no job runs.
#[derive(Debug, Error)]
pub(crate) enum CronError {
    #[error("start the scheduler of periodic jobs")]
    Start(#[source] JobSchedulerError),
    #[error("schedule {schedule:?}")]
    Schedule {
        schedule: &'static str,
        #[source]
        source: JobSchedulerError,
    },
}

/// The running scheduler.
pub(crate) struct Cron(JobScheduler);

impl Cron {
    /// A scheduler without jobs.
    pub(crate) async fn start() -> Result<Self, CronError> {
        let scheduler = JobScheduler::new().await.map_err(CronError::Start)?;
        scheduler.start().await.map_err(CronError::Start)?;
        Ok(Self(scheduler))
    }

    /// Calls `body` at the times of a schedule with seconds: `sec min hour day month weekday`.
    pub(crate) async fn every(
        &self,
        schedule: &'static str,
        mut body: impl FnMut() + Send + Sync + 'static,
    ) -> Result<(), CronError> {
        let fault = |source| CronError::Schedule { schedule, source };
        let job = Job::new(schedule, move |_, _| body()).map_err(fault)?;
        self.0.add(job).await.map_err(fault)?;
        Ok(())
    }

    /// Ends it.
    pub(crate) async fn stop(mut self) {
        // The process is ending: a scheduler that does not stop changes nothing.
        drop(self.0.shutdown().await);
    }
}
