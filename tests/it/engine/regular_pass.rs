//! The regular full pass, which a periodic job of the daemon requests.

use jiff::SignedDuration;
use outrigger::engine::event::Event;

use super::Stage;
use super::drift::running_with;

/// An engine without work, and the seconds since its last full pass.
fn idle_stage() -> (Stage, i64) {
    let mut stage = running_with(1, |_| {});
    stage.run(60 * 60, &[]);
    let last = stage.engine.last_full_pass().expect("a full pass");
    let since = stage.now.duration_since(last).as_secs();
    (stage, since)
}

#[test]
fn regular_pass_runs_a_full_pass_after_nine_minutes() {
    let (mut stage, since) = idle_stage();
    stage.run(10 * 60 - since, &[]);
    for (minutes, is_full) in [(1, false), (8, true)] {
        let before = stage.engine.last_full_pass();
        stage.now += SignedDuration::from_mins(minutes);
        stage.event(Event::RegularPass);
        let after = stage.engine.last_full_pass();
        let expect = if is_full { Some(stage.now) } else { before };
        assert_eq!(after, expect, "{minutes} minutes later");
    }
}

#[test]
fn engine_runs_a_full_pass_after_ten_minutes_if_the_job_is_lost() {
    let (mut stage, _) = idle_stage();
    for _ in 0..30 {
        stage.run(60, &[]);
        let last = stage.engine.last_full_pass().expect("a full pass");
        let since = stage.now.duration_since(last);
        assert!(since <= SignedDuration::from_mins(10), "{since:?}");
    }
}

#[test]
fn first_regular_pass_after_a_clock_change_is_not_earlier() {
    let (mut stage, _) = idle_stage();
    let before = stage.engine.last_full_pass().expect("a full pass");
    stage.now = before - SignedDuration::from_mins(1);
    stage.event(Event::RegularPass);
    assert_eq!(stage.engine.last_full_pass(), Some(before));
}
