//! Two clusters in one fleet in the built-in scenario: their total stays within the limits, and the
//! fleet finally counts the actual usage.

use jiff::SignedDuration;

use super::setup::two_days;

#[test]
fn two_clusters_stay_within_the_fleet_limits() {
    let mut days = two_days(160_000, 1, false);
    let violations = days.run_and_check();
    assert!(violations.is_empty(), "{violations:#?}");
}

#[test]
fn faults_and_restarts_do_not_exceed_the_fleet_limits() {
    let mut days = two_days(160_000, 2, true);
    let start = days.worlds()[0].now();
    // One daemon manages both clusters. It restarts in the morning and loses its state.
    days.run_until(start + SignedDuration::from_mins(170));
    days.restart_daemons();
    let violations = days.run_and_check();
    assert!(violations.is_empty(), "{violations:#?}");
}
