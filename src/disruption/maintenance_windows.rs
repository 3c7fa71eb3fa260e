//! Evaluates maintenance windows: whether disruption may start now, and when the next window opens.
//!
//! Each set of rules (of a pool, of its cluster) must agree. If a set has windows that allow
//! disruption, one of them must be open. No window that forbids disruption may be open.

use jiff::Timestamp;

use crate::model::pool::{Maintenance, Reason, applies_to_reason};

/// Number of window changes to search for the next opening, enough for years of weekends. Rules
/// that do not allow disruption within this number count as never allowing it.
const CHANGES_MAX: usize = 1_000;

/// Returns whether disruption for this reason may start at `now`.
pub fn is_open(sets: &[&[Maintenance]], reason: Reason, now: Timestamp) -> bool {
    sets.iter().all(|rules| {
        let named = rules.iter().filter(|rule| applies_to_reason(&rule.reasons, reason));
        let (mut allowed, mut limited) = (false, false);
        for rule in named {
            let within = rule.during.is_open_at(now);
            if !rule.allows && within {
                return false;
            }
            limited |= rule.allows;
            allowed |= rule.allows && within;
        }
        allowed || !limited
    })
}

/// Returns when disruption for this reason may start: `now` or later. `None` if no opening is
/// found.
pub fn next_opening(sets: &[&[Maintenance]], reason: Reason, now: Timestamp) -> Option<Timestamp> {
    let mut at = now;
    for _ in 0..CHANGES_MAX {
        if is_open(sets, reason, at) {
            return Some(at);
        }
        let rules = sets.iter().copied().flatten();
        let named = rules.filter(|rule| applies_to_reason(&rule.reasons, reason));
        at = named.filter_map(|rule| rule.during.next_change(at)).min()?;
    }
    None
}

#[cfg(test)]
mod tests {
    use jiff::{SignedDuration, Timestamp};

    use super::{is_open, next_opening};
    use crate::model::pool::{Maintenance, Reason};
    use crate::model::window::Window;

    fn rule(allows: bool, reasons: &[Reason], cron: &str, hours: i64) -> Maintenance {
        let hours = SignedDuration::from_hours(hours);
        Maintenance {
            allows,
            reasons: reasons.to_vec(),
            during: Window::new(cron, hours, "Europe/Berlin").expect("a window"),
        }
    }

    /// On 2026-11-23, a Monday, when Berlin is an hour ahead of UTC.
    fn check(sets: &[&[Maintenance]], reason: Reason, hour: i64, expect: Option<i64>) {
        let midnight: Timestamp = "2026-11-23T00:00:00Z".parse().expect("a time");
        let at = |hour| midnight + SignedDuration::from_hours(hour);
        assert_eq!(next_opening(sets, reason, at(hour)), expect.map(at), "{hour}");
        assert_eq!(is_open(sets, reason, at(hour)), expect == Some(hour));
    }

    #[test]
    fn disruption_is_always_allowed_without_rules() {
        check(&[], Reason::Drifted, 5, Some(5));
        check(&[&[], &[]], Reason::Empty, 5, Some(5));
    }

    #[test]
    fn disruption_is_allowed_inside_any_allowing_window() {
        let rules = [rule(true, &[], "0 2 * * *", 2), rule(true, &[], "0 20 * * *", 1)];
        for (hour, opens) in [(0, 1), (1, 1), (2, 2), (3, 19), (19, 19), (20, 25)] {
            check(&[&rules], Reason::Drifted, hour, Some(opens));
        }
    }

    #[test]
    fn denying_window_overrides_an_allowing_one() {
        let rules = [rule(true, &[], "0 2 * * *", 4), rule(false, &[], "0 2 * * *", 2)];
        for (hour, opens) in [(1, 3), (2, 3), (3, 3), (4, 4), (5, 27)] {
            check(&[&rules], Reason::Expired, hour, Some(opens));
        }
        let never = [rule(false, &[], "0 * * * *", 1)];
        check(&[&never], Reason::Expired, 5, None);
    }

    #[test]
    fn rule_applies_only_to_its_reasons() {
        let rules = [rule(true, &[Reason::Drifted], "0 2 * * *", 2)];
        check(&[&rules], Reason::Drifted, 5, Some(25));
        check(&[&rules], Reason::Empty, 5, Some(5));
        let rules = [rule(false, &[Reason::Drifted], "0 2 * * *", 2)];
        check(&[&rules], Reason::Drifted, 1, Some(3));
        check(&[&rules], Reason::Underutilized, 1, Some(1));
    }

    #[test]
    fn pool_and_cluster_windows_must_both_be_open() {
        let pool = [rule(true, &[], "0 2 * * *", 4)];
        let cluster = [rule(true, &[], "0 4 * * *", 4)];
        check(&[&pool, &cluster], Reason::Empty, 1, Some(3));
        check(&[&pool, &cluster], Reason::Empty, 4, Some(4));
        check(&[&pool, &cluster], Reason::Empty, 5, Some(27));
    }
}
