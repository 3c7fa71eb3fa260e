//! Periodic jobs, in UTC. Each job is one cheap call that may be lost or repeated without harm.
//!
//! Uses only jobs with a cron schedule, because jobs with a fixed interval may stop running
//! (tokio-cron-scheduler issue 113).

use thiserror::Error;
use tokio_cron_scheduler::{Job, JobScheduler, JobSchedulerError};

/// Why jobs do not run.
#[derive(Debug, Error)]
pub(crate) enum CronError {
    #[error("cannot start the scheduler of periodic jobs")]
    Start(#[source] JobSchedulerError),
    #[error("invalid schedule {schedule:?}")]
    Schedule {
        schedule: &'static str,
        #[source]
        source: JobSchedulerError,
    },
}

/// A running scheduler.
pub(crate) struct Cron(JobScheduler);

impl Cron {
    /// Creates a scheduler without jobs.
    pub(crate) async fn start() -> Result<Self, CronError> {
        let scheduler = JobScheduler::new().await.map_err(CronError::Start)?;
        scheduler.start().await.map_err(CronError::Start)?;
        Ok(Self(scheduler))
    }

    /// Calls `body` at the times of a schedule with seconds: `sec min hour day month weekday`.
    pub(crate) async fn schedule_job(
        &self,
        schedule: &'static str,
        mut body: impl FnMut() + Send + Sync + 'static,
    ) -> Result<(), CronError> {
        let added = match Job::new(schedule, move |_, _| body()) {
            Ok(job) => self.0.add(job).await.map(drop),
            Err(error) => Err(error),
        };
        added.map_err(|source| CronError::Schedule { schedule, source })
    }

    /// Stops the scheduler.
    pub(crate) async fn stop(mut self) {
        // The process is stopping, so an error here has no effect.
        drop(self.0.shutdown().await);
    }
}
