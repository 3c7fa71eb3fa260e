//! Periodic jobs, in UTC. Each job is one cheap call that may be lost or repeated without harm.
//!
//! Uses only jobs with a cron schedule, because jobs with a fixed interval may stop running
//! (tokio-cron-scheduler issue 113).

use std::time::Duration;

use thiserror::Error;
use tokio::time::timeout;
use tokio_cron_scheduler::{Job, JobScheduler, JobSchedulerError};

/// Maximum time to add or remove a job. The scheduler never answers if one of its tasks has ended.
const ANSWER: Duration = Duration::from_secs(10);

/// Why jobs do not run.
#[derive(Debug, Error)]
pub(crate) enum CronError {
    #[error("cannot start the scheduler of periodic jobs")]
    Start(#[source] JobSchedulerError),
    #[error("cannot add a periodic job with the schedule {schedule:?}")]
    Schedule {
        schedule: String,
        #[source]
        source: JobSchedulerError,
    },
    #[error("cannot remove a periodic job")]
    Remove(#[source] JobSchedulerError),
    #[error("the scheduler of periodic jobs did not respond within {ANSWER:?}")]
    Late,
}

/// A running scheduler.
#[derive(Clone)]
pub(crate) struct Cron(JobScheduler);

/// Identifies a job of a scheduler.
#[derive(Clone)]
pub(crate) struct JobId(Job);

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
        schedule: &str,
        mut body: impl FnMut() + Send + Sync + 'static,
    ) -> Result<JobId, CronError> {
        let to_error = |source| CronError::Schedule { schedule: schedule.to_owned(), source };
        let job = Job::new(schedule, move |_, _| body()).map_err(to_error)?;
        let added = timeout(ANSWER, self.0.add(job.clone())).await;
        added.map_err(|_| CronError::Late)?.map_err(to_error)?;
        Ok(JobId(job))
    }

    /// Removes a job. A job that was already removed is no error.
    pub(crate) async fn remove_job(&self, JobId(job): &JobId) -> Result<(), CronError> {
        let id = job.guid();
        let removed = timeout(ANSWER, self.0.remove(&id)).await;
        removed.map_err(|_| CronError::Late)?.map_err(CronError::Remove)
    }

    /// Stops the scheduler.
    pub(crate) async fn stop(mut self) {
        // The process is stopping, so an error here has no effect.
        drop(self.0.shutdown().await);
    }
}
