//! Runs jobs of the real scheduler every five seconds, with a reload each minute and while the wall
//! clock is set, and counts those that ran: of a plain cron job, and of the jobs of a cluster.
//!
//! A campaign takes ten minutes. The wall clock of its process is that of `tests/clock_offset.c`.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use super::keep_jobs;
use super::tests::{cluster_with_engine, start_engine};
use crate::engine::event::Event;
use crate::host::clock::{self, Moment, SteadyClock};
use crate::model::sweep::SweepKind;
use crate::runtime::cron::Cron;

/// Seconds between two occurrences.
const EVERY: i64 = 5;
/// Names the file with the offset of the wall clock.
const OFFSET: &str = "OUTRIGGER_CLOCK_OFFSET";
/// When the wall clock is set, in seconds since the start, and its offset from then on. Not at the
/// same time as a reload, which would hide the effect on a plain cron job.
const STEPS: [(u64, i64); 2] = [(4 * 60 + 20, 3600), (7 * 60 + 20, 0)];
/// A run of a job that starts later than this is not of the occurrence before it.
const LATE: SignedDuration = SignedDuration::from_secs(2);

#[expect(clippy::disallowed_methods, reason = "a test reads how it is asked to run")]
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// When and how often jobs are disturbed.
#[derive(Clone)]
struct Disturbances {
    length: u64,
    reload_every: u64,
    /// The file with the offset of the wall clock, if the clock is set.
    offset: Option<PathBuf>,
}

/// The runs of a job, with the number of clock steps before each run.
type Runs = Arc<Mutex<Vec<(usize, Timestamp)>>>;

/// The figures of one job.
#[derive(Debug, Default)]
struct Figures {
    occurrences: usize,
    fired: usize,
    missed: usize,
    doubled: usize,
    /// Runs without an occurrence, such as those of a time that the clock skipped.
    other: usize,
}

/// The occurrence of a run.
fn occurrence_of(run: Timestamp) -> i64 {
    run.as_second().div_euclid(EVERY) * EVERY
}

/// Compares the runs with the occurrences of each period between two clock steps. The last
/// occurrence before a step may not have run yet.
fn count(periods: &[(Timestamp, Timestamp)], runs: &[(usize, Timestamp)]) -> Figures {
    let mut figures = Figures::default();
    for (period, (from, to)) in periods.iter().enumerate() {
        let mut times: BTreeMap<i64, usize> = BTreeMap::new();
        let first = occurrence_of(*from) + EVERY;
        let last = occurrence_of(*to - LATE);
        let mut at = first;
        while at <= last {
            times.insert(at, 0);
            at += EVERY;
        }
        for (_, run) in runs.iter().filter(|(steps, _)| *steps == period) {
            let at = occurrence_of(*run);
            let late = run.as_millisecond() - at * 1000;
            match times.get_mut(&at) {
                Some(count) if i128::from(late) <= LATE.as_millis() => *count += 1,
                None if at > last => {}
                _ => figures.other += 1,
            }
        }
        figures.occurrences += times.len();
        figures.fired += times.values().filter(|count| **count > 0).count();
        figures.missed += times.values().filter(|count| **count == 0).count();
        figures.doubled += times.values().map(|count| count.saturating_sub(1)).sum::<usize>();
    }
    figures
}

/// Sets the wall clock at the times of [`STEPS`]. Sends the number of steps. Returns the wall clock
/// times between which the clock was not set.
async fn set_clocks(
    disturbances: Disturbances,
    steps: watch::Sender<usize>,
    begin: Instant,
) -> Vec<(Timestamp, Timestamp)> {
    let mut periods = Vec::new();
    let mut from = clock::now();
    let settings = disturbances.offset.as_ref().map_or([].as_slice(), |_| STEPS.as_slice());
    for (after, offset) in settings {
        sleep_until(begin + Duration::from_secs(*after)).await;
        let file = disturbances.offset.as_ref().expect("a file");
        let mut file = OpenOptions::new().write(true).open(file).expect("a file");
        let before = clock::now();
        periods.push((from, before));
        steps.send_modify(|steps| *steps += 1);
        file.write_all(&offset.to_ne_bytes()).expect("written");
        from = clock::now();
        let set_by = from.duration_since(before).abs();
        assert!(set_by > SignedDuration::from_mins(59), "the clock was set by only {set_by:?}");
    }
    sleep_until(begin + Duration::from_secs(disturbances.length)).await;
    periods.push((from, clock::now()));
    periods
}

/// Runs a plain cron job, which each reload removes and adds again.
async fn run_plain_job(
    disturbances: Disturbances,
    steps: watch::Receiver<usize>,
    begin: Instant,
) -> Runs {
    let cron = Cron::start().await.expect("a scheduler");
    let runs = Runs::default();
    let mut elapsed = 0;
    while elapsed < disturbances.length {
        let (record, steps) = (runs.clone(), steps.clone());
        let body = move || {
            let run = (*steps.borrow(), clock::now());
            record.lock().expect("no panic").push(run);
        };
        let id = cron.schedule_job("*/5 * * * * *", body).await.expect("a job");
        elapsed += disturbances.reload_every;
        sleep_until(begin + Duration::from_secs(elapsed)).await;
        cron.remove_job(&id).await.expect("removed");
    }
    cron.stop().await;
    runs
}

/// Returns the next occurrence after `now`.
fn next_after(now: Timestamp) -> Timestamp {
    Timestamp::from_second(occurrence_of(now) + EVERY).expect("in range")
}

/// Runs the jobs of a cluster. Its engine only publishes the next occurrence, and runs an
/// occurrence when a job wakes it. Reloads and clock steps restart the engine. Records the wake-ups
/// at which an occurrence was due.
async fn run_cluster_jobs(
    disturbances: Disturbances,
    steps: watch::Receiver<usize>,
    begin: Instant,
) -> Runs {
    let cron = Cron::start().await.expect("a scheduler");
    let (handle, mut received) = cluster_with_engine("a");
    let (clusters, receiver) = watch::channel(vec![handle.clone()]);
    let keeps = tokio::spawn(keep_jobs(cron.clone(), receiver));
    let runs = Runs::default();
    let end = begin + Duration::from_secs(disturbances.length);
    let mut reload = begin + Duration::from_secs(disturbances.reload_every);
    let mut steady = SteadyClock::start(Moment::now);
    let mut next = next_after(clock::now());
    let publish = |next| handle.set_next_sweeps([(SweepKind::Drift, next)].into());
    publish(next);
    while clock::monotonic_now() < end {
        let event = tokio::select! {
            event = received.recv() => event,
            () = sleep(Duration::from_millis(100)) => None,
        };
        let is_set = steady.wall_clock_shift().abs() > SignedDuration::from_secs(1);
        let now = clock::now();
        if is_set || clock::monotonic_now() >= reload {
            if is_set {
                (steady, next) = (SteadyClock::start(Moment::now), next_after(now));
            } else {
                reload += Duration::from_secs(disturbances.reload_every);
            }
            received = start_engine(&handle);
            publish(next);
        } else if matches!(event, Some(Event::Timeout)) && next <= now {
            runs.lock().expect("no panic").push((*steps.borrow(), now));
            next = next_after(now);
            publish(next);
        }
    }
    keeps.abort();
    cron.stop().await;
    drop(clusters);
    runs
}

/// Runs both kinds of jobs, prints their figures, and checks what the jobs of a cluster promise.
async fn run_jobs(disturbances: Disturbances) {
    let begin = clock::monotonic_now();
    let (steps, seen) = watch::channel(0);
    let (periods, plain, own) = tokio::join!(
        set_clocks(disturbances.clone(), steps, begin),
        run_plain_job(disturbances.clone(), seen.clone(), begin),
        run_cluster_jobs(disturbances, seen, begin),
    );
    let plain = plain.lock().expect("no panic").clone();
    let own = own.lock().expect("no panic").clone();
    for (name, runs) in [("a plain cron job", &plain), ("jobs of a cluster", &own)] {
        let figures = count(&periods, runs);
        let Figures { occurrences, fired, missed, doubled, other } = figures;
        println!(
            "{name}: {occurrences} occurrences, {fired} fired, {missed} missed, {doubled} doubled, \
             {other} others"
        );
        for (period, (from, _)) in periods.iter().enumerate() {
            let first = runs.iter().find(|(steps, _)| *steps == period);
            let waited = first.map(|(_, run)| run.duration_since(*from).as_secs());
            println!("{name}: after clock step {period} the first ran after {waited:?} s");
        }
    }
    let figures = count(&periods, &own);
    assert_eq!((figures.doubled, figures.other), (0, 0), "{own:?}");
    for (period, (from, _)) in periods.iter().enumerate() {
        let first = own.iter().find(|(steps, _)| *steps == period);
        let waited = first.map(|(_, run)| run.duration_since(*from));
        let is_soon = waited.is_some_and(|waited| waited < SignedDuration::from_secs(30));
        assert!(is_soon, "after clock step {period}: {waited:?}");
    }
}

/// Runs this test again in a process whose wall clock the test can set. Returns false if there is
/// no C compiler.
fn run_in_process_with_offset() -> bool {
    let directory = tempfile::tempdir().expect("a directory");
    let (library, offset) = (directory.path().join("clock.so"), directory.path().join("offset"));
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clock_offset.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O2", "-o"]);
    let built = compiler.arg(&library).arg(source).status();
    if !built.is_ok_and(|status| status.success()) {
        return false;
    }
    std::fs::write(&offset, 0_i64.to_ne_bytes()).expect("written");
    let program = std::env::current_exe().expect("a path");
    let arguments = ["runtime::cluster_jobs::clock_steps", "--nocapture", "--test-threads", "1"];
    let mut again = Command::new(program);
    again.args(arguments).env("LD_PRELOAD", &library).env(OFFSET, &offset);
    assert!(again.status().expect("it runs").success(), "the other process failed");
    true
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn occurrences_run_once_and_resume_after_reloads_and_clock_steps() {
    if let Some(offset) = variable(OFFSET) {
        let offset = Some(PathBuf::from(offset));
        run_jobs(Disturbances { length: 600, reload_every: 60, offset }).await;
    } else if variable("OUTRIGGER_CAMPAIGN").is_some() {
        if !run_in_process_with_offset() {
            println!("SKIP there is no C compiler to build tests/clock_offset.c");
        }
    } else {
        run_jobs(Disturbances { length: 12, reload_every: 7, offset: None }).await;
    }
}
