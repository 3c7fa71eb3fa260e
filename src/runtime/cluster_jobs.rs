//! The periodic jobs of each cluster: one for its regular full pass, and one for the next
//! occurrence of each sweep. A job only wakes the engine, which decides from its own state what is
//! due.

// Jobs of the real scheduler while the wall clock is set.
#[cfg(test)]
mod clock_steps;

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::future::select_all;
use jiff::Timestamp;
use jiff::tz::Offset;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::engine::event::Event;
use crate::host::{clock, text};
use crate::model::id::ClusterName;
use crate::model::sweep::SweepKind;
use crate::model::template_hash::spread_below;
use crate::runtime::cluster_handle::{ClusterHandle, Clusters, SweepTimes};
use crate::runtime::cron::{Cron, CronError, JobId};

/// Interval of regular full passes, in seconds. Divides an hour.
const REGULAR_SECONDS: u64 = 600;

/// The jobs are compared with the clusters after this time even without a change. Repeats failed
/// changes of jobs.
const AGAIN: Duration = Duration::from_mins(1);

/// The cluster of a job and the kind of its sweep. `None` for the job of regular full passes.
type JobKey = (ClusterName, Option<SweepKind>);

/// What a job wakes, and when.
#[derive(Clone)]
struct JobTarget {
    /// A job does not keep the handle alive.
    handle: Weak<ClusterHandle>,
    /// [`SweepTimes::engine`]. A clock step restarts the engine, and a job from before the step may
    /// have a wrong next time.
    engine: u64,
    /// The occurrence of a sweep. `None` for regular full passes.
    at: Option<Timestamp>,
}

impl PartialEq for JobTarget {
    fn eq(&self, other: &Self) -> bool {
        (self.engine, self.at) == (other.engine, other.at)
            && Weak::ptr_eq(&self.handle, &other.handle)
    }
}

/// The jobs of all clusters.
struct ClusterJobs {
    cron: Cron,
    jobs: BTreeMap<JobKey, (JobTarget, JobId)>,
    /// Jobs that are not wanted any more but could not be removed.
    unwanted: Vec<JobId>,
}

/// Keeps the jobs of the clusters until the sender of `clusters` is dropped.
pub(crate) async fn keep_jobs(cron: Cron, mut clusters: watch::Receiver<Clusters>) {
    let mut jobs = ClusterJobs { cron, jobs: BTreeMap::new(), unwanted: Vec::new() };
    loop {
        let (targets, mut times) = wanted_jobs(&clusters.borrow_and_update());
        jobs.update(targets).await;
        let has_times = !times.is_empty();
        let changes = times.iter_mut().map(|times| Box::pin(times.changed()));
        let any_change = async move {
            if has_times {
                // A dropped handle also changes the clusters.
                drop(select_all(changes).await);
            } else {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            changed = clusters.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            () = any_change => {}
            () = sleep(AGAIN) => {}
        }
    }
}

/// Returns the jobs that the clusters need, and receivers of changes after this call.
fn wanted_jobs(
    clusters: &[Arc<ClusterHandle>],
) -> (BTreeMap<JobKey, JobTarget>, Vec<watch::Receiver<SweepTimes>>) {
    let (mut targets, mut receivers) = (BTreeMap::new(), Vec::new());
    for cluster in clusters {
        let mut receiver = cluster.sweep_times();
        let times = receiver.borrow_and_update().clone();
        let sweeps = times.next.into_iter().map(|(kind, at)| (Some(kind), Some(at)));
        for (kind, at) in std::iter::once((None, None)).chain(sweeps) {
            let handle = Arc::downgrade(cluster);
            let target = JobTarget { handle, engine: times.engine, at };
            targets.insert((cluster.name.clone(), kind), target);
        }
        receivers.push(receiver);
    }
    (targets, receivers)
}

impl ClusterJobs {
    /// Removes the jobs that differ from `targets`, and adds those that are missing.
    async fn update(&mut self, targets: BTreeMap<JobKey, JobTarget>) {
        let differs =
            |key: &JobKey, (target, _): &mut (JobTarget, JobId)| targets.get(key) != Some(target);
        let former = self.jobs.extract_if(.., differs).map(|(_, (_, id))| id);
        self.unwanted.extend(former.collect::<Vec<_>>());
        for id in std::mem::take(&mut self.unwanted) {
            if let Err(error) = self.cron.remove_job(&id).await {
                tracing::warn!(why = text::error_chain(&error), "cannot remove a periodic job");
                self.unwanted.push(id);
            }
        }
        for (key, target) in targets {
            // The schedule of a past occurrence means a year later. The engine already knows that
            // the occurrence is due.
            let is_past = target.at.is_some_and(|at| at <= clock::now());
            if is_past || self.jobs.contains_key(&key) {
                continue;
            }
            match self.add(&key, &target).await {
                Ok(id) => drop(self.jobs.insert(key, (target, id))),
                Err(error) => {
                    let (cluster, why) = (key.0.as_str(), text::error_chain(&error));
                    tracing::warn!(cluster, why, "cannot add a periodic job");
                }
            }
        }
    }

    /// Adds a job that sends the event of its target.
    async fn add(&self, (name, _): &JobKey, target: &JobTarget) -> Result<JobId, CronError> {
        let (schedule, event) = match target.at {
            Some(at) => (instant_schedule(at), Event::Timeout),
            None => (regular_schedule(name), Event::RegularPass),
        };
        let handle = target.handle.clone();
        let wake = move || {
            if let Some(handle) = handle.upgrade() {
                handle.try_send_event(event.clone());
            }
        };
        self.cron.schedule_job(&schedule, wake).await
    }
}

/// Returns the schedule of an instant, without its year.
fn instant_schedule(at: Timestamp) -> String {
    let time = Offset::UTC.to_datetime(at);
    let (day, month) = (time.day(), time.month());
    format!("{} {} {} {day} {month} *", time.second(), time.minute(), time.hour())
}

/// Returns the schedule of the regular full passes of a cluster. The passes of different clusters
/// are spread over their interval.
fn regular_schedule(cluster: &ClusterName) -> String {
    regular_schedule_at(spread_below(cluster.as_str(), REGULAR_SECONDS))
}

/// Returns the schedule of regular full passes that start this many seconds after the hour.
fn regular_schedule_at(offset: u64) -> String {
    let minutes = (offset / 60..60).step_by(10).map(|minute| minute.to_string());
    let minutes = minutes.collect::<Vec<_>>().join(",");
    format!("{} {minutes} * * * *", offset % 60)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use jiff::{SignedDuration, Timestamp};
    use tokio::sync::{mpsc, watch};
    use tokio::time::timeout;

    use super::{ClusterJobs, instant_schedule, keep_jobs, regular_schedule_at, wanted_jobs};
    use crate::engine::event::Event;
    use crate::host::clock;
    use crate::model::sweep::SweepKind;
    use crate::runtime::cluster_handle::{ClusterHandle, EngineChannel};
    use crate::runtime::cron::Cron;

    /// A cluster with an engine, and the events that the engine receives.
    pub(super) fn cluster_with_engine(name: &str) -> (Arc<ClusterHandle>, mpsc::Receiver<Event>) {
        let handle = Arc::new(ClusterHandle::new(name.into()));
        let received = start_engine(&handle);
        (handle, received)
    }

    /// Replaces the engine of a cluster. Returns the events that the new engine receives.
    pub(super) fn start_engine(handle: &ClusterHandle) -> mpsc::Receiver<Event> {
        let (events, received) = mpsc::channel(16);
        let questions = mpsc::channel(1).0;
        handle.set_engine(Some(EngineChannel { events, questions }));
        received
    }

    fn in_seconds(seconds: i64) -> Timestamp {
        let now = Timestamp::from_second(clock::now().as_second()).expect("in range");
        now + SignedDuration::from_secs(seconds)
    }

    /// Waits this many seconds for the wake-up of a sweep.
    async fn is_woken(received: &mut mpsc::Receiver<Event>, seconds: u64) -> bool {
        let woken = async {
            loop {
                match received.recv().await {
                    Some(Event::Timeout) => return,
                    // The regular full pass of the cluster.
                    Some(_) => {}
                    None => std::future::pending().await,
                }
            }
        };
        timeout(Duration::from_secs(seconds), woken).await.is_ok()
    }

    #[tokio::test]
    async fn job_of_an_occurrence_wakes_the_engine_and_moves_with_it() {
        let (handle, mut received) = cluster_with_engine("a");
        handle.set_next_sweeps([(SweepKind::Drift, in_seconds(3))].into());
        let cron = Cron::start().await.expect("a scheduler");
        let (clusters, receiver) = watch::channel(vec![handle.clone()]);
        let keeps = tokio::spawn(keep_jobs(cron, receiver));
        assert!(is_woken(&mut received, 30).await);
        // A changed occurrence: the old one wakes nothing.
        handle.set_next_sweeps([(SweepKind::Drift, in_seconds(3600))].into());
        assert!(!is_woken(&mut received, 2).await);
        handle.set_next_sweeps([(SweepKind::Drift, in_seconds(3))].into());
        assert!(is_woken(&mut received, 30).await);
        // A removed cluster: its handle is not kept, and the task ends with the clusters.
        handle.set_next_sweeps([(SweepKind::Drift, in_seconds(3))].into());
        clusters.send_replace(Vec::new());
        assert!(!is_woken(&mut received, 5).await);
        assert_eq!(Arc::strong_count(&handle), 1);
        drop(clusters);
        keeps.await.expect("the task ends");
    }

    #[tokio::test]
    async fn jobs_follow_the_clusters_and_their_engines() {
        let cron = Cron::start().await.expect("a scheduler");
        let mut jobs = ClusterJobs { cron, jobs: Default::default(), unwanted: Vec::new() };
        let (handle, _received) = cluster_with_engine("a");
        let next = [(SweepKind::Drift, in_seconds(3600)), (SweepKind::Expiry, in_seconds(-1))];
        handle.set_next_sweeps(next.into());
        jobs.update(wanted_jobs(std::slice::from_ref(&handle)).0).await;
        let kinds: Vec<_> = jobs.jobs.keys().map(|(_, kind)| *kind).collect();
        assert_eq!(kinds, [None, Some(SweepKind::Drift)]);
        let engines = |jobs: &ClusterJobs| -> Vec<u64> {
            jobs.jobs.values().map(|(target, _)| target.engine).collect()
        };
        assert_eq!(engines(&jobs), [1, 1]);
        // A different engine: its jobs are replaced, even for the same occurrence.
        let _received = start_engine(&handle);
        handle.set_next_sweeps([next[0]].into());
        jobs.update(wanted_jobs(std::slice::from_ref(&handle)).0).await;
        assert_eq!(engines(&jobs), [2, 2]);
        // Without an engine, only the job of regular passes is kept.
        handle.set_engine(None);
        handle.set_next_sweeps([next[0]].into());
        jobs.update(wanted_jobs(std::slice::from_ref(&handle)).0).await;
        assert_eq!(engines(&jobs), [3]);
        jobs.update(wanted_jobs(&[]).0).await;
        assert!(jobs.jobs.is_empty() && jobs.unwanted.is_empty());
    }

    #[test]
    fn schedules_list_the_expected_times() {
        assert_eq!(regular_schedule_at(0), "0 0,10,20,30,40,50 * * * *");
        assert_eq!(regular_schedule_at(59), "59 0,10,20,30,40,50 * * * *");
        assert_eq!(regular_schedule_at(60), "0 1,11,21,31,41,51 * * * *");
        assert_eq!(regular_schedule_at(599), "59 9,19,29,39,49,59 * * * *");
        let at = "2028-02-29T23:04:05Z".parse().expect("a time");
        assert_eq!(instant_schedule(at), "5 4 23 29 2 *");
    }
}
